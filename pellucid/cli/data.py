"""pellucid data: fetch an image set, look at it, inspect it."""

import json
import logging
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.cli.verbs import DataOptions, FetchOptions, InspectOptions, LookOptions
from pellucid.data import named
from pellucid.data.augment import Augment, Augmented, Normalise, augment
from pellucid.data.caption_formats import holds_captions
from pellucid.data.caption_inspection import CaptionInspection, inspect_captions
from pellucid.data.caption_sources import SCENES, CaptionData, load_captions
from pellucid.data.inspection import Inspection, inspect_images
from pellucid.data.parallel import ParallelData
from pellucid.data.sources import PREFIXES, SET_NAMES, DataConfig, load_images, statistics
from pellucid.data.text_inspection import holds_text, in_languages, inspect_text
from pellucid.recipes import recipe
from pellucid.runs.config import PictureRun
from pellucid.views.figures import check_path, save_figure
from pellucid.views.training import SampleRow, samples_figure, shorten_name

DRAWS = 3  # of the augmentation, for each image
SAMPLE_COLUMNS = 8
MOST_SAMPLES = 64
PHOTO_SIZE = (168, 168)  # height and width of a captioned photograph in the picture
LETTER_PIXELS = 8  # pixels, about
MOST_LINES = 6


def data(options: DataOptions) -> None:
    match options.what:
        case FetchOptions():
            fetch(options.what)
        case LookOptions():
            look(options.what)
        case InspectOptions():
            inspect(options.what)


def fetch(options: FetchOptions) -> None:
    """Get the set, if it isn't there, and tell where it lies, how much it is and whether it is the official one."""
    if options.name not in SET_NAMES:
        raise ValueError(f"{options.name!r} can't be fetched; expected one of {', '.join(SET_NAMES)}")
    with log_to_terminal():
        splits = load_images(DataConfig(options.name, path=options.path))
    cached = named.cache_folder() / f"{options.name}.safetensors"
    print(f"{options.name}: {'comes with pellucid' if options.name == 'digits' else options.path or cached}")
    recorded = named.KNOWN.get(options.name, named.DIGITS).sha256
    for split in ("train", "test"):
        images = getattr(splits, split)
        if images is None:
            continue
        channels, height, width = images.shape
        digest = named.sha256((images.read(torch.arange(len(images))).numpy(), images.labels.byte().numpy()))
        expected = (recorded or {}).get(split)
        verdict = (
            "none is recorded" if expected is None else "as recorded" if digest == expected else "not the recorded one"
        )
        print(f"{split}: {len(images):,} images of {channels}×{height}×{width}, SHA-256 {digest[:12]}… ({verdict})")


@contextmanager
def log_to_terminal() -> Iterator[None]:
    """Say on the terminal what the log says meanwhile: where a set is looked for, and why it isn't there."""
    log = logging.getLogger("pellucid")
    level = log.level
    if sys.stderr.isatty():
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)


