"""The steps of a generation as one attention over the whole sentence, the prompt first.

A model that says one word after the other attends once a step, to what its cache holds: everything so far, the last
few, or a table of fixed size that is filled. Keys are known by their numbers, so that they are found again whatever the
cache did with them; with beams a sentence is followed back to the beams it came from.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pellucid.ops import masks
from pellucid.ops.exact import share_heads
from pellucid.ops.rules import Rule
from pellucid.watching.record import Record


class _Sentence:
    """One sentence so far: which row of the batch it was at each step, and its keys by their numbers."""

    def __init__(self, rows: list[int], keys: dict[bytes, int], found: list[tuple[int, int, int]]):
        self.rows, self.keys, self.found = rows, keys, found  # found: (step, row, place) of each key


def stitch(records: Sequence[Record]) -> Record:
    """One record of what a module did step after step: queries of all steps, all keys that were ever read.

    ValueError if the steps don't belong to one generation.
    """
    first = records[0]
    if len(records) == 1:
        return first
    for record in records:
        record._check_unwritten(("q", "k", "v", "mask", "output"))
        if record.q.shape[1] != first.q.shape[1] or isinstance(record.mask, Rule) or record.beta != first.beta:
            raise ValueError(f"record {record.name!r} can't be stitched to {first.name!r}: they are not alike")
    if len({record.k.shape[1] for record in records}) > 1:  # heads that were shared in one step and not in another
        h = first.q.shape[1]
        records = [replace(each, k=share_heads(each.k, h), v=share_heads(each.v, h)) for each in records]
    allowed = [_allowed(record) for record in records]
    sentences = [_Sentence([], {}, []) for _ in range(first.q.shape[0])]
    places: list[list[dict[int, int]]] = []  # step, row: where each of its keys lies in the whole
    for step, record in enumerate(records):
        sentences, found = _go_on(sentences, step, record, allowed[step])
        places.append(found)
    return _join(records, allowed, sentences, places)


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


def _go_on(
    sentences: list[_Sentence], step: int, record: Record, allowed: Tensor
) -> tuple[list[_Sentence], list[dict[int, int]]]:
    """The sentences after a step, each begun as the one whose keys it has."""
    numbers = record.k.transpose(1, 2).flatten(2).float().cpu().contiguous().numpy()
    read = allowed.any(1).any(1)
    after, found = [], []
    for row in range(record.q.shape[0]):
        names = {j: numbers[row, j].tobytes() for j in read[row].nonzero()[:, 0].tolist()}
        candidates = [sentences[row % len(sentences)], *sentences]
        parent = min(candidates, key=lambda s: sum(name not in s.keys for name in names.values()))
        keys, places = dict(parent.keys), list(parent.found)
        for j, name in names.items():
            if name not in keys:
                keys[name] = len(places)
                places.append((step, row, j))
        after.append(_Sentence([*parent.rows, row], keys, places))
        found.append({j: keys[name] for j, name in names.items()})
    return after, found


def _join(
    records: Sequence[Record], allowed: list[Tensor], sentences: list[_Sentence], places: list[list[dict[int, int]]]
) -> Record:
    last = records[-1]
    longest = max(len(sentence.found) for sentence in sentences)
    biased = any(isinstance(r.mask, Tensor) and r.mask.dtype != torch.bool for r in records)
    parts: dict[str, list[Tensor]] = {"q": [], "k": [], "v": [], "output": [], "mask": []}
    for sentence in sentences:
        for part in ("k", "v"):
            held = [getattr(records[step], part)[row, :, j] for step, row, j in sentence.found]
            whole = torch.stack(held, dim=1)
            parts[part].append(torch.nn.functional.pad(whole, (0, 0, 0, longest - whole.shape[1])))
        for part in ("q", "output"):
            held = [getattr(records[step], part)[row] for step, row in enumerate(sentence.rows)]
            parts[part].append(torch.cat(held, dim=1))
        rows = []
        for step, row in enumerate(sentence.rows):
            record, open_ = records[step], allowed[step][row]
            whole = open_.new_zeros(*open_.shape[:2], longest)
            at = places[step][row]
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
        parts["mask"].append(torch.cat(rows, dim=1))
    joined = {part: torch.stack(held) for part, held in parts.items()}
    return replace(last, name=records[0].name, **joined, causal=False, live=None)
