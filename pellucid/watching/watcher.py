"""See every attention of a model while it runs, without changing what it computes.

Attention passes through three seams: ours (`ops.attend`), PyTorch's kernels (`scaled_dot_product_attention`, flex
attention, the fast path of `nn.TransformerEncoder`), and the softmax that a model writes out, which is followed from
product to product. A torch function mode stands at the last two, and at ours too if the model has modules that aren't
ours. From each attention q, k, v, mask, β and the output are kept. Which module made it is read off the call stack, so
the model itself is never touched. The kernel is the one that would have run anyway. What can't be recorded is named.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from pellucid.layers.attention import MultiHeadAttention
from pellucid.layers.linear import Linear
from pellucid.ops.attention import observed_by
from pellucid.watching.generation import stitch
from pellucid.watching.missed import (
    ChangedOutput,
    Missed,
    MissedAttention,
    list_outside,
    list_scripted,
    say_missed,
)
from pellucid.watching.mode import (
    Mode,
    compiled_shown,
    fast_path_kept,
    flex_shown_to,
    model_entered,
    scripted_shown,
    started_threads_watched,
)
from pellucid.watching.record import Record
from pellucid.watching.recorder import Recorder
from pellucid.watching.shapes import ShapeTable, TokenShapes, list_shapes
from pellucid.watching.steering import Changes, Steering
from pellucid.watching.towers import Edge, Tower, list_edges, list_towers


class Seen(Mapping[str, Record]):
    """The attentions of a watched model by their dotted module names, in the order in which they ran.

    A module that attends more than once gets `name`, `name#2`, `name#3`, …

    >>> import torch
    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> with torch.no_grad(), watch(model.eval()) as seen:
    ...     _ = model(torch.randn(1, 5, 16))
    >>> list(seen), seen.check() < 1e-5
    (['layers.0.self_attn', 'layers.1.self_attn'], True)
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._made: dict[str, Record] = {}
        self._settle: Callable[[], None] = _nothing
        self._tokens: dict[str, TokenShapes] = {}
        self._sources: list[str] = []
        self.missed: list[Missed] = []
        """Attentions that could not be recorded, each with its module, shape and reason, when the block is left."""

    def __getitem__(self, name: str) -> Record:
        try:
            return self._records[name]
        except KeyError:
            known = ", ".join(map(repr, self._records)) or "nothing yet"
            raise KeyError(f"no attention {name!r} was seen; seen: {known}") from None

    def __contains__(self, name: object) -> bool:  # Mapping's would have the sentence above written to find out
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"Seen({', '.join(map(repr, self._records))})"

    def check(self) -> float:
        """Check every record and return the largest error."""
        return max((record.check() for record in self.values()), default=0.0)

    @property
    def _records(self) -> dict[str, Record]:
        """With those that were put off until somebody asks."""
        self._settle()
        return self._made

    def __getstate__(self) -> dict[str, Any]:
        """With all records made: what makes them can't be copied."""
        self._settle()
        return {**self.__dict__, "_settle": _nothing}

    def holds(self, name: str) -> bool:
        """Whether there is a record of this name already, those that were put off left aside."""
        return name in self._made

    def add(self, record: Record, tokens: TokenShapes | None) -> None:
        """Keep a record, and what its module was called with."""
        self._made[record.name] = record
        if tokens is not None:
            self._tokens[record.name] = tokens

    @property
    def towers(self) -> tuple[Tower, ...]:
        """Self-attentions over the same tokens, one tower for each stream: the encoder's, the decoder's, the text's."""
        return list_towers(self)

    def graph(self) -> tuple[Edge, ...]:
        """Which attention reads what which other one wrote, found by following the data."""
        return list_edges(self)

    def inputs(self, name: str, part: Literal["queries", "keys"] = "queries") -> tuple[str, ...]:
        """What the model was given that the queries of this attention were made from, or its keys.

        Arguments by their names or places; none where the data could not be followed.
        """
        reading = self[name].reading
        bits = 0 if reading is None else getattr(reading, part)
        own = {each.partition("#")[0] for each in self}
        return tuple(source for i, source in enumerate(self._sources) if bits >> i & 1 and source not in own)

    def stitch(self, beams: Tensor | None = None) -> dict[str, Record]:
        """The steps of a generation as one record for each module, over the whole sentence, the prompt first.

        beams: with beam search the last step's beams are stitched, unless `generate(…, return_dict_in_generate=True,
            output_scores=True).beam_indices` says which rows became the sentences that it returned.
        """
        steps: dict[str, list[Record]] = {}
        for name, record in self.items():
            steps.setdefault(name.partition("#")[0], []).append(record)
        return {name: stitch(records, beams) for name, records in steps.items()}

    def table(self, *, columns: bool = False) -> ShapeTable:
        """Every intermediate of every attention: name, equation, axes and shape."""
        lines = []
        for name, record in self.items():
            module = self._model.get_submodule(name.partition("#")[0])
            lines += list_shapes(record, module, self._tokens.get(name), columns=columns)
        return ShapeTable(tuple(lines))


