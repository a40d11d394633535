"""Laws of attention over random shapes, masks, β and dtypes. Every law has a twin that must fail."""

import math

import torch
from conftest import MASK_KINDS, make_mask
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pellucid.layers import EncoderBlock, MultiHeadAttention
from pellucid.models import Transformer, TransformerConfig
from pellucid.ops import attend, attention_weights, positions

settings.register_profile("pellucid", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("pellucid")

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
sizes = st.integers(1, 9)
betas = st.one_of(st.none(), st.sampled_from([0.0, math.inf]), st.floats(-4, 4))


@st.composite
def attentions(draw, dtypes=DTYPES, square=False):
    """q, k, v with grouped heads and their own widths, drawn with a seed."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    g, per = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    b, n_q, d, e = draw(sizes), draw(sizes), draw(sizes), draw(sizes)
    n_k = n_q if square else draw(sizes)
    dtype = draw(st.sampled_from(dtypes))
    shapes = ((b, g * per, n_q, d), (b, g, n_k, d), (b, g, n_k, e))
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def random_mask(q, k, kind):
    return make_mask(kind, q.shape[0], q.shape[1], q.shape[2], k.shape[2])


@given(attentions(), st.sampled_from(MASK_KINDS), betas)
def test_rows_sum_to_one_or_to_nothing(tensors, kind, beta):
    q, k, _ = tensors
    mask, causal = random_mask(q, k, kind)
    if mask is not None and mask.dtype != torch.bool and beta == math.inf:
        return
    weights = attention_weights(q, k, mask, beta=beta, causal=causal)
    sums = weights.sum(-1)
    alive = weights.any(-1)
    assert (weights >= 0).all()
    assert_close(sums, alive.to(sums.dtype), rtol=0, atol=1e-5)
    raw = (q.float() @ k.float().repeat_interleave(q.shape[1] // k.shape[1], 1).mT).sum(-1)
    assert not torch.allclose(raw, torch.ones_like(raw), atol=1e-5)  # scores alone obey no such law


@given(attentions(), st.sampled_from(MASK_KINDS), betas)
def test_both_implementations_agree(tensors, kind, beta):
    q, k, v = tensors
    mask, causal = random_mask(q, k, kind)
    if mask is not None and mask.dtype != torch.bool and beta == math.inf:
        return
    one = attend(q, k, v, mask, beta=beta, causal=causal, impl="reference")
    two = attend(q, k, v, mask, beta=beta, causal=causal, impl="fused")
    eps = torch.finfo(q.dtype).eps
    assert_close(one, two, rtol=0, atol=64 * eps * max(1.0, v.abs().max().item()))


@given(attentions(dtypes=(torch.float64,), square=True), st.data())
def test_the_future_cant_matter_and_the_present_does(tensors, data):
    q, k, v = tensors
    n = q.shape[2]
    at = data.draw(st.integers(0, n - 1))
    before = attend(q, k, v, causal=True)
    v2 = v.clone()
    v2[:, :, at] += 1
    after = attend(q, k, v2, causal=True)
    assert torch.equal(before[:, :, :at], after[:, :, :at])
    assert not torch.allclose(before[:, :, at], after[:, :, at], atol=1e-9)


@given(attentions(dtypes=(torch.float64,)), st.booleans())
def test_permuting_keys_changes_nothing(tensors, masked):
    q, k, v = tensors
    mask = torch.rand(q.shape[2], k.shape[2]) > 0.3 if masked else None
    order = torch.randperm(k.shape[2])
    shuffled = None if mask is None else mask[:, order]
    out = attend(q, k, v, mask)
    assert_close(attend(q, k[:, :, order], v[:, :, order], shuffled), out, rtol=0, atol=1e-12)
    if k.shape[2] > 1:  # moving the values alone is another attention
        turned = v.roll(1, dims=2)
        assert not torch.allclose(attend(q, k, turned), attend(q, k, v), atol=1e-9)


@given(st.integers(2, 8), st.integers(0, 2**31))
def test_permuting_tokens_permutes_outputs_unless_they_have_positions(n, seed):
    torch.manual_seed(seed)
    block = EncoderBlock(16, heads=4, norm="pre").double().eval()
    x = torch.randn(2, n, 16, dtype=torch.float64)
    order = torch.randperm(n).roll(1) if n > 2 else torch.tensor([1, 0])
    assert_close(block(x[:, order]), block(x)[:, order], rtol=0, atol=1e-12)
    placed = positions.sinusoidal(n, 16, dtype=torch.float64)
    if not torch.equal(order, torch.arange(n)):
        assert not torch.allclose(block(x[:, order] + placed), block(x + placed)[:, order], atol=1e-6)
        turning = MultiHeadAttention(16, heads=4, rotary=10_000.0).double()
        assert not torch.allclose(turning(x[:, order]), turning(x)[:, order], atol=1e-6)


@given(attentions(dtypes=(torch.float64,)))
def test_limits_of_beta(tensors):
    q, k, v = tensors
    mean = v.mean(2, keepdim=True).repeat_interleave(q.shape[1] // v.shape[1], 1).expand(*q.shape[:3], -1)
    assert_close(attend(q, k, v, beta=0.0), mean, rtol=0, atol=1e-12)
    hard = attention_weights(q, k, beta=math.inf)
    assert_close(hard.sum(-1), torch.ones_like(hard[..., 0]), rtol=0, atol=1e-12)
    best = attention_weights(q, k, beta=1.0).argmax(-1)
    assert (hard.gather(-1, best[..., None]) > 0).all()
    if k.shape[2] > 1:
        assert not torch.allclose(attention_weights(q, k, beta=0.5), attention_weights(q, k, beta=1.0), atol=1e-9)


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(["sinusoidal", "learned"]), st.integers(0, 2**31))
def test_cached_decoding_equals_the_full_forward(n_source, n_target, kind, seed):
    torch.manual_seed(seed)
    config = TransformerConfig(
        vocabulary=9, width=16, hidden=32, heads=4, encoder_layers=1, decoder_layers=2, positions=kind, norm="pre"
    )
    model = Transformer(config).double().eval()
    source, target = torch.randint(9, (2, n_source)), torch.randint(9, (2, n_target))
    full = model(source, target)
    context, cache = model.encode(source), model.cache()
    steps = [model.decode(target[:, i : i + 1], context, cache=cache) for i in range(n_target)]
    assert_close(torch.cat(steps, 1), full, rtol=0, atol=1e-12)
    if n_target > 1:  # a step that has forgotten the past says something else
        alone = model.decode(target[:, -1:], context, cache=model.cache())
        assert not torch.allclose(alone[:, 0], full[:, -1], atol=1e-9)


@given(st.integers(1, 7), st.integers(1, 4), st.booleans(), st.integers(0, 2**31))
def test_cached_attention_equals_full_attention(n, chunk, rotary, seed):
    from pellucid.layers import KVCache

    torch.manual_seed(seed)
    attention = MultiHeadAttention(16, heads=4, kv_heads=2, rotary=10_000.0 if rotary else None, qk_norm=True).double()
    x = torch.randn(2, n, 16, dtype=torch.float64)
    cache = KVCache()
    parts = [attention(part, causal=True, cache=cache) for part in x.split(chunk, dim=1)]
    assert len(cache) == n
    assert_close(torch.cat(parts, 1), attention(x, causal=True), rtol=0, atol=1e-12)
