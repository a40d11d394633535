"""Does a word's map fall on its object in photographs? The truth is made: photographs put into photographs.

    python benchmarks/pointing.py captioner-flickr8k --data flickr8k/dataset_flickr8k.json --pictures 60
    … --stamps unpacked/usr/share/tuxpaint/stamps    # of Debian's package tuxpaint-stamps-default: photographs cut out

A mosaic is four validation photographs, a quarter each, every one with a thing that most of its captions name and none
of the other three's do. Pasted is one of them in a quarter of a whole photograph whose captions don't name its thing.
A cut-out is a thing without its surroundings, put somewhere into such a photograph.
The captioner reads "a THING", and the map of that word is asked whether its peak lies on the thing, and how much of it
does; by chance, as much as the thing covers. Keeps results/pointing-DEVICE.json.
"""

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from report import Column, Table, keep
from torch import Tensor

import pellucid
from pellucid.data.captions import CaptionSet
from pellucid.data.tokenizer import UNKNOWN
from pellucid.devices import pick_device
from pellucid.evaluation.doubt import name_things
from pellucid.explain.maps import Method
from pellucid.explain.words import WordLook
from pellucid.ready import ReadyCaptioner

THINGS = re.findall(
    r"\w+",
    "dog horse bike motorcycle car boat ball guitar bench rock mountain tree snow water grass beach sand street pool "
    "building crowd football soccer skateboard swing slide field lake ocean wall stairs fence tent fire",
)
ALL_LAYERS = "raw, all layers"
METHODS: tuple[Method, ...] = ("raw", "rollout", "gradient", "input gradient", "random")
NAMES = (*METHODS, ALL_LAYERS)
STAMPS = {  # files, and the word for what is in them
    "dog": "dog", "horse": "horse", "cow": "cow", "cow_white": "cow", "sheep": "sheep", "goat": "goat", "bull": "bull",
    "deer": "deer", "elephant": "elephant", "camel": "camel", "tiger": "tiger", "bear": "bear", "duck": "duck",
    "seagull": "seagull", "pelican": "pelican", "dolphin": "dolphin", "rabbit": "rabbit", "squirrel": "squirrel",
    "guitar_classical": "guitar", "guitar_electric": "guitar", "violin": "violin", "camera_35mm": "camera",
    "soccer": "ball", "basketball": "basketball", "football": "football", "tennis_ball": "ball",
    "tennis_racket": "racket", "traffic_cone": "cone", "truck": "truck", "firetruck": "firetruck",
    "green_korean_bus": "bus", "wheel_tractor": "tractor", "sedan_police": "car", "pink_tricycle": "tricycle",
    "t_jacket": "jacket", "t_shirt": "shirt", "t_pants": "pants", "feathered_hat": "hat", "fire": "fire",
    "explosion": "explosion", "tree336": "tree", "liberia-palm": "tree", "flower1": "flower", "red-gazania": "flower",
    "apple_red": "apple", "orange": "orange", "pizza": "pizza", "mug": "mug", "stop": "sign", "balloon360": "balloon",
}  # fmt: skip
NAMED = 3  # captions of five that must name the thing
COLUMNS = {
    "photographs": Column(),
    "map": Column(),
    "words": Column(),
    "peak on it": Column("share", 1),
    "share on it": Column("share", 1),
    "by chance": Column("share", 1),
}


def find_things(images: CaptionSet) -> list[dict[str, float]]:
    """Of each image the share of its captions that name each thing."""
    stems = {thing: next(iter(name_things(thing))) for thing in THINGS}
    named = [[name_things(caption) for caption in captions] for captions in images.captions]
    return [
        {thing: sum(stem in names for names in captions) / len(captions) for thing, stem in stems.items()}
        for captions in named
    ]


