"""A run fitted to the data and the machine, where nobody asked for something else, and what it will take of both.

A recipe was made for some images and some machine. Its batch, precision and compiling are fitted to those that are
here, unless they were asked for; what makes no sense is refused before an image is decoded.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.config import parse_json
from pellucid.data.sources import list_images
from pellucid.devices import memory_of, resident_memory
from pellucid.processes import Processes
from pellucid.runs import ClassifierRun, Run, TranslatorRun
from pellucid.training.optim import make_optimizers, set_rate
from pellucid.training.task import Task

Choices = AbstractSet[str] | None  # fields that somebody asked for, as "data.size"; None for all of them

MOST_TOKENS = 1024  # of an image, unless its patches were asked for
FEWEST_STEPS = 8  # of an epoch
SMALLEST = 16  # images in a batch
LONG_ENOUGH = 0.1  # seconds of a trial that can be believed
SURE = 1.0  # seconds of a trial that need no second one
BACKWARD = 1.15  # times what the forward pass keeps: the gradients on their way, measured on a CPU
ROOM = 0.9  # share of the memory that a step may take


def is_chosen(choices: Choices, name: str) -> bool:
    return choices is None or name in choices


def check_tokens(run: ClassifierRun, choices: Choices, size: tuple[int, int]) -> None:
    """Refuse patches that are tiny beside images of this size, before those are decoded."""
    tokens = count_patches(size, run.model.patch)
    if tokens <= MOST_TOKENS or is_chosen(choices, "model.patch"):
        return
    side = max(2 ** round(math.log2(max(size) / 14)), 2)
    better = f"--model.patch {side} {side} makes {count_patches(size, (side, side)):,} tokens"
    raise ValueError(
        f"images of {size[0]} × {size[1]} pixels in patches of {run.model.patch[0]} × {run.model.patch[1]} are "
        f"{tokens:,} tokens each; give larger patches ({better}), or a smaller --data.size"
    )


def count_patches(size: tuple[int, int], patch: tuple[int, int]) -> int:
    return math.prod(side // step for side, step in zip(size, patch, strict=True))


def fit_held_out(run: ClassifierRun, choices: Choices) -> ClassifierRun:
    """The run with as many images held out as suit its data, where that isn't the recipe's own.

    None of files that have validation images or no splits, of which a tenth is held out by name; a tenth of others.
    None beside folds: one of them is held out.
    """
    if choices is None or "data.held_out" in choices:
        return run
    if "data.folds" in choices:
        return replace(run, data=replace(run.data, held_out=0))
    if "data.name" not in choices or "data.fold" in choices:
        return run
    listing = list_images(run.data)
    if listing is None:
        return run
    has_validation = not listing.is_split or "validation" in listing.splits
    held_out = 0 if has_validation else max(1, len(listing.splits["train"]) // 10)
    return replace(run, data=replace(run.data, held_out=held_out))


def fit_run(run: Any, choices: Choices, images: int, device: torch.device, world: int = 1) -> Any:
    """The run with its batch, precision and compiling fitted to so many images and this device.

    An epoch has eight steps or more. On a CPU nothing is compiled, which takes minutes there, and bf16, which it
    mostly computes more slowly, is float32.

    >>> recipe = ClassifierRun(batch=1024, precision="bf16", compile=True)
    >>> fitted = fit_run(recipe, {"precision"}, 477, torch.device("cpu"))
    >>> fitted.batch, fitted.precision, fitted.compile
    (32, 'bf16', False)
    """
    changes: dict[str, Any] = {}
    most = max(SMALLEST, 1 << int(math.log2(max(1, images // FEWEST_STEPS))))
    if run.batch > most and not isinstance(run, TranslatorRun):
        unit = 2 * world * run.accumulate  # pairs are mixed
        changes["batch"] = min(run.batch, -(-most // unit) * unit)
    if device.type == "cpu":
        changes |= {"precision": "float32", "compile": False, "graphs": False}
    return replace(run, **{name: value for name, value in changes.items() if not is_chosen(choices, name)})


@dataclass(frozen=True)
class Outlook:
    """What a step will take, as a trial with a few images says it. seconds: of a step. memory: bytes; on a CPU of the
    whole process.

    fixed: bytes that don't shrink when a step is computed in parts.
    """

    seconds: float
    memory: int
    fixed: int


def look_ahead(task: Task, run: Run, device: torch.device) -> Outlook:
    """Try a forward and a backward pass on as few images as can be timed; nothing is changed by it."""
    begun = time.perf_counter()
    parts = next(iter(task.batches(9, 10)))  # no step sees larger images than the last ones
    reading = time.perf_counter() - begun
    fixed = count_fixed(task, run, device)
    size, there, rows = len(parts[0][0]), memory_of(device), min(2, len(parts[0][0]))
    with leaving_no_trace(task.model, device):
        _try(task, parts[0], rows, device)  # the first one is slower
        while True:
            seconds, kept = _try(task, parts[0], rows, device)
            if seconds > LONG_ENOUGH or rows == size or fixed + 2 * kept > ROOM * there:
                break
            rows = min(2 * rows, size)
        if seconds < SURE:  # something else may have run just then
            seconds = min(seconds, _try(task, parts[0], rows, device)[0])
        moving = time_of_moving(task, run, device)
        if device.type == "cpu":
            kept = int(BACKWARD * kept)
            fixed = max(fixed, resident_memory() + count_remembered(task, run))
    seconds = seconds * size / rows * len(parts) + moving
    return Outlook(max(reading, seconds), fixed + kept * size // rows, fixed)


def time_of_moving(task: Task, run: Run, device: torch.device) -> float:
    """Seconds in which the optimizers move the weights by the gradients that are there: here, by nothing."""
    weights = [p.detach().clone() for p in task.model.parameters()]
    optimizers = make_optimizers(task.model, run.optim, run.tune)
    set_rate(optimizers, 0.0, 1.0)
    times = []
    for _ in range(2):  # the first one makes its memory
        begun = time.perf_counter()
        for optimizer in optimizers:
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
    with torch.no_grad():
        for p, weight in zip(task.model.parameters(), weights, strict=True):
            p.copy_(weight)
    return times[-1]


def count_fixed(task: Task, run: Run, device: torch.device) -> int:
    """Bytes of weights, gradients, the optimizer's memory and images that lie on the device."""
    stored = getattr(getattr(task, "loader", None), "stored", None)
    data = 0 if stored is None else stored.numel() * stored.element_size()
    return 2 * count_weights(task) + count_remembered(task, run) + data


