"""Whether the attention to the source is alignment: maps beside words that are known to belong together."""

from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.data.tokenizer import END
from pellucid.decode.translations import map_words
from pellucid.evaluation.alignment import count_errors, diagonal, load_dictionary, mark_links, split_words
from pellucid.explain.sentences import PairLook
from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most
from pellucid.lab.panels import bar_chart, heatmap
from pellucid.lab.translated import PAIRS, load_pairs


class AlignmentSettings(NamedTuple):
    """How many sentences of describing pictures, each with its translation by hand."""

    sentences: int = 16  # Of the lab's own, the first.


class AlignmentMeasurement(NamedTuple):
    links: int  # between words that are known to belong together, by a dictionary
    heads: Tensor  # (layers heads) alignment error rates of each head's map of the source
    layers: list[float]  # of the mean of a layer's heads
    gradient: float  # of attention weighted by its gradient, through the whole model
    diagonal: float  # of word j of m reading word j·n/m of n
    chance: float  # of a word that is drawn
    example: Tensor  # one sentence: what each word read, by the gradient


def align(pair: tuple[str, str], ready) -> tuple[Tensor, Tensor]:
    """Maps of words: of each layer and head (layers heads words source_words), and by the gradient."""
    tokenizer = ready.tokenizer
    source, said = tokenizer.source(pair[0]), [*tokenizer.encode(pair[1]), END]
    look = PairLook.of(ready.model, torch.tensor([source]), torch.tensor([said]), gradients=True)
    raw = torch.stack([cross.weights()[0] for _, cross in look.decoder])
    parts = tokenizer.words(said), tokenizer.words(source)
    return map_words(raw, *parts), map_words(look.maps("gradient"), *parts)


def measure_alignment(p: AlignmentSettings) -> AlignmentMeasurement:
    """Give the translator both sentences, and see which word of the source each linked word reads most."""
    ready, pairs = load_pairs(p.sentences)
    dictionary, links, heads, layers, gradient, straight, drawn = load_dictionary(), 0, 0, 0, 0, 0, 0.0
    example = torch.zeros(1, 1)
    for number, pair in enumerate(pairs):
        read, spoken = (split_words(sentence) for sentence in pair)
        marked = mark_links(read, spoken, dictionary)
        raw, weighted = align(pair, ready)
        heads = heads + torch.tensor([[count_errors(head, marked) for head in layer] for layer in raw])
        layers = layers + torch.tensor([count_errors(layer.mean(0), marked) for layer in raw])
        gradient += count_errors(weighted, marked)
        straight += count_errors(diagonal(len(spoken), len(read)), marked)
        drawn += len(marked) * (1 - 1 / len(read))
        links += len(marked)
        example = weighted if number == 0 else example
    by_layer = (torch.as_tensor(layers) / links).tolist()
    return AlignmentMeasurement(
        links, torch.as_tensor(heads) / links, by_layer, gradient / links, straight / links, drawn / links,
        example / example.sum(-1, keepdim=True),
    )  # fmt: skip


def claim_alignment(p: AlignmentSettings, m: AlignmentMeasurement) -> Claims:
    rate = "alignment error rate"
    yield Thesis(
        "alignment.attention", "The cross-attention of a translator is the alignment of its words."
    ).conditional(
        at_most(0.15, f"the best layer's mean: {rate}", min(m.layers)),
        (f"the worst of {m.heads.numel()} heads", m.heads.max().item()),
        truth="Of some heads and of their mean; other heads look elsewhere, and a picture of one head may be of those.",
    )
    yield Thesis(
        "alignment.gradient",
        "Attention weighted by its gradient, through all layers, finds the words that belong together.",
    ).true(at_most(0.1, rate, m.gradient), twin=("of the diagonal, which knows places alone", m.diagonal))


def draw_alignment(p: AlignmentSettings, m: AlignmentMeasurement) -> Drawing:
    bars = {f"mean of layer {i}": each for i, each in enumerate(m.layers)}
    bars = {"gradient-weighted": m.gradient} | bars | {"the diagonal": m.diagonal, "chance": m.chance}
    each = heatmap("each head", m.heads, rows="layer of the decoder", columns="head", unit="error rate")
    title = f"gradient-weighted: “{PAIRS[0][1]}”"
    example = heatmap(title, m.example, rows="word it says", columns="word it reads", unit="share")
    return bars | {"links": m.links}, [bar_chart(f"{m.links} links", "alignment error rate", {"": bars}), each, example]


ALIGNMENT = Experiment(
    name="alignment",
    title="Is attention alignment?",
    statement="As a translator says a word, its attention to the source lies mostly on the word that it translates; in "
    "some heads, not in all.",
    formula="AER = 1 − 2·|A ∩ S| / (|A| + |S|); A: the largest weight of each row, S: links that a dictionary knows",
    predict="Of a translator with two layers of four heads, how many heads are an alignment? Is the mean of all?",
    fails="Only words that a dictionary pairs without doubt are counted: nouns, colours, numbers. Articles and "
    "prepositions have no one word that they come from.",
    functions=(measure_alignment, claim_alignment, draw_alignment),
    helpers=(align,),
)
