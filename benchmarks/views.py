"""What people read of results/: the evidence of a recipe in words, and tables that take from several files.

Words and bars stand here, every figure in results/. A bar is what was to be reached, set before it was measured.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tables import Results, Row, markdown, show

RECIPES = {  # what is learned from, and the bar
    "vit_digits": ("8×8 digits", "97.5 % in 60 s"),
    "vit_cifar10_fast": ("CIFAR-10, 64 tokens", "94.0 % in 35 s"),
    "vit_cifar10_accurate": ("CIFAR-10", "96 % in 8 minutes"),
    "vit_tiny_imagenet": ("Tiny ImageNet, 200 classes, its validation images", "72 %"),
    "vit_64x5": ("CIFAR-10, 5 layers × 64", "80 %"),
    "vit_256_course": ("CIFAR-10, 65 tokens × 256, batch 192, 50 epochs", "none: a course's setting"),
    "captioner_scenes": ("48×48 scenes", "90 % in 3 minutes, pointing 80 %"),
    "captioner_scenes_full": (
        "64×64 scenes",
        "99 %, unseen pairs 90 %, counts and relations 98 %, pointing 95 %, in 5 minutes",
    ),
    "captioner_flickr8k": (
        "128×128 photographs, encoder begun as vit-tiny-imagenet",
        "CIDEr-D 55, shuffled at most 12",
    ),
    "captioner_lite": (
        "224×224 photographs, tokens made by EfficientNet-Lite0, which has learned ImageNet's labels",
        "CIDEr-D 60, shuffled at most 12",
    ),
    "translator_multi30k": ("Multi30k", "BLEU 38.5 en→de, 40.5 de→en, 58 en→fr, in 5 minutes"),
}
HARDWARE = {"2 CPU threads": "two cores", "NVIDIA H200": "one H200"}
CLAIMS = ("packed.row", "built.equal_weights", "convolution.one_head", "masks.infinity", "itself.word")


def evidence(name: str, results: Results) -> str:
    """What a recipe has been measured to do, in one paragraph."""
    result = results.of(name)
    if result is None:
        raise ValueError(f"{name} states evidence, and there is no {name}-DEVICE.json in results/")
    where = f"{result['hardware']}, {result['date']}" + (f", commit {result['commit']}" if result["commit"] else "")
    parameters = f"{result['settings']['parameters']:,} parameters"
    notes = f" {result['notes']}" if result["notes"] else ""
    return f"{'; '.join([*_told(result), _time(result), parameters])}. {where}.{notes}"


def _told(result: dict[str, Any]) -> list[str]:
    """The scores of all seeds."""
    rows, settings = result["tables"]["seeds"]["rows"], result["settings"]
    if "exact" in rows[0]:
        return [f"{_percents(rows, 'exact')} of {settings['sequences']:,} unseen sequences right{_seeds(rows)}"]
    if "top1" in rows[0]:
        of = f"of {settings['images']:,} images" + (
            f", {_percents(rows, 'held out', 2)} of those held out" if "held out" in rows[0] else ""
        )
        return [f"test top-1 {_percents(rows, 'top1', 2)}{_seeds(rows, 'top1')} {of}"]
    if "exact_seen" in rows[0]:
        return [
            f"exactly right captions of test scenes {_percents(rows, 'exact_seen')}"
            f"{_seeds(rows, 'exact_seen', beam=settings['beam'])}, with a pair of colour and shape that is not in "
            f"training {_percents(rows, 'exact_unseen')}",
            f"counts {_percents(rows, 'exact_count')}, relations {_percents(rows, 'exact_relation')}",
            f"peak of attention inside the object that a word names {_percents(rows, 'pointing')}, through the encoder "
            f"(rollout) {_percents(rows, 'pointing_rollout')}, by chance {_mean(rows, 'pointing_chance')}",
        ]
    if "bleu" in rows[0]:
        told = [
            f"{direction} {_bleu_of(rows, direction)}" for direction in dict.fromkeys(row["direction"] for row in rows)
        ]
        return [f"sacreBLEU of {settings['sentences']:,} test sentences, beam {settings['beam']}: {', '.join(told)}"]
    seeds, alike = _seeds(rows, beam=settings["beam"]), rows[:1]  # what doesn't depend on the model is given once
    return [
        f"{settings['images']:,} test images: CIDEr-D {_hundredths(rows, 'cider_d')}{seeds}",
        f"BLEU-4 {_hundredths(rows, 'bleu4')}",
        f"CIDEr-D with the images shuffled {_hundredths(rows, 'shuffled')}",
        f"of a blank image {_hundredths(rows, 'blank')}",
        f"best fixed caption {_hundredths(alike, 'fixed')}, people against people {_hundredths(alike, 'people')}",
    ]


def _bleu_of(rows: Sequence[Row], direction: str) -> str:
    scores = [f"{row['bleu']:.1f}" for row in rows if row["direction"] == direction]
    return f"{' '.join(scores)} (mean {_bleu_mean(rows, direction):.1f})"


def _bleu_mean(rows: Sequence[Row], direction: str) -> float:
    return statistics.mean(row["bleu"] for row in rows if row["direction"] == direction)


def _time(result: dict[str, Any]) -> str:
    """How long it trained, the second stage and compiling apart; alone on the machine, where that was measured."""
    rows, alone = result["tables"]["seeds"]["rows"], result["settings"].get("seconds of training alone")
    span = _span([row["training"] for row in rows])
    text = f"{span} s of training" if alone is None else f"{alone:g} s of training alone, {span} s beside the others"
    if "second stage" in rows[0]:
        text += f", then {_span([row['second stage'] for row in rows])} s on its own captions"
    compiling = [row["compiling"] for row in rows if row.get("compiling")]
    compiling = result["settings"].get("seconds of compiling", max(compiling, default=0))
    return text + (f", after {round(compiling, 1):g} s of compiling" if compiling else "")


def _percents(rows: Sequence[Row], column: str, digits: int = 1) -> str:
    return ", ".join(_trimmed(100 * row[column], digits) for row in rows) + " %"


def _trimmed(value: float, digits: int) -> str:
    """Near 100 one more digit means something, and zeros mean nothing."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value >= 99.5 else f"{value:.{digits}f}"


