"""Do the maps mean anything? Every method on a classifier's images, and words' maps on scenes whose objects are known.

    python benchmarks/faithfulness.py --half    # 500 images, 18 minutes on two cores
    python benchmarks/faithfulness.py --half --images 50 --scenes 100 --dry-run    # two minutes, nothing kept

Deletion and insertion on the first test images of CIFAR-10, for the class that the model finds likeliest; then the
pointing game on scenes, the captioner reading the true captions. Intervals are bootstrapped over images: what fewer
images say is right and wider. Prints a report and keeps it in results/faithfulness-DEVICE.json.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from report import Column, Table, keep
from torch import Tensor

from pellucid.data.caption_sources import CaptionData, load_captions
from pellucid.data.scenes import SceneSet
from pellucid.data.sources import DataConfig, load_images
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.devices import pick_device
from pellucid.evaluation.pointing import aligned, pointing
from pellucid.explain.faithfulness import Faithfulness, Interval, PatchFill, bootstrap_mean, faithfulness
from pellucid.explain.maps import METHODS, pixels_of
from pellucid.explain.words import WordLook
from pellucid.layers.modes import evaluating
from pellucid.models import Captioner
from pellucid.ready import load_captioner, load_classifier

FILLS: tuple[PatchFill, ...] = ("blur", "mean")
WORDS: dict[str, Callable[[WordLook, int], Tensor]] = {
    "raw, last layer": lambda look, word: look.map("raw", word),
    "raw, first layer": lambda look, word: look.map("raw", word, layer=0),
    "rollout": lambda look, word: look.map("rollout", word),
    "gradient": lambda look, word: look.map("gradient", word),
    "input gradient": lambda look, word: look.map("input gradient", word),
    "random": lambda look, word: look.map("random", word),
}


def areas(curves: Faithfulness, fill: PatchFill) -> Table:
    """A row for each method: what lies under its curves, and how much that differs from a random order."""
    rows = []
    for method in curves.methods:
        beside = None if method == "random" else "random"
        row: dict[str, Any] = {"method": method}
        for which in ("deletion", "insertion"):
            row[which] = list(curves.area(which, method))
            row[f"{which} beside random"] = list(curves.area(which, method, beside=beside)) if beside else None
        rows.append(row)
    columns = {"method": Column(), "deletion": Column(digits=3), "insertion": Column(digits=3)}
    columns |= {f"{which} beside random": Column(digits=3, signed=True) for which in ("deletion", "insertion")}
    by = "the image blurred (Gaussian, σ = one patch)" if fill == "blur" else "the mean colour"
    title = f"areas under deletion (less is better) and insertion (more is better), patches replaced by {by}"
    return Table(title, columns, rows)


def point(model: Captioner, tokenizer: CaptionTokenizer, scenes: SceneSet, batch: int) -> Table:
    """A row for each method: how often the peak of a word's map lies inside a box of what it names."""
    hits: dict[str, list[float]] = {name: [] for name in WORDS}
    words: list[int] = []
    chances: list[float] = []
    extra, patches = model.encoder.extra_tokens, model.grid[0] * model.grid[1]
    with evaluating(model):
        for part in torch.arange(len(scenes)).split(batch):
            captions = [scenes.captions[i][0] for i in part.tolist()]
            tokens = tokenizer.batch(captions, model.config.max_length)[:, 1:]
            look = WordLook.of(model, pixels_of(scenes.images.read(part), model.encoder), tokens.to(_device(model)))
            spelled = [tokenizer.words(row) for row in tokens]
            longest = max(pieces.stop for row in spelled for _, pieces in row)
            for name, method in WORDS.items():
                maps = torch.stack([method(look, word).float().cpu() for word in range(longest)], 1)
                maps = maps[..., extra : extra + patches].unflatten(-1, model.grid)
                for i, row in enumerate(spelled):
                    boxes = aligned([word for word, _ in row], captions[i], scenes.boxes[part[i]])
                    mine = torch.stack([maps[i, pieces].mean(0) for _, pieces in row])[None, None]
                    result = pointing([mine], [boxes], scenes.images.shape[1:])
                    hits[name].append(result.hits[None, None])
                    if name == "random":
                        words.append(result.words)
                        chances.append(result.chance * result.words)
    named = torch.tensor(words, dtype=torch.float64)
    rows: list[dict[str, Any]] = [
        {"method": name, "inside": list(_share(torch.tensor(counts, dtype=torch.float64), named))}
        for name, counts in hits.items()
    ]
    rows.append({"method": "a patch at random", "inside": sum(chances) / sum(words)})
    columns = {"method": Column(), "inside": Column("share", 1)}
    return Table("words whose peak lies inside what they name", columns, rows)


def _share(hits: Tensor, words: Tensor) -> Interval:
    """Of hits among words, drawn anew by picture: each weighs as many words as it names things."""
    scaled = bootstrap_mean((hits - words * (hits.sum() / words.sum())) / words.mean())
    share = float(hits.sum() / words.sum())
    return Interval(share, share + scaled.low, share + scaled.high)


def _device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit-cifar10")
    parser.add_argument("--data", default="cifar10", help="name or path of labelled images with a test split")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--steps", type=int, default=8, help="points of a curve after the first")
    parser.add_argument("--fill", nargs="+", choices=FILLS, default=["blur"])
    parser.add_argument("--half", action="store_true", help="answer in bfloat16: faster where the processor has it")
    parser.add_argument("--captioner", default="captioner-scenes")
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dry-run", action="store_true", help="print the report, leave results/ as it is")
    options = parser.parse_args()
    device = pick_device(options.device)
    images = load_images(DataConfig(options.data)).test
    assert images is not None
    images = images.subset(torch.arange(min(options.images, len(images))))
    settings: dict[str, Any] = {
        "model": options.model, "data": options.data, "images": len(images), "steps": options.steps,
        "precision of answers": "bfloat16" if options.half else "float32",
    }  # fmt: skip
    model, tables = load_classifier(options.model, device).transformer, {}
    for fill in options.fill:
        begun = time.perf_counter()
        curves = faithfulness(
            model,
            images,
            METHODS,
            fill=fill,
            steps=options.steps,
            batch=options.batch,
            half=options.half,
            progress=lambda done: print(f"{fill}: {done} of {len(images)}", flush=True),
        )
        tables[fill] = areas(curves, fill)
        settings["seconds"] = round(time.perf_counter() - begun)
        settings["probability, whole image"] = round(curves.deletion[0, :, 0].mean().item(), 3)
        settings["probability, every patch replaced"] = round(curves.deletion[0, :, -1].mean().item(), 3)
    speaker = load_captioner(options.captioner, device)
    scenes = load_captions(CaptionData(size=speaker.reader.size)).test
    assert isinstance(scenes, SceneSet)
    scenes = scenes.subset(torch.arange(min(options.scenes, len(scenes))))
    tables["pointing"] = point(speaker.model, speaker.tokenizer, scenes, options.batch)
    settings |= {"captioner": options.captioner, "scenes": len(scenes)}
    notes = (
        "The likeliest class is followed. Pointing: the captioner reads the true captions; raw attention is the mean "
        "over heads."
    )
    keep("faithfulness", tables, device, seeds=[0], settings=settings, notes=notes, dry=options.dry_run)


if __name__ == "__main__":
    main()
