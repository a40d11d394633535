"""The steps of a generation as one attention over the whole sentence, the prompt first.

A model that says one word after the other attends once a step, to what its cache holds: everything so far, the last
few, or a table of fixed size that is filled. Keys are known by their numbers, so that they are found again whatever the
cache did with them; with beams a sentence is followed back to the beams it came from.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pellucid.ops import masks
from pellucid.ops.exact import share_heads
from pellucid.ops.rules import Rule
from pellucid.watching.record import Record


@dataclass(frozen=True)
class _Step:
    """What was read at a step: for each row of the batch, the places of its keys by their numbers."""

    keys: list[dict[bytes, int]]

    @classmethod
    def of(cls, record: Record, allowed: Tensor) -> "_Step":
        numbers = record.k.transpose(1, 2).flatten(2).float().cpu().contiguous().numpy()
        read = allowed.any(1).any(1)
        rows = range(record.q.shape[0])
        return cls([_number_keys(numbers[row], read[row].nonzero()[:, 0].tolist()) for row in rows])


@dataclass(frozen=True)
class _Sentence:
    """One sentence so far."""

    rows: tuple[int, ...] = ()
    """Which row of the batch it was at each step."""
    keys: dict[bytes, int] = field(default_factory=dict)
    """Where each of its keys lies in the whole, by its numbers."""
    origins: tuple[tuple[int, int, int], ...] = ()
    """Step, row and place at which each key was first read."""
    places: tuple[dict[int, int], ...] = ()
    """At each step, where each of the keys that it read there lies in the whole."""

    def count_new(self, step: _Step, row: int) -> int:
        return sum(name not in self.keys for name in step.keys[row])

    def go_on(self, step: _Step, row: int) -> "_Sentence":
        keys, origins = dict(self.keys), list(self.origins)
        for name, j in step.keys[row].items():
            if name not in keys:
                keys[name] = len(origins)
                origins.append((len(self.rows), row, j))
        places = {j: keys[name] for name, j in step.keys[row].items()}
        return _Sentence((*self.rows, row), keys, tuple(origins), (*self.places, places))


def _number_keys(numbers: Any, places: Sequence[int]) -> dict[bytes, int]:
    """Keys by their numbers; where several have the same, as the same word has without positions, each by its turn."""
    named: dict[bytes, int] = {}
    times: Counter[bytes] = Counter()
    for j in places:
        name = numbers[j].tobytes()
        named[name + times[name].to_bytes(4, "little")] = j
        times[name] += 1
    return named


def stitch(records: Sequence[Record], beams: Tensor | None = None) -> Record:
    """One record of what a module did step after step: queries of all steps, all keys that were ever read.

    beams: for each sentence the row of the batch it was at each step, −1 when it had ended, as `generate` of Hugging
        Face gives them (`beam_indices`). Without them: the sentences of the last step.

    ValueError if the steps don't belong to one generation.
    """
    first = records[0]
    if len(records) == 1:
        return first
    for record in records:
        record._check_unwritten(("q", "k", "v", "mask", "output"))
    records = [_part_heads(record, first.q.shape[1]) for record in records]
    for record in records:
        if record.q.shape[1] != first.q.shape[1] or isinstance(record.mask, Rule) or record.beta != first.beta:
            raise ValueError(f"record {record.name!r} can't be stitched to {first.name!r}: they are not alike")
    if len({record.k.shape[1] for record in records}) > 1:  # heads that were shared in one step and not in another
        h = first.q.shape[1]
        records = [replace(each, k=share_heads(each.k, h), v=share_heads(each.v, h)) for each in records]
    allowed = [_allowed(record) for record in records]
    steps = [_Step.of(record, open_) for record, open_ in zip(records, allowed, strict=True)]
    return _join(records, allowed, _find_parents(steps) if beams is None else _walk(records, steps, beams))


def _part_heads(record: Record, heads: int) -> Record:
    """With its heads as heads: where one word is said, Hugging Face may put those of a group in the queries' place."""
    b, groups, n, _ = record.q.shape
    if groups == heads or n * groups != heads or record.causal or isinstance(record.mask, Rule):
        return record
    q, output = (x.reshape(b, heads, 1, -1) for x in (record.q, record.output))
    mask = record.mask
    if mask is not None:
        mask = mask.expand(b, groups, n, record.k.shape[2]).reshape(b, heads, 1, -1)
    return replace(record, q=q, output=output, mask=mask, live=None)


