"""make bench, training part: images/s of the same vision transformer in five libraries, in one run.

The same model (patches of 4 at 32², class token, learned positions), batch, loss, AdamW and precision. Peers run eager,
compiled, and on CUDA compiled with graphs; ours runs through the engine, as `pellucid train` does. On the CPU that has
the C library keep freed memory, so the peers run as they come and then in that way too, beside ours each time. Each is
a process of its own, and they take turns. Prints a report and keeps it in results/training-DEVICE.json.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F
from peers import PEERS
from report import Column, Table, keep
from torch import Tensor, multiprocessing, nn

from pellucid.data.augment import Augment
from pellucid.data.images import ImageSet
from pellucid.data.sources import Splits
from pellucid.models import ViT, ViTConfig
from pellucid.runs import ClassifierRun, Optim, Run
from pellucid.training import Engine
from pellucid.training.classify import Classification
from pellucid.training.distributed import Processes
from pellucid.training.memory import keep_freed_memory

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = {"0.26 M": (64, 5, 4), "9.5 M": (256, 12, 8)}  # width, depth, heads
BATCH = {"cuda": {"0.26 M": 1024, "9.5 M": 1024}, "cpu": {"0.26 M": 128, "9.5 M": 32}}[DEVICE.type]
MODES = ("eager", "compiled", "graphs") if DEVICE.type == "cuda" else ("eager", "compiled")
KEPT = ", memory kept"
HEATS = ("",) if DEVICE.type == "cuda" else ("", KEPT)  # what is added to the name of a mode: how memory is treated
AT_ONCE = 8 if DEVICE.type == "cuda" else 2  # contestants that make themselves ready at the same time


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


def warm(step: Callable[[], Any]) -> None:
    for _ in range(3):
        step()


def rate(step: Callable[[], Any], batch: int, budget: float) -> float:
    """Images a second in one turn."""
    _wait()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < budget or count < 2:
        step()
        count += 1
        if DEVICE.type == "cuda" and count % 20 == 0:
            _wait()
    _wait()
    return count * batch / (time.perf_counter() - begun)


class Contestant:
    """One library in one mode, in a process of its own: what others leave behind in theirs doesn't touch it."""

    def __init__(self, name: str, mode: str, size: str):
        self.title = f"{name}, {mode}"
        context = multiprocessing.get_context("spawn")
        self.line, other = context.Pipe()
        self.process = context.Process(target=self._compete, args=(name, mode, size, other), daemon=True)
        self.process.start()

    @staticmethod
    def _compete(name: str, mode: str, size: str, line: Connection) -> None:
        begun = time.perf_counter()
        try:
            _set_up()
            images, labels = _random(BATCH[size])
            if name == "pellucid":
                step = ours(size, mode, images, labels)
            else:
                step = theirs(PEERS[name], size, mode, images, labels)
            warm(step)
        except Exception as error:  # a peer that can't be compiled or isn't installed is told, not hidden
            line.send(f"{type(error).__name__}: {str(error).splitlines()[0]}")
            return
        _make_room()
        line.send(time.perf_counter() - begun)
        while budget := line.recv():
            if budget == KEPT:
                line.send(keep_freed_memory())
                continue
            step()
            images = rate(step, BATCH[size], budget)
            _make_room()
            line.send(images)

    def ready(self) -> bool:
        answer = self.line.recv()
        fine = isinstance(answer, float)
        print(f"  {self.title}: {f'ready after {answer:.0f} s' if fine else answer}", flush=True)
        return fine

    def turn(self, budget: float) -> float:
        self.line.send(budget)
        return self.line.recv()

    def keep_memory(self) -> None:
        """From now on."""
        self.line.send(KEPT)
        self.line.recv()

    def leave(self) -> None:
        self.line.send(0.0)
        self.process.join()


def contest(size: str, names: list[str], modes: list[str], rounds: int, budget: float) -> dict[str, float]:
    """Images a second of each, the median of rounds in which all take turns, and again with freed memory kept."""
    entries = [(name, mode) for mode in modes for name in names]
    contestants: list[Contestant] = []
    while entries:
        new = [Contestant(name, mode, size) for name, mode in entries[:AT_ONCE]]
        contestants += [one for one in new if one.ready()]
        del entries[:AT_ONCE]
    rates: dict[str, list[float]] = {one.title + heat: [] for heat in HEATS for one in contestants}
    for heat in HEATS:
        if heat:
            for one in contestants:
                one.keep_memory()
        for _ in range(rounds):
            for one in contestants:
                rates[one.title + heat].append(one.turn(budget))
    for one in contestants:
        one.leave()
    return {title: statistics.median(values) for title, values in rates.items()}


