"""A trace of any model's pass."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from pellucid.explain.maps import Map
from pellucid.explain.trace import Trace
from pellucid.looking.answers import Target
from pellucid.looking.methods import explain, list_usual
from pellucid.looking.passage import Passage


def trace(
    passage: Passage, *, name: str = "", methods: Sequence[str] | None = None, target: int | str | None = None
) -> Trace:
    """All that the attention of a pass follows from, and what explains its answer.

    methods: those that are quick unless given. target: an answer by its name or number; the likeliest unless given.

    >>> import torch
    >>> from torch import nn
    >>> from pellucid.looking import Question, Reader
    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    >>> model = nn.Sequential(nn.Embedding(9, 16), encoder, nn.Flatten(), nn.Linear(5 * 16, 2))
    >>> fed = Reader().read(Question(arguments=torch.tensor([[1, 4, 2, 8, 5]])), model)
    >>> passage = Passage.watch(model, fed, Reader())
    >>> seen = trace(passage, name="a stranger", methods=["rollout"])
    >>> [layer.name for layer in seen.layers], seen.streams[0].labels, len(seen.answers)
    (['1.layers.0.self_attn', '1.layers.1.self_attn'], ('1', '4', '2', '8', '5'), 2)
    """
    layers, missed = passage.layers()
    used = {part for layer in layers for part in (layer.queries, layer.keys)}
    streams = {tokens.stream.name: tokens.stream for tokens in passage.tokens if tokens.stream.name in used}
    wanted = find_target(passage, target)
    explained = (
        _explain_usual(passage, wanted) if methods is None else (explain(passage, each, wanted) for each in methods)
    )
    maps = tuple(each for maps in explained for each in maps if each.stream in streams)
    names = {text.argument: passage.stream_of(text) for text in passage.fed.texts}
    steps = tuple(
        replace(step, stream=of)
        for step in passage.answered.steps
        if (of := names.get(step.stream)) is not None and of in streams
    )
    pictured = any(stream.picture is not None for stream in streams.values())
    return Trace(
        model=name,
        kind=passage.answered.kind,
        streams=tuple(streams.values()),
        pictures=passage.fed.pictures if pictured else (),
        layers=layers,
        answers=passage.answered.answers,
        words=passage.answered.words,
        maps=maps,
        steps=steps,
        missed=missed,
    )


def _explain_usual(passage: Passage, target: Target | None) -> Iterator[tuple[Map, ...]]:
    """What is usual and means something: a chain that it can't go through says so to who asks for it by name."""
    for method in list_usual(passage):
        with suppress(ValueError):
            yield explain(passage, method, target)


def find_target(passage: Passage, target: int | str | None) -> Target | None:
    """The answer that is meant; None for the usual ones."""
    if target is None:
        return None
    if passage.answered.find is None:
        raise ValueError(f"target is {target!r}; {type(passage.model).__name__} gives no answers to choose from")
    return passage.answered.find(target)


def needs_gradients(methods: Sequence[str] | None) -> bool:
    """Whether a pass has to keep its gradients: any map begins where the answer's gradient lands."""
    return methods is None or bool(methods)
