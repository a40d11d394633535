"""What attention costs: time and memory over the number of tokens."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pellucid.lab.frame import Case, Claim, Experiment, Result, exponent, seeded
from pellucid.lab.panels import Curves, line
from pellucid.ops import attend, column_mass


@dataclass(frozen=True)
class Cost:
    """Which numbers of tokens, of which width."""

    tokens: tuple[int, ...] = (512, 1024, 2048, 4096)
    """Numbers of tokens."""
    width: int = 64
    """Of queries, keys and values, in one head."""
    repeats: int = 3
    """How often each is timed; the fastest counts."""
    seed: int = 0
    """Of queries, keys and values."""


def peak(function: Callable[[], Any]) -> int:
    """Bytes that were allocated at most, at one time, while the function ran."""
    with hushed(), profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        function()
    assert seen.profiler is not None
    assert seen.profiler.kineto_results is not None
    live = highest = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            highest = max(highest, live)
    return highest


def seconds(function: Callable[[], Any], repeats: int) -> float:
    """The fastest of some calls."""
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        found.append(time.perf_counter() - started)
    return min(found)


@contextmanager
def hushed() -> Iterator[None]:
    """The profiler writes that it starts and stops, whatever one asks for."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@torch.no_grad()
def cost(p: Cost) -> Result:
    """The formula, the fused kernel, and a summary of the map that is never built."""
    times: dict[str, list[float]] = {"reference": [], "fused": [], "column mass": []}
    memory: dict[str, list[float]] = {name: [] for name in times}
    with seeded(p.seed):
        for n in p.tokens:
            q, k, v = torch.randn(3, 1, 1, n, p.width)
            calls: dict[str, Callable[[], Any]] = {
                "reference": lambda q=q, k=k, v=v: attend(q, k, v, impl="reference"),
                "fused": lambda q=q, k=k, v=v: attend(q, k, v, impl="fused"),
                "column mass": lambda q=q, k=k: column_mass(q, k),
            }
            for name, call in calls.items():
                memory[name].append(peak(call) / 2**20)
                times[name].append(seconds(call, p.repeats))
    x = [float(n) for n in p.tokens]
    grows = {name: {"time": exponent(x, times[name]), "memory": exponent(x, memory[name])} for name in times}
    claims = (
        Claim(
            "cost.map",
            "Building the map takes memory that grows as N².",
            "true",
            "≥",
            1.8,
            holds=(Case("exponent of the peak memory of the formula", grows["reference"]["memory"]),),
            twin=Case("of the fused kernel", grows["fused"]["memory"]),
        ),
        Claim(
            "cost.fused_memory",
            "The fused kernel's memory grows as N at most.",
            "true",
            "≤",
            1.2,
            holds=(Case("exponent of the peak memory", grows["fused"]["memory"]),),
            twin=Case("of the formula", grows["reference"]["memory"]),
        ),
        Claim(
            "cost.summary_memory",
            "What each key receives from all queries can be known in memory that grows as N at most.",
            "true",
            "≤",
            1.2,
            holds=(Case("exponent of the peak memory of column_mass", grows["column mass"]["memory"]),),
            twin=Case("of building the map", grows["reference"]["memory"]),
        ),
        Claim(
            "cost.fused_time",
            "The fused kernel makes attention linear: its time grows as N.",
            "false",
            "≤",
            1.3,
            breaks=(Case("exponent of its time", grows["fused"]["time"]),),
            twin=Case("exponent of its memory", grows["fused"]["memory"]),
            truth="It computes all N² scores and keeps none: memory is linear, time is not.",
        ),
    )
    panels = (
        Curves(
            "time of one head",
            "tokens N",
            "seconds",
            tuple(line(f"{n}: N^{grows[n]['time']:.2f}", x, times[n]) for n in times),
            log="xy",
        ),
        Curves(
            "peak memory of one head",
            "tokens N",
            "MiB allocated",
            tuple(line(f"{n}: N^{grows[n]['memory']:.2f}", x, memory[n]) for n in memory),
            log="xy",
        ),
    )
    numbers = {f"{name}: exponent of {what}": value for name, found in grows.items() for what, value in found.items()}
    numbers |= {f"{name}: MiB at {p.tokens[-1]} tokens": values[-1] for name, values in memory.items()}
    numbers |= {f"{name}: seconds at {p.tokens[-1]} tokens": values[-1] for name, values in times.items()}
    return Result(numbers, panels, claims)


EXPERIMENTS = (
    Experiment(
        name="cost",
        title="Time and memory",
        statement="All ways to compute attention take time N²; only the formula takes memory N².",
        formula="time = 4·N²·d operations; memory = N² weights for the formula, blocks of rows or tiles otherwise",
        predict="Twice as many tokens: how much more time, and how much more memory, with the map and without it?",
        fails="Small N hides the exponent behind what every call costs; blocks of a fixed size look like no growth "
        "at all. Times "
        "are of this machine, now.",
        parameters=Cost,
        run=cost,
        shown=(peak, seconds),
    ),
)