def _hundredths(rows: Sequence[Row], column: str) -> str:
    """As papers have it: the scorer's figure times 100."""
    return ", ".join(f"{100 * row[column]:.1f}" for row in rows)


def _mean(rows: Sequence[Row], column: str, digits: int = 1) -> str:
    return _trimmed(100 * statistics.mean(row[column] for row in rows), digits) + " %"


def _seeds(rows: Sequence[Row], mean: str | None = None, beam: int | None = None) -> str:
    """In brackets: whose figures these are, and their mean."""
    seeds = [row["seed"] for row in rows if row["seed"] is not None]
    parts = [f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"] if seeds else []
    parts += [f"mean {_mean(rows, mean, 2 if mean == 'top1' else 1)}"] if mean and len(rows) > 1 else []
    parts += [f"beam {beam}"] if beam else []
    return f" ({'; '.join(parts)})" if parts else ""


def _span(values: Sequence[float], digits: int = 1) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low}–{high}"


def summary(results: Results) -> list[str]:
    """README's one table."""
    rows = [
        _recipe_row(name, results)
        for name in RECIPES
        if name not in ("vit_cifar10_accurate", "vit_64x5", "vit_256_course", "captioner_scenes")
    ]
    rows += [_seam(results), _watching(results), _training(results), _decoding(results), _faithful(results)]
    return markdown({"what": {}, "measured": {}}, [{"what": what, "measured": text} for what, text in rows])


