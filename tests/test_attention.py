"""attend, scores and attention_weights against attention written out one query at a time."""

import math

import pytest
import torch
from conftest import MASK_KINDS, make_mask, qkv, truth
from torch.testing import assert_close

from pellucid.ops import attend, attention_weights, masks, scores
from pellucid.ops.attention import observed_by

IMPLS = ("reference", "fused")
BETAS = (None, 0.0, 0.3, -0.7, 1 / math.sqrt(768), 50.0)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", MASK_KINDS)
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_attend_is_the_formula(impl, kind, groups):
    q, k, v = qkv(g=groups)
    mask, causal = make_mask(kind)
    for beta in BETAS:
        out, weights = truth(q, k, v, mask, beta, causal)
        assert_close(attend(q, k, v, mask, beta=beta, causal=causal, impl=impl), out, rtol=0, atol=1e-12)
        assert_close(attention_weights(q, k, mask, beta=beta, causal=causal), weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("d", "e"), [(8, 8), (8, 3), (8, 20), (1, 1), (64, 256)])
def test_values_may_have_their_own_width(impl, d, e):
    q, k, v = qkv(d=d, e=e)
    assert_close(attend(q, k, v, impl=impl), truth(q, k, v)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", ["none", "causal", "padding", "boolean", "dead"])
def test_hard_attention_takes_the_best_key(impl, kind):
    q, k, v = qkv(n_q=40, n_k=50)
    mask, causal = make_mask(kind, n_q=40, n_k=50)
    for beta in (math.inf, -math.inf):
        out, weights = truth(q, k, v, mask, beta, causal)
        assert_close(attend(q, k, v, mask, beta=beta, causal=causal, impl=impl), out, rtol=0, atol=1e-12)
        assert set(attention_weights(q, k, mask, beta=beta, causal=causal).unique().tolist()) <= {0.0, 1.0}
        assert_close(attention_weights(q, k, mask, beta=beta, causal=causal), weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_hard_attention_shares_ties_equally(dtype):
    q, k, v = qkv(b=1, h=1, n_q=3, n_k=37, d=16, e=4, dtype=dtype)
    k[:, :, 20] = k[:, :, 36] = k[:, :, 5] = 4 * q[:, :, 1]  # three equal keys, the best for query 1
    weights = attention_weights(q, k, beta=math.inf)[0, 0, 1]
    expected = torch.zeros_like(weights)
    expected[[5, 20, 36]] = 1 / 3
    assert_close(weights, expected)
    out = attend(q, k, v, beta=math.inf)[0, 0, 1]
    assert_close(out, v[0, 0, [5, 20, 36]].double().mean(0).to(dtype))


def test_hard_attention_is_the_limit_of_large_beta():
    q, k, v = qkv()
    hard = attend(q, k, v, beta=math.inf)
    assert_close(attend(q, k, v, beta=1e5), hard, rtol=0, atol=1e-9)
    assert not torch.allclose(attend(q, k, v, beta=1.0), hard, atol=1e-3)


def test_beta_zero_is_the_mean_over_the_allowed_keys():
    q, k, v = qkv()
    assert_close(attend(q, k, v, beta=0), v.mean(2, keepdim=True).expand(-1, -1, 5, -1), rtol=0, atol=1e-14)
    mask = torch.tensor([True, False, True, False, False, False, True])
    assert_close(attend(q, k, v, mask, beta=0)[:, :, 0], v[:, :, mask].mean(2), rtol=0, atol=1e-14)
    assert not torch.allclose(attend(q, k, v), attend(q, k, v, beta=0), atol=1e-3)


def test_scores_are_scaled_dot_products():
    q, k, _ = qkv()
    expected = torch.einsum("bhqd,bhkd->bhqk", q, k)
    assert_close(scores(q, k), expected / math.sqrt(8), rtol=0, atol=1e-14)
    assert_close(scores(q, k, beta=1 / math.sqrt(768)), expected / math.sqrt(768), rtol=0, atol=1e-14)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_query_with_nothing_allowed_gets_zeros_and_finite_gradients(impl, dtype, bias):
    q, k, v = qkv(n_q=9, n_k=9, d=16, e=16, dtype=dtype, grad=True)
    mask, _ = make_mask("dead", n_q=9, n_k=9)
    assert mask is not None
    given = masks.additive(mask, -math.inf, dtype) if bias else mask
    out = attend(q, k, v, given, impl=impl)
    out.float().square().sum().backward()
    assert (out[0, :, 2] == 0).all()
    assert (out[-1] == 0).all()
    assert (out[0, :, 0] != 0).any()
    for tensor in (q, k, v):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
    assert q.grad is not None
    assert (q.grad[-1] == 0).all()


def test_causal_queries_are_the_last_rows():
    q, k, v = qkv(n_q=3, n_k=7)
    out = attend(q, k, v, causal=True)
    changed = k.clone()
    changed[:, :, 5] += 1  # query 0 sits at key 4, query 1 at key 5
    after = attend(q, changed, v, causal=True)
    assert torch.equal(out[:, :, 0], after[:, :, 0])
    assert not torch.allclose(out[:, :, 1], after[:, :, 1])


@pytest.mark.parametrize("kind", MASK_KINDS)
@pytest.mark.parametrize("impl", IMPLS)
def test_gradcheck(kind, impl):
    q, k, v = qkv(b=1, h=2, n_q=3, n_k=4, d=3, e=2, g=1, grad=True)
    mask, causal = make_mask(kind, b=1, h=2, n_q=3, n_k=4)
    for beta in (None, 0.0, -1.5):
        assert torch.autograd.gradcheck(
            lambda q, k, v, beta=beta: attend(q, k, v, mask, beta=beta, causal=causal, impl=impl), (q, k, v)
        )


@pytest.mark.parametrize("impl", IMPLS)
def test_a_learned_bias_has_gradients(impl):
    q, k, v = qkv(b=1, h=2, n_q=3, n_k=4, d=3, e=2)
    bias = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda bias: attend(q, k, v, bias, impl=impl), (bias,))


@pytest.mark.parametrize("impl", IMPLS)
def test_dropout_keeps_the_mean_and_drops_something(impl):
    q, k, v = qkv(b=1, h=1, n_q=1, n_k=400, e=400, dtype=torch.float32)
    v = torch.eye(400)[None, None]  # the output is the row of weights itself
    kept = attend(q, k, v, dropout=0.5, impl=impl)
    share = (kept == 0).float().mean().item()
    assert 0.4 < share < 0.6
    plain = attend(q, k, v, impl=impl)
    assert_close(kept[kept != 0], 2 * plain[kept != 0])


def test_empty_sequences():
    q, k, v = qkv()
    assert (attend(q, k[:, :, :0], v[:, :, :0]) == 0).all()
    assert attend(q[:, :, :0], k, v).shape == (2, 4, 0, 6)
    assert (attend(q, k[:, :, :0], v[:, :, :0], beta=math.inf) == 0).all()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_the_result_and_not_the_softmax(impl, dtype):
    q, k, v = qkv(n_q=33, n_k=65, d=16, e=16, dtype=dtype)
    out = attend(q, k, v, impl=impl)
    assert out.dtype == dtype
    error = (out.double() - truth(q, k, v)[0]).abs().max().item()
    assert error < 2 * torch.finfo(dtype).eps
    assert attention_weights(q, k).dtype == torch.float32


@pytest.mark.parametrize("kind", ["none", "padding", "alibi"])
def test_autocast_rounds_what_enters_in_both_implementations(kind):
    q, k, v = qkv(n_q=7, d=16, e=16, dtype=torch.float32)
    mask, causal = make_mask(kind, n_q=7)
    with torch.autocast("cpu", torch.bfloat16):
        outs = [attend(q, k, v, mask, causal=causal, impl=impl) for impl in IMPLS]
    expected, _ = truth(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask, None, causal)
    for out in outs:
        assert out.dtype == torch.bfloat16
        assert_close(out.double(), expected, rtol=0, atol=2 * torch.finfo(torch.bfloat16).eps)
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(q.double(), k.double(), v.double()).dtype == torch.float64


def lists(b=2, n_q=5, n_k=7, length=3):
    """For each query other keys, none of them twice."""
    return torch.rand(b, n_q, n_k).argsort(-1)[..., :length]


@pytest.mark.parametrize("impl", ["auto", *IMPLS])
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("length", [0, 1, 3, 7])
def test_listed_keys_are_the_only_ones(impl, groups, length):
    q, k, v = qkv(g=groups, e=3)
    listed = lists(length=length)
    mask = torch.zeros(2, 1, 5, 7, dtype=torch.bool)
    for b in range(2):
        for i in range(5):
            mask[b, 0, i, listed[b, i]] = True
    for beta in BETAS:
        for keys in (k, k.mT.contiguous().mT):  # however they lie in memory
            out = attend(q, keys, v, listed=listed, beta=beta, impl=impl)
            assert_close(out, truth(q, k, v, mask, beta)[0], rtol=0, atol=1e-12)
    also, causal = make_mask("boolean")
    out = attend(q, k, v, also, listed=listed, causal=causal, impl=impl)
    assert_close(out, truth(q, k, v, masks.combine(also, mask), None, causal)[0], rtol=0, atol=1e-12)
    hard = attend(q, k, v, listed=listed, beta=math.inf, impl=impl)
    assert_close(hard, truth(q, k, v, mask, math.inf)[0], rtol=0, atol=1e-12)


def test_of_keys_that_are_not_listed_nothing_is_read():
    q, k, v = (x.float() for x in qkv())
    listed = lists()
    out = attend(q, k, v, listed=listed)
    hidden = ~masks.listed(listed, 7).any(2)[:, 0]  # by no query
    for b in range(2):
        k[b, :, hidden[b]] = math.nan
        v[b, :, hidden[b]] = math.nan
    assert hidden.any()
    assert torch.equal(attend(q, k, v, listed=listed), out)


def test_listed_keys_can_be_learned_from():
    q, k, v = (x.requires_grad_() for x in qkv())
    listed = lists()
    found = torch.autograd.grad(attend(q, k, v, listed=listed).square().sum(), (q, k, v))
    wanted = torch.autograd.grad(attend(q, k, v, masks.listed(listed, 7)).square().sum(), (q, k, v))
    assert_close(found, wanted, rtol=0, atol=1e-12)


def test_observers_are_shown_lists_as_a_mask():
    q, k, v = qkv()
    listed, shown = lists(), []
    with observed_by(lambda *call: shown.append(call)):
        out = attend(q, k, v, listed=listed)
    assert_close(out, attend(q, k, v, listed=listed), rtol=0, atol=1e-12)
    assert torch.equal(shown[0][3], masks.listed(listed, 7))


WRONG = {
    "q must have 4 axes": lambda q, k, v: attend(q[0], k, v),
    r"axis d \(width of queries and keys\): k has 5, expected 8": lambda q, k, v: attend(q, k[..., :5], v),
    r"axis b \(batch\): k has 1, expected 2": lambda q, k, v: attend(q, k[:1], v),
    r"axis k \(key tokens\): v has 3, expected 7": lambda q, k, v: attend(q, k, v[:, :, :3]),
    r"axis h \(heads\): 4 query heads can't be shared by 3": lambda q, k, v: attend(q, k[:, :3], v[:, :3]),
    r"axis h \(heads\): v has 2, expected 4": lambda q, k, v: attend(q, k, v[:, :2]),
    "k is torch.float32, expected torch.float64": lambda q, k, v: attend(q, k.float(), v),
    "q must hold floating-point": lambda q, k, v: attend(q.long(), k, v),
    "mask axis k: got 6, expected 7 or 1": lambda q, k, v: attend(q, k, v, torch.ones(5, 6, dtype=torch.bool)),
    "mask axis q: got 4, expected 5 or 1": lambda q, k, v: attend(q, k, v, torch.ones(4, 7, dtype=torch.bool)),
    "mask axis h: got 3, expected 4 or 1": lambda q, k, v: attend(q, k, v, torch.ones(3, 5, 7, dtype=torch.bool)),
    "mask must be boolean": lambda q, k, v: attend(q, k, v, torch.ones(5, 7, dtype=torch.long)),
    r"listed must have 3 axes \(b q s\), with 2 for b and 5 for q; got shape \[2, 4, 3\]": lambda q, k, v: attend(
        q, k, v, listed=torch.zeros(2, 4, 3, dtype=torch.long)
    ),
    "listed holds torch.float32; expected the numbers of keys": lambda q, k, v: attend(
        q, k, v, listed=torch.ones(2, 5, 3)
    ),
    "mask must have at most 4 axes": lambda q, k, v: attend(q, k, v, torch.ones(1, 1, 1, 5, 7)),
    "impl is 'magic'; expected 'auto', 'reference', 'fused' or 'triton'": lambda q, k, v: attend(q, k, v, impl="magic"),
    "impl='triton' needs CUDA tensors in float32 or less": lambda q, k, v: attend(q, k, v, impl="triton"),
    "dropout is 1.5": lambda q, k, v: attend(q, k, v, dropout=1.5),
    "beta is NaN": lambda q, k, v: attend(q, k, v, beta=math.nan),
    "beta=inf needs a boolean mask": lambda q, k, v: attend(q, k, v, torch.zeros(5, 7), beta=math.inf),
    "scores are infinite at beta=inf": lambda q, k, v: scores(q, k, beta=math.inf),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_inputs_are_named(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message](*qkv())
