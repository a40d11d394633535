"""Pictures of a trace, whether it was just made or is loaded from a file: `draw_heads(load_trace("cat.pellucid"))`.

Rows of maps are computed from the q and k that the trace holds, and no whole map but of few tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, UInt8
from matplotlib.figure import Figure
from torch import Tensor

from pellucid.explain.heads import report_heads
from pellucid.explain.timelapse import Moment
from pellucid.explain.trace import Layer, Map, Stream, Trace
from pellucid.views.captions import caption_figure, percent
from pellucid.views.colours import Scale, is_shared_out
from pellucid.views.figures import MOST_DRAWN, MOST_NUMBERED_TOKENS, attention_figure, mask_figure, wrap_title
from pellucid.views.graph import SHARE, Nodes, graph_figure
from pellucid.views.maps import WEIGHT, MapPanel, grid_figure, maps_figure, methods_figure
from pellucid.views.reading import (
    attention_map,
    find_layer,
    grid_of,
    head_or_mean,
    image_of,
    look_of,
    may_attend,
    onto_image,
    patches,
    picture_of,
    said,
    token_index,
)
from pellucid.views.reports import Measure, head_report_figure

IMPORTANCE = "how much a patch counts"
TITLE = 4.0  # inches that a matrix's title has


def draw_maps(trace: Trace, *, rescale: bool = False) -> Figure:
    """What each method says of the answer, side by side, each on its own scale: their units differ."""
    of_answer = [each for each in trace.maps if each.word is None]
    if not of_answer:
        raise ValueError(f"none of the trace's {len(trace.maps)} maps is of an answer; draw_words shows those of words")
    image = image_of(trace)
    grid = grid_of(image)
    of_answer = [each for each in of_answer if each.stream == image.name]
    titles = [f"{each.method}\nfor {each.target}{_elsewhere(each, image)}" for each in of_answer]
    values = [each.values for each in of_answer]
    panels = [(title, patches(image, x), _own(x, grid)) for title, x in zip(titles, values, strict=True)]
    return methods_figure(picture_of(trace, image), panels, title=_headline(trace), rescale=rescale)


def draw_heads(
    trace: Trace, query: int | str | None = None, *, rescale: bool = False, top: float | None = None
) -> Figure:
    """Every head of every layer: where one token of the image looks, or one word as it is said.

    query: a token by its number or its label. Unless given, the class token; all tokens together, as their mean, if
    there is none; and of a captioner all words together.
    """
    image = image_of(trace)
    layers = onto_image(trace)
    speaks = said(trace) is not None
    if query is None and not speaks and "class" in image.labels:
        query = "class"
    labels = tuple(word for word, _ in trace.words) if speaks else image.labels
    token = None if query is None else token_index(labels, query)
    cells = [list(patches(image, look_of(layer, token, len(labels)))) for layer in layers]
    kind = "word" if speaks else "token"
    who = f"all {len(labels)} {kind}s look, on average" if token is None else f"the {kind} “{labels[token]}” looks"
    at = None
    if not speaks and token is not None and 0 <= token - image.first < math.prod(grid_of(image)):
        at = divmod(token - image.first, grid_of(image)[1])
    return grid_figure(
        picture_of(trace, image),
        cells,
        rows=[f"layer {i}" for i in range(len(layers))],
        columns=[f"head {i}" for i in range(max(map(len, cells)))],
        tokens=len(image.labels),
        title=f"{_headline(trace)}\nwhere {who}",
        at=at,
        rescale=rescale,
        top=top,
    )


def draw_word_heads(trace: Trace, *, rescale: bool = False, top: float | None = None) -> Figure:
    """Every word of a caption (rows), as every head of the cross-attention (columns) read the image to say it."""
    _check_words(trace)
    image, layers = image_of(trace), onto_image(trace)
    every = [patches(image, attention_map(layer)[:, : len(trace.words)]) for layer in layers]
    cells = [[head[i] for layer in every for head in layer] for i in range(len(trace.words))]
    return grid_figure(
        picture_of(trace, image),
        cells,
        rows=[f"{word}  {percent(math.exp(log_prob))}" for word, log_prob in trace.words],
        columns=[f"layer {i}\nhead {j}" for i, layer in enumerate(every) for j in range(len(layer))],
        tokens=len(image.labels),
        title=f"{_headline(trace)}\nwhere each head of the cross-attention looks as each word is said",
        rescale=rescale,
        top=top,
    )


def draw_words(
    trace: Trace,
    *,
    method: str | None = None,
    layer: int = -1,
    head: int | None = None,
    rescale: bool = False,
    top: float | None = None,
) -> Figure:
    """A caption word by word: where a layer of the cross-attention looked, by one head or their mean; or a method."""
    _check_words(trace)
    image = image_of(trace)
    scale, label = None, WEIGHT
    if method is not None:
        values = torch.stack([each.values for each in _of_method(trace, method, image.name)])
        what, label = f"what counts for each word by the method {method}", IMPORTANCE
        scale = _own(values, grid_of(image)) if top is None else Scale(0.0, top, cut=float(values.max()) > top)
    else:
        layers = onto_image(trace)
        number = range(len(layers))[layer] if -len(layers) <= layer < len(layers) else None
        if number is None:
            raise ValueError(f"layer is {layer}; expected 0…{len(layers) - 1}, or −1 for the last")
        values = head_or_mean(layers[number], head)[: len(trace.words)]
        what = f"cross-attention of decoder layer {number}, {_which(layers[number], head)}"
    return caption_figure(
        picture_of(trace, image),
        [word for word, _ in trace.words],
        [math.exp(log_prob) for _, log_prob in trace.words],
        patches(image, values),
        tokens=len(image.labels),
        title=f"{_headline(trace)}\n{what}",
        rescale=rescale,
        top=top,
        scale=scale,
        label=label,
    )


def draw_matrix(trace: Trace, layer: int | str = -1, head: int | None = None) -> Figure:
    """The whole attention matrix of a layer, the mean of its heads or one of them, with names on both axes.

    Up to 16 tokens, with numbers in the cells and colours from 0 to 1; from 0 to the largest weight beyond.
    """
    which = find_layer(trace, layer)
    _bounded(which, "matrix")
    weights = head_or_mean(which, head)
    top = 1.0 if max(weights.shape) <= MOST_NUMBERED_TOKENS else max(float(weights.max()), 2 / weights.shape[1])
    return attention_figure(weights, title=wrap_title(_who(trace, which, head), TITLE), top=top, **_axes(trace, which))


def draw_mask(trace: Trace, layer: int | str = -1) -> Figure:
    """Which query of a layer may see which key."""
    which = find_layer(trace, layer)
    _bounded(which, "mask")
    return mask_figure(may_attend(which), title=wrap_title(f"{which.name}: may attend", TITLE), **_axes(trace, which))


def draw_graph(trace: Trace, layer: int | str = -1, head: int | None = None, *, share: float = SHARE) -> Figure:
    """A layer's attention as a graph: patches lie on the image, words on a circle or beside the image."""
    which = find_layer(trace, layer)
    _bounded(which, "graph")
    answering = next(each for each in trace.streams if each.name == which.keys)
    image = answering if answering.grid is not None else None
    keys = Nodes.circle(answering.labels) if image is None else Nodes.patches(image.labels, grid_of(image))
    queries = keys if which.queries == which.keys else Nodes.column(_axes(trace, which)["queries"])
    return graph_figure(
        head_or_mean(which, head),
        queries,
        None if queries is keys else keys,
        picture=None if image is None or image.picture is None else picture_of(trace, image),
        title=_who(trace, which, head),
        share=share,
    )