def plan(things: Sequence[dict[str, float]], known: Sequence[str], count: int, seed: int = 0) -> list[tuple[Any, Any]]:
    """Pictures as (four images, the thing of each); drawn by chance, all things as often as it goes."""
    generator = torch.Generator().manual_seed(seed)
    sharp = {t: [i for i, named in enumerate(things) if named[t] * 5 >= NAMED] for t in known}
    sharp = {thing: images for thing, images in sharp.items() if images}
    plans = []
    for _ in range(100 * count):
        if len(plans) == count:
            break
        order = torch.randperm(len(sharp), generator=generator)[:4].tolist()
        chosen = [list(sharp)[place] for place in order]
        images = [sharp[t][int(torch.randint(len(sharp[t]), (), generator=generator))] for t in chosen]
        alone = all(things[i][t] == 0 for t, own in zip(chosen, images, strict=True) for i in images if i != own)
        if len(set(images)) == 4 and alone:
            plans.append((images, chosen))
    return plans


def quarters(size: tuple[int, int]) -> Tensor:
    """A mask for each, left to right, then down; (4 y x)."""
    rows, columns = size[0] // 2, size[1] // 2
    masks = torch.zeros(4, *size)
    for number, mask in enumerate(masks):
        y, x = rows * (number // 2), columns * (number % 2)
        mask[y : y + rows, x : x + columns] = 1
    return masks


def shrink(picture: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(picture[None].float(), size, mode="area")[0].round().to(torch.uint8)


def compose(pictures: Tensor, kind: str, place: int) -> tuple[Tensor, Tensor]:
    """A mosaic of four, or the first of them pasted into the second at one of the four places; and what each covers."""
    masks = quarters((pictures.shape[-2], pictures.shape[-1]))
    half = (pictures.shape[-2] // 2, pictures.shape[-1] // 2)
    composed = pictures[1].clone()
    for number, mask in enumerate(masks):
        if kind == "mosaic" or number == place:
            small = shrink(pictures[number if kind == "mosaic" else 0], half)
            composed[:, mask > 0] = small.flatten(1)
    return composed, masks if kind == "mosaic" else masks[place][None]


def paste(picture: Tensor, stamp: Image.Image, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A cut-out somewhere in a picture, its longer side half of the picture's; and what it covers, (1 y x)."""
    _, height, width = picture.shape
    scale = 0.5 * min(height / stamp.height, width / stamp.width)
    small = stamp.resize(
        (max(1, round(scale * stamp.width)), max(1, round(scale * stamp.height))), Image.Resampling.BOX
    )
    content = torch.from_numpy(np.array(small)).permute(2, 0, 1).float()
    y, x = (
        int(torch.randint(full - part + 1, (), generator=generator))
        for full, part in zip(picture.shape[1:], content.shape[1:], strict=True)
    )
    covers = torch.zeros(1, height, width)
    covers[0, y : y + content.shape[1], x : x + content.shape[2]] = content[3] / 255
    over = torch.zeros_like(picture, dtype=torch.float32)
    over[:, y : y + content.shape[1], x : x + content.shape[2]] = content[:3]
    return (covers * over + (1 - covers) * picture).round().to(torch.uint8), covers


def point(model: ReadyCaptioner, picture: Tensor, words: Sequence[str], seed: int) -> dict[str, Tensor]:
    """The map of each word, read after "a", by each method; (words rows columns)."""
    device, tokenizer = model.device, model.tokenizer
    rows = torch.tensor([tokenizer.encode(f"a {word}") for word in words], device=device)
    pixels = model.reader.prepare(picture[None], model.model).expand(len(words), -1, -1, -1)
    look = WordLook.of(model.model, pixels, rows)
    maps = {}
    for method in METHODS:
        values = look.map(method, 1, seed=seed).detach().cpu()[:, model.model.config.encoder.registers :]
        maps[method] = values.unflatten(1, model.model.grid)
    registers, layers = model.model.config.encoder.registers, range(len(look.decoder))
    mean = torch.stack([look.map("raw", 1, layer=layer) for layer in layers]).mean(0)
    maps[ALL_LAYERS] = mean.detach().cpu()[:, registers:].unflatten(1, model.model.grid)
    return maps


def judge(maps: Tensor, masks: Tensor) -> tuple[list[float], list[float], list[float]]:
    """For each map whether its peak lies on what its mask covers (a share, if several are as high), how much of the map
    does, and how much of the picture the mask covers."""
    covers = F.adaptive_avg_pool2d(masks[:, None].double(), (maps.shape[1], maps.shape[2]))[:, 0]
    peaks, shares = [], []
    for values, cover in zip(maps.double(), covers, strict=True):
        highest = values == values.max()
        peaks.append(float((cover[highest] > 0.5).double().mean()))
        positive = values.clamp(min=0)
        shares.append(float((positive * cover).sum() / positive.sum().clamp(min=1e-30)))
    return peaks, shares, covers.mean((1, 2)).tolist()


def interval(values: Sequence[float]) -> list[float]:
    """Mean with the 95 % interval of a mean."""
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1) / len(values))
    return [mean, mean - 1.96 * spread, mean + 1.96 * spread]


def measure(
    model: ReadyCaptioner, images: CaptionSet, count: int, stamps: Path | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Every kind of picture by every method."""
    spelled = {word: model.tokenizer.encode(word) for word in {*THINGS, *STAMPS.values()}}
    known = [thing for thing in THINGS if len(spelled[thing]) == 1 and UNKNOWN not in spelled[thing]]
    things = find_things(images)
    plans = plan(things, known, count, seed)
    pictures: dict[str, list[tuple[Tensor, Tensor, list[str]]]] = {"mosaic": [], "pasted": [], "cut out": []}
    for number, (chosen, words) in enumerate(plans):
        four = images.images.read(torch.tensor(chosen))
        for kind in ("mosaic", "pasted"):
            pictures[kind].append((*compose(four, kind, number % 4), words if kind == "mosaic" else words[:1]))
    generator = torch.Generator().manual_seed(seed)
    cut = {name: word for name, word in STAMPS.items() if UNKNOWN not in spelled[word]} if stamps else {}
    for name, word in cut.items():
        stem = next(iter(name_things(word)))
        free = [i for i, said in enumerate(images.captions) if not any(stem in name_things(each) for each in said)]
        chosen = free[int(torch.randint(len(free), (), generator=generator))]
        photographs = (path for path in (stamps or Path()).rglob(f"{name}.png") if "cartoon" not in path.parts)
        stamp = Image.open(min(photographs)).convert("RGBA")
        picture = images.images.read(torch.tensor([chosen]))[0]
        pictures["cut out"].append((*paste(picture, stamp, generator), [word]))
    rows = []
    for kind, made in pictures.items():
        found_by: dict[str, tuple[list[float], list[float], list[float]]] = {m: ([], [], []) for m in NAMES}
        for number, (picture, masks, words) in enumerate(made):
            for method, maps in point(model, picture, words, number).items():
                for into, values in zip(found_by[method], judge(maps, masks), strict=True):
                    into += values
        rows += [
            {
                "photographs": kind,
                "map": method,
                "words": len(peaks),
                "peak on it": interval(peaks),
                "share on it": interval(shares),
                "by chance": sum(chances) / len(chances),
            }
            for method, (peaks, shares, chances) in found_by.items()
            if peaks
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a shipped name, the folder of a run or of a saved model")
    parser.add_argument("--data", required=True, help="path of captions")
    parser.add_argument("--pictures", type=int, default=60, help="how many of each kind")
    parser.add_argument("--stamps", type=Path, help="folder of Tux Paint's stamps")
    parser.add_argument("--notes", default="")
    options = parser.parse_args()
    device = pick_device("auto")
    model = pellucid.load(options.model, device=device)
    images = model.load_split(options.data, "validation")
    rows = measure(model, images, options.pictures, options.stamps)
    settings = {"model": Path(options.model).name, "mosaics": options.pictures, "seed": 0}
    table = Table("words and their objects in photographs", COLUMNS, rows)
    keep("pointing", {"maps": table}, device, settings=settings, notes=options.notes)


if __name__ == "__main__":
    main()
