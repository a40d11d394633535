"""The kernels for summaries against float64: `test_kernels.py` runs this file in a process of its own.

Triton decides when it is imported whether it compiles for CUDA or interprets on the CPU, so no other test may share the
process. One law alone: TRITON_INTERPRET=1 .venv/bin/pytest tests/kernel_laws.py -k every_mask
"""

import math
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import make_mask, qkv, truth
from torch import Tensor
from torch.testing import assert_close

from pellucid import ops
from pellucid.explain.chains import gradient_weighted
from pellucid.kernels.masked import attend_masked
from pellucid.kernels.tiles import Launch, survey
from pellucid.layers import EncoderBlock
from pellucid.ops import masks, tiled
from pellucid.watching import watch

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
N_Q, N_K = 19, 37  # of tiles of 16 tokens two and three, the last ones not full
LIMIT = 5e-6


@pytest.fixture(autouse=True)
def tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiles so small that a few tokens fill several; no NumPy that warns where a row sees nothing."""
    monkeypatch.setattr(Launch, "of", staticmethod(lambda *_: Launch(16, 16, 4, 2)))
    with np.errstate(all="ignore"):
        yield


def here(*tensors: Tensor) -> Iterator[Tensor]:
    return (x.to(DEVICE) for x in tensors)


def error(found: Tensor, expected: Tensor) -> float:
    """The largest error, as a part of the largest number that is expected."""
    return ((found.cpu().double() - expected).abs().max() / expected.abs().max()).item()


def entropies(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    beta: float,
    causal: bool,
    limit: float = LIMIT,
    spread: float = LIMIT,
    mixed: float = LIMIT,
) -> None:
    """Every summary is the same quantity read off the map in float64. spread, mixed: limits of Pᵀ·x and of P·v."""
    expected, p = truth(q, k, v, mask, beta, causal)
    x, keys_at, queries_at = torch.randn(*q.shape[:3], 9), torch.rand(p.shape[3], 2), torch.rand(p.shape[2], 2)
    distances = torch.cdist(queries_at.double(), keys_at.double())
    q, k, v = here(q, k, v)
    mask = None if mask is None else mask.to(DEVICE)
    how = {"mask": mask, "beta": beta, "causal": causal, "impl": "triton"}
    known = how | {"totals": tiled.total_rows(q, k, mask, beta, causal)}
    assert error(ops.entropy(q, k, **how), entropies(p)) <= limit
    assert error(ops.mean_distance(q, k, keys_at, queries_at=queries_at, **how), (p * distances).sum(-1)) <= limit
    assert error(ops.column_mass(q, k, **known), p.sum(2)) <= limit
    assert error(ops.apply_transposed(q, k, x.to(DEVICE), **known), p.mT @ x.double()) <= spread
    weights, keys = (x.cpu() for x in ops.topk(q, k, 3, **known))
    assert error(weights, p.topk(3).values) <= limit
    assert error(p.gather(-1, keys), p.topk(3).values) <= limit
    assert all(len(set(row)) == 3 for row in keys.flatten(0, 2).tolist())
    out, _ = attend_masked(q, k, v, mask, beta, causal)
    assert out.dtype == v.dtype
    assert error(out, expected) <= mixed


@pytest.mark.parametrize(
    ("kind", "b", "beta"),
    [
        ("none", 1, -0.7),
        ("causal", 1, 0.4),
        ("window", 1, -0.7),
        ("padding", 2, 0.4),
        ("boolean", 2, -0.7),  # and causal
        ("additive", 1, 0.4),
        ("alibi", 1, -0.7),  # and causal
        ("barred", 1, 0.4),
        ("dead", 2, -0.7),
    ],
)
def test_every_summary_is_the_formula_under_every_mask(kind, b, beta):
    mask, causal = make_mask(kind, b, 2, N_Q, N_K) if kind not in ("window", "padding", "barred") else (None, False)
    match kind:
        case "window":
            mask = masks.window(N_Q, N_K, radius=3)
        case "padding":  # nothing of the first sequence, of the second a whole tile and a part
            mask = masks.padding(torch.tensor([0, 21]), N_K)
        case "barred":  # a bias that forbids
            mask = masks.additive(torch.rand(1, 2, N_Q, N_K) > 0.5, -math.inf) + torch.randn(N_K)
    q, k, v = qkv(b, 2, N_Q, N_K, d=20, e=12, g=1, dtype=torch.float32)
    check(q, k, v, mask, beta, causal)


@pytest.mark.parametrize("beta", [0.0, -20.0])
def test_every_summary_is_the_formula_for_any_beta(beta):
    q, k, v = qkv(1, 1, N_Q, N_K, d=16, e=16, dtype=torch.float32)
    rounded = abs(beta) * (q @ k.mT).abs().max().item() * 2**-24  # what float32 leaves of the largest score
    check(q, k, v, None, beta, True, *[max(LIMIT, 2 * rounded)] * 3)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        pytest.param(
            torch.bfloat16, marks=pytest.mark.skipif(not CUDA, reason="Triton's interpreter multiplies no bfloat16")
        ),
    ],
)
def test_half_precision_is_summarised_in_float32(dtype):
    """But where weights are rounded once: P·v as attention does it, and Pᵀ·x in two parts."""
    mask, causal = make_mask("boolean", 1, 2, N_Q, N_K)
    eps = torch.finfo(dtype).eps
    q, k, v = qkv(1, 2, N_Q, N_K, d=16, e=16, g=1, dtype=dtype)
    check(q, k, v, mask, 0.4, causal, spread=max(LIMIT, eps**2), mixed=eps)
    wide = torch.randn(1, 2, N_Q, 9).to(dtype)
    p = truth(q, k, v, mask, 0.4, causal)[1]
    mask = mask.to(DEVICE)
    found = ops.apply_transposed(*here(q, k, wide), mask, beta=0.4, causal=causal, impl="triton")
    assert error(found, p.mT @ wide.double()) <= eps


@pytest.mark.parametrize(("d", "e"), [(1, 1), (16, 64), (40, 260), (100, 72), (128, 128), (256, 20)])
def test_heads_of_any_width(d, e, monkeypatch):
    monkeypatch.undo()  # as it is launched outside of tests
    q, k, v = qkv(1, 1, 9, 33, d=d, e=e, dtype=torch.float32)
    expected, p = truth(q, k, v)
    q, k, v = here(q, k, v)
    x = torch.randn(1, 1, 9, e)
    assert error(ops.entropy(q, k, impl="triton"), entropies(p)) <= LIMIT
    assert error(ops.apply_transposed(q, k, x.to(DEVICE), impl="triton"), p.mT @ x.double()) <= LIMIT
    if e <= 256:
        assert error(attend_masked(q, k, v, None, d**-0.5, False)[0], expected) <= LIMIT


@pytest.mark.parametrize(("n_q", "n_k"), [(1, 1), (1, 33), (17, 1), (16, 32), (33, 15)])
def test_lengths_beside_whole_tiles(n_q, n_k):
    """More queries than keys, too: the first ones then see nothing of what is causal."""
    q, k, v = qkv(1, 1, n_q, n_k, d=16, e=16, dtype=torch.float32)
    expected, p = truth(q, k, v, None, 0.3, True)
    assert error(ops.column_mass(*here(q, k), beta=0.3, causal=True, impl="triton"), p.sum(2)) <= LIMIT
    assert error(ops.topk(*here(q, k), 1, beta=0.3, causal=True, impl="triton").weights, p.topk(1).values) <= LIMIT
    assert error(attend_masked(*here(q, k, v), None, 0.3, True)[0], expected) <= LIMIT
    expected, p = truth(q, k, v, None, 0.3)
    assert error(attend_masked(*here(q, k, v), None, 0.3, False)[0], expected) <= LIMIT


@pytest.mark.parametrize(
    "shape", [(18,), (17, 1), (2, 1, 18), (1, 2, 17, 18), (2, 1, 1, 18), (2, 2, 17, 1), (1, 1, 1, 1)]
)
def test_masks_of_any_shape_that_broadcasts(shape):
    mask = torch.rand(shape) > 0.3
    q, k, v = qkv(2, 2, 17, 18, d=16, e=16, dtype=torch.float32)
    expected, p = truth(q, k, v, mask, 0.3)
    assert mask.all() or not torch.allclose(p, truth(q, k, v, None, 0.3)[1])
    q, k, v, mask = here(q, k, v, mask)
    mass = ops.column_mass(q, k, mask, beta=0.3, impl="triton")
    assert_close(mass.cpu().double(), p.sum(2), rtol=0, atol=LIMIT * 17)
    out, _ = attend_masked(q, k, v, mask, 0.3, False)
    assert_close(out.cpu().double(), expected, rtol=0, atol=LIMIT * 3)


def test_tensors_as_they_lie():
    """Heads beside tokens, one batch for all, every second column, masks that are parts of others and turned."""
    q = torch.randn(2, N_Q, 2, 16).transpose(1, 2)
    k = torch.randn(1, 2, 16, 18).mT.expand(2, -1, -1, -1)
    v = torch.randn(2, 2, 18, 32)[..., ::2]
    mask = (torch.rand(2, 2, 18 + 5, N_Q) > 0.4)[:, :, 5:].mT
    check(q, k, v, mask, 0.3, False)
    check(q[:1, :1], k[:1, :1], v[:1, :1], torch.randn(18, N_Q, dtype=torch.bfloat16).mT, 0.3, False)


def test_rows_that_see_nothing_are_zeros_and_their_neighbours_are_not():
    q, k, v = here(*qkv(1, 1, N_Q, N_K, d=16, e=16, dtype=torch.float32))
    for forbid in (False, -math.inf):
        mask = torch.ones(N_Q, N_K, dtype=torch.bool) if forbid is False else torch.zeros(N_Q, N_K)
        mask[4] = forbid
        mask = mask.to(DEVICE)
        out, totals = attend_masked(q, k, v, mask, 0.25, False)
        entropy = ops.entropy(q, k, mask, impl="triton")
        top = ops.topk(q, k, 2, mask, impl="triton").weights
        for zero in (out, entropy, top, *totals):
            assert (zero[:, :, 4] == 0).all()
        for other in (out, entropy, top, totals.total):
            assert (other[:, :, 3] != 0).any()
        mass = ops.column_mass(q, k, mask, impl="triton").sum(-1)
        assert_close(mass, torch.full_like(mass, N_Q - 1))


def test_rows_whose_every_score_a_bias_brings_down_are_rows():
    """The lowest numbers of float32, as padding is often written: such a row attends to everything alike."""
    q, k, v = here(*qkv(1, 1, N_Q, N_K, d=16, e=16, dtype=torch.float32))
    mask = torch.zeros(N_Q, N_K, device=DEVICE)
    mask[4] = torch.finfo(torch.float32).min
    out, _ = attend_masked(q, k, v, mask, 0.25, False)
    assert_close(out[0, 0, 4], v[0, 0].mean(0), rtol=0, atol=1e-6)
    assert_close(ops.entropy(q, k, mask, impl="triton")[0, 0, 4].item(), math.log(N_K), rtol=1e-6, atol=0)
    mass = ops.column_mass(q, k, mask, impl="triton").sum(-1)
    assert_close(mass, torch.full_like(mass, N_Q))


def test_small_entropies_keep_their_digits():
    """One key has nearly all: what is left is right to the last digit of its weight, not of its score."""
    k = torch.zeros(1, 1, N_K, 16)
    k[..., 5, 0] = 17.0
    q = torch.zeros(1, 1, N_Q, 16)
    q[..., 0] = 1.0
    p = truth(q, k, k, None, 1.0)[1]
    found = ops.entropy(*here(q, k), beta=1.0, impl="triton").cpu().double()
    assert 2e-5 < entropies(p).max() < 4e-5
    assert_close(found, entropies(p), rtol=0, atol=2**-23)


def test_top_of_many_and_of_keys_alike():
    q, k, v = qkv(1, 1, N_Q, N_K, d=16, dtype=torch.float32)
    p = truth(q, k, v, None, 0.3, True)[1]
    for n in (1, 16, 20):  # 16 are taken of themselves, more because they are asked for
        top = ops.topk(*here(q, k), n, beta=0.3, causal=True, impl="triton")
        assert error(top.weights, p.topk(n).values) <= LIMIT
        assert all(len(set(row)) == n for row in top.keys.flatten(0, 2).tolist())
    blind, few, _ = here(*qkv(1, 1, 35, 18, d=16, dtype=torch.float32))  # sixteen queries that see no key name some
    named = ops.topk(blind, few, 3, causal=True, impl="triton")
    assert (named.weights[:, :, :16] == 0).all()
    assert all(len(set(row)) == 3 for row in named.keys.flatten(0, 2).tolist())
    alike = ops.topk(*here(q, k[:, :, :1].expand_as(k)), 5, impl="triton")
    assert_close(alike.weights, torch.full_like(alike.weights, 1 / N_K))
    assert all(len(set(row)) == 5 for row in alike.keys.flatten(0, 2).tolist())


@pytest.mark.parametrize("h", [3, 4, 6])
def test_heads_that_share_their_distances_have_each_its_own_mean(h):
    q, k, v = qkv(1, h, N_Q, N_K, d=16, g=h // 2 if h % 2 == 0 else h, dtype=torch.float16)
    mask = masks.padding(torch.tensor([21]), N_K)
    at = torch.rand(N_K, 2)
    p = truth(q, k, v, mask, 0.4)[1]
    expected = (p * torch.cdist(at[:N_Q].double(), at.double())).sum(-1)
    how = {"queries_at": at[:N_Q], "beta": 0.4, "impl": "triton"}
    assert error(ops.mean_distance(*here(q, k), at, mask.to(DEVICE), **how), expected) <= LIMIT
    alike = mask.expand(1, h, N_Q, N_K).contiguous()  # as if each head had its own: one after the other
    assert error(ops.mean_distance(*here(q, k), at, alike.to(DEVICE), **how), expected) <= LIMIT


@pytest.mark.parametrize("axes", [1, 3, 4])
def test_places_far_from_zero_are_told_apart(axes):
    q, k, v = qkv(1, 1, N_Q, N_K, d=16, dtype=torch.float32)
    at, asked = torch.rand(N_K, axes).double() + 1e6, torch.rand(N_Q, axes).double() + 1e6
    expected = (truth(q, k, v)[1] * (asked[:, None] - at).square().sum(-1).sqrt()).sum(-1)
    for impl in ("triton", "blocks"):
        assert error(ops.mean_distance(*here(q, k), at, queries_at=asked, impl=impl), expected) <= LIMIT


@pytest.mark.parametrize("kind", ["causal", "boolean"])
@pytest.mark.parametrize("e", [12, 40])  # narrower than the heads, and wider
def test_the_gated_rule_is_its_formula(kind, e):
    """Ā = mean_h (P ⊙ dO·vᵀ)⁺, applied to a vector and turned round."""
    q, k, v = qkv(1, 2, N_Q, N_K, d=20, e=e, g=1, dtype=torch.float32)
    out = torch.randn(1, 2, N_Q, e)
    mask, causal = make_mask(kind, 1, 2, N_Q, N_K)
    p = truth(q, k, v, mask, -0.4, causal)[1]
    rule = (p * (out.double() @ v.double().mT)).clamp(min=0).mean(1)
    on = None if mask is None else mask.to(DEVICE)
    for transposed, n in ((True, N_Q), (False, N_K)):
        x = torch.randn(1, n)
        gate = tuple(here(out, v))
        found = tiled.apply_gated(*here(q, k, x), gate, on, -0.4, causal, transposed=transposed)
        assert error(found, ((rule.mT if transposed else rule) @ x.double()[..., None])[..., 0]) <= LIMIT


def test_gradient_weighted_attention_goes_through_the_kernels(monkeypatch):
    encoder = torch.nn.Sequential(EncoderBlock(32, 2, norm="pre"), EncoderBlock(32, 2, norm="pre")).to(DEVICE).eval()
    with watch(encoder, gradients=True) as seen:
        encoder(torch.randn(1, N_Q, 32, device=DEVICE))[:, 0].square().sum().backward()
    found = gradient_weighted(seen.values(), 0)
    monkeypatch.setattr(tiled, "takes", lambda *_: False)
    exact = gradient_weighted(seen.values(), 0)
    assert not torch.equal(found, exact)  # or no kernel ran
    assert error(found, exact.cpu().double()) <= LIMIT


def test_rollout_goes_through_the_kernels():
    records, product = [], torch.eye(N_K, dtype=torch.float64)
    for causal in (False, True):
        q, k, v = qkv(1, 2, N_K, N_K, d=16, dtype=torch.float32)
        records.append(SimpleNamespace(q=q.to(DEVICE), k=k.to(DEVICE), mask=None, beta=0.3, causal=causal))
        mean = truth(q, k, v, None, 0.3, causal)[1].mean(1)
        product = (0.5 * torch.eye(N_K, dtype=torch.float64) + 0.5 * mean) @ product
    assert error(ops.rollout(records, 30, impl="triton"), product[:, 30]) <= LIMIT


def test_totals_follow_from_the_logarithm_that_other_kernels_keep():
    q, k, v = qkv(1, 2, N_Q, N_K, d=16, dtype=torch.float32)
    totals = tiled.from_log_sum_exp((0.3 * q @ k.mT).logsumexp(-1).to(DEVICE))
    mass = ops.column_mass(*here(q, k), beta=0.3, impl="triton", totals=totals)
    assert error(mass, truth(q, k, v, None, 0.3)[1].sum(2)) <= LIMIT


def test_a_mask_is_surveyed_once_until_it_is_written_to():
    q, k, _ = here(*qkv(1, 1, N_Q, N_K, d=16, dtype=torch.float32))
    mask = torch.ones(N_Q, N_K, dtype=torch.bool, device=DEVICE)
    launch = Launch(16, 16, 4, 2)
    first = survey(mask, N_Q, N_K, False, launch)
    assert survey(mask, N_Q, N_K, False, launch) is first
    assert first.counts.tolist() == [[[[2, 1], [2, 1]]]]  # the keys end within the third tile
    mask[:, 16:] = False
    second = survey(mask, N_Q, N_K, False, launch)
    assert second.counts.tolist() == [[[[1, 0], [1, 0]]]]
    assert (ops.column_mass(q, k, mask, impl="triton")[..., 16:] == 0).all()


def test_attend_takes_a_mask_by_its_kernel_if_asked_to():
    q, k, v = here(*qkv(1, 2, N_Q, N_K, d=16, e=16, g=1, dtype=torch.float32))
    mask = masks.window(N_Q, N_K, radius=3, device=DEVICE)
    found = ops.attend(q, k, v, mask, impl="triton")
    assert torch.equal(found, attend_masked(q, k, v, mask, 0.25, False)[0])
    for wrong in ({"dropout": 0.1}, {"beta": math.inf}):
        with pytest.raises(
            ValueError, match=r"^impl='triton' needs CUDA tensors in float32 or less, .*; use impl='fused'$"
        ):
            ops.attend(q, k, v, mask, impl="triton", **wrong)
    with pytest.raises(ValueError, match="gives gradients only"):
        ops.attend(q, k, v.clone().requires_grad_(), mask, impl="triton")


def test_what_is_hidden_is_not_read():
    """NaN under the mask, a whole tile of it, touches nothing."""
    q, k, v = here(*qkv(1, 1, N_Q, N_K, d=16, e=16, dtype=torch.float32))
    mask = masks.padding(torch.tensor([16]), N_K).to(DEVICE)
    expected = attend_masked(q, k, v, mask, 0.25, False)[0]
    k[:, :, 16:], v[:, :, 16:] = math.nan, math.nan
    assert torch.equal(attend_masked(q, k, v, mask, 0.25, False)[0], expected)


def test_what_a_gradient_flows_through_is_computed_in_exact_blocks():
    q, k, _ = here(*qkv(1, 2, N_Q, N_K, d=16, dtype=torch.float32))
    exact = [x.double().requires_grad_() for x in (q, k)]
    ours = [x.clone().requires_grad_() for x in (q, k)]
    entropy = ops.entropy(*ours)
    assert torch.equal(entropy, ops.entropy(q, k, impl="blocks"))
    wanted = torch.autograd.grad(ops.entropy(*exact).square().sum(), exact)
    for found, expected in zip(torch.autograd.grad(entropy.square().sum(), ours), wanted, strict=True):
        assert error(found, expected.cpu()) <= LIMIT
    with torch.no_grad():  # nobody asks for a gradient, and the kernels are back
        assert torch.equal(ops.entropy(*ours), ops.entropy(q, k, impl="triton"))
    with pytest.raises(ValueError, match="impl='triton' gives no gradients; use impl='blocks'"):
        ops.entropy(*ours, impl="triton")
