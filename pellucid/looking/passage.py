"""One watched pass of any model: its attentions with the tokens that they read, its output, and what it answered."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.explain.layers import Layer, layer_of, layer_of_windows
from pellucid.layers.modes import evaluating
from pellucid.looking.answers import Answered, Score, Target, answer
from pellucid.looking.feeding import Fed, Reader, TextRow
from pellucid.looking.streams import Ends, Tokens, find_streams
from pellucid.watching import MissedAttention, Record, Seen, watch


@dataclass(frozen=True, eq=False)
class Passage:
    """What was seen of one pass; it can be asked for the gradient of an answer.

    >>> from pellucid.looking import Question, Reader
    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    >>> reader = Reader()  # none: tensors are taken as they are
    >>> passage = Passage.watch(encoder, reader.read(Question(arguments=torch.randn(1, 5, 16)), encoder), reader)
    >>> list(passage.seen), passage.tokens[0].count, passage.output.shape
    (['layers.0.self_attn', 'layers.1.self_attn'], 5, torch.Size([1, 5, 16]))
    """

    model: nn.Module
    fed: Fed
    reader: Reader
    seen: Seen
    ends: dict[str, Ends]
    output: Any
    answered: Answered
    leaves: dict[str, Tensor]
    """What the gradient flows back to, by argument: embeddings of text, pictures, frames."""

    @classmethod
    def watch(
        cls,
        model: nn.Module,
        fed: Fed,
        reader: Reader,
        *,
        labels: Sequence[str] | None = None,
        score: Score | None = None,
        gradients: bool = True,
    ) -> "Passage":
        """Watch the model, as it answers, read what it is fed. score: of an answer that its output doesn't tell."""
        with (
            evaluating(model),
            warnings.catch_warnings(),
            torch.set_grad_enabled(gradients),
            leaves_of(model, fed, watched=gradients) as (led, leaves),
            watch(model, gradients=gradients) as seen,
        ):
            warnings.simplefilter("ignore", MissedAttention)
            output = led.call(model)
        answered = answer(model, fed, reader, output, labels)
        if score is not None:
            answered = replace(answered, targets=(Target("the score", score),))
        return cls(model, fed, reader, seen, find_streams(seen, fed, model, answered.row), output, answered, leaves)

    def row(self, record: Record) -> int:
        """Which row of a record's batch is shown: of several texts the best, of all else the one that there is."""
        return self.answered.row if self._count_rows(record) == len(self.fed.candidates) else 0

    def _count_rows(self, record: Record) -> int:
        """Inputs in its batch: windows lie there, too."""
        return len(record.q) // (1 if record.reading is None else record.reading.windows)

    def layers(self) -> tuple[tuple[Layer, ...], tuple[tuple[str, str], ...]]:
        """The attentions as a trace holds them, and those that it can't, each with the reason."""
        held, missed = [], [(each.module or "the model", each.reason) for each in self.seen.missed]
        fed = {1, len(self.fed.candidates), *(len(x) for x in self.fed.arguments.values() if _has_rows(x))}
        for name, record in self.seen.items():
            ends = self.ends[name]
            names = ends.queries.stream.name, ends.keys.stream.name
            try:
                if ends.places is not None:
                    held.append(layer_of_windows(record, ends.places, *names, self.row(record)))
                elif (reading := record.reading) is not None and reading.windows > 1:
                    across = "reads other tokens than its own" if reading.kind == "cross" else "lies where isn't known"
                    raise ValueError(f"it attends within windows, each of which {across}")
                elif (rows := self._count_rows(record)) not in fed:
                    raise ValueError(f"it ran {rows} times over one input, over which of its tokens isn't known")
                else:
                    held.append(layer_of(record, *names, self.row(record)))
            except ValueError as reason:
                missed.append((name, str(reason)))
        if not held:
            raise ValueError(
                f"no attention of {type(self.model).__name__} can be shown: {missed[0][0]}: {missed[0][1]}"
            )
        return tuple(held), tuple(missed)

    @property
    def tokens(self) -> tuple[Tokens, ...]:
        """All tokens that attend or are attended to, in the order of the layers."""
        return tuple(dict.fromkeys(part for each in self.ends.values() for part in (each.queries, each.keys)))

    def stream_of(self, text: TextRow) -> str | None:
        """The name of the tokens that a text is the first of."""
        made = (
            tokens.stream.name
            for tokens in self.tokens
            if tokens.stream.kind == "text"
            and tokens.count == len(text.labels[0])
            and (text.argument in tokens.inputs or not tokens.inputs)
        )
        return next(made, None)


def _has_rows(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim > 0


@contextmanager
def leaves_of(
    model: nn.Module, fed: Fed, given: Mapping[str, Tensor] | None = None, *, watched: bool = True
) -> Iterator[tuple[Fed, dict[str, Tensor]]]:
    """What gradients flow back to while the model runs: numbers that it is fed, and the embeddings of its texts.

    given: what stands in their place. watched: False leaves all as it is.
    """
    leaves: dict[str, Tensor] = {}
    arguments = dict(fed.arguments)
    if not watched:
        yield fed, leaves
        return
    for name, x in arguments.items():
        if isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 1 and not name.endswith("mask"):
            leaves[name] = (x.detach().clone() if given is None else given[name]).requires_grad_()
            arguments[name] = leaves[name].clone()

    def embed(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        for text in fed.texts:
            read = fed.arguments[text.argument]
            ids = args[0] if args and isinstance(args[0], Tensor) else None
            if text.argument not in leaves and ids is not None and torch.equal(ids, read):
                leaf = output.detach() if given is None else given[text.argument]
                leaves[text.argument] = leaf.requires_grad_()
                return leaf.clone()  # which the model may write to
        return None

    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)] if fed.texts else []
    hooks = [table.register_forward_hook(embed) for table in tables]
    try:
        yield replace(fed, arguments=arguments), leaves
    finally:
        for hook in hooks:
            hook.remove()
