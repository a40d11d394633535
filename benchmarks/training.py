"""make bench, training part: images/s of the same vision transformer in five libraries, in one run.

The same model (patches of 4 at 32², class token, learned positions), batch, loss, AdamW and precision. Peers run eager,
compiled, and on CUDA compiled with graphs; ours runs through the engine, as `pellucid train` does. Prints a report and
keeps it as benchmarks/training-DATE-DEVICE.md.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from peers import PEERS
from report import keep
from torch import Tensor, nn

from pellucid.data.augment import Augment
from pellucid.data.images import ImageSet
from pellucid.data.sources import Splits
from pellucid.models import ViT, ViTConfig
from pellucid.train import Engine, Optim, Run
from pellucid.train.classify import Classification
from pellucid.train.distributed import Processes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = {"0.26 M": (64, 5, 4), "9.5 M": (256, 12, 8)}  # width, depth, heads
BATCH = {"cuda": {"0.26 M": 1024, "9.5 M": 1024}, "cpu": {"0.26 M": 128, "9.5 M": 32}}[DEVICE.type]
MODES = ("eager", "compiled", "graphs") if DEVICE.type == "cuda" else ("eager", "compiled")


class Repeated:
    """A task that sees one batch again and again."""

    unit, score = "images", ""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor):
        self.model, self.images, self.labels = model, images, labels
        self.batch = self.epoch_size = len(images)

    def batches(self, start: int, end: int) -> Iterator[list[tuple[Any, ...]]]:
        for _ in range(start, end):
            yield [(self.images, self.labels)]

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
            logits = model(images).float()
        return F.cross_entropy(logits, labels), {}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}


def ours(size: str, mode: str, images: Tensor, labels: Tensor) -> Callable[[], Any]:
    width, depth, heads = SIZES[size]
    model = ViT(ViTConfig(width=width, depth=depth, heads=heads)).to(DEVICE)
    run = Run(batch=len(images), compile=mode != "eager", graphs=mode == "graphs", optim=Optim(warmup=0.0))
    engine = Engine(Repeated(model, images, labels), run, DEVICE)
    engine._warm_up(0)
    return lambda: engine._step(0, 100, [(images, labels)])


def theirs(build: Callable[..., nn.Module], size: str, mode: str, images: Tensor, labels: Tensor) -> Callable[[], Any]:
    model = build(*SIZES[size]).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    task = Repeated(model, images, labels)
    compiled = torch.compile(task.loss, mode="reduce-overhead" if mode == "graphs" else None)
    loss_of = task.loss if mode == "eager" else compiled

    def step() -> None:
        loss, _ = loss_of(model, images, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def rates(steps: dict[str, Callable[[], Any]], batch: int, rounds: int, budget: float) -> dict[str, float]:
    """Images a second of each, the median of rounds in which all take turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(3):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            _wait()
            begun, count = time.perf_counter(), 0
            while time.perf_counter() - begun < budget or count < 2:
                step()
                count += 1
                if DEVICE.type == "cuda" and count % 20 == 0:
                    _wait()
            _wait()
            found[name].append(count * batch / (time.perf_counter() - begun))
    return {name: statistics.median(values) for name, values in found.items()}


def data_path(size: str, rounds: int, budget: float) -> list[str]:
    """The whole loop, with images read, augmented and mixed, beside the same model on one repeated batch."""
    batch, (width, depth, heads) = BATCH[size], SIZES[size]
    torch.manual_seed(0)
    images = ImageSet(
        torch.randint(256, (20_000, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (20_000,)), tuple("0123456789")
    )
    model = ViTConfig(width=width, depth=depth, heads=heads, mean=(0.5,) * 3, std=(0.25,) * 3)
    fast = {"compile": True, "graphs": True, "precision": "bf16"} if DEVICE.type == "cuda" else {}
    augment = Augment(flip="random", crop=4, cutmix=1.0)
    run = Run(model=model, batch=batch, augment=augment, optim=Optim(warmup=0.0), **fast)
    task = Classification(run, Splits(images), DEVICE, Processes())
    real = Engine(task, run, DEVICE)
    real._warm_up(0)
    shares = task.batches(0, 1_000_000)
    torch._dynamo.reset()
    again = ours(size, "graphs" if DEVICE.type == "cuda" else "eager", *_random(batch))
    found = rates({"real": lambda: real._step(0, 100, next(shares)), "one batch": again}, batch, rounds, budget)
    ratio = found["real"] / found["one batch"]
    return [f"| {size} | {batch} | {found['real']:,.0f} | {found['one batch']:,.0f} | {ratio:.3f} |"]


def _random(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, 32, 32, device=DEVICE), torch.randint(10, (batch,), device=DEVICE)


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def compare(size: str, peers: list[str], modes: tuple[str, ...], rounds: int, budget: float) -> list[str]:
    batch = BATCH[size]
    torch.manual_seed(0)
    images, labels = _random(batch)
    steps: dict[str, Callable[[], Any]] = {}
    for mode in modes:
        makers = {"pellucid": lambda: ours(size, mode, images, labels)}
        makers |= {name: lambda name=name: theirs(PEERS[name], size, mode, images, labels) for name in peers}
        for name, make in makers.items():
            torch._dynamo.reset()
            begun = time.perf_counter()
            try:
                step = make()
                step()
                steps[f"{name}, {mode}"] = step
            except Exception as error:  # a peer that can't be compiled or isn't installed is told, not hidden
                print(f"{name}, {mode}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            print(f"  {name}, {mode}: ready after {time.perf_counter() - begun:.0f} s", flush=True)
    found = rates(steps, batch, rounds, budget)
    best = max((rate, name) for name, rate in found.items() if not name.startswith("pellucid"))
    mine = max((rate, name) for name, rate in found.items() if name.startswith("pellucid"))
    lines = [f"## {size}, batch {batch}", ""]
    lines += ["| library | " + " | ".join(modes) + " |", "| --- |" + " --- |" * len(modes)]
    for name in ("pellucid", *peers):
        cells = [f"{found[key]:,.0f}" if (key := f"{name}, {mode}") in found else "–" for mode in modes]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, "", f"pellucid at its best beside the best of the others ({best[1]}): {mine[0] / best[0]:.2f}×"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0 if DEVICE.type == "cuda" else 3.0)
    asked = parser.parse_args()
    torch.set_float32_matmul_precision("high" if DEVICE.type == "cuda" else "highest")
    torch._dynamo.config.recompile_limit = 100  # all share one loss function; beyond the limit they would run eager
    precision = "bfloat16 autocast" if DEVICE.type == "cuda" else "float32"
    lines = [f"Images a second in training, {precision}, AdamW fused, random images; median of {asked.rounds} rounds."]
    for size in asked.sizes:
        lines += ["", *compare(size, asked.peers, tuple(asked.modes), asked.rounds, asked.seconds)]
    lines += [
        "",
        "## the data path: real images, flipped, cropped and mixed, beside one repeated batch (bar: 0.95)",
        "",
    ]
    lines += ["| model | batch | real, images/s | one batch, images/s | ratio |", "| --- | --- | --- | --- | --- |"]
    for size in asked.sizes:
        lines += data_path(size, asked.rounds, asked.seconds)
    keep("training", lines, DEVICE)


if __name__ == "__main__":
    main()
