"""Pictures to begin with: two photographs, drawings of ours, and scenes as they are made for captions."""

import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from PIL import Image

from pellucid.data.scenes import SceneConfig, make_scenes

PICTURES = Path(__file__).parents[1] / "cli" / "samples"
SCENE_SAMPLES = 3
SampleKind = Literal["photograph", "drawing", "scene"]


@dataclass(frozen=True)
class Sample:
    """A picture's file with what it is."""

    name: str
    title: str
    kind: SampleKind
    type: str
    data: bytes


@cache
def samples() -> dict[str, Sample]:
    """All of them by name."""
    pictures = [
        *(_file(PICTURES / f"{name}.png", "drawing", name) for name in ("ship", "airplane", "truck")),
        *(_file(PICTURES / f"{name}.jpg", "photograph", title) for name, title in _TITLES.items()),
        *_scenes(),
    ]
    return {sample.name: sample for sample in pictures}


_TITLES = {"flower": "a flower", "china": "a temple in China"}


def _file(path: Path, kind: SampleKind, title: str) -> Sample:
    media = "image/png" if path.suffix == ".png" else "image/jpeg"
    return Sample(path.stem, title, kind, media, path.read_bytes())


def _scenes() -> list[Sample]:
    """Scenes that no training has seen: they are of the test split."""
    test = make_scenes(SceneConfig(train=1, validation=0, test=SCENE_SAMPLES)).test
    assert test is not None
    pictures = test.images.read(torch.arange(SCENE_SAMPLES)).permute(0, 2, 3, 1).numpy()
    scenes = []
    for number, (picture, (caption, *_)) in enumerate(zip(pictures, test.captions, strict=True), 1):
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "PNG")
        scenes.append(Sample(f"scene-{number}", caption, "scene", "image/png", stream.getvalue()))
    return scenes
