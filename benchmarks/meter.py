"""Time and memory, measured side by side: these machines are noisy, so only ratios inside one run count."""

import ctypes
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MEGABYTE = 2**20


def seconds(function: Callable[[], Any]) -> float:
    """One call, with the device's work finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def duel(ours: Callable[[], Any], theirs: Callable[[], Any], *, budget: float = 4.0) -> tuple[float, float, float]:
    """Median seconds of each and the median of their ratios, called in turns for about `budget` seconds."""
    for function in (ours, theirs, ours, theirs):
        function()
    rounds = max(7, min(400, int(budget / max(1e-6, seconds(ours) + seconds(theirs)))))
    pairs = []
    for i in range(rounds):  # who goes first alternates: the second finds the caches warm
        if i % 2:
            pairs.append((seconds(ours), seconds(theirs)))
        else:
            second = seconds(theirs)
            pairs.append((seconds(ours), second))
    a, b = zip(*pairs, strict=True)
    return statistics.median(a), statistics.median(b), statistics.median(x / y for x, y in pairs)


def peak_megabytes(function: Callable[[], Any], device: str = "cpu") -> tuple[Any, float]:
    """The result, and how far the device's memory grew at most while it was made."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = function()
        torch.cuda.synchronize()
        return result, (torch.cuda.max_memory_allocated() - before) / MEGABYTE
    if sys.platform != "linux":
        return function(), float("nan")
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier calls have freed must not hide what this one takes
    before, highest, done = _resident(), [0.0], threading.Event()

    def sample() -> None:
        while not done.is_set():
            highest[0] = max(highest[0], _resident())
            time.sleep(0.001)

    sampler = threading.Thread(target=sample)
    sampler.start()
    result = function()
    highest[0] = max(highest[0], _resident())
    done.set()
    sampler.join()
    return result, highest[0] - before


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / MEGABYTE
