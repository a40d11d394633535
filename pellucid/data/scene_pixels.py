"""Drawing scenes: eight shapes as signed distances in pixels, antialiased, the same bytes on every machine.

Only sums, products, quotients and square roots are taken, which IEEE 754 rounds in one way, and centres are whole
sixteenths of a pixel: so the picture of mirrored objects is the mirrored picture to the last bit.

Axes: n scenes, m objects of a scene at most, y and x pixels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, UInt8
from numpy import ndarray
from numpy.lib.stride_tricks import sliding_window_view

Distance = Callable[[ndarray, ndarray, ndarray], ndarray]  # of (|dx|, dy downwards, radius), negative inside

# From light to dark, 7 or more steps of CIE lightness apart: where hues look alike, brightness still tells them.
SCENE_COLOURS = {
    "white": (250, 250, 250),
    "yellow": (245, 225, 50),
    "cyan": (60, 215, 225),
    "pink": (245, 135, 190),
    "green": (45, 168, 75),
    "red": (230, 55, 50),
    "blue": (40, 85, 235),
    "purple": (125, 30, 165),
}
CHUNK = 256  # scenes drawn at a time: 13 MB of float32 at 64 × 64
REACH = 1.14  # how far a shape goes from its middle at most, in radii
STEP = 6  # pixels by which the sides of patches are told apart
FAINTEST = 0.125  # covered less than this, a pixel stays as it was


@dataclass(frozen=True, eq=False)
class Objects:
    """What lies in each scene, in the order of drawing. Lengths are in pixels; y points down."""

    colour: Int64[ndarray, "n m"]
    """Index into SCENE_COLOURS; −1 where there is no object."""
    shape: Int64[ndarray, "n m"]
    """Index into SHAPES."""
    y: Float64[ndarray, "n m"]
    x: Float64[ndarray, "n m"]
    radius: Float64[ndarray, "n m"]
    background: Float64[ndarray, "n 3"]
    """Its colour in the middle of the picture."""
    slope: Float64[ndarray, "n 2"]
    """How much lighter it grows from top to bottom and from left to right."""

    def __len__(self) -> int:
        return len(self.colour)

    def mirrored(self, width: int) -> "Objects":
        """Left and right exchanged, in a picture of this width."""
        return replace(self, x=width - self.x, slope=self.slope * (1.0, -1.0))


def _circle(x: ndarray, y: ndarray, r: ndarray) -> ndarray:
    return np.sqrt(x * x + y * y) - r


def _square(x: ndarray, y: ndarray, r: ndarray) -> ndarray:
    return np.maximum(x, np.abs(y)) - 0.86 * r


def _triangle(x: ndarray, y: ndarray, r: ndarray) -> ndarray:
    slant = (2 * x - (y + r)) / math.sqrt(5)  # the apex is r above the middle, and a side runs two down to one across
    return np.maximum(slant, y - 0.86 * r)


def _cross(x: ndarray, y: ndarray, r: ndarray) -> ndarray:
    y = np.abs(y)
    return np.maximum(np.maximum(x, y) - r, np.minimum(x, y) - 0.3 * r)


def _ring(x: ndarray, y: ndarray, r: ndarray) -> ndarray:
    return np.abs(np.sqrt(x * x + y * y) - 0.78 * r) - 0.24 * r


def _diamond(x: ndarray, y: ndarray, r: ndarray) -> ndarray:
    return (x + np.abs(y)) / math.sqrt(2) - 0.8 * r


def _star(x: ndarray, y: ndarray, r: ndarray) -> ndarray:
    """Five points: the plane folded along the two lines through a tip and the middle until one edge is left."""
    y = -y
    for sign in (1.0, -1.0):
        normal = (sign * math.cos(math.pi / 5), -math.sin(math.pi / 5))
        beyond = 2 * np.maximum(normal[0] * x + normal[1] * y, 0)
        x, y = x - beyond * normal[0], y - beyond * normal[1]
    x, y = np.abs(x), y - 1.12 * r
    inner = (0.47 * math.sin(math.pi / 5), 0.47 * math.cos(math.pi / 5) - 1)  # the notch between two tips, from the tip
    long = math.hypot(*inner)
    return (x * -inner[1] + y * inner[0]) / long


def _heart(x: ndarray, y: ndarray, r: ndarray) -> ndarray:
    """Two discs above a square that stands on its corner."""
    discs = np.sqrt((x - 0.5 * r) ** 2 + (y + 0.35 * r) ** 2) - 0.53 * r
    below = np.maximum((x + y - r) / math.sqrt(2), np.maximum(-0.35 * r - y, x - r))
    return np.minimum(discs, below)


SHAPES: dict[str, Distance] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "ring": _ring,
    "diamond": _diamond,
    "star": _star,
    "heart": _heart,
}
DISTANCES = tuple(SHAPES.values())
PAINT = np.array(list(SCENE_COLOURS.values()), np.float32)


def draw_scenes(objects: Objects, size: tuple[int, int]) -> tuple[UInt8[ndarray, "n 3 y x"], Int64[ndarray, "n m 4"]]:
    """The pictures, and the tight box (y0, x0, y1, x1) of each object, ends exclusive; zeros where there is none."""
    images = np.empty((len(objects), 3, *size), np.uint8)
    boxes = np.zeros((*objects.colour.shape, 4), np.int64)
    for start in range(0, len(objects), CHUNK):
        part = slice(start, start + CHUNK)
        some = Objects(**{name: values[part] for name, values in vars(objects).items()})
        canvas = _background(some, size)
        for slot in range(objects.colour.shape[1]):
            _draw_slot(canvas, boxes[part, slot], some, slot)
        images[part] = np.rint(canvas)
    return images, boxes


def _background(objects: Objects, size: tuple[int, int]) -> Float32[ndarray, "n 3 y x"]:
    y, x = (((2 * np.arange(side) + 1 - side) / (2 * side)).astype(np.float32) for side in size)
    slope = objects.slope.astype(np.float32)
    light = slope[:, :1, None] * y[:, None] + slope[:, 1:, None] * x
    return (objects.background.astype(np.float32)[:, :, None, None] + light[:, None]).clip(0, 255)


def _draw_slot(canvas: Float32[ndarray, "n 3 y x"], boxes: Int64[ndarray, "n 4"], objects: Objects, slot: int) -> None:
    """One object of each scene, on the canvas and into the boxes: those of one shape and about one size together."""
    colour, shape, y, x, radius = (
        each[:, slot] for each in (objects.colour, objects.shape, objects.y, objects.x, objects.radius)
    )
    patches = STEP * np.ceil(2 * (REACH * radius + 2) / STEP).astype(int)
    groups = np.where(colour < 0, -1, patches * len(SHAPES) + shape)
    for group in np.unique(groups[groups >= 0]).tolist():
        rows = np.flatnonzero(groups == group)
        patch, distance = group // len(SHAPES), DISTANCES[group % len(SHAPES)]
        height, width = (min(patch, side) for side in canvas.shape[2:])
        top, left = (
            np.clip(np.rint(centre[rows]).astype(int) - side // 2, 0, whole - side)
            for centre, side, whole in zip((y, x), (height, width), canvas.shape[2:], strict=True)
        )
        down = np.arange(height) + 0.5 + (top - y[rows])[:, None]
        right = np.arange(width) + 0.5 + (left - x[rows])[:, None]
        covered = _coverage(distance, down, right, radius[rows])
        boxes[rows] = _boxes(covered > 0) + np.stack([top, left, top, left], 1)
        windows = sliding_window_view(canvas, (height, width), (2, 3), writeable=True)
        under = windows[rows, :, top, left]
        windows[rows, :, top, left] = under + (PAINT[colour[rows], :, None, None] - under) * covered[:, None]


def _coverage(
    distance: Distance, down: Float64[ndarray, "k y"], right: Float64[ndarray, "k x"], radius: Float64[ndarray, " k"]
) -> Float32[ndarray, "k y x"]:
    """How much of each pixel the object covers, taking its edge as straight within the pixel."""
    down, right, radius = (each.astype(np.float32) for each in (down, right, radius))
    inside = 0.5 - distance(np.abs(right)[:, None], down[:, :, None], radius[:, None, None])
    return np.where(inside < FAINTEST, np.float32(0), np.minimum(inside, 1))


def _boxes(mask: Bool[ndarray, "k y x"]) -> Int64[ndarray, "k 4"]:
    (height, width), rows, columns = mask.shape[1:], np.any(mask, axis=2), np.any(mask, axis=1)
    ends = [height - rows[:, ::-1].argmax(1), width - columns[:, ::-1].argmax(1)]
    return np.stack([rows.argmax(1), columns.argmax(1), *ends], 1)
