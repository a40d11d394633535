"""What was followed is compared with the model's own weights: a formula that isn't theirs is named, in any dtype."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pellucid.watching import steps, watch

B, H, Q, K, D = 2, 3, 24, 7, 8
KINDS = ["double", "float", "bfloat16", "half", "autocast", "dropout"]


class Written(nn.Module):
    """Scores times 0.3, a cap, a mask that is filled in, a bias, talking heads if they are wanted."""

    def __init__(self, low: float = -math.inf, bias: float = 1.0, turned: bool = False, mixed: bool = False):
        super().__init__()
        self.low, self.bias, self.turned, self.mixed = low, bias, turned, mixed
        self.drop = nn.Dropout(0.2)
        self.weights: Tensor | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, mix: Tensor) -> Tensor:
        s = 3 * torch.tanh((q @ k.mT) * 0.1)
        s = s.masked_fill(~allowed, self.low)
        bias = self.bias * torch.linspace(-1, 1, K).to(s.dtype)
        s = bias - s if self.turned else bias + s
        if self.mixed:
            s = torch.einsum("bhqk,hi->biqk", s, mix.to(s.dtype))
        self.weights = s.softmax(-1)
        return self.drop(self.weights) @ v


def run(model: Written, kind: str) -> Tensor:
    dtypes = {"double": torch.float64, "bfloat16": torch.bfloat16, "half": torch.float16}
    dtype = dtypes.get(kind, torch.float32)
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    q, k, v, mix = numbers(B, H, Q, D), numbers(B, H, K, D), numbers(B, H, K, D), numbers(H, H)
    allowed = torch.rand(B, 1, Q, K, generator=generator) < 0.7
    allowed[..., 0] = True
    model.train(kind == "dropout")
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        return model(q, k, v, allowed, mix)


@pytest.mark.parametrize("kind", KINDS)
def test_the_formula_is_the_models_own_within_what_it_says(kind):
    with watch(model := Written()) as seen:
        run(model, kind)
    record = seen[""]
    assert model.weights is not None
    error = (record.weights().double() - model.weights.double()).abs().max()
    assert record.written.error < {"double": 1e-12, "float": 1e-6, "dropout": 1e-6, "half": 2e-3}.get(kind, 0.02)
    assert error < 2 * record.written.error + 1e-12  # of which eight rows of 24 were compared


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", ["tanh", "mul", "masked_fill", "add"])
def test_a_step_that_is_followed_wrongly_is_named(kind, step, monkeypatch):
    """Also in half precision, and where weights are dropped: nothing but the output could be compared there before."""
    monkeypatch.setitem(steps.STEPS, step, lambda trail, step: trail.held_in(step.out.dtype))
    with pytest.raises(ValueError, match="its weights can't be reproduced: they differ by"), watch(model := Written()):
        run(model, kind)


@pytest.mark.parametrize("kind", ["double", "float", "bfloat16", "half", "autocast"])
@pytest.mark.parametrize("mixed", [True, False])
def test_what_was_left_out_and_turned_over_is_all_that_counts(kind, mixed):
    lowest = {"double": -1e38, "float": -1e38, "half": -6e4}.get(kind, torch.finfo(torch.bfloat16).min)
    with watch(model := Written(low=lowest, turned=True, mixed=mixed).eval()) as seen:
        run(model, kind)
    assert model.weights is not None
    if not model.weights.isfinite().all():
        assert seen.missed
        return
    assert (seen[""].weights().double() - model.weights.double()).abs().max() < 0.02


@pytest.mark.parametrize("kind", ["float", "bfloat16", "autocast"])
def test_what_rounding_makes_of_a_map_is_in_its_rule(kind):
    """A bias of thousands leaves little of a score: then the rule rounds as the model does."""
    with watch(model := Written(bias=3e4 if kind != "float" else 1e9).eval()) as seen:
        run(model, kind)
    assert model.weights is not None
    assert (seen[""].weights().double() - model.weights.double()).abs().max() < 0.02


def test_rows_all_of_whose_keys_lie_far_below_are_looked_at():
    """Row 13 of 24 is none of the eight from first to last."""

    class Padded(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            s = q @ k.mT
            bias = torch.zeros(Q, K).masked_fill(torch.arange(Q)[:, None] == 13, -1e9)
            self.weights = (s + bias).softmax(-1)
            return self.weights @ v

    model, x = Padded(), [torch.randn(1, 1, n, 8) for n in (Q, K, K)]
    with watch(model) as seen:
        model(*x)
    for p in (seen[""].weights(), seen[""].weights(queries=[13])):
        assert (p - model.weights[:, :, -p.shape[2] :] if p.shape[2] == Q else p - 1 / K).abs().max() < 1e-6
    assert seen.check() < 1e-5
    assert replace(seen[""], mask=None).weights(queries=[13]).max() > 0.2


def test_a_row_that_was_pushed_down_keeps_the_digits_it_has_left():
    """Its scores beside 10⁹ have seven digits in float64, and none in float32: `check` allows for that, and no more."""

    class Pushed(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            s = q @ k.mT
            s = s + torch.where(torch.arange(3)[:, None] == 2, -1e9, 0.0)
            return (s - s.logsumexp(-1, keepdim=True)).exp() @ v

    model, x = Pushed(), [torch.randn(2, 3, 3, 4, dtype=torch.float64) for _ in range(3)]
    with watch(model) as seen:
        model(*x)
    record = seen[""]
    assert 1e-9 < record.check() < 1e-6
    assert 1e-9 < record.written.error < 1e-6
    for wrong in (1.00001, 3):
        with pytest.raises(ValueError, match="are not what made this output"):
            replace(record, beta=wrong * record.beta).check()
    with pytest.raises(ValueError, match="its weights can't be reproduced"), watch(model):
        model(*[y.float() for y in x])


def test_a_row_of_no_numbers_is_named_wherever_it_stands():
    class Barred(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            s = (q @ k.mT).masked_fill(torch.arange(Q)[:, None] == self.row, -math.inf)
            return s.softmax(-1) @ v

    model, x = Barred(), [torch.randn(1, 1, n, 8) for n in (Q, K, K)]
    for row in (0, 13, 22):
        model.row = row
        with pytest.raises(ValueError, match="its weights hold numbers that are NaN or infinite"), watch(model):
            model(*x)
    model.row = Q
    with watch(model) as seen:
        model(*x)
    assert seen.check() < 1e-5


def test_one_query_of_heads_that_share_their_keys_is_one_query_if_the_module_says_its_heads():
    class Step(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            s = torch.einsum("bgqrd,bkgd->bgqkr", q, k)
            return torch.einsum("bgqkr,bkgd->bqgrd", s.softmax(-2), v)

    model, x = Step(), [torch.randn(4, 3, 1, 2, 8), torch.randn(4, 5, 3, 8), torch.randn(4, 5, 3, 8)]
    shapes = []
    for heads in (6, None):
        model.num_heads = heads
        with watch(model) as seen:
            model(*x)
        assert seen.check() < 1e-5
        shapes.append(tuple(seen[""].weights().shape))
    assert shapes == [(4, 6, 1, 5), (4, 3, 2, 5)]


@pytest.mark.parametrize("train", [False, True])
def test_heads_that_are_mixed_after_their_weights_were_dropped_are_named(train):
    class Mixed(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            p = nn.functional.dropout((q @ k.mT).softmax(-1), 0.5, self.training)
            return torch.einsum("bhqk,hi->biqk", p, torch.tensor([[1.0, 3.0], [-2.0, 0.5]])) @ v

    model, x = Mixed().train(train), [torch.randn(2, 2, n, 4) for n in (3, 1, 1)]
    if train:
        with pytest.raises(ValueError, match="could not be recorded"), watch(model):
            model(*x)
        return
    with watch(model) as seen:
        model(*x)
    assert seen.check() < 1e-5
