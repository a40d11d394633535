"""Progress for people: a bar with rate and time left on a terminal, lines elsewhere."""

import os
import time
from datetime import timedelta
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pellucid.extras import require
from pellucid.runs.folder import RunFolder
from pellucid.training.engine import Observer

STOPPING = b"\npellucid: stopping after this step; again to quit\n"
EVERY = 10.0  # seconds between lines where there is no terminal


class RunDisplay(Observer):
    """Shows a run as it goes on: loss, accuracy, images a second, time left, and every evaluation.

    tensorboard: a folder to write the same figures to.
    """

    def __init__(self, title: str, *, tensorboard: RunFolder | None = None):
        self.title = title
        self.bar = _bar()
        self.board = _Board(tensorboard) if tensorboard else None

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()
        if self.board:
            self.board.close()

    def began(self, step: int, steps: int) -> None:
        self.task = self.bar.add_task(self.title, total=steps, completed=step, rate="", text="")
        self.first, self.steps = step, steps
        self.begun = self.printed = time.perf_counter()
        if self.board:
            self.board.open(step)

    def logged(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if "evaluation" in line:
                self._evaluated(line)
        steps = [line for line in lines if "evaluation" not in line]
        if steps:
            self._stepped(steps[-1])
        if self.board:
            self.board.add(lines)

    def stopping(self) -> None:
        os.write(2, STOPPING)  # a handler may stand in the middle of somebody else's print

    def _stepped(self, line: dict[str, Any]) -> None:
        text = f"loss {line['loss']:.4f}" + (f", accuracy {line['accuracy']:.1%}" if "accuracy" in line else "")
        rate = next(
            (f"{n:,.0f} {k.removesuffix('_per_second')}/s" for k, n in line.items() if k.endswith("_per_second")), ""
        )
        self.bar.update(self.task, completed=line["step"], text=text, rate=rate)
        now = time.perf_counter()
        if self.bar.disable and now - self.printed >= EVERY:
            self.printed = now
            left = (now - self.begun) / (line["step"] - self.first) * (self.steps - line["step"])
            print(
                f"step {line['step']} of {self.steps}: {text}, {rate}, {timedelta(seconds=round(left))} left",
                flush=True,
            )

    def _evaluated(self, line: dict[str, Any]) -> None:
        if not line["evaluation"]:
            return
        figures = ", ".join(f"{name} {value:.4f}" for name, value in line["evaluation"].items())
        text = f"epoch {line['epoch']:g}, step {line['step']}, {line['seconds']:.1f} s: {figures}"
        if self.bar.disable:
            print(text, flush=True)
        else:
            self.bar.console.print(text)


class _Board:
    """TensorBoard's files. Of a run that goes on, what was written after the step it goes on from is forgotten."""

    def __init__(self, folder: RunFolder):
        require("tensorboard", "--tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.make, self.path = SummaryWriter, folder.path / "tensorboard"
        self.writer: SummaryWriter | None = None

    def open(self, step: int) -> None:
        self.writer = self.make(str(self.path), purge_step=step + 1)

    def add(self, lines: list[dict[str, Any]]) -> None:
        assert self.writer is not None
        for line in lines:
            kind, figures = ("evaluation", line["evaluation"]) if "evaluation" in line else ("train", line)
            for name, value in figures.items():
                if name not in ("step", "epoch"):
                    self.writer.add_scalar(f"{kind}/{name}", value, line["step"])

    def close(self) -> None:
        if self.writer:
            self.writer.close()


def _bar() -> Progress:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)
