"""Run by test_summaries in a process of its own: error and peak memory of every summary at 8,192 tokens, as JSON.

python tests/measure_memory.py cuda bfloat16    # by the kernels there; on the CPU in float32 unless given
"""

import ctypes
import json
import sys
from pathlib import Path

import torch

from pellucid import ops

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from meter import peak_megabytes

N, HEADS, WIDTH = 8192, 2, 64


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


LARGEST = -3  # mallopt's M_MMAP_THRESHOLD


def main():
    device, precision = sys.argv[1:] or ("cpu", "float32")
    if sys.platform == "linux":
        # What is freed goes back at once: resident is what is held, and not what malloc keeps for later.
        ctypes.CDLL("libc.so.6").mallopt(LARGEST, 2**20)
    torch.manual_seed(0)
    dtype = getattr(torch, precision)
    q, k, v = (torch.randn(1, HEADS, N, WIDTH).to(device, dtype) for _ in range(3))
    x = torch.randn(1, HEADS, N, 4).to(device)
    at = ops.positions.grid_positions(64, 128).to(device)
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
    measured = {name: peak_megabytes(call, device) for name, call in calls.items()}
    _, whole_map = peak_megabytes(lambda: ops.attention_weights(q, k), device)
    expected = truths(q, k, v, x, at)
    report = {
        name: {"error": (result.double() - expected[name]).abs().max().item(), "megabytes": megabytes}
        for name, (result, megabytes) in measured.items()
    }
    print(json.dumps(report | {"map": {"megabytes": whole_map}}))


if __name__ == "__main__":
    main()
