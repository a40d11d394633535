"""pellucid caption: what a captioner says of pictures of yours, and where it looks as it says it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.cli.answers import answer_into, captions
from pellucid.cli.pictures import check_all_read, find_images, name_of, number_file, read_pictures, say
from pellucid.cli.verbs import CaptionOptions
from pellucid.data.decoding import Item
from pellucid.data.images import decode, probe
from pellucid.decode.captions import Caption
from pellucid.devices import pick_device
from pellucid.explain.words import Unsaid, spell
from pellucid.models.captioner import Captioner
from pellucid.processes import Processes, joined
from pellucid.ready import ReadyCaptioner, load_captioner
from pellucid.views.captions import caption_figure
from pellucid.views.figures import check_path, save_figure

CAPTION_BATCH = 16  # pictures that are captioned together
LONGER_SIDE = 480  # pixels of a picture in a figure


def caption(options: CaptionOptions) -> None:
    """Caption every picture that can be read; the others get a sentence each, and exit code 2."""
    if options.beam < 1:
        raise ValueError(f"--beam is {options.beam}; expected one or more")
    if not 1 <= options.n_best <= options.beam:
        raise ValueError(
            f"--n-best is {options.n_best}; expected 1…{options.beam}, at most as many as the beam is wide"
        )
    if options.figure is not None:
        check_path(options.figure)
    if options.out and (options.json or options.figure or options.about):
        raise ValueError("--out writes captions alone, as --json prints them; leave out --json, --figure and --about")
    paths = find_images(options.images)
    if (options.figure is not None or options.about) and not all(isinstance(path, Path) for path in paths):
        raise ValueError("--figure and --about are for pictures in files of their own; of shards and tables use --out")
    device = pick_device(options.device)
    model = load_captioner(options.model, device)
    check_layer_and_head(model.model, options.layer, options.head)
    for word in options.about:
        spell(word, model.tokenizer)
    with joined(device) as processes:
        if options.out:

            def ask(pixels: list) -> list[list[Caption]]:
                return model.caption(pixels, options.beam, options.n_best, different=options.different)

            answer_into(options.out, captions(options.n_best), paths, CAPTION_BATCH, model, ask, processes)
        else:
            _caption_all(options, model, paths, processes)


def _caption_all(
    options: CaptionOptions, model: ReadyCaptioner, paths: Sequence[Path | Item], processes: Processes
) -> None:
    """Batch by batch; each process does its share of them, and the first one tells all."""
    listed: list[dict[str, Any]] = []

    def write(start: int) -> list[tuple[int, Any, list[Caption]]]:
        part = paths[start : start + CAPTION_BATCH]
        read = next(read_pictures(part, model, len(part), None if len(paths) == 1 else say), [])
        pixels = [each.pixels for each in read]
        how: dict[str, Any] = {"attention": drawn, "different": options.different}
        captions = model.caption(pixels, options.beam, options.n_best, **how) if read else []
        return [(start + number, path, best) for (number, path, _), best in zip(read, captions, strict=True)]

    drawn = options.figure is not None and not options.about
    for answers in processes.share_work(range(0, len(paths), CAPTION_BATCH), write):
        for number, path, best in answers:
            listed.append({"image": name_of(path), "captions": [each.to_json() for each in best]})
            if not processes.first:
                continue
            unsaid = [model.look_for(path, word, caption=best[0].text or None) for word in options.about]
            listed[-1] |= {"about": [each.to_json() for each in unsaid]} if unsaid else {}
            if not options.json:
                print("\n".join([describe_captions(name_of(path), best), *map(describe_unsaid, unsaid)]), flush=True)
            if options.figure is not None:
                place = number_file(options.figure, number, len(paths))
                if unsaid:
                    save_figure(draw_unsaid(model, path, unsaid), place)
                else:
                    save_figure(draw_attention(model, path, best[0], options.layer, options.head), place)
                if not options.json:
                    print(f"figure: {place}")
    if options.json and processes.first:
        print(json.dumps(listed, allow_nan=False))
    check_all_read(len(listed), paths)


def describe_captions(name: str, best: list[Caption]) -> str:
    """The caption, or the best ones with their score, the log-probability of a token; and whether it is unsure."""
    if len(best) == 1:
        return f"{name}  {best[0]}{describe_doubt(best[0])}"
    return "\n".join([name, *(f"  {each.score:8.3f}  {each}{describe_doubt(each)}" for each in best)])


def describe_doubt(caption: Caption) -> str:
    """How much of an unsure caption is likely to be right, to stand behind it; nothing of a sure one.

    >>> said = torch.tensor([6, 12])
    >>> describe_doubt(Caption("a dog", ("a", "dog"), -2.0, -1.0, (), said, -said.float(), expected=0.38))
    '  (unsure: people would say about 4 in 10 of these words)'
    """
    if not caption.unsure or caption.expected is None:
        return ""
    return f"  (unsure: people would say about {10 * caption.expected:.0f} in 10 of these words)"


def describe_unsaid(unsaid: Unsaid) -> str:
    """How likely a word would have been, and whether that is the picture's doing."""
    place = f"after {' '.join(unsaid.after[-3:])!r}" if unsaid.after else "as the first word"
    return (
        f"  {unsaid.word}: {unsaid.probability:.2%} {place}, {unsaid.gain:.3g} times what it would be "
        "without the picture"
    )