def look(options: LookOptions) -> None:
    """Draw images as they are and, below them, as training sees them."""
    check_path(options.out)
    if not 1 <= options.count <= MOST_SAMPLES:
        raise ValueError(f"--count is {options.count}; expected 1…{MOST_SAMPLES}")
    if means_captions(options.name, options.images):
        look_at_captions(options)
        return
    run = recipe(options.recipe) if options.recipe else None
    if run is not None and not isinstance(run, PictureRun):
        raise ValueError(f"{options.recipe} trains on sentences; expected the recipe of a model of pictures")
    config = run.augment if run else None
    train = load_images(DataConfig(options.name, path=options.path)).train
    config = config or Augment(flip="random", crop=max(1, train.shape[1] // 8))
    normalise = Normalise(*statistics(train))
    index = torch.randperm(len(train), generator=torch.Generator().manual_seed(options.seed))[: options.count]
    pixels, labels, places = train.read(index), train.labels[index], torch.arange(len(index))
    draws = [
        augment(pixels, labels, config, normalise, seed=options.seed, step=i, epoch=i, index=index, positions=places)
        for i in range(DRAWS)
    ]
    rows = []
    for part in places.split(SAMPLE_COLUMNS):
        names = [shorten_name(train.classes[i]) for i in labels[part].tolist()]
        rows.append(SampleRow("original", pixels[part], names))
        for i, batch in enumerate(draws, 1):
            images = denormalise(batch.images[part], normalise)
            rows.append(SampleRow(f"draw {i}", images, mixed_labels(batch, part, train.classes)))
    save_figure(samples_figure(rows), options.out)
    whose = f"as {options.recipe} does" if options.recipe else f"by random flips and crops (±{config.crop})"
    print(f"{len(index)} of {len(train):,} training images of {options.name}, each augmented {DRAWS} times {whose}")
    print(f"samples: {options.out}")


def look_at_captions(options: LookOptions) -> None:
    """Draw captioned images, each with the first sentence that is said of it."""
    if options.recipe or options.path:
        wrong = "recipe" if options.recipe else "path"
        raise ValueError(f"--{wrong} is for labelled images; leave it out to look at the captions of {options.name}")
    size = CaptionData().size if options.name == SCENES else PHOTO_SIZE
    train = load_captions(CaptionData(options.name, images=options.images, size=size)).train
    index = torch.randperm(len(train), generator=torch.Generator().manual_seed(options.seed))[: options.count]
    samples = train.subset(index)
    pixels = samples.images.read(torch.arange(len(samples)))
    letters = max(size[1], PHOTO_SIZE[1] * 3 // 4) // LETTER_PIXELS
    lines = [wrap_caption(each[0], letters) for each in samples.captions]
    places = torch.arange(len(samples)).split(SAMPLE_COLUMNS)
    rows = [SampleRow("", pixels[part], [lines[i] for i in part]) for part in places]
    save_figure(samples_figure(rows), options.out)
    print(f"{len(samples)} of {len(train):,} training images of {options.name}, each with a caption")
    print(f"samples: {options.out}")


def wrap_caption(caption: str, letters: int) -> str:
    """A sentence in as many lines as fit above an image. Dollars would begin a formula in a figure.

    >>> print(wrap_caption("a very small red circle on the left of the picture", 16))
    a very small red
    circle on the
    left of the
    picture
    """
    return "\n".join(textwrap.wrap(caption, letters, max_lines=MOST_LINES, placeholder=" …")).replace("$", r"\$")


def means_captions(name: str, images: str | None) -> bool:
    """Whether a name means captioned images: scenes, or a path at which there are captions."""
    is_name = name in SET_NAMES or name.partition(":")[0] in PREFIXES
    return name == SCENES or images is not None or (not is_name and holds_captions(Path(name).expanduser()))


def inspect(options: InspectOptions) -> None:
    """Print what a set holds and what is wrong with it."""
    if holds_text(options.name):
        text = inspect_text(in_languages(ParallelData(options.name)))
        print(json.dumps(asdict(text)) if options.json else text)
        return
    if means_captions(options.name, options.images):
        inspection = inspect_captions(CaptionData(options.name, images=options.images))
    else:
        is_name = options.name in SET_NAMES or options.name.partition(":")[0] in PREFIXES
        inspection = inspect_images(DataConfig(options.name) if is_name else Path(options.name))
    print(json.dumps(_plain(inspection)) if options.json else inspection)


def denormalise(images: Tensor, normalise: Normalise) -> Tensor:
    """Normalised pixels as bytes again.

    >>> half = Normalise((0.5,), (0.25,))
    >>> denormalise(torch.tensor([[[[-2.0, 0.0, 2.0]]]]), half)
    tensor([[[[  0, 128, 255]]]], dtype=torch.uint8)
    """
    mean, std = (torch.tensor(values)[:, None, None] for values in (normalise.mean, normalise.std))
    return ((images * std + mean) * 255).round().clamp(0, 255).byte()


def mixed_labels(batch: Augmented, part: Tensor, classes: tuple[str, ...]) -> list[str]:
    """The label where it has changed: both classes of a mixed image, with their shares."""
    labels = []
    for label, other, weight in zip(batch.labels[part], batch.others[part], batch.weight[part].tolist(), strict=True):
        shares = ((weight, classes[label]), (1 - weight, classes[other]))
        mixed = weight < 1 and label != other
        labels.append("\n".join(f"{share:.0%} {shorten_name(name, 11)}" for share, name in shares) if mixed else "")
    return labels


def _plain(inspection: Inspection | CaptionInspection) -> dict[str, Any]:
    sizes = [{"height": y, "width": x, "images": count} for (y, x), count in inspection.sizes.items()]
    if isinstance(inspection, CaptionInspection):
        return asdict(inspection) | {"sizes": sizes}
    counts = {split: dict(zip(inspection.classes, counts, strict=True)) for split, counts in inspection.counts.items()}
    return asdict(inspection) | {"sizes": sizes, "counts": counts}
