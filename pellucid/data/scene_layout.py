"""What lies where in a scene: drawn at random, and only where a sentence about it can mean one thing.

Every draw is a function of (seed, split, index, stream), so a scene is the same in whatever chunk it is made.

Axes: n scenes, m = 4 objects of a scene at most, s streams of draws, p pairs of colour and shape. Until they are handed
out, lengths are shares of the picture's height, of its width or, for radii, of the shorter of the two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from pellucid.data import draws
from pellucid.data.scene_pixels import SCENE_COLOURS, SHAPES, Objects

MOST_OBJECTS = 4  # objects in a scene
SMALL, LARGE, HOLDING = (0.085, 0.098), (0.155, 0.175), (0.33, 0.38)  # radii; no shape reaches beyond 1.14 of them
OUTER = ("circle", "square", "ring", "diamond")  # what others can lie inside of
GRAIN = 16  # centres and radii are whole parts of a pixel divided by this
SMALLEST, STRETCH = 32, 1.5  # pixels of a side below which shapes blur; and how much longer one side may be

# One shape for each colour, and each shape once: every word is learned, and these 8 of the 64 pairs never.
HELD_OUT = {
    "white": "star",
    "yellow": "ring",
    "cyan": "triangle",
    "pink": "square",
    "green": "heart",
    "red": "diamond",
    "blue": "circle",
    "purple": "cross",
}
PAIR_COLOUR, PAIR_SHAPE = (each.ravel() for each in np.indices((len(SCENE_COLOURS), len(SHAPES))))
PAIR_HELD_OUT = np.array([HELD_OUT[colour] == shape for colour in SCENE_COLOURS for shape in SHAPES])
PAIR_OUTER = np.array([shape in OUTER for _ in SCENE_COLOURS for shape in SHAPES])

# Streams of draws, each with as many numbers as the next one leaves it.
KIND, FOCUS, FIRST, SECOND, COUNT, SIZE, PLACE, ALONG, RADIUS, JITTER, CELL_ORDER, BACKGROUND, STREAMS = (
    0, 1, 2, 3, 4, 5, 6, 7, 9, 13, 21, 30, 36,
)  # fmt: skip


@dataclass(frozen=True)
class SceneConfig:
    """How many scenes are made, and which."""

    train: int = 20_000
    """Scenes to learn from."""
    validation: int = 1_000
    """Scenes to choose by, of the same sort; none with 0."""
    test: int = 2_000
    """Scenes to judge by, every second with a pair of colour and shape that no other split has; none with 0."""
    seed: int = 0
    """Two seeds share no scene, but the pairs that are held out are always the same."""

    def __post_init__(self) -> None:
        for name, least in (("train", 1), ("validation", 0), ("test", 0)):
            if not least <= getattr(self, name) < 2**32:
                raise ValueError(f"{name} is {getattr(self, name)}; expected {least} or more scenes")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}; expected 0…2^32 − 1")


class Placed(NamedTuple):
    """Where the objects of some scenes lie, and which of the scene's two pairs each shows; −1 where there is none."""

    pair: Int64[ndarray, "n m"]
    y: Float64[ndarray, "n m"]
    x: Float64[ndarray, "n m"]
    radius: Float64[ndarray, "n m"]


def check_scene_size(size: tuple[int, int]) -> None:
    if len(size) != 2 or min(size) < SMALLEST or max(size) > STRETCH * min(size):
        raise ValueError(
            f"size is {size}; expected (height, width) of scenes, {SMALLEST} or more pixels each and neither over "
            f"{STRETCH} times the other"
        )


