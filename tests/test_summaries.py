"""Summaries against the same quantity read off the materialised map, and their memory at 8,192 tokens."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import make_mask, qkv, truth
from torch.testing import assert_close

from pellucid import ops
from pellucid.ops import exact

KINDS = ("none", "causal", "padding", "boolean", "alibi", "dead")


@pytest.fixture(params=KINDS)
def case(request, monkeypatch):
    """q, k, options and the map of one kind of mask, with blocks so small that several are needed."""
    monkeypatch.setattr("pellucid.ops.exact._BLOCK_NUMBERS", {"cpu": 150})
    q, k, v = qkv(n_q=6, n_k=6, g=2)
    mask, causal = make_mask(request.param, n_q=6, n_k=6)
    how = {"mask": mask, "causal": causal, "beta": 0.7}
    return q, k, how, truth(q, k, v, mask, 0.7, causal)[1]


def test_blocks_really_are_several(case):
    q, k, how, _ = case
    blocks = list(exact.weight_blocks(q, k, how["mask"], 0.7, how["causal"]))
    assert len(blocks) == 2


def test_rows_and_blocks_of_the_map(case):
    q, k, how, p = case
    assert_close(ops.row(q, k, 4, **how), p[:, :, 4], rtol=0, atol=1e-12)
    assert_close(ops.row(q, k, -1, **how), p[:, :, -1], rtol=0, atol=1e-12)
    assert_close(ops.rows(q, k, [3, 0, 3], **how), p[:, :, [3, 0, 3]], rtol=0, atol=1e-12)
    assert_close(ops.weights(q, k, **how), p, rtol=0, atol=1e-12)
    assert_close(ops.weights(q, k, **how, heads=[3, 1], queries=slice(1, 5)), p[:, [3, 1], 1:5], rtol=0, atol=1e-12)
    assert_close(
        ops.weights(q, k, **how, heads=slice(1, 3), queries=torch.tensor([2])), p[:, 1:3, 2:3], rtol=0, atol=1e-12
    )


def test_sums_over_the_map(case):
    q, k, how, p = case
    assert_close(ops.column_mass(q, k, **how), p.sum(2), rtol=0, atol=1e-12)
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1)
    assert_close(ops.entropy(q, k, **how), entropy, rtol=0, atol=1e-12)
    at, asked = torch.randn(6, 2), torch.randn(6, 2)
    expected = (p * torch.cdist(at.double(), at.double())).sum(-1)
    assert_close(ops.mean_distance(q, k, at, **how), expected, rtol=0, atol=1e-12)
    expected = (p * torch.cdist(asked.double(), at.double())).sum(-1)
    assert_close(ops.mean_distance(q, k, at, queries_at=asked, **how), expected, rtol=0, atol=1e-12)


def test_topk(case):
    q, k, how, p = case
    top = ops.topk(q, k, 3, **how)
    assert_close(top.weights, p.topk(3).values, rtol=0, atol=1e-12)
    assert_close(p.gather(-1, top.keys), top.weights, rtol=0, atol=1e-12)


def test_the_map_and_its_transpose_applied(case):
    q, k, how, p = case
    x = torch.randn(2, 4, 6, 3, dtype=torch.float64)
    assert_close(ops.apply(q, k, x, **how), p @ x, rtol=0, atol=1e-12)
    assert_close(ops.apply_transposed(q, k, x, **how), p.mT @ x, rtol=0, atol=1e-12)
    assert_close(ops.apply_transposed(q, k, x, **how, impl="fused"), p.mT @ x, rtol=0, atol=1e-12)
    assert_close(ops.column_mass(q, k, **how, impl="fused"), p.sum(2), rtol=0, atol=1e-12)
    assert not torch.allclose(p @ x, p.mT @ x, atol=1e-3)
    shared = torch.randn(6, 3, dtype=torch.float64)  # one x for all heads
    assert_close(ops.apply(q, k, shared, **how), p @ shared, rtol=0, atol=1e-12)


@pytest.mark.parametrize("impl", ["blocks", "fused"])
@pytest.mark.parametrize("residual", [0.5, 0.0, 0.9])
def test_rollout_is_the_product_of_the_maps(impl, residual):
    records, product = [], torch.eye(6, dtype=torch.float64)
    for kind in ("none", "causal", "alibi"):
        q, k, v = qkv(n_q=6, n_k=6, g=2)
        mask, causal = make_mask(kind, n_q=6, n_k=6)
        records.append(SimpleNamespace(q=q, k=k, mask=mask, beta=None, causal=causal))
        mean = truth(q, k, v, mask, None, causal)[1].mean(1)
        product = (residual * torch.eye(6, dtype=torch.float64) + (1 - residual) * mean) @ product
    for start in (0, 5, -1):
        rolled = ops.rollout(records, start, residual=residual, impl=impl)
        assert_close(rolled, product[:, start], rtol=0, atol=1e-12)
        assert_close(rolled.sum(-1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)
    start = torch.rand(2, 6, dtype=torch.float64)
    expected = torch.einsum("bi,bij->bj", start, product)
    assert_close(ops.rollout(records, start, residual=residual, impl=impl), expected, rtol=0, atol=1e-12)
    backwards = ops.rollout(records[::-1], 0, residual=residual)
    assert not torch.allclose(backwards, product[:, 0], atol=1e-6)


def test_hard_attention_has_summaries():
    q, k, _ = qkv()
    p = ops.attention_weights(q, k, beta=math.inf)
    assert_close(ops.column_mass(q, k, beta=math.inf), p.sum(2))
    assert (ops.entropy(q, k, beta=math.inf) == 0).all()


def test_half_precision_is_summarised_in_float32():
    q, k, _ = qkv(n_q=20, n_k=300, d=16, dtype=torch.bfloat16)
    p = truth(q, k, torch.zeros(2, 4, 300, 1))[1]
    mass = ops.column_mass(q, k)
    assert mass.dtype == torch.float32
    assert_close(mass.double(), p.sum(2), rtol=0, atol=1e-5)


def test_summaries_work_in_inference_mode():
    with torch.inference_mode():
        q, k, _ = qkv()
        ops.column_mass(q, k)
        with pytest.raises(ValueError, match="use impl='blocks'"):
            ops.column_mass(q, k, impl="fused")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k: ops.row(q, k, 5), r"axis q \(queries\): got \[5\], expected integers in 0…4"),
        (lambda q, k: ops.weights(q, k, heads=[4]), r"axis h \(heads\): got \[4\]"),
        (lambda q, k: ops.topk(q, k, 8), "n is 8; expected 1…7"),
        (lambda q, k: ops.mean_distance(q, k, torch.zeros(6, 2)), r"axis k \(keys\): coordinates have shape \[6, 2\]"),
        (lambda q, k: ops.mean_distance(q, k, torch.zeros(7, 2)), r"axis q \(queries\)"),
        (lambda q, k: ops.apply_transposed(q, k, torch.zeros(2, 4, 7, 1)), r"axis q \(queries\): x has 7, expected 5"),
        (lambda q, k: ops.column_mass(q, k, impl="magic"), "impl is 'magic'"),
        (lambda q, k: ops.entropy(q, k[..., :3]), "axis d"),
        (lambda q, k: ops.rollout([], 0), "at least one record"),
        (lambda q, k: ops.rollout([_record(q, k)], 0), "5 queries and 7 keys"),
        (lambda q, k: ops.rollout([_record(q, q)], 5), "start is 5; expected a token in 0…4"),
        (lambda q, k: ops.rollout([_record(q, q)], torch.ones(2, 4)), "start has shape"),
        (lambda q, k: ops.rollout([_record(q, q)], 0, residual=2.0), "residual is 2.0"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    q, k, _ = qkv()
    with pytest.raises(ValueError, match=message):
        call(q, k)


def _record(q, k):
    return SimpleNamespace(q=q, k=k, mask=None, beta=None, causal=False)


MEASURE = Path(__file__).parent / "measure_memory.py"


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's memory from /proc")
def test_8192_tokens_are_summarised_exactly_in_under_50_mb():
    """N = 8,192, 2 heads × 64, float32: within 1e-5 of the truth, in a process of its own to read its peak memory."""
    result = subprocess.run([sys.executable, MEASURE], capture_output=True, text=True, check=True)
    measured = json.loads(result.stdout)
    assert set(measured) >= {"row", "column_mass", "entropy", "mean_distance", "topk", "apply", "apply_transposed"}
    for name, found in measured.items():
        if name == "map":  # the same meter sees the map, so it would see a summary that built one
            assert found["megabytes"] > 400
            continue
        assert found["error"] < 1e-5, name
        assert found["megabytes"] < 50, name


def test_places_far_from_zero_are_told_apart():
    """Where a map stands on earth, in metres, changes no distance; with more than 25 places products are used."""
    q, k, v = qkv(1, 1, 30, 40)
    at, asked = torch.rand(40, 2).double() + 1e7, torch.rand(30, 2).double() + 1e7
    distances = (asked[:, None] - at).square().sum(-1).sqrt()
    expected = (truth(q, k, v)[1] * distances).sum(-1)
    assert_close(ops.mean_distance(q, k, at, queries_at=asked), expected, rtol=1e-12, atol=0)


def test_the_entropy_of_a_masked_map_has_a_finite_gradient():
    q, k, _ = qkv(grad=True)
    mask = make_mask("dead")[0]
    found = torch.autograd.grad(ops.entropy(q, k, mask).sum(), (q, k))
    s = (8**-0.5 * q @ k.mT).masked_fill(~mask.expand(2, 4, 5, 7), -1e9)
    logs = s.log_softmax(-1)
    alive = mask.any(-1).expand(2, 4, 5)
    wanted = torch.autograd.grad((-(logs.exp() * logs).sum(-1) * alive).sum(), (q, k))
    for a, b in zip(found, wanted, strict=True):
        assert_close(a, b, rtol=0, atol=1e-12)
