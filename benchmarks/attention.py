"""make bench, attention part: the seam and summaries, each beside what it is compared with, in one run.

Prints a report and keeps it in results/attention-DEVICE.json.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from meter import duel, peak_megabytes, seconds
from report import Column, Table, keep

from pellucid import ops
from pellucid.ops import tiled

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = bool(os.environ.get("TINY"))  # to see whether all of it starts
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
HEADS, WIDTH = 8, 64
# tokens → batch: about the same work for each
SIZES = {197: 1024, 1024: 32, 4096: 8, 16_384: 2, 65_536: 1} if DEVICE == "cuda" else {197: 16, 1024: 2, 4096: 1}
if TINY:
    SIZES = {100: 2, 200: 1}
EAGER_LIMIT = 16_384  # beyond it the map doesn't fit


def tensors(n: int) -> list[torch.Tensor]:
    return [torch.randn(SIZES[n], HEADS, n, WIDTH, device=DEVICE, dtype=DTYPE) for _ in range(3)]


def seam() -> Table:
    rows = []
    for n, b in SIZES.items():
        q, k, v = tensors(n)
        mask = ops.masks.padding(torch.randint(n // 2, n + 1, (b,), device=DEVICE), n)
        calls = {
            "none": (lambda: ops.attend(q, k, v), lambda: F.scaled_dot_product_attention(q, k, v)),
            "causal": (
                lambda: ops.attend(q, k, v, causal=True),
                lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            ),
            "padding": (
                lambda: ops.attend(q, k, v, mask),
                lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
            ),
        }
        if DEVICE == "cuda":
            calls["padding, impl='triton'"] = (lambda: ops.attend(q, k, v, mask, impl="triton"), calls["padding"][1])
        for name, (ours, theirs) in calls.items():
            mine, bare, ratio = duel(ours, theirs, budget=0.1 if TINY else 1.5 if DEVICE == "cuda" else 4.0)
            row = {"tokens": n, "batch": b, "mask": name, "attend": 1e3 * mine, "SDPA": 1e3 * bare, "ratio": ratio}
            rows.append(row)
    columns = {"tokens": Column(), "batch": Column(), "mask": Column(), "attend": Column("ms", 2)}
    columns |= {"SDPA": Column("ms", 2), "ratio": Column("×", 3)}
    return Table("attend beside bare SDPA (bar: at most 1.05× at 197 tokens and more)", columns, rows)


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What other tools do to show a map: build it."""
    weights = (q @ k.mT * WIDTH**-0.5).softmax(-1)
    return weights @ v, weights


def summaries() -> Table:
    rows = []
    for n, b in SIZES.items():
        q, k, v = tensors(n)
        at = ops.positions.grid_positions(1, n, device=DEVICE)
        layer = _Layer(q, k)
        calls = {
            "eager attention with maps": lambda: eager(q, k, v),
            "attend (no map)": lambda: ops.attend(q, k, v),
            "row": lambda: ops.row(q, k, 0),
            "column_mass": lambda: ops.column_mass(q, k),
            "column_mass, impl='fused'": lambda: ops.column_mass(q, k, impl="fused"),
            "entropy": lambda: ops.entropy(q, k),
            "mean_distance": lambda: ops.mean_distance(q, k, at),
            "topk (5)": lambda: ops.topk(q, k, 5),
            "P·x": lambda: ops.apply(q, k, v),
            "Pᵀ·x": lambda: ops.apply_transposed(q, k, v),
            "rollout, one layer": lambda: ops.rollout([layer], 0),
            "rollout, one layer, impl='fused'": lambda: ops.rollout([layer], 0, impl="fused"),
        }
        if DEVICE == "cuda":  # elsewhere blocks are what is taken
            calls["column_mass, impl='blocks'"] = lambda: ops.column_mass(q, k, impl="blocks")
            calls["entropy, impl='blocks'"] = lambda: ops.entropy(q, k, impl="blocks")
            totals = tiled.total_rows(q, k, None, WIDTH**-0.5, False)
            calls["column_mass, the totals known"] = lambda: ops.column_mass(q, k, totals=totals)
            calls["Pᵀ·x, the totals known"] = lambda: ops.apply_transposed(q, k, v, totals=totals)
        times: dict[str, float] = {}
        for name, call in calls.items():
            row = {"tokens": n, "batch": b, "what": name, "time": None, "beside": None, "extra memory": None}
            rows.append(row)
            if name.startswith("eager") and n > EAGER_LIMIT:
                continue
            call()
            megabytes = peak_megabytes(call, DEVICE)[1]
            times[name] = middle(call)
            row |= {"time": 1e3 * times[name], "extra memory": megabytes}
        for row in rows[-len(calls) :]:
            if row["time"] is not None:
                row["beside"] = times[row["what"]] / times["attend (no map)"]
    columns = {"tokens": Column(), "batch": Column(), "what": Column(), "time": Column("ms", 2)}
    columns |= {"beside": Column("×", 2), "extra memory": Column("MB")}
    return Table(
        "summaries, from q and k alone, beside attend, and eager attention that builds the maps", columns, rows
    )


def middle(call: Callable[[], Any]) -> float:
    """Seconds of a call, the median of five, or of as many as fit into half a second."""
    first = seconds(call)
    rounds = max(5, min(50, int(0.5 / first))) if DEVICE == "cuda" else 5
    return sorted([first, *(seconds(call) for _ in range(rounds - 1))])[rounds // 2]


class _Layer:
    mask, beta, causal = None, None, False

    def __init__(self, q: torch.Tensor, k: torch.Tensor):
        self.q, self.k = q, k


def main() -> None:
    torch.manual_seed(0)
    tables = {}
    for part in (seam, summaries):
        print(f"{part.__name__} …", flush=True)
        tables[part.__name__] = part()
    settings = {"precision": str(DTYPE).removeprefix("torch."), "heads": HEADS, "width of a head": WIDTH}
    notes = f"Eager attention of more than {EAGER_LIMIT:,} tokens is left out: a map of 65,536 takes 64 GiB."
    keep("tiny" if TINY else "attention", tables, torch.device(DEVICE), seeds=[0], settings=settings, notes=notes)


if __name__ == "__main__":
    main()