def check_layer_and_head(model: Captioner, layer: int | None, head: int | None) -> None:
    layers, heads = model.config.layers, model.config.heads
    if layer is None and head is not None:
        raise ValueError(f"--head {head} is one of a layer; expected a --layer beside it, not None")
    if layer is not None and not -layers <= layer < layers:
        raise ValueError(f"--layer is {layer}; expected 0…{layers - 1}, −1 for the last, or None for the mean of all")
    if head is not None and not 0 <= head < heads:
        raise ValueError(f"--head is {head}; expected 0…{heads - 1}")


def draw_attention(model: ReadyCaptioner, path: Path, best: Caption, layer: int | None, head: int | None) -> Any:
    """The picture once for each word, with the attention of one head, or of the mean of several, over it."""
    assert best.attention is not None
    maps, name = _choose_map(best.attention, layer, head)
    title = f"{best}\ncross-attention of {name}"
    return _draw(model, path, best.words, best.probabilities, maps, title)


def draw_unsaid(model: ReadyCaptioner, path: Path, unsaid: Sequence[Unsaid]) -> Any:
    """The picture once for each word that was asked about, with where it would look for it."""
    registers = model.model.config.encoder.registers
    maps = torch.stack([each.map.values / each.map.values.sum().clamp(min=1e-12) for each in unsaid])
    words, shares = [each.word for each in unsaid], [each.probability for each in unsaid]
    title = "where it would look for words that it needn't have said\ngradient-weighted attention, as shares"
    return _draw(model, path, words, shares, maps[:, registers:].unflatten(1, model.model.grid), title)


def _draw(
    model: ReadyCaptioner,
    path: Path,
    words: Sequence[str],
    shares: Sequence[float],
    maps: Float[Tensor, "words rows columns"],
    title: str,
) -> Any:
    header = probe(path)
    scale = min(1.0, LONGER_SIDE / max(header.height, header.width))
    size = (max(1, round(scale * header.height)), max(1, round(scale * header.width)))
    rows, columns = model.model.grid
    picture = decode(path, size=size, channels=model.reader.channels, fit="stretch")
    tokens = rows * columns + model.model.config.encoder.registers
    return caption_figure(picture, words, shares, maps, tokens=tokens, title=title)


def _choose_map(
    attention: Float[Tensor, "layers heads words rows columns"], layer: int | None, head: int | None
) -> tuple[Float[Tensor, "words rows columns"], str]:
    """One map of each word, and what it is called."""
    layers, heads = attention.shape[:2]
    if layer is None:
        return attention.mean((0, 1)), f"the decoder, mean of {layers} layers of {heads} heads"
    name = f"decoder layer {layer % layers}"
    if head is None:
        return attention[layer].mean(0), f"{name}, mean of {heads} heads"
    return attention[layer, head], f"{name}, head {head}"
