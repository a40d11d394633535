"""Draws pellucid/cli/samples, which the demo shows to the model trained on CIFAR-10. They are ours, and free to use.

Run it as: python docs/draw_samples.py
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIZE = 128  # pixels; drawn four times as large, so that edges are soft
LARGE = 4 * SIZE
Colour = tuple[int, int, int]
FOLDER = Path(__file__).parent.parent / "pellucid" / "cli" / "samples"


def fade(*colours: Colour) -> Image.Image:
    """From the first colour at the top to the last at the bottom."""
    rows = np.linspace(0, len(colours) - 1, LARGE)
    table = np.stack([np.interp(rows, range(len(colours)), channel) for channel in zip(*colours, strict=True)], -1)
    return Image.fromarray(np.repeat(table[:, None], LARGE, 1).round().astype(np.uint8))


def ground(picture: Image.Image, top: float, *colours: Colour) -> None:
    start = int(top * LARGE)
    picture.paste(fade(*colours).resize((LARGE, LARGE - start)), (0, start))


class Pen:
    """Draws in shares of the picture's side instead of pixels."""

    def __init__(self, picture: Image.Image):
        self.draw = ImageDraw.Draw(picture)

    def shape(self, colour: Colour, *points: tuple[float, float]) -> None:
        self.draw.polygon([(x * LARGE, y * LARGE) for x, y in points], fill=colour)

    def box(self, colour: Colour, left: float, top: float, right: float, bottom: float) -> None:
        self.draw.rectangle([LARGE * each for each in (left, top, right, bottom)], fill=colour)

    def disc(self, colour: Colour, x: float, y: float, radius: float, flat: float = 1.0) -> None:
        corners = (x - radius, y - flat * radius, x + radius, y + flat * radius)
        self.draw.ellipse([LARGE * each for each in corners], fill=colour)


def airplane() -> Image.Image:
    picture = fade((92, 142, 205), (170, 203, 235))
    pen = Pen(picture)
    pen.shape((120, 126, 136), (0.46, 0.45), (0.58, 0.45), (0.47, 0.26), (0.40, 0.26))  # the far wing
    pen.shape(
        (226, 229, 234),
        (0.06, 0.47),
        (0.15, 0.42),
        (0.82, 0.42),
        (0.93, 0.47),
        (0.90, 0.52),
        (0.80, 0.55),
        (0.20, 0.54),
    )
    pen.shape((150, 156, 166), (0.10, 0.50), (0.92, 0.50), (0.80, 0.55), (0.20, 0.54))  # its belly, in shadow
    pen.shape((200, 60, 55), (0.07, 0.46), (0.17, 0.43), (0.10, 0.27), (0.04, 0.27))  # the fin
    pen.shape((165, 170, 178), (0.06, 0.48), (0.16, 0.48), (0.07, 0.57), (0.02, 0.57))
    pen.shape((172, 178, 188), (0.42, 0.51), (0.60, 0.51), (0.40, 0.76), (0.31, 0.76))  # the near wing
    pen.shape((90, 95, 104), (0.45, 0.60), (0.55, 0.60), (0.55, 0.65), (0.45, 0.65))
    pen.shape((60, 70, 88), (0.86, 0.455), (0.91, 0.465), (0.90, 0.48), (0.86, 0.475))
    for i in range(13):
        pen.disc((70, 84, 110), 0.24 + 0.045 * i, 0.462, 0.009)
    return picture


def ship() -> Image.Image:
    picture = fade((176, 200, 224), (214, 224, 232))
    ground(picture, 0.62, (74, 108, 132), (38, 68, 92))
    pen = Pen(picture)
    pen.shape((44, 48, 62), (0.06, 0.54), (0.94, 0.50), (0.86, 0.69), (0.13, 0.69))
    pen.shape((146, 50, 44), (0.12, 0.665), (0.87, 0.655), (0.86, 0.70), (0.13, 0.70))
    pen.shape((232, 232, 228), (0.08, 0.525), (0.93, 0.49), (0.92, 0.515), (0.07, 0.548))
    pen.shape((236, 236, 232), (0.18, 0.53), (0.18, 0.43), (0.62, 0.43), (0.66, 0.51))
    pen.shape((216, 218, 216), (0.24, 0.43), (0.24, 0.35), (0.52, 0.35), (0.55, 0.43))
    pen.shape((232, 232, 228), (0.40, 0.35), (0.40, 0.29), (0.50, 0.29), (0.52, 0.35))
    pen.shape((196, 92, 44), (0.29, 0.35), (0.30, 0.22), (0.36, 0.22), (0.37, 0.35))
    pen.shape((40, 42, 48), (0.297, 0.25), (0.30, 0.22), (0.36, 0.22), (0.363, 0.25))
    pen.box((90, 92, 96), 0.70, 0.26, 0.708, 0.51)
    for i in range(9):
        pen.box((70, 84, 104), 0.21 + 0.045 * i, 0.455, 0.235 + 0.045 * i, 0.475)
    for i in range(14):
        y = 0.71 + 0.02 * i
        pen.box((96, 132, 152), (0.37 * i) % 0.8, y, (0.37 * i) % 0.8 + 0.16, y + 0.004)
    pen.shape((214, 224, 228), (0.10, 0.70), (0.88, 0.70), (0.98, 0.725), (0.06, 0.715))
    return picture