def draw_lapse(
    image: UInt8[Tensor, "c y x"],
    moments: Sequence[Moment],
    grid: tuple[int, int],
    *,
    name: str = "the model",
    rescale: bool = False,
) -> Figure:
    """The same image through the steps of a training: what counted for the answer at each of them.

    grid: rows and columns of the patches, which are the last of the tokens.
    """
    if not moments:
        raise ValueError("a time-lapse needs one moment or more; got none")
    methods = list(dict.fromkeys(moment.map.method for moment in moments))
    if len(methods) > 1:
        raise ValueError(f"the moments are by {', '.join(methods)}, whose units differ; expected one method")
    values = torch.stack([moment.map.values for moment in moments])
    titles = [f"step {each.step:,}\n{each.map.target} {percent(each.probability)}" for each in moments]
    image_tokens = Stream.patches("image", ("",) * values.shape[-1], grid)
    panels = [MapPanel(title, patches(image_tokens, each)) for title, each in zip(titles, values, strict=True)]
    return maps_figure(
        image,
        panels,
        tokens=values.shape[-1],
        title=f"{name} while it learns: {methods[0]}",
        rescale=rescale,
        scale=_own(values, grid),
        label=IMPORTANCE,
    )


def draw_head_report(trace: Trace) -> Figure:
    """Every head in numbers: how spread its attention is, how far it looks, how much of it lies on tokens of no patch,
    and how like the other heads of its layer it is.

    Of a classifier the self-attention, of a captioner the cross-attention, which has no distance.
    """
    image, layers = image_of(trace), tuple(onto_image(trace))
    report = report_heads(replace(trace, layers=layers))
    (rows, columns), most = grid_of(image), math.log(len(image.labels))
    entropy = _table([each.entropy for each in report])
    measures = [Measure("entropy", f"nats; all alike: {most:.2f}", entropy, 0.0, most)]
    far = [each.distance for each in report if each.distance is not None]
    if far:
        measures.append(Measure("mean distance", "patches", _table(far), 0.0, math.hypot(rows - 1, columns - 1)))
    if len(image.labels) > rows * columns:
        extra = [each.extra for each in report if each.extra is not None]
        measures.append(Measure("on tokens of no patch", "share of the attention", _table(extra), 0.0, 1.0))
    alike = [(each.similarity.sum(1) - 1) / (len(each.similarity) - 1) for each in report]
    if any(each.isfinite().any() for each in alike):
        measures.append(Measure("like other heads", "mean cosine of the maps", _table(alike), 0.0, 1.0))
    return head_report_figure(measures, layers=[f"layer {i}" for i in range(len(layers))], title=_headline(trace))


