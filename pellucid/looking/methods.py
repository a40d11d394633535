"""What counted for an answer, by every method, over every row of tokens that it was drawn from.

Where an answer is read off the tokens isn't asked of the model's kind: it is where the gradient of the answer lands
after the last attention, on a class token, on the last word, or on all tokens alike.
"""

import itertools
from collections.abc import Sequence
from typing import Any, get_args

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from pellucid.config import brief
from pellucid.explain import chains, maps
from pellucid.explain.chains import DecoderRecords, Start, WhichHead
from pellucid.explain.flow import flow, flow_decoder
from pellucid.explain.maps import Map, pick_layer, random_map
from pellucid.layers.modes import evaluating
from pellucid.looking.answers import Target
from pellucid.looking.passage import Passage, leaves_of
from pellucid.looking.streams import Tokens, contexts, cross_records, patch_sizes, self_records
from pellucid.watching import Record

ALL_METHODS: tuple[str, ...] = (*get_args(maps.Method), "column mass", "integrated gradients")
USUAL = ("rollout", "gradient")
CHAINS = ("rollout", "flow", "gradient")
STEPS = 32  # points of the path that gradients are integrated over
AT_ONCE = 2e9  # parameters × tokens × answers above which only what needs no gradient of its own is usual


def explain(
    passage: Passage,
    method: str,
    target: Target | None = None,
    *,
    layer: int = -1,
    head: WhichHead = "mean",
    seed: int = 0,
    steps: int = STEPS,
) -> tuple[Map, ...]:
    """A map for each row of tokens that the answer was drawn from, or of all targets if none is given.

    layer, head: of raw attention and column mass. seed: of random numbers. steps: of integrated gradients.

    >>> from torch import nn
    >>> from pellucid.looking import Question, Reader
    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    >>> model = nn.Sequential(nn.Embedding(9, 16), encoder, nn.Flatten(), nn.Linear(5 * 16, 2))
    >>> fed = Reader().read(Question(arguments=torch.tensor([[1, 4, 2, 8, 5]])), model)
    >>> passage = Passage.watch(model, fed, Reader())
    >>> likelier = passage.answered.targets[0]  # of its two classes
    >>> [(each.method, each.stream, each.values.shape) for each in explain(passage, "gradient", likelier)]
    [('gradient', 'text', torch.Size([5]))]
    """
    if method not in ALL_METHODS:
        raise ValueError(f"method is {method!r}; expected one of {', '.join(ALL_METHODS)}")
    targets: Sequence[Target | None] = passage.answered.targets if target is None else [target]
    if not targets:
        check_answer(passage, method)
        targets = [None]
    return tuple(
        Map(method, "" if each is None else each.label, None if each is None else each.word, values, tokens.stream.name)
        for each in targets
        for tokens, values in _values(passage, method, each, layer=layer, head=head, seed=seed, steps=steps).items()
    )


def needs_answer(method: str) -> bool:
    """Whether a method asks what moves the answer."""
    return "gradient" in method


def check_answer(passage: Passage, method: str) -> None:
    """ValueError if a method needs an answer and there is none."""
    if needs_answer(method):
        raise ValueError(
            f"{type(passage.model).__name__} gives no answer that its output tells, which the method {method!r} needs; "
            "give score, from its output to a number"
        )


def list_usual(passage: Passage) -> tuple[str, ...]:
    """The methods that are computed unless others are asked for: what a reader would wait for is left out."""
    parameters = sum(p.numel() for p in passage.model.parameters())
    work = parameters * max((tokens.count for tokens in passage.tokens), default=0) * len(passage.answered.targets)
    return USUAL if passage.answered.targets and work <= AT_ONCE else ("rollout",)


def _values(
    passage: Passage, method: str, target: Target | None, *, layer: int, head: WhichHead, seed: int, steps: int
) -> dict[Tokens, Float[Tensor, " t"]]:
    if method == "input gradient" and target is not None:
        return _felt(passage, target)
    if method == "integrated gradients" and target is not None:
        return _integrate(passage, target, steps)
    values: dict[Tokens, Tensor] = {}
    starts = _starts(passage, target)
    if method == "gradient" and target is not None:  # after the starts, whose gradients would be added to these
        _backward(target.score(passage.output), list(passage.seen.values()))
    how: dict[str, Any] = {"layer": layer, "head": head, "seed": seed}
    for tokens, start in starts.items():
        own = self_records(passage.seen, passage.ends, tokens)
        across = cross_records(passage.seen, passage.ends, tokens)
        if method in CHAINS:
            _check_order(passage, tokens, len(across))
        if own:
            values[tokens] = _along(method, own, start, **how)[passage.row(own[-1])]
        for context, layers in across.items():
            encoder = self_records(passage.seen, passage.ends, context)
            row = passage.row(layers[-1][1])
            if method == "rollout":  # both together sum to one
                values[context], values[tokens] = (x[row] for x in chains.rollout_decoder(layers, encoder, start))
            else:
                values[context] = _across(method, layers, encoder, start, **how)[row]
    return {tokens: x.detach().float().cpu() for tokens, x in values.items()}