@contextmanager
def watch(
    model: nn.Module,
    *,
    gradients: bool = False,
    copy: bool = False,
    strict: bool = False,
    exact_output: bool = True,
    change: Changes | None = None,
) -> Iterator[Seen]:
    """Record the attentions of `model` while the block runs.

    >>> import torch
    >>> from pellucid.layers import MultiHeadAttention
    >>> from pellucid.watching import watch
    >>> model = nn.Sequential(MultiHeadAttention(64, heads=4), MultiHeadAttention(64, heads=4))
    >>> with watch(model) as seen:
    ...     y = model(torch.randn(1, 5, 64))
    >>> list(seen), seen["1"].weights().shape
    (['0', '1'], torch.Size([1, 4, 5, 5]))

    gradients: keep the graph, so that after backward() a record knows the gradients of q, k, v, its output and
        its weights. Without it the records are detached.
    copy: keep copies, for a model that writes over its tensors later, as a static cache does. Without it a record that
        was written over says so when it is asked.
    strict: raise instead of warning if an attention could not be recorded; `seen.missed` names them in any case.
    exact_output: leave PyTorch's fast path of encoder layers as it is, even where it can't be recorded. False switches
        it off, so that everything is recorded, and the output may differ in its last bits.
    change: a `Change`, of all attentions, by their names, or as a function of the name: what runs is the changed model,
        and the records are of that. Inside the block `seen[name].replace(…)` changes the next forward. A name that
        no attention has is an error.
    """
    names, kinds = _look_over(model)
    ours = _all_ours(kinds)
    seen = Seen(model)
    steering = Steering(change, _list_aliases(model) if isinstance(change, Mapping) else {})
    recorder = Recorder(seen, names, gradients, copy, steering, exact_output, is_alone=ours)
    seen._sources, seen._settle = recorder.sources, recorder.settle
    with ExitStack() as stack:
        stack.enter_context(observed_by(recorder.ours))
        if not ours:
            stack.enter_context(_strangers_shown_to(recorder, model))
        yield seen
    recorder.finish()
    steering.finish(seen, recorder.ran)
    seen.missed += recorder.missed
    if recorder.ran and not ours:
        if any(issubclass(kind, torch.jit.ScriptModule) for kind in kinds):
            seen.missed += list_scripted(model)
        seen.missed += list_outside(model, seen)
    if seen.missed and strict:
        raise ValueError(say_missed(model, seen.missed, len(seen)))
    if recorder.ran and not ours and not seen:  # ours alone are always recorded
        raise ValueError(say_missed(model, seen.missed, 0))
    for note in recorder.notes:
        warnings.warn(f"{note}: its output may differ in the last bits", ChangedOutput, stacklevel=3)
    if seen.missed:
        warnings.warn(say_missed(model, seen.missed, len(seen)), MissedAttention, stacklevel=3)


@contextmanager
def _strangers_shown_to(recorder: Recorder, model: nn.Module) -> Iterator[None]:
    """What doesn't pass through our seam."""
    with (
        flex_shown_to(recorder.flex),
        compiled_shown(),
        fast_path_kept(),
        started_threads_watched(),
        scripted_shown(),
        model_entered(model, recorder),
        Mode(recorder),
    ):
        yield


NEVER_ATTEND = frozenset({Linear, nn.Linear, nn.Dropout, nn.Identity, nn.LayerNorm})  # most of any model


def _look_over(model: nn.Module) -> tuple[dict[int, str], set[type[nn.Module]]]:
    """Which name each module is recorded by, by its identity, and what kinds there are, those aside that never attend.

    In the order of `named_modules`, whose nested generators take longer than a small model.
    """
    names, kinds = {id(model): ""}, {type(model)}

    def visit(above: str, module: nn.Module) -> None:
        for key, child in module._modules.items():
            if child is not None and (kind := child.__class__) not in NEVER_ATTEND:
                names.setdefault(id(child), above + key)
                kinds.add(kind)
                if child.__dict__.get("_compiled_call_impl") is not None:
                    _refuse_compiled(above + key)
                if child._modules:
                    visit(f"{above}{key}.", child)

    if model.__dict__.get("_compiled_call_impl") is not None:
        _refuse_compiled(type(model).__name__)
    visit("", model)
    if compiled := [kind for kind in kinds if kind.__name__ == "OptimizedModule"]:
        name = next(name for name, child in model.named_modules() if type(child) in compiled)
        _refuse_compiled(name or "OptimizedModule")
    return names, kinds


def _list_aliases(model: nn.Module) -> dict[str, str]:
    """Which name a module is recorded by, the first one, by every name that it has."""
    names: dict[int, str] = {}
    every = model.named_modules(remove_duplicate=False)
    return {name: names.setdefault(id(module), name) for name, module in every}


def _all_ours(kinds: set[type[nn.Module]]) -> bool:
    """Whether all attention of such a model must come through our seam: it has some, and no stranger's modules."""
    origins = {kind.__module__.partition(".")[0] for kind in kinds}
    return MultiHeadAttention in kinds and nn.MultiheadAttention not in kinds and origins <= {"pellucid", "torch"}


def _refuse_compiled(name: str) -> NoReturn:
    raise ValueError(
        f"watch can't see inside a compiled module ({name!r}); "
        "watch the model that was given to torch.compile instead: it shares the weights"
    )


def _nothing() -> None:
    pass
