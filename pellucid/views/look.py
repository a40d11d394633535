"""Look at any model in two lines: what it is given, what it answers, every attention in between, and why."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from pellucid.explain.maps import Map
from pellucid.explain.trace import Trace
from pellucid.looking.answers import Score
from pellucid.looking.methods import explain
from pellucid.looking.passage import Passage
from pellucid.looking.tracing import find_target, needs_gradients, trace
from pellucid.ready import ReadyForeign, ReadyModel, load
from pellucid.views.bundle import SUFFIX, save_trace
from pellucid.views.draw import draw_maps, draw_words
from pellucid.views.figures import save_figure
from pellucid.views.page import to_html
from pellucid.views.texts import draw_texts
from pellucid.watching import Record, watch


def look(
    model: Any,
    reader: Any = None,
    given: Any = None,
    *,
    target: int | str | None = None,
    methods: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    score: Score | None = None,
    name: str = "",
    **inputs: Any,
) -> "ModelLook":
    """Watch a model read one input.

    model: any module, a ready model, or what `load` takes, as "vit-cifar10" or "hf:FOLDER".
    reader: what makes the model's arguments of text, pictures or sound: a tokenizer, an image processor, a processor
        or feature extractor of Hugging Face's, a data config of timm's; or one's own function, or two, of which the
        second spells tokens. Without one, tensors and dicts of arguments are taken as they are.
    given: text, a pair (a, b) or a list of texts beside a picture, a picture, samples, or arguments.
    inputs: the same by name, as text=, image=, audio=, arguments=; generate=20 for so many tokens at most.
    target: the answer to explain, by name or number. methods: those that are quick unless given. labels: of classes.
    score: from what the model gives to the number that is explained, where its output doesn't tell.

    >>> from torch import nn
    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    >>> seen = look(encoder, given=torch.randn(1, 5, 16))
    >>> seen.record("layers.1.self_attn").weights().shape, [each.method for each in seen.trace.maps]
    (torch.Size([1, 2, 5, 5]), ['rollout'])
    """
    ready: Any = model if isinstance(model, ReadyModel) else load(model, reader=reader, labels=labels)
    if isinstance(ready, ReadyForeign):
        if reader is not None:
            ready = ReadyForeign(ready.model, reader, name=ready.name, labels=labels)
        passage = ready.look(given, score=score, gradients=needs_gradients(methods), **inputs)
        seen = trace(passage, name=name or ready.name, methods=methods, target=target)
        return ModelLook(ready, seen, given, passage, partial(ready.look, given, score=score, **inputs))
    given = inputs.pop("image", inputs.pop("text", given) if given is None else given)
    how: dict[str, Any] = {} if methods is None else {"methods": methods}
    how |= {} if target is None else {"target": target}
    return ModelLook(ready, ready.trace(given, **how, **inputs), given)


class ModelLook:
    """What was seen of one input, to show, to save and to ask."""

    def __init__(
        self,
        ready: ReadyModel,
        seen: Trace,
        given: Any,
        passage: Passage | None = None,
        again: Callable[[], Passage] | None = None,
    ):
        """again: watch the same with gradients, for what is asked of a pass that kept none."""
        self.ready, self.trace, self.given, self.passage, self._again = ready, seen, given, passage, again

    def show(self) -> Any:
        """The viewer, as the value of a notebook's cell."""
        from pellucid.views.widget import show

        return show(self.trace)

    def save(self, path: Path | str) -> None:
        """One HTML file that works from disk, or with .pellucid the trace alone."""
        if Path(path).suffix == SUFFIX:
            save_trace(self.trace, path)
        else:
            to_html(self.trace, path)

    def figure(self, path: Path | str | None = None) -> Figure:
        """The maps over the picture or the text, also into a file (.png, .svg, .pdf)."""
        figure = draw_answer(self.trace)
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    def record(self, name: str) -> Record:
        """One attention as it was recorded: exact rows, summaries, a check against the model's own output."""
        if self.passage is not None:
            return self.passage.seen[name]
        with torch.no_grad(), watch(self.ready.model) as seen:
            self.ready.trace(self.given)
        times = [each for each in seen if each.partition("#")[0] == name]
        return seen[times[-1] if times else name]

    def explain(self, method: str = "gradient", target: int | str | None = None, **how: Any) -> tuple[Map, ...]:
        """How much each token counts for the answer, each word, or the target; how: layer, head, seed, steps."""
        if self.passage is not None:
            if not self.passage.leaves and self._again is not None:
                self.passage = self._again()
            return explain(self.passage, method, find_target(self.passage, target), **how)
        ready: Any = self.ready
        maps = ready.explain(self.given, method, target, **how)
        return maps if isinstance(maps, tuple) else (maps,)

    def __repr__(self) -> str:
        streams = ", ".join(f"{len(stream.labels)} tokens of {stream.name}" for stream in self.trace.streams)
        said = self.trace.said or ", ".join(
            f"{label.strip()} {100 * share:.1f} %" for label, share in self.trace.answers[:3]
        )
        return f"{self.trace.model}: {said or self.trace.kind} ({len(self.trace.layers)} attentions over {streams})"


def draw_answer(seen: Trace) -> Figure:
    """What counted: over the picture if there is one that a map is of, else over the text."""
    image = next((stream.name for stream in seen.streams if stream.picture is not None), None)
    if image is not None and any(each.stream == image and each.word is None for each in seen.maps):
        return draw_maps(seen)
    if image is not None and seen.words and any(each.stream == image for each in seen.maps):
        return draw_words(seen, method=seen.maps[-1].method)
    return draw_texts(seen)