def _check_words(trace: Trace) -> None:
    if not trace.words:
        raise ValueError("the trace holds no words; words are drawn for captioners (draw_heads is for classifiers)")


def _of_method(trace: Trace, method: str, stream: str) -> list[Map]:
    maps = [each for each in trace.maps if each.method == method and each.stream == stream]
    if not maps:
        methods = ", ".join(dict.fromkeys(each.method for each in trace.maps)) or "none"
        raise ValueError(f"the trace has no map of the method {method!r}; it has: {methods}")
    return maps


def _own(values: Float[Tensor, "... tokens"], grid: tuple[int, int]) -> Scale:
    return Scale.own(values, math.prod(grid))


def _elsewhere(shared: Map, image: Stream) -> str:
    """How much of a map that is shared out lies on tokens that can't be seen."""
    unseen = torch.cat([shared.values[: image.first], shared.values[image.first + math.prod(grid_of(image)) :]])
    return f"\n{percent(float(unseen.sum()))} on other tokens" if len(unseen) and is_shared_out(shared.values) else ""


def _table(rows: Sequence[Float[Tensor, " heads"]]) -> Float[Tensor, "layers heads"]:
    """NaN where a layer has fewer heads than another."""
    return torch.nn.utils.rnn.pad_sequence([row.float() for row in rows], batch_first=True, padding_value=math.nan)


def _bounded(layer: Layer, picture: str) -> None:
    most = max(layer.q.shape[1], layer.n_keys)
    if most > MOST_DRAWN:
        raise ValueError(
            f"a {picture} shows at most {MOST_DRAWN} tokens; {layer.name} has {most}; draw_heads shows a token's rows"
        )


def _axes(trace: Trace, layer: Layer) -> dict[str, Any]:
    """Names of the queries and of the keys. A captioner's step is called by the word that it says, not that it read."""
    by_name = {each.name: each.labels for each in trace.streams}
    names: dict[str, Any] = {"queries": by_name[layer.queries], "keys": by_name[layer.keys]}
    if layer.queries == "words":
        words = tuple(word for word, _ in trace.words)
        names |= {"queries": words + ("…",) * (layer.q.shape[1] - len(words)), "query_label": "word that is said"}
    if layer.keys == "words":
        names |= {"key_label": "word that was read"}
    return names


def _who(trace: Trace, layer: Layer, head: int | None) -> str:
    return f"{_headline(trace)}\n{layer.name}, {_which(layer, head)}"


def _which(layer: Layer, head: int | None) -> str:
    return f"mean of {len(layer.q)} heads" if head is None else f"head {head}"


def _headline(trace: Trace) -> str:
    """The model's name and what it answered."""
    answer = trace.said
    if trace.answers:
        answer = f"{trace.answers[0][0]} {percent(trace.answers[0][1])}"
    return f"{trace.model}: {answer}" if trace.model else answer
