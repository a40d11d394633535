"""Progress for people: a bar with rate and time left on a terminal, nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(title: str, total: int, unit: str = "steps") -> Iterator[Callable[[int, float], None]]:
    """Yields a function to be called with the number of steps done and the loss."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total, rate="", loss=float("nan"))

        def advance(done: int, loss: float) -> None:
            speed = bar.tasks[task].speed
            bar.update(task, completed=done, loss=loss, rate=f"{speed:.0f} {unit}/s" if speed else "")

        yield advance
