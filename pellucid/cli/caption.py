"""pellucid caption: what a captioner says of pictures of yours, and where it looks as it says it."""

import glob
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.cli.verbs import Caption
from pellucid.data.images import SUFFIXES, decode, probe
from pellucid.evaluation.speech import Said, describe
from pellucid.hub.loading import load_captioner, normalisation
from pellucid.models.captioner import Captioner
from pellucid.training.distributed import pick_device
from pellucid.views.captions import caption_figure
from pellucid.views.figures import check_path, save_figure

AT_ONCE = 16  # pictures that are captioned together
SHOWN = 480  # pixels of the longer side of a picture in a figure


def caption(asked: Caption) -> None:
    """Caption every picture that can be read; the others get a sentence each, and exit code 2."""
    if asked.beam < 1:
        raise ValueError(f"--beam is {asked.beam}; expected one or more")
    if not 1 <= asked.n_best <= asked.beam:
        raise ValueError(f"--n-best is {asked.n_best}; expected 1…{asked.beam}, at most as many as the beam is wide")
    if asked.figure is not None:
        check_path(asked.figure)
    paths = pictures(asked.images)
    model, tokenizer = load_captioner(asked.model, pick_device(asked.device))
    check_map(model, asked.layer, asked.head)
    listed: list[dict[str, Any]] = []
    for read in _read(paths, model):
        found = describe(
            model,
            tokenizer,
            torch.stack([pixels for _, _, pixels in read]),
            normalisation(model),
            beam=asked.beam,
            n_best=asked.n_best,
            attention=asked.figure is not None,
        )
        for (number, path, _), said in zip(read, found, strict=True):
            listed.append(figures(path, said))
            if not asked.json:
                print(told(path, said), flush=True)
            if asked.figure is not None:
                place = asked.figure if len(paths) == 1 else asked.figure.with_stem(f"{asked.figure.stem}-{number}")
                _draw(asked, model, path, said[0], place)
                if not asked.json:
                    print(f"figure: {place}")
    if asked.json:
        print(json.dumps(listed, allow_nan=False))
    if len(listed) < len(paths):
        raise ValueError(f"{len(paths) - len(listed)} of {len(paths)} pictures could not be read")


def pictures(names: tuple[str, ...]) -> list[Path]:
    """The files that are meant: themselves, the pictures in a folder by name, or those that fit a pattern."""
    if not names:
        raise ValueError("no pictures are given; name one or more files, folders or patterns")
    found: list[Path] = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES and each.is_file())
            if not inside:
                raise ValueError(f"the folder {name!r} holds no pictures")
            found += inside
        elif not path.exists() and glob.has_magic(name):
            fitting = sorted(Path(each) for each in glob.glob(str(path), recursive=True) if Path(each).is_file())
            if not fitting:
                raise ValueError(f"no file fits the pattern {name!r}")
            found += fitting
        else:
            found.append(path)
    return found


def figures(path: Path, found: list[Said]) -> dict[str, Any]:
    """What the JSON holds of one picture."""
    return {
        "image": str(path),
        "captions": [
            {
                "caption": said.caption,
                "log_prob": said.log_prob,
                "score": said.score,
                "words": [
                    {"word": word, "probability": math.exp(log_prob)}
                    for word, log_prob in zip(said.words, said.word_log_probs, strict=True)
                ],
            }
            for said in found
        ],
    }


def told(path: Path, found: list[Said]) -> str:
    """The same for people: the caption, or the best ones with their score, the log-probability of a token."""
    if len(found) == 1:
        return f"{path}  {found[0].caption}"
    return "\n".join([str(path), *(f"  {said.score:8.3f}  {said.caption}" for said in found)])


def check_map(model: Captioner, layer: int | None, head: int | None) -> None:
    layers, heads = model.config.layers, model.config.heads
    if layer is None and head is not None:
        raise ValueError(f"--head {head} is one of a layer; expected a --layer beside it, not None")
    if layer is not None and not -layers <= layer < layers:
        raise ValueError(f"--layer is {layer}; expected 0…{layers - 1}, −1 for the last, or None for the mean of all")
    if head is not None and not 0 <= head < heads:
        raise ValueError(f"--head is {head}; expected 0…{heads - 1}")


def _read(paths: list[Path], model: Captioner) -> Iterator[list[tuple[int, Path, Tensor]]]:
    """Some pictures at a time, numbered from one; those that can't be read get a sentence, or raise it if alone."""
    encoder = model.config.encoder
    for start in range(0, len(paths), AT_ONCE):
        read = []
        for number, path in enumerate(paths[start : start + AT_ONCE], start + 1):
            try:
                pixels = decode(path, size=encoder.image, channels=encoder.channels, fit="stretch")
                read.append((number, path, pixels))
            except ValueError as error:
                if len(paths) == 1:
                    raise
                print(f"pellucid: {error}", file=sys.stderr)
        if read:
            yield read


def _draw(asked: Caption, model: Captioner, path: Path, said: Said, place: Path) -> None:
    assert said.attention is not None
    header = probe(path)
    scale = min(1.0, SHOWN / max(header.height, header.width))
    size = (max(1, round(scale * header.height)), max(1, round(scale * header.width)))
    picture = decode(path, size=size, channels=model.config.encoder.channels, fit="stretch")
    maps, which = _map(said.attention, asked.layer, asked.head)
    rows, columns = model.grid
    figure = caption_figure(
        picture,
        said.words,
        [math.exp(log_prob) for log_prob in said.word_log_probs],
        maps,
        tokens=rows * columns + model.config.encoder.registers,
        title=f"{said.caption}\ncross-attention of {which}",
    )
    save_figure(figure, place)


def _map(
    attention: Float[Tensor, "layers heads words rows columns"], layer: int | None, head: int | None
) -> tuple[Float[Tensor, "words rows columns"], str]:
    """One map of each word, and what it is called."""
    layers, heads = attention.shape[:2]
    if layer is None:
        return attention.mean((0, 1)), f"the decoder, mean of {layers} layers of {heads} heads"
    called = f"decoder layer {layer % layers}"
    if head is None:
        return attention[layer].mean(0), f"{called}, mean of {heads} heads"
    return attention[layer, head], f"{called}, head {head}"
