"""Scenes: made pictures of coloured shapes, each with the one sentence that is true of it, and where its words are.

First the objects are laid out, then the sentence is read off them, then they are drawn. So the sentence depends on
nothing but what can be seen, and exchanging left and right turns it into the sentence of the mirror image.

    single    a small red circle on the left | on the right | at the top | at the bottom | in the middle
    count     two | three | four large blue squares
    groups    two | three pink stars and one green ring
    relation  a red circle left of | right of | above | below a blue square
    inside    a yellow heart inside a purple diamond

Sizes are said where one phrase stands alone. In a relation the smaller object is named first, among groups the larger
group, and the object that holds another one last: none of it changes in a mirror.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pellucid.data.captions import CLASSES, CaptionSet, CaptionSplits
from pellucid.data.images import ImageSet
from pellucid.data.scene_layout import SceneConfig, check_scene_size, lay_out
from pellucid.data.scene_pixels import SCENE_COLOURS, SHAPES, Objects, draw_scenes

__all__ = ["Box", "SceneConfig", "SceneSentence", "SceneSet", "make_scenes", "scene_sentences"]

Box = tuple[int, int, int, int]  # y0, x0, y1, x1 in pixels, ends exclusive
SceneWord = tuple[str, tuple[int, ...]]  # and which objects it names

PAIR_NAMES = [(colour, shape) for colour in SCENE_COLOURS for shape in SHAPES]
COUNT_WORDS = ("no", "one", "two", "three", "four")
PLURALS = {shape: shape + ("es" if shape == "cross" else "s") for shape in SHAPES}
LARGE_FROM = 0.125  # of the shorter side: halfway between the largest small radius and the smallest large one
MIDDLE_TO = 0.13  # of a side, from the middle
SCENE_SPLITS = ("train", "validation", "test")
SCENES_AT_ONCE = 1024  # scenes laid out together


@dataclass(frozen=True, eq=False)
class SceneSet(CaptionSet):
    """Scenes with one caption each, and the truth about every word of it.

    >>> scenes = make_scenes(SceneConfig(train=3, validation=0, test=0), (64, 64)).train
    >>> scenes.captions[0][0], scenes.kinds[0]
    ('a green circle left of a cyan ring', 'relation')
    >>> scenes.boxes[0][1:3], scenes.boxes[0][3:6], scenes.boxes[0][6:]
    ((((22, 3, 33, 15),), ((22, 3, 33, 15),)), ((), (), ()), (((19, 26, 42, 48),), ((19, 26, 42, 48),)))
    """

    boxes: tuple[tuple[tuple[Box, ...], ...], ...]
    """For each image and each word of `captions[i][0].split()`, the boxes of the objects that the word names."""
    unseen: Tensor
    """bool (n): holds a pair of colour and shape that no scene to train or to choose with has."""
    kinds: tuple[str, ...]
    """Which sort of sentence each image has: single, count, groups, relation or inside."""

    def subset(self, indices: Tensor) -> "SceneSet":
        """The images at these indices with all that is known of them, as a set of their own."""
        chosen = torch.arange(len(self))[indices].tolist()
        index = torch.tensor(chosen, dtype=torch.int64)
        captions, ids, boxes, kinds = (
            tuple(values[i] for i in chosen) for values in (self.captions, self.ids, self.boxes, self.kinds)
        )
        return SceneSet(self.images.subset(index), captions, ids, boxes, self.unseen[index], kinds)


class SceneSentence(NamedTuple):
    """What a scene's caption says, and of which objects."""

    kind: str
    words: tuple[SceneWord, ...]

    @property
    def text(self) -> str:
        return " ".join(word for word, _ in self.words)


def make_scenes(config: SceneConfig, size: tuple[int, int] = (64, 64)) -> CaptionSplits:
    """The scenes that a config asks for, in pictures of this height and width."""
    check_scene_size(size)
    train, validation, test = (_make(config, split, size) for split in range(3))
    assert train is not None  # a config has one training scene or more
    return CaptionSplits(train, validation, test)