def lay_out(
    seed: int, split: int, indices: Int64[ndarray, " n"], unseen: Bool[ndarray, " n"], size: tuple[int, int]
) -> Objects:
    """The objects of these scenes of a split; where `unseen`, one pair of colour and shape is held out."""
    u = draws.uniform(seed, split, torch.from_numpy(indices), range(STREAMS)).double().numpy()
    kinds = np.searchsorted(np.cumsum([share for share, _ in PLACES])[:-1], u[KIND], side="right")
    n = len(indices)
    placed = Placed(np.full((n, MOST_OBJECTS), -1), *np.zeros((3, n, MOST_OBJECTS)))
    for kind, (_, place) in enumerate(PLACES):
        rows = np.flatnonzero(kinds == kind)
        for whole, part in zip(placed, place(u[:, rows]), strict=True):
            whole[rows] = part
    pairs = _pairs(u, unseen, two=(placed.pair == 1).any(1), inside=kinds == len(PLACES) - 1)
    pair = np.take_along_axis(pairs, np.maximum(placed.pair, 0), 1)
    height, width = size
    lengths = (placed.y * height, placed.x * width, placed.radius * min(size))
    grey = 14 + 26 * u[BACKGROUND : BACKGROUND + 1]
    return Objects(
        np.where(placed.pair < 0, -1, PAIR_COLOUR[pair]),
        PAIR_SHAPE[pair],
        *(np.rint(each * GRAIN) / GRAIN for each in lengths),
        background=np.rint(grey + 18 * (u[BACKGROUND + 1 : BACKGROUND + 4] - 0.5)).T,
        slope=np.rint(24 * (u[BACKGROUND + 4 : STREAMS] - 0.5)).T,
    )


def _pairs(
    u: Float64[ndarray, "s n"], unseen: Bool[ndarray, " n"], two: Bool[ndarray, " n"], inside: Bool[ndarray, " n"]
) -> Int64[ndarray, "n 2"]:
    """Two different pairs of colour and shape for each scene, of which `unseen` scenes show one that is held out.

    What lies inside something else is two or more steps of lightness away from it.
    """
    second_held = unseen & two & (u[FOCUS] < 0.5)
    first = _choose(u[FIRST], (unseen & ~second_held)[:, None] == PAIR_HELD_OUT)
    allowed = (second_held[:, None] == PAIR_HELD_OUT) & (np.arange(len(PAIR_HELD_OUT)) != first[:, None])
    apart = np.abs(PAIR_COLOUR - PAIR_COLOUR[first][:, None]) > 1
    return np.stack([first, _choose(u[SECOND], allowed & ((apart & PAIR_OUTER) | ~inside[:, None]))], 1)


def _choose(u: Float64[ndarray, " n"], allowed: Bool[ndarray, "n p"]) -> Int64[ndarray, " n"]:
    """One of the allowed in each row, all with the same probability."""
    rank = np.floor(u * allowed.sum(1))
    return (allowed.cumsum(1) > rank[:, None]).argmax(1)


def _between(u: ndarray, bounds: tuple[float, float]) -> ndarray:
    return bounds[0] + u * (bounds[1] - bounds[0])


def _single(u: Float64[ndarray, "s n"]) -> Placed:
    """One object, small or large: left, right, top, bottom or in the middle, a step away from all of the others."""
    place = np.floor(u[PLACE] * 5).astype(int)
    main = np.array([-0.26, 0.26, -0.26, 0.26, 0])[place] + 0.08 * (u[JITTER] - 0.5)
    other = 0.16 * (u[JITTER + 1] - 0.5) * np.where(place == 4, 0.5, 1)
    upright = (place == 2) | (place == 3)
    radius = np.where(u[SIZE] < 0.5, _between(u[RADIUS], SMALL), _between(u[RADIUS], LARGE))
    return _placed([0], [0.5 + np.where(upright, main, other)], [0.5 + np.where(upright, other, main)], [radius])


