"""Is cross-attention alignment? The shipped translator's maps beside links between words that are known by rule.

    python benchmarks/alignment.py --data multi30k

The sentences are Multi30k's and can't be shown here: benchmarks/alignment_links.json has the lines and which word
belongs to which, as pellucid/evaluation/alignment.py marks them; with the data it is the whole set again (--mark makes
it). The translation is people's, its words given one after the other. Head and layer are chosen on validation
sentences. Keeps results/alignment-cpu.json.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from report import Column, Table, keep
from torch import Tensor

import pellucid
from pellucid.data.parallel import ParallelData, load_pairs
from pellucid.data.tokenizer import END
from pellucid.decode.translations import map_words
from pellucid.evaluation.alignment import Link, count_errors, diagonal, load_dictionary, mark_links, split_words
from pellucid.explain.sentences import PairLook, PairMethod

LINKS = Path(__file__).with_name("alignment_links.json")
CHOSEN_ON, MEASURED_ON = "val", "test_2016_flickr"
SENTENCES, LEAST = 150, 3  # of each split; links of a sentence


class Marked(NamedTuple):
    """A pair of sentences and the links in it."""

    source: str
    target: str
    links: list[Link]


def mark(folder: str, split: str) -> Iterator[tuple[int, list[Link]]]:
    """The first sentences of a split that have enough links: their lines, from 0, and the links."""
    dictionary, found = load_dictionary(), 0
    pairs = load_pairs(ParallelData(folder), split)
    for line, (source, target) in enumerate(zip(pairs.sources, pairs.targets, strict=True)):
        links = mark_links(split_words(source), split_words(target), dictionary)
        if len(links) >= LEAST and found < SENTENCES:
            found += 1
            yield line, links


def read_marked(folder: str, split: str) -> list[Marked]:
    """The set as it is kept, with its sentences; ValueError if these are others."""
    pairs = load_pairs(ParallelData(folder), split)
    kept = [(line, [tuple(link) for link in links]) for line, links in json.loads(LINKS.read_text())[split]]
    if kept != list(mark(folder, split)):
        raise ValueError(f"{folder} has other sentences than {LINKS.name} was made from; make it anew with --mark")
    return [Marked(pairs.sources[line], pairs.targets[line], links) for line, links in kept]


def parts_alike(model: Any, pair: Marked) -> bool:
    """Whether the pieces make the words that the links speak of; a piece may join a mark to a figure."""
    encoded = ((each, model.tokenizer.words(model.tokenizer.encode(each))) for each in (pair.source, pair.target))
    return all([word for word, _ in words] == split_words(sentence) for sentence, words in encoded)


def look(model: Any, pair: Marked, gradients: bool = False) -> tuple[PairLook, Any]:
    """The watched pass, and from maps of pieces to maps of words."""
    tokenizer = model.tokenizer
    source, said = tokenizer.source(pair.source), [*tokenizer.encode(pair.target), END]
    read, spoken = tokenizer.words(source), tokenizer.words(said)
    seen = PairLook.of(model.model, torch.tensor([source]), torch.tensor([said]), gradients=gradients)
    return seen, lambda maps: map_words(maps, spoken, read)


def raw_errors(model: Any, pairs: list[Marked]) -> Tensor:
    """Errors (layers heads + 1) of each head of the attention to the source and, last, of their mean."""
    errors: Any = 0
    for pair in pairs:
        seen, by_words = look(model, pair)
        maps = torch.stack([cross.weights()[0] for _, cross in seen.decoder])  # layers heads t s
        maps = torch.cat([maps, maps.mean(1, keepdim=True)], 1)
        errors = errors + torch.tensor([[count_errors(by_words(each), pair.links) for each in row] for row in maps])
    return errors


def method_errors(model: Any, pairs: list[Marked], method: PairMethod) -> int:
    """Errors of a method that looks through the whole model."""
    errors = 0
    for pair in pairs:
        seen, by_words = look(model, pair, gradients=method == "gradient")
        errors += count_errors(by_words(seen.maps(method)), pair.links)
    return errors


def place_errors(pairs: list[Marked]) -> dict[str, float]:
    """Of the diagonal, and of a word that is drawn at random."""
    sizes = [(len(split_words(pair.target)), len(split_words(pair.source))) for pair in pairs]
    straight = sum(count_errors(diagonal(*size), pair.links) for size, pair in zip(sizes, pairs, strict=True))
    drawn = sum(len(pair.links) * (1 - 1 / read) for (_, read), pair in zip(sizes, pairs, strict=True))
    return {"the diagonal": straight, "chance": drawn}


def measure(model: Any, folder: str) -> dict[str, Table]:
    """All of it: chosen on validation sentences, measured on test sentences."""
    chosen, measured = (
        [pair for pair in read_marked(folder, split) if parts_alike(model, pair)] for split in (CHOSEN_ON, MEASURED_ON)
    )
    tried, errors = raw_errors(model, chosen), raw_errors(model, measured)
    heads, links = errors.shape[1] - 1, sum(len(pair.links) for pair in measured)
    layer, head = divmod(int(tried[:, :-1].argmin()), heads)
    mean = int(tried[:, -1].argmin())
    rates = {
        f"one head: layer {layer}, head {head}": errors[layer, head].item(),
        f"mean of a layer's heads: layer {mean}": errors[mean, -1].item(),
        "gradient-weighted, through the whole model": method_errors(model, measured, "gradient"),
        "rollout, through the whole model": method_errors(model, measured, "rollout"),
    } | place_errors(measured)
    share, names = Column("share", 1), [*map(str, range(heads)), "mean"]
    rows = [
        {"layer": i} | {name: count / links for name, count in zip(names, row, strict=True)}
        for i, row in enumerate(errors.tolist())
    ]
    return {
        "alignment": Table(
            f"alignment error rate over {links} links in {len(measured)} sentences",
            {"what": Column(), "aer": share},
            [{"what": what, "aer": count / links} for what, count in rates.items()],
        ),
        "heads": Table("each head of the cross-attention", {"layer": Column()} | dict.fromkeys(names, share), rows),
    }


def show(folder: str, count: int) -> None:
    """Some marked sentences, to be read by somebody who knows both languages."""
    for pair in random.Random(0).sample(read_marked(folder, CHOSEN_ON), count):
        words = split_words(pair.source), split_words(pair.target)
        print(pair.source, pair.target, "  ".join(f"{words[0][i]}={words[1][j]}" for i, j in pair.links), "", sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="Multi30k's folder")
    parser.add_argument("--model", default="translator-en-de")
    parser.add_argument("--mark", action="store_true", help=f"make {LINKS.name}")
    parser.add_argument("--show", type=int, help="print so many marked sentences, to check the rule by hand")
    options = parser.parse_args()
    if options.mark:
        splits = {split: list(mark(options.data, split)) for split in (CHOSEN_ON, MEASURED_ON)}
        lines = (f'"{split}": [\n' + ",\n".join(map(json.dumps, each)) + "\n]" for split, each in splits.items())
        LINKS.write_text("{" + ",\n".join(lines) + "}\n")
    elif options.show:
        show(options.data, options.show)
    else:
        tables = measure(pellucid.load(options.model), options.data)
        about = f"Chosen on {CHOSEN_ON}, measured on {MEASURED_ON}; people's translations, word by word."
        keep("alignment", tables, torch.device("cpu"), settings={"model": options.model}, notes=about)


if __name__ == "__main__":
    main()