def data_path(size: str, rounds: int, budget: float) -> dict[str, Any]:
    """The whole loop, with images read, augmented and mixed, beside the same model on one repeated batch."""
    batch, (width, depth, heads) = BATCH[size], SIZES[size]
    torch.manual_seed(0)
    images = ImageSet(
        torch.randint(256, (20_000, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (20_000,)), tuple("0123456789")
    )
    model = ViTConfig(width=width, depth=depth, heads=heads, mean=(0.5,) * 3, std=(0.25,) * 3)
    fast = {"compile": True, "graphs": True, "precision": "bf16"} if DEVICE.type == "cuda" else {}
    augment = Augment(flip="random", crop=4, cutmix=1.0)
    run = ClassifierRun(model=model, batch=batch, augment=augment, optim=Optim(warmup=0.0), **fast)
    task = Classification(run, Splits(images), DEVICE, Processes())
    real = Engine(task, run, DEVICE)
    real._warm_up(0)
    shares = task.batches(0, 1_000_000)
    torch._dynamo.reset()
    again = ours(size, "graphs" if DEVICE.type == "cuda" else "eager", *_random(batch))
    steps = (lambda: real._step(0, 100, next(shares)), again)
    for step in steps:
        warm(step)
    turns = [[rate(step, batch, budget) for step in steps] for _ in range(rounds)]
    fed, repeated = (statistics.median(rates) for rates in zip(*turns, strict=True))
    return {"model": size, "batch": batch, "real": fed, "one batch": repeated, "ratio": fed / repeated}


def _random(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, 32, 32, device=DEVICE), torch.randint(10, (batch,), device=DEVICE)


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def _make_room() -> None:
    """Leave the GPU's memory to those whose turn it is."""
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()


def _set_up() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if DEVICE.type == "cuda" else "highest")


def libraries(size: str, rates: dict[str, float], peers: list[str], modes: list[str]) -> Table:
    rows = [{"library": name} | {mode: rates.get(f"{name}, {mode}") for mode in modes} for name in ("pellucid", *peers)]
    columns = {"library": Column()} | {mode: Column("images/s") for mode in modes}
    return Table(f"images a second in training, {size} parameters, batch {BATCH[size]}", columns, rows)


def best(size: str, rates: dict[str, float]) -> list[dict[str, Any]]:
    """pellucid at its best beside the best of the others in the same rounds: as they come, and with memory kept."""
    rows = []
    for heat, kind in zip(HEATS, ("as they come", "with memory kept"), strict=False):
        beside = [(rate, title) for title, rate in rates.items() if title.endswith(KEPT) == bool(heat)]
        ours = max(rate for rate, title in beside if title.startswith("pellucid"))
        theirs, title = max(each for each in beside if not each[1].startswith("pellucid"))
        row = {"model": size, "batch": BATCH[size], "others": kind, "best of the others": title}
        rows.append(row | {"ours": ours, "theirs": theirs, "ratio": ours / theirs})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0 if DEVICE.type == "cuda" else 3.0, help="of a turn")
    options = parser.parse_args()
    _set_up()
    tables, ratios = {}, []
    for size in options.sizes:
        rates = contest(size, ["pellucid", *options.peers], options.modes, options.rounds, options.seconds)
        shown = [mode + heat for heat in HEATS for mode in options.modes]
        tables[size] = libraries(size, rates, options.peers, shown)
        ratios += best(size, rates)
    # short turns: a machine's pace drifts
    paths = [data_path(size, 4 * options.rounds, options.seconds / 4) for size in options.sizes]
    rate, ratio = Column("images/s"), Column("×", 2)
    columns = {"model": Column(), "batch": Column(), "others": Column(), "best of the others": Column()}
    columns |= {"ours": rate, "theirs": rate, "ratio": ratio}
    tables["best"] = Table("pellucid at its best beside the best of the others", columns, ratios)
    columns = {"model": Column(), "batch": Column(), "real": rate, "one batch": rate, "ratio": Column("×", 3)}
    about = "real images, flipped, cropped and mixed, beside one repeated batch (bar: 0.95)"
    tables["data path"] = Table(about, columns, paths)
    cpu = DEVICE.type == "cpu"
    notes = "pellucid has the C library keep freed memory; the others are shown without and with that." if cpu else ""
    settings = {"precision": "float32" if cpu else "bfloat16 autocast", "optimizer": "AdamW, fused"}
    settings |= {"images": "random", "rounds": options.rounds}
    names = ("timm", "vit-pytorch", "transformers")
    keep("training", tables, DEVICE, seeds=[0], settings=settings, notes=notes, libraries=names)


if __name__ == "__main__":
    main()