def _count(u: Float64[ndarray, "s n"]) -> Placed:
    """Two to four of the same, all small or all large."""
    small = u[SIZE] < 0.5
    y, x = np.where(small, _cells(u, 3), _cells(u, 2))
    bounds = np.where(small, np.array(SMALL)[:, None], np.array(LARGE)[:, None])
    radius = bounds[0] + u[RADIUS] * (bounds[1] - bounds[0])
    pair = np.where(np.arange(MOST_OBJECTS)[:, None] < 2 + np.floor(u[COUNT] * 3), 0, -1)
    return Placed(pair.T, y.T, x.T, np.broadcast_to(radius, y.shape).T)


def _groups(u: Float64[ndarray, "s n"]) -> Placed:
    """Two or three of the same and one other, all small: the larger group has the first word."""
    y, x = _cells(u, 3)
    many = np.arange(MOST_OBJECTS)[:, None] - (2 + np.floor(u[COUNT] * 2))
    pair = np.where(many < 0, 0, np.where(many < 1, 1, -1))
    return Placed(pair.T, y.T, x.T, _between(u[RADIUS : RADIUS + MOST_OBJECTS], SMALL).T)


def _relation(u: Float64[ndarray, "s n"]) -> Placed:
    """A small object left of, right of, above or below a large one, at most 12° off the axis of a square picture."""
    direction = np.floor(u[PLACE] * 4)
    distance = _between(u[ALONG], (0.4, 0.52))
    reach = np.array([[0.12], [0.2]])  # of the small one and of the large one
    before = direction % 2 < 1  # the small one comes first, from the left or from the top
    start = np.where(before, reach[0], reach[1])
    start = start + u[ALONG + 1] * (1 - reach.sum() - distance)
    along = np.where(before, (start, start + distance), (start + distance, start))
    across = _between(u[JITTER], (0.28, 0.72)) + 0.08 * np.stack([u[JITTER + 1] - 0.5, 0.5 - u[JITTER + 1]])
    flat = direction < 2
    radii = [_between(u[RADIUS], SMALL), _between(u[RADIUS + 1], LARGE)]
    return _placed([0, 1], np.where(flat, across, along), np.where(flat, along, across), radii)


def _inside(u: Float64[ndarray, "s n"]) -> Placed:
    """A small object in the middle of one that can hold it, which is drawn first."""
    radii = [_between(u[RADIUS], HOLDING), _between(u[RADIUS + 1], SMALL)]
    outer = 0.5 + 0.12 * (u[JITTER : JITTER + 2] - 0.5)
    inner = outer + 0.06 * (u[JITTER + 2 : JITTER + 4] - 0.5)
    return _placed([1, 0], *np.stack([outer, inner], 1), radii)


def _placed(pair: list[int], *lengths) -> Placed:
    """The same pairs for every scene, and lengths for as many objects; the other places stay empty."""
    full = np.zeros((3, MOST_OBJECTS, np.shape(lengths[0])[1]))
    full[:, : len(pair)] = lengths
    pairs = np.array(pair + [-1] * (MOST_OBJECTS - len(pair)))
    return Placed(np.broadcast_to(pairs, full[0].T.shape), *(each.T for each in full))


def _cells(u: Float64[ndarray, "s n"], side: int) -> Float64[ndarray, "2 m n"]:
    """Where four objects lie that have cells of a square grid to themselves, and stay clear of the cells' edges."""
    cell = np.argsort(u[CELL_ORDER : CELL_ORDER + side * side], axis=0, kind="stable")[:MOST_OBJECTS]
    jitter = 0.06 * (u[JITTER : JITTER + 2 * MOST_OBJECTS].reshape(2, MOST_OBJECTS, -1) - 0.5)
    return (np.stack([cell // side, cell % side]) + 0.5) / side + jitter


# The share of each sort of scene, and what makes it. The last one is the one in which objects overlap.
PLACES: tuple[tuple[float, Callable[[Float64[ndarray, "s n"]], Placed]], ...] = (
    (0.15, _single),
    (0.15, _count),
    (0.2, _groups),
    (0.3, _relation),
    (0.2, _inside),
)
