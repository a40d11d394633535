"""Do the maps mean anything? Every method on a classifier's images, and words' maps on scenes whose objects are known.

    PELLUCID_CACHE=... python benchmarks/faithfulness.py --images 500

Deletion and insertion on the first test images of CIFAR-10, for the class that the model finds likeliest; then the
pointing game on scenes, the captioner reading the true captions. Intervals are bootstrapped over images. Prints a
report and keeps it as benchmarks/faithfulness-DATE-DEVICE.md.
"""

import argparse
import time
from collections.abc import Callable

import torch
from report import keep
from torch import Tensor

from pellucid.data.caption_sources import CaptionData, load_captions
from pellucid.data.scenes import SceneSet
from pellucid.data.sources import DataConfig, load
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.evaluation.pointing import aligned, pointing
from pellucid.explain.faithfulness import Faithfulness, Interval, PatchFill, bootstrap_mean, faithfulness
from pellucid.explain.maps import METHODS, evaluating, pixels_of
from pellucid.explain.words import WordLook
from pellucid.hub import loading
from pellucid.models import Captioner
from pellucid.training.distributed import pick_device

FILLS: tuple[PatchFill, ...] = ("blur", "mean")
WORDS: dict[str, Callable[[WordLook, int], Tensor]] = {
    "raw, last layer": lambda look, word: look.map("raw", word),
    "raw, first layer": lambda look, word: look.map("raw", word, layer=0),
    "rollout": lambda look, word: look.map("rollout", word),
    "gradient": lambda look, word: look.map("gradient", word),
    "input gradient": lambda look, word: look.map("input gradient", word),
    "random": lambda look, word: look.map("random", word),
}


def table(found: Faithfulness) -> list[str]:
    """A line for each method, and a sentence about those that are no better than random."""
    lines = [
        "| method | deletion (less is better) | insertion (more is better) | deletion − random | insertion − random |",
        f"|{' --- |' * 5}",
    ]
    weak = []
    for method in found.methods:
        less, more = (found.area(which, method, beside="random") for which in ("deletion", "insertion"))
        areas = f"| {method} | {found.area('deletion', method)} | {found.area('insertion', method)} |"
        lines.append(areas + (" – | – |" if method == "random" else f" {less} | {more} |"))
        if method != "random" and not (less.high < 0 < more.low):
            weak.append(method)
    said = (
        f"Not clearly better than random in both: {', '.join(weak)}." if weak else "All are better than random in both."
    )
    return [*lines, "", said]


def pointed(model: Captioner, tokenizer: CaptionTokenizer, scenes: SceneSet, batch: int) -> list[str]:
    """A line for each method: how often the peak of a word's map lies inside a box of what it names."""
    hits: dict[str, list[float]] = {name: [] for name in WORDS}
    words: list[int] = []
    chances: list[float] = []
    extra, patches = model.encoder.extra_tokens, model.grid[0] * model.grid[1]
    with evaluating(model):
        for part in torch.arange(len(scenes)).split(batch):
            captions = [scenes.captions[i][0] for i in part.tolist()]
            said = tokenizer.batch(captions, model.config.max_length)[:, 1:]
            look = WordLook.of(model, pixels_of(scenes.images.read(part), model.encoder), said.to(_device(model)))
            spelled = [tokenizer.words(row) for row in said]
            longest = max(pieces.stop for row in spelled for _, pieces in row)
            for name, method in WORDS.items():
                maps = torch.stack([method(look, word).float().cpu() for word in range(longest)], 1)
                maps = maps[..., extra : extra + patches].unflatten(-1, model.grid)
                for i, row in enumerate(spelled):
                    boxes = aligned([word for word, _ in row], captions[i], scenes.boxes[part[i]])
                    mine = torch.stack([maps[i, pieces].mean(0) for _, pieces in row])[None, None]
                    found = pointing([mine], [boxes], scenes.images.shape[1:])
                    hits[name].append(found.hits[None, None])
                    if name == "random":
                        words.append(found.words)
                        chances.append(found.chance * found.words)
    named = torch.tensor(words, dtype=torch.float64)
    lines = ["| method | words whose peak lies inside what they name |", "| --- | --- |"]
    lines += [f"| {name} | {_share(torch.tensor(found, dtype=torch.float64), named)} |" for name, found in hits.items()]
    return [*lines, f"| a patch at random | {sum(chances) / sum(words):.3f} |"]


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
    asked = parser.parse_args()
    device = pick_device(asked.device)
    lines = []
    images = load(DataConfig(asked.data)).test
    assert images is not None
    images = images.subset(torch.arange(min(asked.images, len(images))))
    model = loading.load(asked.model, device)
    for fill in asked.fill:
        begun = time.perf_counter()
        found = faithfulness(
            model,
            images,
            METHODS,
            fill=fill,
            steps=asked.steps,
            batch=asked.batch,
            half=asked.half,
            progress=lambda done: print(f"{fill}: {done} of {len(images)}", flush=True),
        )
        taken = time.perf_counter() - begun
        whole, nothing = found.deletion[0, :, 0].mean(), found.deletion[0, :, -1].mean()
        by = "the image blurred (Gaussian, σ = one patch)" if fill == "blur" else "the mean colour"
        lines += [
            f"## {asked.model}: deletion and insertion on the first {len(images)} test images of {asked.data}",
            "",
            f"Patches replaced by {by}, {asked.steps} steps, answers in {'bfloat16' if asked.half else 'float32'}, the "
            f"likeliest class followed: probability {whole:.3f} in the whole image, {nothing:.3f} with every patch "
            f"replaced. Mean areas with 95 % intervals; {taken:.0f} s.",
            "",
            *table(found),
            "",
        ]
    speaker, tokenizer = loading.load_captioner(asked.captioner, device)
    scenes = load_captions(CaptionData(size=speaker.config.encoder.image)).test
    assert isinstance(scenes, SceneSet)
    scenes = scenes.subset(torch.arange(min(asked.scenes, len(scenes))))
    lines += [
        f"## {asked.captioner}: pointing on {len(scenes)} test scenes",
        "",
        "The captioner reads the true captions. Raw attention is the mean over heads.",
        "",
        *pointed(speaker, tokenizer, scenes, asked.batch),
    ]
    keep("faithfulness", lines, device)


if __name__ == "__main__":
    main()
