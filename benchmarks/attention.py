"""make bench, attention part: the seam, watching and summaries, each beside what it is compared with, in one run.

Prints a report and keeps it as benchmarks/attention-DATE-DEVICE.md.
"""

import torch
import torch.nn.functional as F
from meter import duel, peak_megabytes, seconds
from report import keep
from torch import nn

from pellucid import ops
from pellucid.layers import EncoderBlock, watch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
HEADS, WIDTH = 8, 64
# tokens → batch: about the same work for each
SIZES = {197: 1024, 1024: 32, 4096: 8, 16_384: 2, 65_536: 1} if DEVICE == "cuda" else {197: 16, 1024: 2, 4096: 1}
EAGER_LIMIT = 16_384  # beyond it the map doesn't fit


def tensors(n: int) -> list[torch.Tensor]:
    return [torch.randn(SIZES[n], HEADS, n, WIDTH, device=DEVICE, dtype=DTYPE) for _ in range(3)]


def seam() -> list[str]:
    lines = ["## attend against bare SDPA (bar: at most 1.05× at 197 tokens and more)", ""]
    lines += ["| tokens | batch | mask | attend | SDPA | ratio |", "| --- | --- | --- | --- | --- | --- |"]
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
        for name, (ours, theirs) in calls.items():
            a, c, ratio = duel(ours, theirs)
            lines.append(f"| {n:,} | {b} | {name} | {a * 1e3:.2f} ms | {c * 1e3:.2f} ms | {ratio:.3f} |")
    return lines


def watching() -> list[str]:
    lines = ["## a 12 × 256 encoder, watched against unwatched (bar: at most 1.10×)", ""]
    lines += ["| tokens | batch | watched | unwatched | ratio |", "| --- | --- | --- | --- | --- |"]
    encoder = nn.Sequential(*(EncoderBlock(256, 8, norm="pre") for _ in range(12))).to(DEVICE, DTYPE).eval()
    for n, b in ((65, 192), (197, 64), (1024, 8)) if DEVICE == "cuda" else ((65, 1), (65, 32), (197, 8)):
        x = torch.randn(b, n, 256, device=DEVICE, dtype=DTYPE)

        def watched(x: torch.Tensor = x) -> None:
            with watch(encoder):
                encoder(x)

        def plain(x: torch.Tensor = x) -> None:
            encoder(x)

        with torch.no_grad():
            a, c, ratio = duel(watched, plain, budget=45.0)
        lines.append(f"| {n:,} | {b} | {a * 1e3:.1f} ms | {c * 1e3:.1f} ms | {ratio:.3f} |")
    return lines


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What other tools do to show a map: build it."""
    weights = (q @ k.mT * WIDTH**-0.5).softmax(-1)
    return weights @ v, weights


def summaries() -> list[str]:
    lines = ["## summaries, from q and k alone, beside eager attention that builds the maps", ""]
    lines += ["| tokens | batch | what | time | extra memory |", "| --- | --- | --- | --- | --- |"]
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
            "rollout, one layer": lambda: ops.rollout([layer], 0),
            "rollout, one layer, impl='fused'": lambda: ops.rollout([layer], 0, impl="fused"),
        }
        for name, call in calls.items():
            if name.startswith("eager") and n > EAGER_LIMIT:
                lines.append(f"| {n:,} | {b} | {name} | – | {b * HEADS * n * n * 2 / 2**30:,.0f} GiB a map |")
                continue
            call()
            time = sorted(seconds(call) for _ in range(5))[2]
            megabytes = peak_megabytes(call, DEVICE)[1]
            lines.append(f"| {n:,} | {b} | {name} | {time * 1e3:.2f} ms | {megabytes:,.0f} MB |")
    return lines


class _Layer:
    mask, beta, causal = None, None, False

    def __init__(self, q: torch.Tensor, k: torch.Tensor):
        self.q, self.k = q, k


def main() -> None:
    torch.manual_seed(0)
    lines = [f"{str(DTYPE).removeprefix('torch.')}, {HEADS} heads × {WIDTH}"]
    for part in (seam, watching, summaries):
        print(f"{part.__name__} …", flush=True)
        lines += ["", *part()]
    keep("attention", lines, torch.device(DEVICE))


if __name__ == "__main__":
    main()