def _recipe_row(name: str, results: Results) -> tuple[str, str]:
    result = results.of(name)
    assert result is not None, name
    rows, settings = result["tables"]["seeds"]["rows"], result["settings"]
    what = f"`{name}`: {RECIPES[name][0]}, {_place(result)}"
    seeds = f"{len(rows)} seed{'s' if len(rows) > 1 else ''}"
    if "top1" in rows[0]:
        text = f"{_mean(rows, 'top1', 2)} of {settings['images']:,} test images right ({seeds})"
    elif "exact_seen" in rows[0]:
        text = (
            f"{_mean(rows, 'exact_seen')} of the captions exactly right ({seeds}), {_mean(rows, 'exact_unseen')} with "
            f"an unseen pair; peak of attention inside the object {_mean(rows, 'pointing')}, by chance "
            f"{_mean(rows, 'pointing_chance')}"
        )
    elif "bleu" in rows[0]:
        directions = dict.fromkeys(row["direction"] for row in rows)
        spans = [f"{d} {_span([row['bleu'] for row in rows if row['direction'] == d])}" for d in directions]
        text = f"BLEU {', '.join(spans)} ({len(result['seeds'])} seeds each)"
    else:
        cider, shuffled = (statistics.mean(row[n] for row in rows) * 100 for n in ("cider_d", "shuffled"))
        text = (
            f"CIDEr-D {cider:.1f} ({seeds}); images shuffled {shuffled:.1f}, best fixed caption "
            f"{_hundredths(rows[:1], 'fixed')}, people {_hundredths(rows[:1], 'people')}"
        )
    return what, f"{text}; {_time(result)}"


def _on_both(results: Results, name: str, column: str, what: str) -> str:
    """How far a column of ratios goes, on each machine."""
    spans = [_span(results.values(f"{name}-{device}/{column}"), 2) for device in ("cpu", "cuda")]
    places = [_place(results[f"{name}-{device}"]) for device in ("cpu", "cuda")]
    return f"{spans[0]}× {what} on {places[0]}, {spans[1]}× on {places[1]}"


def _place(result: dict[str, Any]) -> str:
    hardware: str = result["hardware"]
    return HARDWARE.get(hardware, hardware)


def _seam(results: Results) -> tuple[str, str]:
    spans = []
    for device in ("cpu", "cuda"):
        plain, padded = (
            [ratio for mask in masks for ratio in results.values(f"attention-{device}/seam/ratio", mask=mask)]
            for masks in (("none", "causal"), ("padding",))  # what attend chooses by itself
        )
        place = _place(results[f"attention-{device}"])
        spans.append(f"{_span(plain, 2)}× the time on {place}, {_span(padded, 2)}× with padding")
    return "`attend` beside bare SDPA", "; ".join(spans)


def _watching(results: Results) -> tuple[str, str]:
    told = _on_both(results, "watching", "watching/ratio", "the time")
    return "models watched beside unwatched", told + ", the most where it waits for Python"


def _training(results: Results) -> tuple[str, str]:
    what = "training, beside the best of timm, PyTorch, vit-pytorch and Hugging Face"
    return what, _on_both(results, "training", "best/ratio", "the images/s")


def _decoding(results: Results) -> tuple[str, str]:
    def ratios(device: str) -> str:
        sizes = ("captioner-scenes", "captioner-flickr8k")
        return " and ".join(f"{results.value(f'decoding-{device}/captions/ratio', sizes=name):.1f}×" for name in sizes)

    what = "beam search beside Hugging Face's, sizes of captioner-scenes and captioner-flickr8k, same captions"
    cpu, cuda = (f"on {_place(results[f'decoding-{device}'])}" for device in ("cpu", "cuda"))
    return what, f"{ratios('cpu')} the captions/s {cpu}, {ratios('cuda')} {cuda}"


def _faithful(results: Results) -> tuple[str, str]:
    def lost(method: str) -> str:
        return show(results.value("faithfulness-cpu/blur/deletion beside random", method=method), digits=3, signed=True)

    what = "area under deletion beside a random order, `vit-cifar10` (below zero: the map means something)"
    return what, f"gradient-weighted {lost('gradient')}, last layer's attention {lost('raw')}"


def classifiers(results: Results) -> list[str]:
    return _recipes(results, [name for name in RECIPES if name.startswith("vit")])


def captioners(results: Results) -> list[str]:
    return _recipes(results, [name for name in RECIPES if name.startswith("captioner")])