def _check_order(passage: Passage, tokens: Tokens, contexts: int) -> None:
    """ValueError unless each layer attends to its own tokens alone, or once at most and then to one context."""
    own = [passage.ends[name].keys is tokens for name in tokens.names]
    mixed = contexts > 1 or own[-1] or any(one and other for one, other in itertools.pairwise(own))
    if (contexts and mixed) or _stands_between(passage, tokens):
        raise ValueError(
            f"the attentions {brief(', '.join(tokens.names))} are no layers that each attend to their own tokens, and "
            "then to one context or none: no chain goes through them"
        )


def _stands_between(passage: Passage, tokens: Tokens) -> bool:
    """Whether an attention that is none of theirs has queries made by one of them, and makes those of another."""
    readings = {name: record.reading for name, record in passage.seen.items() if record.reading is not None}
    chain = [readings[name] for name in tokens.names if name in readings]
    return any(
        any(other.queries >> one.number & 1 for one in chain) and any(one.queries >> other.number & 1 for one in chain)
        for name, other in readings.items()
        if name not in tokens.names
    )


def _along(
    method: str, records: list[Record], start: Start, *, layer: int, head: WhichHead, seed: int
) -> Float[Tensor, "b t"]:
    """Through self-attentions."""
    match method:
        case "raw":
            return chains.raw(pick_layer(records, layer), start, head=head)
        case "column mass":
            return _received(pick_layer(records, layer), head)
        case "rollout":
            return chains.rollout(records, start)
        case "flow":
            return flow(records, start)
        case "gradient":
            return chains.gradient_weighted(records, start)
    return random_map(records[0], seed)


def _across(
    method: str,
    layers: DecoderRecords,
    encoder: list[Record],
    start: Start,
    *,
    layer: int,
    head: WhichHead,
    seed: int,
) -> Float[Tensor, "b s"]:
    """Through a decoder's layers into what they read."""
    cross = [record for _, record in layers]
    match method:
        case "raw":
            return chains.raw(pick_layer(cross, layer), start, head=head)
        case "column mass":
            return _received(pick_layer(cross, layer), head)
        case "flow":
            return flow_decoder(layers, encoder, start)
        case "gradient":
            return chains.gradient_weighted_decoder(layers, encoder, start)
    return random_map(cross[0], seed)


def _received(record: Record, head: WhichHead) -> Float[Tensor, "b k"]:
    """The attention that each key receives, as the mean over the queries: all of them sum to one."""
    return chains.raw(record, torch.full(record.q.shape[:1] + record.q.shape[2:3], 1 / record.q.shape[2]), head=head)


def _starts(passage: Passage, target: Target | None) -> dict[Tokens, Start]:
    """The tokens that the answer is drawn from, those that others read apart, and what is read of them."""
    others = contexts(passage.ends)
    drawn = [tokens for tokens in passage.tokens if tokens not in others and tokens.names]
    whole = [tokens for tokens in drawn if not _is_in_parts(passage, tokens)]
    if drawn and not whole:
        raise ValueError(
            f"{type(passage.model).__name__} attends {_say_parts(passage, drawn)}: no map goes through that"
        )
    starts = {tokens: _start(passage, passage.seen[tokens.names[-1]], target) for tokens in whole}
    return {tokens: start for tokens, start in starts.items() if start is not None}


def _is_in_parts(passage: Passage, tokens: Tokens) -> bool:
    readings = [passage.seen[name].reading for name in tokens.names]
    return any(reading is not None and reading.kind in ("windows", "channels") for reading in readings)


def _say_parts(passage: Passage, drawn: Sequence[Tokens]) -> str:
    places = [passage.ends[name].places for tokens in drawn for name in tokens.names]
    if all(x is None or (len(x) == 1 and int(x.min()) >= 0) for x in places) and any(x is not None for x in places):
        return "to tokens in another order than they came in"
    return "within windows or to channels"


def _start(passage: Passage, last: Record, target: Target | None) -> Start | None:
    """What is read of the tokens after their last attention; None if the answer isn't drawn from them."""
    b, _, count, _ = last.q.shape
    if target is None:
        return torch.full((b, count), 1 / count, device=last.q.device)
    if last.live is None:
        raise ValueError("an answer is explained from a pass that kept its gradients")
    tensor, shaped = last.live["output"]
    (slope,) = torch.autograd.grad(target.score(passage.output), tensor, retain_graph=True, allow_unused=True)
    if slope is None:
        return None
    felt = shaped(slope).float().square().sum((1, 3))
    landed = felt > felt.amax() * 1e-18
    if not bool(landed.any()) or not bool(felt.any()):
        return None
    if b == 1 and int(landed.sum()) == 1:
        return int(landed[0].nonzero()[0, 0])
    return landed.float() / landed.sum(1, keepdim=True).clamp(min=1)


