"""An evaluation's answers in a file, written as they come: after a kill it goes on there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from pellucid.cli.answers import AnswersFile, Form, Row, check_place
from pellucid.evaluation.accuracy import distinct


class Kept:
    """What stands in the file, and which images are meant."""

    form: Form
    images: list[str]

    def __init__(self, path: Path):
        check_place(path)
        self.path = path
        self._file: AnswersFile | None = None

    @property
    def file(self) -> AnswersFile:
        assert self._file is not None, "begin opens it"
        return self._file

    def open(self) -> dict[int, Row]:
        """What there is, by the places of the images."""
        places = {name: place for place, name in enumerate(self.images)}
        if len(places) < len(self.images):
            raise ValueError("some images have the same name, so their answers can't be kept by it; leave out --out")
        file = AnswersFile(self.path, self.form)
        if others := [name for name in file.rows if name not in places]:
            raise ValueError(
                f"{self.path} holds answers to other images, as {others[0]}; give another file, or remove it"
            )
        self._file = file.__enter__()
        return {places[name]: row for name, row in file.rows.items()}

    def close(self, error: BaseException | None = None) -> None:
        if self._file is not None:
            self._file.__exit__(None if error is None else type(error))


class KeptAnswers(Kept):
    """A line for each image with its label and the probability of every class."""

    def begin(self, images: Any, labels: Tensor, names: Sequence[str]) -> dict[int, list[float]]:
        self.form = Form("", ("label", *(f"p({name})" for name in distinct(names))), digits=None)
        self.images = [images.name_of(place) for place in range(len(images))]
        self.labels = [describe_label(label, names) for label in labels]
        return {place: row[2:] for place, row in self.open().items()}

    def add(self, places: Tensor, probabilities: Tensor) -> None:
        self.file.write([self._row(place, each) for place, each in zip(places.tolist(), probabilities, strict=True)])

    def check_same(self, place: int, probabilities: Tensor) -> None:
        self.file.check_same(self._row(place, probabilities))

    def _row(self, place: int, probabilities: Tensor) -> Row:
        """With as many digits as a float32 has."""
        return [self.images[place], self.labels[place], *map(float, map(str, probabilities.float().numpy()))]


class KeptCaptions(Kept):
    """A line for each image with its caption."""

    def begin(self, names: Sequence[str]) -> dict[int, str]:
        self.form, self.images = Form("", ("caption",)), list(names)
        return {place: row[1] for place, row in self.open().items()}

    def add(self, places: list[int], captions: list[str]) -> None:
        self.file.write([[self.images[place], caption] for place, caption in zip(places, captions, strict=True)])

    def check_same(self, place: int, caption: str) -> None:
        self.file.check_same([self.images[place], caption])


SomeKept = TypeVar("SomeKept", bound=Kept)


@contextmanager
def keeping(path: Path | None, kind: type[SomeKept]) -> Iterator[SomeKept | None]:
    """Answers that are kept in a file, if there is one; a table is written when nothing went wrong."""
    kept = None if path is None else kind(path)
    try:
        yield kept
    except BaseException as error:
        if kept is not None:
            kept.close(error)
        raise
    if kept is not None:
        kept.close()


def describe_label(label: Tensor, names: Sequence[str]) -> str:
    """The name of a class, or of those that are true."""
    return "|".join(names[i] for i in ([int(label)] if label.ndim == 0 else label.nonzero().flatten().tolist()))
