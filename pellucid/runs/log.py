"""A run's log, log.jsonl: one object a line, for each step and each evaluation, read by everybody through here.

A line that is neither (somebody's note, what a failing disk left) is left out and counted: it stops nobody.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pellucid.config import parse_json

LONGEST = 1 << 16  # bytes of a line; ours have some hundreds
LARGEST = 1 << 53  # of a step or an epoch: beyond, not every whole number is a float


class LoggedStep(NamedTuple):
    """A step of training. figures: of its batch; None where one is no number."""

    step: int
    epoch: float
    figures: dict[str, float | None]


class LoggedEvaluation(NamedTuple):
    """An evaluation after a step. seconds: of training until then."""

    step: int
    epoch: float
    figures: dict[str, float | None]
    seconds: float | None


@dataclass(eq=False)
class Log:
    """What a run has logged, in the order of the file. odd: how many lines were left out."""

    steps: list[LoggedStep] = field(default_factory=list)
    evaluations: list[LoggedEvaluation] = field(default_factory=list)
    odd: int = 0
    file: tuple[int, int] | None = None  # which one it is, for a run that goes on replaces it
    place: int = 0  # bytes read

    @property
    def last(self) -> int:
        """The last step that is told of."""
        return max((rows[-1].step for rows in (self.steps, self.evaluations) if rows), default=0)

    def read(self, path: Path) -> None:
        """What has come since; everything, if the file is another one now or was cut."""
        with path.open("rb") as stream:
            status = path.stat()
            if (status.st_dev, status.st_ino) != self.file or status.st_size < self.place:
                self.steps, self.evaluations, self.odd, self.place = [], [], 0, 0
                self.file = (status.st_dev, status.st_ino)
            stream.seek(self.place)
            for text, entry in read_lines(stream):
                self.place = stream.tell()
                if isinstance(entry, LoggedStep):
                    self.steps.append(entry)
                elif isinstance(entry, LoggedEvaluation):
                    self.evaluations.append(entry)
                else:
                    self.odd += not text.isspace()


def read_lines(stream: BinaryIO) -> Iterator[tuple[bytes, LoggedStep | LoggedEvaluation | None]]:
    """Every line with what it says, None for an odd one; without a last line that a killed process left unfinished."""
    while line := stream.readline(LONGEST):
        text = line
        while line and not line.endswith(b"\n"):  # longer than any of ours: read past it
            line = stream.readline(LONGEST)
        if line:
            yield text, parse_line(text) if text is line else None


def parse_line(text: bytes) -> LoggedStep | LoggedEvaluation | None:
    """
    >>> parse_line(b'{"step": 3, "epoch": 0.5, "loss": 2.25}')
    LoggedStep(step=3, epoch=0.5, figures={'loss': 2.25})
    >>> parse_line(b'{"step": 3, "epoch": 0.5, "evaluation": {"top1": NaN}, "seconds": 1.5}')
    LoggedEvaluation(step=3, epoch=0.5, figures={'top1': None}, seconds=1.5)
    >>> parse_line(b'{"epoch": 1}') is parse_line(b"5") is None
    True
    """
    try:
        line = parse_json(text, "the line", allow_nan=True)
    except ValueError:
        return None
    if not isinstance(line, dict):
        return None
    step, epoch = whole_number(line.pop("step", None)), number(line.pop("epoch", None))
    figures = line.get("evaluation", line)
    if not step or epoch is None or not 0 <= epoch < LARGEST or not isinstance(figures, dict):
        return None
    numbers = {name: number(value) for name, value in figures.items()}
    return (
        LoggedStep(step, epoch, numbers)
        if figures is line
        else LoggedEvaluation(step, epoch, numbers, number(line.get("seconds")))
    )


def number(value: Any) -> float | None:
    """A finite number, or none: JSON has no other."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond every float
        return None


def whole_number(value: Any) -> int | None:
    """
    >>> whole_number(3.0), whole_number(2.5), whole_number(-1), whole_number(True)
    (3, None, None, None)
    """
    known = number(value)
    return int(known) if known is not None and known == int(known) and 0 <= known < LARGEST else None
