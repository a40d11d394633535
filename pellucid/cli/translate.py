"""pellucid translate: sentences in another language, and which words were read for each word."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from pellucid.cli.evaluate import show_bar
from pellucid.cli.pictures import number_file
from pellucid.cli.verbs import TranslateOptions
from pellucid.data.parallel import read_lines
from pellucid.decode.translations import Sampling, Translation
from pellucid.devices import pick_device
from pellucid.models import Transformer
from pellucid.ready import load_translator
from pellucid.views.alignments import alignment_figure
from pellucid.views.figures import check_path, save_figure

STDIN = Path("/dev/stdin")
AT_ONCE = 1000  # sentences of a file between two that are printed


def translate(options: TranslateOptions) -> None:
    """Translate the sentences that were given, or those of a file, a line each; a blank line of a file stays blank."""
    check_options(options)
    model = load_translator(options.model, pick_device(options.device))
    check_layer_and_head(model.model, options.layer, options.head)
    sampling = None if options.temperature is None else Sampling(options.temperature, seed=options.seed)
    how: dict[str, Any] = {
        "beam": options.beam, "n_best": options.n_best, "language": options.language, "sampling": sampling,
        "attention": options.figure is not None, "length_penalty": options.length_penalty,
    }  # fmt: skip
    listed: list[dict[str, Any]] = []
    number = blank = strange = 0
    for sentences in gather(options):
        worded = [sentence for sentence in sentences if options.file is None or sentence.strip()]
        with show_bar(options.model) as progress:
            translations = iter(model.translate(worded, progress=progress, **how))
        for sentence in sentences:
            number += 1
            best = next(translations) if options.file is None or sentence.strip() else []
            blank += not best
            strange += model.tokenizer.is_strange(sentence)
            listed.append({"source": sentence, "translations": [each.to_json() for each in best]})
            if not options.json:
                print(describe(best), flush=True)
            if options.figure is not None:
                place = number_file(options.figure, number, len(options.sentences))
                save_figure(draw_alignment(best[0], options.layer, options.head), place)
                if not options.json:
                    print(f"figure: {place}")
    if blank == number:
        raise ValueError(f"{options.file} has no sentence to translate")
    if options.json:
        print(json.dumps(listed, allow_nan=False, ensure_ascii=False))
    if strange:
        print(
            f"pellucid: {strange:,} of the {number:,} sentences {'is' if strange == 1 else 'are'} in letters that "
            f"{options.model} never learned; expect nothing of what it says of them",
            file=sys.stderr,
        )
    if blank:
        print(f"pellucid: {blank:,} of the {number:,} lines of {options.file} are blank, and stay so", file=sys.stderr)


def check_options(options: TranslateOptions) -> None:
    if bool(options.sentences) == (options.file is not None):
        raise ValueError("there is nothing to translate; give sentences, or a --file of them, and not both")
    if options.beam < 1:
        raise ValueError(f"--beam is {options.beam}; expected one or more")
    if options.n_best < 1 or (options.n_best > options.beam and options.temperature is None):
        raise ValueError(
            f"--n-best is {options.n_best}; expected 1…{options.beam}, at most as many as the beam is wide"
        )
    if options.figure is not None:
        check_path(options.figure)
        if options.file is not None:
            raise ValueError("--figure draws sentences that are given, not those of a --file")


def gather(options: TranslateOptions) -> Iterator[Sequence[str]]:
    """The sentences, of a file some at a time."""
    if options.file is None:
        yield options.sentences
        return
    some: list[str] = []
    for line in read_lines(STDIN if options.file == Path("-") else options.file):
        some.append(line)
        if len(some) == AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def describe(best: list[Translation]) -> str:
    """The translation, or the best ones with their score; nothing of nothing."""
    if len(best) < 2:
        return str(best[0]) if best else ""
    return "\n".join(f"{each.score:8.3f}  {each}" for each in best)


def check_layer_and_head(model: Transformer, layer: int | None, head: int | None) -> None:
    layers, heads = model.config.decoder_layers, model.config.heads
    if layer is None and head is not None:
        raise ValueError(f"--head {head} is one of a layer; expected a --layer beside it")
    if layer is not None and not -layers <= layer < layers:
        raise ValueError(f"--layer is {layer}; expected 0…{layers - 1}, or −1 for the last")
    if head is not None and not 0 <= head < heads:
        raise ValueError(f"--head is {head}; expected 0…{heads - 1}")


def draw_alignment(translation: Translation, layer: int | None, head: int | None) -> Any:
    """For each word that it says, a row: how much of its attention each word of the source has."""
    assert translation.attention is not None
    weights, name = choose_map(translation.attention, layer, head)
    title = f"cross-attention of {name}"
    return alignment_figure(
        weights, translation.words, translation.source_words, translation.probabilities, title=title
    )


def choose_map(
    attention: Float[Tensor, "layers heads words source_words"], layer: int | None, head: int | None
) -> tuple[Float[Tensor, "words source_words"], str]:
    """One map, and what it is called."""
    layers, heads = attention.shape[:2]
    if layer is None:
        return attention.mean((0, 1)), f"the decoder, mean of {layers} layers of {heads} heads"
    name = f"decoder layer {layer % layers}"
    if head is None:
        return attention[layer].mean(0), f"{name}, mean of {heads} heads"
    return attention[layer, head], f"{name}, head {head}"
