"""Rules: every summary of an attention that has one equals the same read off the map in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pellucid import ops
from pellucid.ops import exact, rules
from pellucid.watching import Record

B, H, G, Q, K, D = 2, 4, 2, 7, 7, 3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of two rows or three, so that every rule must know which rows it is given."""
    monkeypatch.setitem(exact._BLOCK_NUMBERS, "cpu", 3 * B * H * K)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def distance(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score - 0.3 * (h + 1) * (q - k).abs() + 0.1 * b


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((q - k).abs() <= h + 1) & (k + b < 6)


def make(kind: str) -> rules.Rule:
    row = torch.zeros(Q, K, dtype=torch.bool)
    row[3], row[0, 2:] = True, True
    cap = rules.Apply("cap", lambda s: 2 * (s / 2).tanh())
    mix = rules.MixHeads(numbers(H, H), numbers(H))
    return {
        "cap": lambda: rules.Rule((cap, rules.Plus(numbers(H, Q, K)))),
        "sinks": lambda: rules.Rule((), (), numbers(1, H, 1, 2)),
        "sinks of rows": lambda: rules.Rule((rules.Fill(row, -math.inf),), (), numbers(B, H, Q, 1)),
        "times": lambda: rules.Rule((rules.Times(numbers(H, 1, 1)), rules.Plus(numbers(B, 1, 1, K)))),
        "times of rows": lambda: rules.Rule((rules.Times(numbers(1, 1, Q, 1)),)),
        "low rows": lambda: rules.Rule((rules.Fill(row, -1e9), cap)),
        "barred rows": lambda: rules.Rule((cap, rules.Fill(row, -math.inf))),
        "held": lambda: rules.Rule((rules.Plus(10 * numbers(H, Q, 1)), rules.Hold(torch.float32))),
        "mixed before": lambda: rules.Rule((mix, rules.Plus(numbers(Q, K)))),
        "mixed after": lambda: rules.Rule((), (rules.MixHeads(numbers(H, H).softmax(-1), None),)),
        "gate": lambda: rules.Rule((), (rules.Times(numbers(H, 1, 1).sigmoid()), rules.Fill(row, 0.0))),
        "positions": lambda: rules.Rule((rules.Positions(distance),)),
        "allow": lambda: rules.Rule((rules.Positions(distance), rules.Allow(window))),
    }[kind]()


KINDS = ["cap", "sinks", "sinks of rows", "times", "times of rows", "low rows", "barred rows", "mixed before"]
KINDS += ["held", "mixed after", "gate", "positions", "allow"]


def record_of(rule: rules.Rule) -> Record:
    q, k, v = numbers(B, H, Q, D), numbers(B, G, K, D), numbers(B, G, K, D)
    return Record("a", q, k, v, rule, 0.7, False, 0.0, truth_of(q, k, rule) @ v.repeat_interleave(2, 1))


def truth_of(q: Tensor, k: Tensor, rule: rules.Rule) -> Tensor:
    """One number after another."""
    s = 0.7 * torch.einsum("bhqd,bhkd->bhqk", q, k.repeat_interleave(H // G, 1))

    def do(step: rules.Step, x: Tensor) -> Tensor:
        match step:
            case rules.Times():
                return x * step.factor
            case rules.Plus():
                return x + step.bias
            case rules.Fill():
                return torch.where(step.mask, torch.tensor(step.value, dtype=x.dtype), x)
            case rules.Apply():
                return step.function(x)
            case rules.Hold():
                return x.to(step.dtype).double()
            case rules.MixHeads():
                mixed = torch.stack([sum(step.matrix[o, i] * x[:, i] for i in range(H)) for o in range(H)], 1)
                return mixed if step.bias is None else mixed + step.bias.view(1, H, 1, 1)
        out = x.clone()
        for place in torch.cartesian_prod(*map(torch.arange, x.shape)):
            where = tuple(place.tolist())
            if isinstance(step, rules.Positions):
                out[where] = step.function(x[where], *place)
            elif not step.function(*place):
                out[where] = -math.inf
        return out

    for step in rule.before:
        s = do(step, s)
    sinks = numbers(B, H, Q, 0) if rule.sinks is None else rule.sinks.expand(B, H, Q, -1)
    e = s.exp()
    p = torch.nan_to_num(e / (e.sum(-1, keepdim=True) + sinks.exp().sum(-1, keepdim=True)))
    low = (s <= -1e8).all(-1, keepdim=True) & (s > -math.inf).any(-1, keepdim=True)
    p = torch.where(low, (s > -math.inf).double() / (s > -math.inf).sum(-1, keepdim=True), p)
    for step in rule.after:
        p = do(step, p)
    return p


@pytest.mark.parametrize("kind", KINDS)
def test_every_summary_of_a_rule(kind):
    record = record_of(make(kind))
    p = truth_of(record.q, record.k, record.mask)
    close = {"rtol": 0, "atol": 1e-12}
    assert record.check() < 1e-12
    assert_close(record.weights(), p, **close)
    assert_close(record.row(3), p[:, :, 3], **close)
    assert_close(record.rows([5, 1]), p[:, :, [5, 1]], **close)
    assert_close(record.weights(queries=slice(2, 5)), p[:, :, 2:5], **close)
    assert_close(record.column_mass(), p.sum(2), **close)
    assert_close(record.entropy(), torch.special.entr(p).sum(-1), **close)
    top = record.topk(3)
    assert_close(top.weights, p.topk(3).values, **close)
    assert_close(p.gather(-1, top.keys), top.weights, **close)
    assert_close(record.apply(x := numbers(B, H, K, 2)), p @ x, **close)
    assert_close(record.apply_transposed(x := numbers(B, H, Q, 2)), p.mT @ x, **close)
    line = torch.arange(float(K))[:, None]
    far = (p * torch.cdist(line, line).double()).sum(-1) / p.sum(-1).clamp(min=0.5)
    assert_close(record.mean_distance(line), far, **close)


@pytest.mark.parametrize("kind", KINDS)
def test_rollout_through_rules(kind):
    records = [record_of(make(kind)) for _ in range(2)]
    product = torch.eye(K, dtype=torch.float64)
    for record in records:
        product = (0.5 * torch.eye(K) + 0.5 * truth_of(record.q, record.k, record.mask).mean(1)) @ product
    assert_close(ops.rollout(records, 2), product[:, 2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_some_of_the_heads(kind):
    record = record_of(make(kind))
    p = truth_of(record.q, record.k, record.mask)
    assert_close(record.weights(heads=[3, 1], queries=[0, 6]), p[:, [3, 1]][:, :, [0, 6]], rtol=0, atol=1e-12)
    assert_close(record.weights(heads=slice(1, 3)), p[:, 1:3], rtol=0, atol=1e-12)
    assert record.mask.needs_all_heads == (kind in ("mixed before", "mixed after", "positions", "allow"))


def test_another_rule_is_noticed():
    for kind in KINDS:
        record = record_of(make(kind))
        other = Record("a", record.q, record.k, record.v, None, 0.7, False, 0.0, record.output)
        with pytest.raises(ValueError, match="misses the output"):
            other.check()


def test_a_rule_is_detached_and_says_what_it_is():
    rule = rules.Rule((rules.Plus(numbers(H, Q, K).requires_grad_()),), (), numbers(1, H, 1, 2).requires_grad_())
    assert not any(x.requires_grad for x in rule.detach().tensors())
    assert len(rule.tensors()) == 2
    assert repr(rule) == "Rule(before: Plus[4, 7, 7]; 2 sinks)"
    with pytest.raises(ValueError, match="impl='fused' knows masks and biases alone"):
        record_of(make("cap")).column_mass(impl="fused")
