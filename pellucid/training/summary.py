"""What a training run is about to do, in a few lines, before it does it: data, model, machine, time and memory."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from pellucid.data.listings import some
from pellucid.models import ViT
from pellucid.processes import Processes
from pellucid.runs import Run
from pellucid.runs.config import Duration
from pellucid.training.fitting import Outlook
from pellucid.training.task import Task
from pellucid.training.tuning import count_trained

FITTED = ("batch", "accumulate", "precision", "compile", "graphs")
UNEVEN = 3  # times as many images in the largest class as in the smallest, from which on it is said


def summarise(
    run: Any,
    given: Any,
    task: Task,
    splits: Any,
    outlook: Outlook,
    device: torch.device,
    processes: Processes,
) -> list[str]:
    """The lines. given: the run before it was fitted to the machine."""
    rows = [
        ("data", describe_data(run, splits)),
        ("model", describe_model(task) + (f"; begun as {run.start}" if getattr(run, "start", None) else "")),
        ("machine", describe_machine(run, device, processes)),
        ("run", describe_length(run, task, outlook)),
    ]
    if fitted := describe_fitted(run, given):
        rows.append(("fitted", fitted))
    rows += [("note", note) for note in (describe_uneven(run, splits), describe_joined(splits)) if note]
    return [f"{name:<9}{text}" for name, text in rows]


def describe_data(run: Any, splits: Any) -> str:
    purposes = (("train", "train"), ("validation", "choose the best weights"), ("test", "test"))
    sets = [(getattr(splits, split, None), purpose) for split, purpose in purposes]
    counts = ", ".join(f"{len(images):,} to {purpose}" for images, purpose in sets if images is not None)
    classes = getattr(splits.train, "classes", None)
    which = f"; {len(classes):,} classes ({some(tuple(classes), 3)})" if classes else ""
    return f"{getattr(run.data, 'name', '') or run.data}: {counts}{which}"


def describe_model(task: Task) -> str:
    model = task.model
    moved, count = count_trained(model)
    parameters = f"{count:,} parameters" + (f", {moved:,} of them ({moved / count:.1%}) move" if moved < count else "")
    vit = model if isinstance(model, ViT) else getattr(model, "encoder", None)
    if not isinstance(vit, ViT):
        return f"{type(model).__name__}, {parameters}"
    (height, width), (tall, wide) = vit.config.image, vit.config.patch
    rows, columns = vit.embed.grid(height, width)
    size, count = f"{height} × {width}", rows * columns + vit.extra_tokens
    pixels = f"as many pixels as {size}" if vit.config.keep_aspect else f"{size} pixels"
    most = " at most" if vit.config.keep_aspect else ""
    tokens = f"{pixels} in patches of {tall} × {wide}: {count:,} tokens{most}"
    return f"{type(model).__name__}, {parameters}; {tokens}"


def describe_machine(run: Any, device: torch.device, processes: Processes) -> str:
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        threads = torch.get_num_threads()
        name = f"CPU, {threads} thread{'s' * (threads > 1)}"
    many = f"{processes.world} processes, each on one {name}" if processes.world > 1 else name
    return ", ".join([many, run.precision, *(["compiled"] if run.compile else [])])


def describe_length(run: Run, task: Task, outlook: Outlook) -> str:
    """How many steps, and about how long they take and how much memory, as the trial says."""
    length = Duration.parse(run.duration)
    if length.unit == "minutes":
        steps, seconds = f"as many steps as {run.duration} allow", 60 * length.amount
    else:
        count = length.steps(steps_per_epoch=task.epoch_size / task.batch)
        steps, seconds = f"{count:,} steps ({run.duration})", count * outlook.seconds
    parts = f" in {run.accumulate} parts" if run.accumulate > 1 else ""
    rate = task.batch / outlook.seconds
    pace = f"about {format_time(seconds)} at {rate:{',.0f' if rate >= 10 else '.2g'}} {task.unit}/s"
    return f"{steps} of {task.batch:,} {task.unit}{parts}, {pace}, and {format_bytes(outlook.memory)} of memory"


def describe_fitted(run: Any, given: Any) -> str:
    """What was changed to fit, and how to have it otherwise."""
    changed = [name for name in FITTED if getattr(run, name) != getattr(given, name)]
    names = {True: "on", False: "off"}
    pairs = ((name, getattr(run, name), getattr(given, name)) for name in changed)
    said = ", ".join(f"{name} {names.get(new, new)} instead of {names.get(old, old)}" for name, new, old in pairs)
    return f"{said}: to this data and machine; give any of them to have it otherwise" if said else ""


def describe_uneven(run: Any, splits: Any) -> str:
    """A sentence if some classes have many times as many images as others and nothing is done about it."""
    labels, classes = getattr(splits.train, "labels", None), getattr(splits.train, "classes", ())
    if labels is None or labels.ndim != 1 or getattr(run, "balance", "none") != "none":
        return ""
    counts = torch.bincount(labels, minlength=len(classes)).tolist()
    low, high = min(counts), max(counts)
    if high < UNEVEN * max(low, 1):
        return ""
    least, most = classes[counts.index(low)], classes[counts.index(high)]
    return f"uneven classes, {least!r} with {low:,} images and {most!r} with {high:,}: --balance weights, or sampling"


def describe_joined(splits: Any) -> str:
    """A sentence if most classes look like several with a line between."""
    labels, classes = getattr(splits.train, "labels", None), getattr(splits.train, "classes", ())
    joined = [name for name in classes if "|" in name]
    if labels is None or labels.ndim != 1 or 2 * len(joined) <= len(classes):
        return ""
    return f"names such as {joined[0]!r} count as one class; if several are true of a picture: --data.several"


def format_time(seconds: float) -> str:
    """
    >>> format_time(8.4), format_time(754), format_time(40_000), format_time(200_000)
    ('8 s', '13 minutes', '11 hours', '2.3 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} minutes"
    length = timedelta(seconds=seconds) / timedelta(hours=1)
    return f"{length:.0f} hours" if length < 48 else f"{length / 24:.1f} days"


def format_bytes(count: int) -> str:
    """
    >>> format_bytes(1_500_000_000), format_bytes(23_000_000)
    ('1.5 GB', '23 MB')
    """
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def show(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)