def _recipes(results: Results, names: Sequence[str]) -> list[str]:
    rows = [
        {"recipe": f"`{name}`", "what": RECIPES[name][0], "evidence": evidence(name, results), "bar": RECIPES[name][1]}
        for name in names
    ]
    return markdown({column: {} for column in rows[0]}, rows)


def controls(results: Results) -> list[str]:
    """CIDEr-D of captioners beside what is said without looking, the mean of seeds."""
    rows = []
    for name in ("captioner_scenes", "captioner_scenes_full", "captioner_flickr8k", "captioner_lite"):
        seeds = (results.of(name) or {})["tables"]["seeds"]["rows"]
        means = {
            column: None if seeds[0][column] is None else statistics.mean(row[column] for row in seeds)
            for column in ("cider_d", "shuffled", "blank", "fixed", "people")
        }
        rows.append({"recipe": f"`{name}`"} | means)
    return markdown({"recipe": {}} | {name: {"digits": 3} for name in rows[0] if name != "recipe"}, rows)


SUMMARIES = {  # what the benchmark calls them, in words, with the bar
    "entropy": ("entropy of every row", "1.0×"),
    "column_mass, the totals known": ("column mass, the rows' totals known", "1.0×"),
    "column_mass": ("column mass", "1.5×"),
    "mean_distance": ("mean distance", "1.5×"),
    "topk (5)": ("the five largest of every row", "3×"),
    "P·x": ("P·x", "1.5×"),
    "Pᵀ·x, the totals known": ("Pᵀ·x, the rows' totals known", "1.5×"),
    "rollout, one layer": ("one layer of rollout", "1.5×"),
}


def speed(results: Results) -> list[str]:
    """What was to be fast on a GPU, beside its bar."""
    long, short = (4096, 16_384, 65_536), (197, 1024, 4096)
    rows = [
        (
            f"{words}, beside attention, {_counts(long)} tokens",
            _beside(results, "summaries/beside", long, what=what),
            bar,
        )
        for what, (words, bar) in SUMMARIES.items()
    ]
    for mask, words in (("padding", "its own choice"), ("padding, impl='triton'", "by our kernel")):
        found = _beside(results, "seam/ratio", short, mask=mask)
        rows.append((f"`attend` under padding, {words}, beside SDPA, {_counts(short)} tokens", found, "1.05×"))
    for name, bar in (("vit_cifar10_fast", "94 % in 35 s"), ("vit_cifar10_accurate", "97.5 % in 15 minutes")):
        what, found = _recipe_row(name, results)
        rows.append((what, found, bar))
    for model, bar in (("0.26 M", "1.6×"), ("9.5 M", "1.6×")):
        ratio = show(results.value("training-cuda/best/ratio", model=model), "×", 2)
        rows.append((f"images/s of training beside the best of the others, {model}", ratio, bar))
    columns: dict[str, Row] = {"what": {}, "measured": {}, "bar": {}}
    return markdown(columns, [dict(zip(columns, row, strict=True)) for row in rows])


def _counts(tokens: Sequence[int]) -> str:
    return " / ".join(f"{count:,}" for count in tokens)


def _beside(results: Results, column: str, tokens: Sequence[int], **where: Any) -> str:
    ratios = (results.value(f"attention-cuda/{column}", tokens=count, **where) for count in tokens)
    return " / ".join(show(ratio, "×", 2) for ratio in ratios)


def claims(results: Results) -> list[str]:
    """Some claims of the lab."""
    columns: dict[str, Row] = {"what is said": {}, "verdict": {}, "measured": {"digits": 3}, "where it isn't so": {}}
    rows = []
    for name in CLAIMS:
        names = ("statement", "verdict", "measured", "counter_example")
        cells = [results.value(f"lab-cpu/claims/{column}", claim=name) for column in names]
        rows.append(dict(zip(columns, cells, strict=True)))
    return markdown(columns, rows)


VIEWS: dict[str, Callable[[Results], list[str]]] = {
    "summary": summary,
    "classifiers": classifiers,
    "captioners": captioners,
    "controls": controls,
    "claims": claims,
    "speed": speed,
}