def _allowed(record: Record) -> Tensor:
    """(b h q k): what may be attended to."""
    b, _, n_q, _ = record.q.shape
    n_k = record.k.shape[2]
    mask = masks.causal(n_q, n_k, device=record.q.device) if record.causal else None
    assert not isinstance(record.mask, Rule)
    mask = masks.combine(mask, record.mask)
    if mask is None:
        return torch.ones(b, 1, n_q, n_k, dtype=torch.bool, device=record.q.device)
    open_ = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return open_.expand(b, open_.shape[1] if open_.ndim == 4 else 1, n_q, n_k)


def _find_parents(steps: Sequence[_Step]) -> list[_Sentence]:
    """The sentences of the last step, each begun, step by step, as the one whose keys it has."""
    sentences = [_Sentence() for _ in steps[0].keys]
    for step in steps:
        before, sentences = sentences, []
        for row in range(len(step.keys)):
            candidates = [before[row % len(before)], *before]
            sentences.append(min(candidates, key=lambda s: s.count_new(step, row)).go_on(step, row))
    return sentences


def _walk(records: Sequence[Record], steps: Sequence[_Step], beams: Tensor) -> list[_Sentence]:
    """The sentences whose rows are given, or a sentence of ours if they aren't of this generation."""
    if beams.ndim != 2:
        raise ValueError(f"beams has shape {list(beams.shape)}; expected (sentences, steps), as beam_indices")
    sentences = []
    for number, path in enumerate(beams.tolist()):
        sentence = _Sentence()
        rows = path[: path.index(-1)] if -1 in path else path
        if not 0 < len(rows) <= len(steps):
            raise ValueError(f"beams: sentence {number} has {len(rows)} steps; the model made {len(steps)}")
        for step, row, record in zip(steps, rows, records, strict=False):
            if not 0 <= row < len(step.keys):
                raise ValueError(f"beams: sentence {number} is in row {row}; the batch has {len(step.keys)}")
            if sentence.rows and sentence.count_new(step, row) > record.q.shape[2]:
                raise ValueError(
                    f"beams: at step {len(sentence.rows)} sentence {number} would read keys that it never wrote; give "
                    "the beam_indices of this very generation"
                )
            sentence = sentence.go_on(step, row)
        sentences.append(sentence)
    return sentences


def _join(records: Sequence[Record], allowed: list[Tensor], sentences: list[_Sentence]) -> Record:
    """All in one: sentences that ended earlier have queries that read nothing, and give nothing."""
    last = records[-1]
    n_keys = max(len(sentence.origins) for sentence in sentences)
    n_queries = max(sum(records[step].q.shape[2] for step in range(len(s.rows))) for s in sentences)
    biased = any(isinstance(r.mask, Tensor) and r.mask.dtype != torch.bool for r in records)
    own = max(open_.shape[1] for open_ in allowed)  # masks of each head's own, if one step has them
    parts: dict[str, list[Tensor]] = {"q": [], "k": [], "v": [], "output": [], "mask": []}
    for sentence in sentences:
        for part in ("k", "v"):
            held = [getattr(records[step], part)[row, :, j] for step, row, j in sentence.origins]
            parts[part].append(_fill_up(torch.stack(held, dim=1), n_keys))
        for part in ("q", "output"):
            held = [getattr(records[step], part)[row] for step, row in enumerate(sentence.rows)]
            parts[part].append(_fill_up(torch.cat(held, dim=1), n_queries))
        rows = []
        for step, row in enumerate(sentence.rows):
            record, open_ = records[step], allowed[step][row]
            whole = open_.new_zeros(*open_.shape[:2], n_keys)
            at = sentence.places[step]
            index = torch.tensor(list(at.values()), device=open_.device)
            held = torch.tensor(list(at), device=open_.device)
            whole[..., index] = open_[..., held]
            if biased:
                bias = torch.full(whole.shape, -torch.inf, dtype=last.q.dtype, device=whole.device)
                mask = record.mask if isinstance(record.mask, Tensor) and record.mask.dtype != torch.bool else None
                given = 0.0 if mask is None else mask.expand(record.q.shape[0], *whole.shape[:2], -1)[row][..., held]
                bias[..., index] = torch.where(open_[..., held], given, -torch.inf)
                whole = bias
            rows.append(whole)
        parts["mask"].append(
            _fill_up(torch.cat([x.expand(own, -1, -1) for x in rows], dim=1), n_queries, -torch.inf if biased else 0.0)
        )
    joined = {part: torch.stack(held) for part, held in parts.items()}
    return replace(last, name=records[0].name, **joined, causal=False, live=None)


def _fill_up(x: Tensor, n: int, value: float = 0.0) -> Tensor:
    """(h n e), with rows of this value at the end."""
    return torch.nn.functional.pad(x, (0, 0, 0, n - x.shape[1]), value=value)