def _backward(score: Tensor, records: Sequence[Record]) -> None:
    """Leave the gradient of the answer on the records' outputs, zero where it doesn't flow."""
    live = [record.live["output"][0] for record in records if record.live is not None]
    slopes = torch.autograd.grad(score, live, retain_graph=True, allow_unused=True)
    for tensor, slope in zip(live, slopes, strict=True):
        tensor.grad = torch.zeros_like(tensor) if slope is None else slope


def _felt(passage: Passage, target: Target) -> dict[Tokens, Tensor]:
    """Σ |gradient × input| over what each token was made of."""
    leaves = passage.leaves
    score = target.score(passage.output)
    slopes = torch.autograd.grad(score, list(leaves.values()), retain_graph=True, allow_unused=True)
    felt = {
        name: torch.zeros_like(x) if slope is None else (slope * x.detach()).abs()
        for (name, x), slope in zip(leaves.items(), slopes, strict=True)
    }
    return _fold(passage, felt)


def _integrate(passage: Passage, target: Target, steps: int) -> dict[Tokens, Tensor]:
    """Σ input × the mean gradient on the way from nothing to the input (Sundararajan, Taly and Yan 2017).

    Nothing is zero: the mean colour, no sound, an embedding of zeros. All sums to the answer less that of nothing.
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}; expected one or more")
    whole = {name: x.detach() for name, x in passage.leaves.items()}
    sums = {name: torch.zeros_like(x) for name, x in whole.items()}
    for i in range(steps):
        given = {name: x * ((i + 0.5) / steps) for name, x in whole.items()}
        with (
            torch.enable_grad(),
            evaluating(passage.model),
            leaves_of(passage.model, passage.fed, given) as (fed, leaves),
        ):
            score = target.score(fed.call(passage.model))
            slopes = torch.autograd.grad(score, list(leaves.values()), allow_unused=True)
        for name, slope in zip(leaves, slopes, strict=True):
            if slope is not None:
                sums[name] += slope
    return _fold(passage, {name: whole[name] * total / steps for name, total in sums.items()})


def _fold(passage: Passage, felt: dict[str, Tensor]) -> dict[Tokens, Tensor]:
    """What was felt of an argument, by the tokens that were made of it."""
    values: dict[Tokens, Tensor] = {}
    for name, x in felt.items():
        tokens = _made_of(passage, name)
        if tokens is not None and (folded := _fold_one(x, tokens, passage)) is not None:
            values[tokens] = folded[min(passage.answered.row, len(folded) - 1)].detach().float().cpu()
    return values


def _made_of(passage: Passage, name: str) -> Tokens | None:
    """The first tokens that were made of this argument and of nothing else."""
    texts = {text.argument: len(text.labels[0]) for text in passage.fed.texts}
    for tokens in passage.tokens:
        if tokens.kind == "channels" or tokens.is_moved:
            continue
        inputs = [each for each in tokens.inputs if not each.endswith("mask")]
        if name in texts and tokens.stream.kind == "text" and tokens.count == texts[name] and inputs in ([name], []):
            return tokens
        if name not in texts and tokens.stream.kind != "text" and inputs in ([name], []):
            return tokens
    return None


def _fold_one(x: Tensor, tokens: Tokens, passage: Passage) -> Float[Tensor, "b t"] | None:
    grid, first = tokens.stream.grid, tokens.stream.first
    if x.ndim == 3 and x.shape[1] == tokens.count:
        return x.sum(-1)
    if x.ndim == 4 and grid is not None:
        sizes = [size for size in patch_sizes(passage.model) if _cuts(size, x.shape[2:], grid)]
        high, wide = sizes[0] if sizes else (x.shape[2] // grid[0], x.shape[3] // grid[1])
        # what lies behind the last patch is in none, and what the last one lacks was padding
        inside = torch.nn.functional.pad(x, (0, wide * grid[1] - x.shape[3], 0, high * grid[0] - x.shape[2]))
        patches = reduce(inside, "b c (rows p) (columns q) -> b (rows columns)", "sum", rows=grid[0], columns=grid[1])
        return torch.nn.functional.pad(patches, (first, tokens.count - first - patches.shape[1]))
    if tokens.stream.kind == "frames" and x.shape[-1] >= tokens.count:
        sound = x.flatten(1, -2).sum(1) if x.ndim > 2 else x
        each = sound.shape[-1] // tokens.count
        return sound[:, : each * tokens.count].unflatten(1, (tokens.count, each)).sum(-1)
    return None


def _cuts(patch: tuple[int, int], picture: Sequence[int], grid: Sequence[int]) -> bool:
    """Whether patches of this size make this grid of the picture, a last one that isn't whole left out or padded."""
    return all(n in (side // size, -(-side // size)) for size, side, n in zip(patch, picture, grid, strict=True))