def _make(config: SceneConfig, split: int, size: tuple[int, int]) -> SceneSet | None:
    name = SCENE_SPLITS[split]
    count = getattr(config, name)
    if not count:
        return None
    unseen = (np.arange(count) % 2 > 0) & (name == "test")
    images = np.empty((count, 3, *size), np.uint8)
    sentences: list[SceneSentence] = []
    boxes: list[tuple[tuple[Box, ...], ...]] = []
    for start in range(0, count, SCENES_AT_ONCE):
        indices = np.arange(start, min(start + SCENES_AT_ONCE, count))
        objects = lay_out(config.seed, split, indices, unseen[indices], size)
        images[indices], corners = draw_scenes(objects, size)
        some = list(scene_sentences(objects, size))
        for sentence, its_corners in zip(some, corners.tolist(), strict=True):
            boxes.append(tuple(tuple(tuple(its_corners[i]) for i in objects_of) for _, objects_of in sentence.words))
        sentences += some
    return SceneSet(
        ImageSet(torch.from_numpy(images), torch.zeros(count, dtype=torch.int64), CLASSES),
        tuple((sentence.text,) for sentence in sentences),
        tuple(f"{name}-{i}" for i in range(count)),
        tuple(boxes),
        torch.from_numpy(unseen),
        tuple(sentence.kind for sentence in sentences),
    )


def scene_sentences(objects: Objects, size: tuple[int, int]) -> Iterator[SceneSentence]:
    """The sentence of each scene, from where its objects lie and what they look like."""
    pairs = objects.colour * len(SHAPES) + objects.shape
    where = np.stack([objects.y / size[0], objects.x / size[1], objects.radius / min(size)], -1)
    for row, (y_x_r, present) in enumerate(zip(where, (objects.colour >= 0).sum(1).tolist(), strict=True)):
        yield _sentence(pairs[row, :present].tolist(), y_x_r[:present].tolist())


def _sentence(pairs: list[int], where: list[list[float]]) -> SceneSentence:
    groups = Counter(pairs).most_common()
    members = [tuple(i for i, pair in enumerate(pairs) if pair == group) for group, _ in groups]
    size = "large" if where[0][2] > LARGE_FROM else "small"
    if len(pairs) == 1:
        place = _place(where[0][0] - 0.5, where[0][1] - 0.5)
        return SceneSentence("single", (("a", ()), *_phrase(pairs[0], (0,), size), *_plain(place)))
    if len(groups) == 1:
        return SceneSentence("count", (*_counted(pairs[0], members[0], size),))
    if len(pairs) > 2:
        first, second = (_counted(group, objects) for (group, _), objects in zip(groups, members, strict=True))
        return SceneSentence("groups", (*first, ("and", ()), *second))
    small, large = sorted((0, 1), key=lambda i: where[i][2])
    down, right = (where[small][axis] - where[large][axis] for axis in (0, 1))
    inside = max(abs(down), abs(right)) < where[large][2] / 2
    first, second = ((("a", ()), *_phrase(pairs[i], (i,))) for i in (small, large))
    words = "inside" if inside else _direction(down, right)
    return SceneSentence("inside" if inside else "relation", (*first, *_plain(words), *second))


def _phrase(pair: int, objects: tuple[int, ...], size: str = "") -> Iterator[SceneWord]:
    """Colour and shape, after the size if it is said."""
    colour, shape = PAIR_NAMES[pair]
    words = (size, colour, shape if len(objects) == 1 else PLURALS[shape])
    return ((word, objects) for word in words if word)


def _counted(pair: int, objects: tuple[int, ...], size: str = "") -> tuple[SceneWord, ...]:
    """A number names no object: it is read off all of them."""
    return ((COUNT_WORDS[len(objects)], ()), *_phrase(pair, objects, size))


def _plain(words: str) -> Iterator[SceneWord]:
    """Words that name no object."""
    return ((word, ()) for word in words.split())


def _place(down: float, right: float) -> str:
    if max(abs(down), abs(right)) < MIDDLE_TO:
        return "in the middle"
    if abs(right) > abs(down):
        return "on the right" if right > 0 else "on the left"
    return "at the bottom" if down > 0 else "at the top"


def _direction(down: float, right: float) -> str:
    if abs(right) > abs(down):
        return "right of" if right > 0 else "left of"
    return "below" if down > 0 else "above"
