"""Run by test_summaries in a process of its own: error and peak memory of every summary at 8,192 tokens, as JSON."""

import ctypes
import json
import threading
import time
from pathlib import Path

import torch

from pellucid import ops

N, HEADS, WIDTH = 8192, 2, 64
MEGABYTE = 2**20


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / MEGABYTE


def peak_of(function):
    """The result, and the largest growth of resident memory while it was made, sampled every millisecond."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier calls have freed must not hide what this one takes
    before, highest, done = resident(), [0.0], threading.Event()

    def sample():
        while not done.is_set():
            highest[0] = max(highest[0], resident())
            time.sleep(0.001)

    sampler = threading.Thread(target=sample)
    sampler.start()
    result = function()
    highest[0] = max(highest[0], resident())
    done.set()
    sampler.join()
    return result, highest[0] - before


def truths(q, k, v, x, at):
    """The same quantities in float64, 128 rows of the map at a time."""
    kept = {name: [] for name in ("entropy", "mean_distance", "topk", "apply")}
    mass, back = 0.0, 0.0
    q, k, v, x, at = (t.double() for t in (q, k, v, x, at))
    for start in range(0, N, 128):
        rows = slice(start, start + 128)
        p = (q[:, :, rows] @ k.mT / WIDTH**0.5).softmax(-1)
        mass, back = mass + p.sum(2), back + p.mT @ x[:, :, rows]
        kept["entropy"].append(-(p * p.log()).sum(-1))
        kept["mean_distance"].append((p * torch.cdist(at[rows], at)).sum(-1))
        kept["topk"].append(p.topk(5).values)
        kept["apply"].append(p @ v)
    found = {name: torch.cat(parts, 2) for name, parts in kept.items()}
    row = (q[:, :, 77:78] @ k.mT / WIDTH**0.5).softmax(-1)[:, :, 0]
    return found | {"row": row, "column_mass": mass, "apply_transposed": back}


def main():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, N, WIDTH) for _ in range(3))
    x = torch.randn(1, HEADS, N, 4)
    at = ops.positions.grid_positions(64, 128)
    ops.column_mass(q[:, :, :256], k[:, :, :256])  # libraries load and threads start before anything is measured
    ops.apply(q[:, :, :256], k[:, :, :256], v[:, :, :256])
    torch.cdist(at[:300].double(), at.double())
    calls = {
        "row": lambda: ops.row(q, k, 77),
        "column_mass": lambda: ops.column_mass(q, k),
        "entropy": lambda: ops.entropy(q, k),
        "mean_distance": lambda: ops.mean_distance(q, k, at),
        "topk": lambda: ops.topk(q, k, 5).weights,
        "apply": lambda: ops.apply(q, k, v),
        "apply_transposed": lambda: ops.apply_transposed(q, k, x),
    }
    measured = {name: peak_of(call) for name, call in calls.items()}
    _, whole_map = peak_of(lambda: ops.attention_weights(q, k))
    expected = truths(q, k, v, x, at)
    report = {
        name: {"error": (result.double() - expected[name]).abs().max().item(), "megabytes": megabytes}
        for name, (result, megabytes) in measured.items()
    }
    print(json.dumps(report | {"map": {"megabytes": whole_map}}))


if __name__ == "__main__":
    main()