def count_weights(task: Task) -> int:
    return sum(p.numel() * p.element_size() for p in task.model.parameters())


def count_remembered(task: Task, run: Run) -> int:
    """Bytes of the optimizer's memory, and of the weights' average."""
    return count_weights(task) * ({"adamw": 2, "muon": 1, "sgd": 1}[run.optim.name] + (run.optim.ema > 0))


def fit_parts(run: Any, choices: Choices, outlook: Outlook, rows: int, device: torch.device) -> Any:
    """The run with each step in as many parts as its memory needs; a sentence if even one image is too much.

    rows: what one part holds now, in this process.
    """
    there, needed = ROOM * memory_of(device), outlook.memory
    times = 1
    while needed > there and rows % (2 * times) == 0 and not is_chosen(choices, "accumulate"):
        times *= 2
        needed = outlook.fixed + (outlook.memory - outlook.fixed) // times
    if needed > there:
        raise ValueError(
            f"a step would take about {needed / 1e9:,.1f} GB of memory, and there are {there / ROOM / 1e9:,.1f} GB; "
            "use a smaller --batch, more parts (--accumulate), smaller images or a smaller model"
        )
    return replace(run, accumulate=run.accumulate * times) if times > 1 else run


def _try(task: Task, part: tuple[Any, ...], rows: int, device: torch.device) -> tuple[float, int]:
    """Seconds of a pass over the first rows of a batch, and bytes that the forward pass keeps for the backward one."""
    few = [tensor[:rows] if tensor.ndim else tensor for tensor in part]
    owned = {p.untyped_storage().data_ptr() for p in task.model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    begun = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss, _ = task.loss(task.model, *few)
    loss.backward()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun, sum(kept.values())


@contextmanager
def leaving_no_trace(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Random numbers, buffers and gradients are afterwards what they were."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    training = model.training
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        model.train()
        yield
    model.train(training)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    for p in model.parameters():
        p.grad = None


def settle_task(
    run: Any, choices: Choices, device: torch.device, processes: Processes, make: Callable[[Any], Any]
) -> tuple[Any, Any, Outlook]:
    """The run in so many parts that its steps fit into memory, its task, and what a step of it takes."""
    task = make(run)
    outlook = look_ahead(task, run, device)
    fitted, problem = run, ""
    try:
        fitted = fit_parts(run, choices, outlook, task.batch // (run.accumulate * processes.world), device)
    except ValueError as error:
        problem = str(error)
    parts, problem = parse_json(
        processes.share(json.dumps([fitted.accumulate, problem])), "what the first process says"
    )
    if problem:
        raise ValueError(problem)
    if parts == run.accumulate:
        return run, task, outlook
    fitted = replace(run, accumulate=parts)
    return fitted, make(fitted), outlook