def automobile() -> Image.Image:
    picture = fade((196, 210, 222), (226, 230, 230))
    ground(picture, 0.45, (112, 126, 92), (128, 138, 104))
    ground(picture, 0.60, (120, 120, 122), (92, 92, 96))
    pen = Pen(picture)
    pen.disc((58, 58, 62), 0.50, 0.755, 0.44, flat=0.09)
    red, dark, glass = (188, 36, 34), (138, 24, 26), (64, 78, 92)
    pen.shape(
        red,
        (0.06, 0.70),
        (0.06, 0.56),
        (0.12, 0.51),
        (0.27, 0.49),
        (0.37, 0.36),
        (0.66, 0.36),
        (0.79, 0.49),
        (0.92, 0.53),
        (0.95, 0.60),
        (0.95, 0.71),
    )
    pen.shape(dark, (0.06, 0.65), (0.95, 0.65), (0.95, 0.72), (0.06, 0.72))
    pen.shape(glass, (0.31, 0.49), (0.39, 0.39), (0.50, 0.39), (0.50, 0.49))
    pen.shape(glass, (0.525, 0.49), (0.525, 0.39), (0.65, 0.39), (0.74, 0.49))
    pen.shape((120, 140, 154), (0.42, 0.41), (0.46, 0.41), (0.40, 0.48), (0.36, 0.48))
    pen.box((240, 226, 170), 0.90, 0.56, 0.945, 0.60)
    pen.box((220, 80, 60), 0.06, 0.56, 0.09, 0.61)
    pen.box(dark, 0.51, 0.50, 0.516, 0.66)
    for x in (0.25, 0.77):
        pen.disc((26, 26, 28), x, 0.70, 0.095)
        pen.disc((176, 178, 182), x, 0.70, 0.055)
        pen.disc((90, 92, 96), x, 0.70, 0.022)
    return picture


def truck() -> Image.Image:
    picture = fade((170, 196, 224), (220, 226, 230))
    ground(picture, 0.66, (116, 116, 116), (84, 84, 88))
    pen = Pen(picture)
    pen.disc((54, 54, 58), 0.50, 0.79, 0.46, flat=0.07)
    pen.box((226, 226, 222), 0.05, 0.22, 0.64, 0.66)
    pen.box((190, 192, 192), 0.05, 0.22, 0.64, 0.25)
    pen.box((52, 54, 60), 0.05, 0.66, 0.94, 0.73)
    blue = (34, 78, 150)
    pen.shape(blue, (0.67, 0.71), (0.67, 0.36), (0.84, 0.36), (0.91, 0.50), (0.95, 0.53), (0.95, 0.71))
    pen.shape((60, 76, 92), (0.75, 0.50), (0.75, 0.40), (0.83, 0.40), (0.88, 0.50))
    pen.box((24, 56, 112), 0.74, 0.52, 0.746, 0.68)
    pen.box((240, 228, 180), 0.92, 0.60, 0.95, 0.65)
    pen.box((70, 72, 78), 0.67, 0.28, 0.69, 0.36)
    for x in (0.16, 0.30, 0.80):
        pen.disc((24, 24, 26), x, 0.74, 0.075)
        pen.disc((160, 162, 166), x, 0.74, 0.036)
    return picture


def photographed(picture: Image.Image, seed: int) -> Image.Image:
    """Softened, scaled down, with light from the upper left and a little noise, as a camera would have it."""
    small = picture.filter(ImageFilter.GaussianBlur(3)).resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    y, x = np.mgrid[0 : 1 : SIZE * 1j, 0 : 1 : SIZE * 1j]
    light = 1.06 - 0.12 * (x + y)[..., None] / 2
    noise = np.random.default_rng(seed).normal(0, 4, (SIZE, SIZE, 1))
    return Image.fromarray((np.asarray(small) * light + noise).clip(0, 255).round().astype(np.uint8))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for i, draw in enumerate((airplane, ship, automobile, truck)):
        photographed(draw(), i).save(FOLDER / f"{draw.__name__}.png", optimize=True)
