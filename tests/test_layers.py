"""Layers: attention's options, cache, feed-forward, norms, blocks, embeddings."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pellucid.layers import (
    ClassToken,
    DecoderBlock,
    DecoderCache,
    DropPath,
    EncoderBlock,
    FeedForward,
    KVCache,
    LayerNorm,
    LearnedGrid,
    LearnedPositions,
    ListedCache,
    MultiHeadAttention,
    PatchEmbed,
    RegisterTokens,
    RMSNorm,
    SinusoidalPositions,
    TokenEmbedding,
)
from pellucid.ops import attention_weights, positions
from pellucid.watching import watch


def tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_single_head_with_values_wider_than_keys():
    attention = MultiHeadAttention(256, heads=1, key_width=64, value_width=256).double()
    assert attention.W_q.shape == attention.W_k.shape == (256, 64)
    assert attention.W_v.shape == attention.W_o.shape == (256, 256)
    x = tokens(2, 5, 256)
    q, k = x @ attention.W_q + attention.q.bias, x @ attention.W_k + attention.k.bias
    v = x @ attention.W_v + attention.v.bias
    expected = (q @ k.mT / 8).softmax(-1) @ v @ attention.W_o + attention.out.bias
    assert_close(attention(x), expected, rtol=0, atol=1e-12)


def test_columns_are_the_transpose_of_rows():
    """X is 768×6: Q = W^Q·X, scores KᵀQ are 6×6, and V·softmax(KᵀQ) is 768×6."""
    attention = MultiHeadAttention(768, heads=1, bias=False, out=False).double()
    x = tokens(1, 6, 768)
    columns = x[0].T
    q, k, v = (w.weight @ columns for w in (attention.q, attention.k, attention.v))
    scores = k.T @ q / math.sqrt(768)
    assert scores.shape == (6, 6)
    assert_close((v @ scores.softmax(0)).T, attention(x)[0], rtol=0, atol=1e-12)


def test_a_user_can_choose_to_scale_by_the_models_width():
    x = tokens(1, 5, 64)
    by_head, by_model = MultiHeadAttention(64, 4).double(), MultiHeadAttention(64, 4, beta=1 / 8).double()
    by_model.load_state_dict(by_head.state_dict())
    with watch(by_model) as seen:
        by_model(x)
    record = seen[""]
    assert record.beta == 1 / math.sqrt(64)
    assert_close(record.weights(), attention_weights(record.q, record.k, beta=1 / 8))
    assert not torch.allclose(by_head(x), by_model(x), atol=1e-4)


def test_grouped_heads_equal_repeated_ones():
    grouped = MultiHeadAttention(32, 4, kv_heads=2).double()
    full = MultiHeadAttention(32, 4).double()
    full.q.load_state_dict(grouped.q.state_dict())
    full.out.load_state_dict(grouped.out.state_dict())
    for name in ("k", "v"):
        for part, value in getattr(grouped, name).named_parameters():
            repeated = value.unflatten(0, (2, 8)).repeat_interleave(2, 0).flatten(0, 1)
            getattr(getattr(full, name), part).data.copy_(repeated)
    x = tokens(2, 5, 32)
    assert_close(grouped(x), full(x), rtol=0, atol=1e-12)


def test_qk_norm_makes_scores_blind_to_length():
    attention = MultiHeadAttention(32, 4, qk_norm=True, bias=False).double()
    x = tokens(2, 5, 32)
    with watch(attention) as seen:
        attention(x)
        attention(10 * x)
    assert_close(seen[""].weights(), seen["#2"].weights(), rtol=0, atol=1e-5)
    assert_close(seen[""].q.norm(dim=-1), torch.full((2, 4, 5), math.sqrt(8), dtype=torch.float64), rtol=1e-5, atol=0)
    plain = MultiHeadAttention(32, 4, bias=False).double()
    with watch(plain) as seen:
        plain(x)
        plain(10 * x)
    assert not torch.allclose(seen[""].weights(), seen["#2"].weights(), atol=1e-3)


def test_rotary_attention_sees_offsets_in_one_and_two_dimensions():
    attention = MultiHeadAttention(32, 4, rotary=10_000.0).double()
    x = tokens(1, 6, 32)
    assert_close(attention(x), attention(x, positions=torch.arange(6) + 100), rtol=0, atol=1e-4)
    assert not torch.allclose(attention(x), attention(x, positions=2 * torch.arange(6)), atol=1e-4)
    grid = positions.grid_positions(2, 3)
    assert_close(attention(x, positions=grid), attention(x, positions=grid + 5), rtol=0, atol=1e-4)
    assert not torch.allclose(attention(x, positions=grid), attention(x, positions=grid.flip(1)), atol=1e-4)


def test_keys_and_values_can_be_made_once_for_many_calls():
    attention = MultiHeadAttention(32, 4, key_input=16).double()
    x, context = tokens(2, 5, 32), tokens(2, 9, 16)
    ready = attention.keys_values(context)
    assert_close(attention(x, ready), attention(x, context), rtol=0, atol=0)


def test_dropout_acts_in_training_only():
    attention = MultiHeadAttention(32, 4, dropout=0.5).double()
    x = tokens(2, 5, 32)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


def test_cache_grows_by_doubling():
    cache, k, v = KVCache(), tokens(2, 3, 20, 4), tokens(2, 3, 20, 5)
    for i in range(20):
        all_k, all_v = cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        assert torch.equal(all_k, k[:, :, : i + 1])
        assert torch.equal(all_v, v[:, :, : i + 1])
    assert cache._k is not None
    assert cache._k.shape[2] == 32
    with pytest.raises(ValueError, match=r"axis b \(batch\): the cache holds 2, got 1"):
        cache.append(k[:1], v[:1])


def test_a_cache_of_listed_keys_gives_out_all_its_room():
    cache, k, v = ListedCache(4), tokens(2, 3, 20, 4), tokens(2, 3, 20, 5)
    for _ in range(2):
        for i in range(0, 20, 2):
            all_k, all_v = cache.append(k[:, :, i : i + 2], v[:, :, i : i + 2])
            assert torch.equal(all_k[:, :, : i + 2], k[:, :, : i + 2])
            assert torch.equal(all_v[:, :, : i + 2], v[:, :, : i + 2])
            assert all_k.isfinite().all()
            assert all_v.isfinite().all()
            assert all_k.mT.is_contiguous()
            assert all_k.shape[2] == all_v.shape[2] >= i + 2
        assert all_k.shape[2] == 32
        cache.clear()
        assert len(cache) == 0


@pytest.mark.parametrize("activation", ["relu", "gelu", "quick_gelu", "swiglu"])
def test_feed_forward(activation):
    layer = FeedForward(8, 12, activation=activation).double()
    x = tokens(2, 3, 8)
    inner = layer.inner(x)
    if activation == "swiglu":
        assert layer.gate is not None
        gate = layer.gate(x)
        hidden = inner * gate * torch.sigmoid(gate)
    elif activation == "relu":
        hidden = inner.clamp(min=0)
    elif activation == "quick_gelu":
        hidden = inner / (1 + torch.exp(-1.702 * inner))
    else:
        hidden = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    assert_close(layer(x), layer.outer(hidden), rtol=0, atol=1e-12)
    assert FeedForward(8).inner.out_features == 32


def test_norms_work_on_one_token_across_its_features():
    x = tokens(4, 3, 8) * 5 + 2
    layer, rms = LayerNorm(8).double(), RMSNorm(8).double()
    with torch.no_grad():
        for p in (*layer.parameters(), *rms.parameters()):
            p.normal_()
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    assert layer.bias is not None
    assert_close(layer(x), centred / (variance + 1e-5).sqrt() * layer.weight + layer.bias, rtol=0, atol=1e-12)
    assert_close(rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * rms.weight, rtol=0, atol=1e-12)
    alone = layer(x[:1])
    assert_close(layer(x)[:1], alone)  # the rest of the batch can't matter
    batch = nn.BatchNorm1d(8, affine=False).double()
    assert not torch.allclose(batch(x.mT)[:1], batch(x[:1].mT))


@pytest.mark.parametrize("kind", [EncoderBlock, DecoderBlock])
def test_where_the_norm_stands_must_be_said(kind):
    with pytest.raises(TypeError, match="norm"):
        kind(32, 4)
    with pytest.raises(ValueError, match="norm is 'middle'; expected 'pre' or 'post'"):
        kind(32, 4, norm="middle")


@pytest.mark.parametrize("norm_kind", ["layer", "rms"])
def test_pre_and_post_norm(norm_kind):
    x = tokens(2, 5, 32)
    for norm in ("pre", "post"):
        block = EncoderBlock(32, 4, norm=norm, norm_kind=norm_kind, dropout=0.0).double()
        if norm == "pre":
            y = x + block.attention(block.attention_norm(x))
            expected = y + block.feed_forward(block.feed_forward_norm(y))
        else:
            y = block.attention_norm(x + block.attention(x))
            expected = block.feed_forward_norm(y + block.feed_forward(y))
        assert_close(block(x), expected, rtol=0, atol=1e-12)


def test_decoder_block_with_a_cache_equals_without():
    block = DecoderBlock(32, 4, norm="pre", rotary=10_000.0, kv_heads=2, qk_norm=True).double()
    x, context = tokens(2, 5, 32), tokens(2, 9, 32)
    cache = DecoderCache()
    steps = [block(x[:, i : i + 1], context, cache=cache) for i in range(5)]
    assert_close(torch.cat(steps, 1), block(x, context), rtol=0, atol=1e-12)


def test_drop_path_drops_whole_samples_and_keeps_the_mean():
    layer, x = DropPath(0.25), torch.ones(4000, 2, 3)
    y = layer(x)
    per_sample = y.flatten(1)
    assert (per_sample == per_sample[:, :1]).all()
    assert_close(per_sample[:, 0].unique(), torch.tensor([0.0, 4 / 3]))
    assert abs(y.mean().item() - 1) < 0.05
    assert torch.equal(layer.eval()(x), x)
    with pytest.raises(ValueError, match=r"drop_path is 1\.0"):
        DropPath(1.0)
    block = EncoderBlock(8, 2, norm="pre", drop_path=0.9).double()
    z = tokens(64, 3, 8)
    assert (block(z) == z).flatten(1).all(1).any()  # some samples pass by both branches


def test_linear_patches_are_a_strided_convolution():
    embed = PatchEmbed((4, 2), 16, channels=5).double()
    image = tokens(2, 5, 8, 12)
    weight = embed.project.weight.view(16, 5, 4, 2)
    expected = nn.functional.conv2d(image, weight, embed.project.bias, stride=(4, 2)).flatten(2).mT
    assert_close(embed(image), expected, rtol=0, atol=1e-12)
    assert embed.grid(8, 12) == (2, 6)


@pytest.mark.parametrize("patch", [1, 2, 4, 8, (4, 2), (1, 4)])
def test_convolution_stem_gives_one_token_for_each_patch(patch):
    embed = PatchEmbed(patch, 32, channels=1, stem="conv")
    image = torch.randn(2, 1, 16, 24)
    rows, columns = embed.grid(16, 24)
    assert embed(image).shape == (2, rows * columns, 32)
    changed = image.clone()
    changed[..., -1, -1] += 1
    moved = (embed(image) != embed(changed)).any(-1).any(0)
    assert moved[-1]
    assert not moved[0]


def test_learned_tokens_come_first():
    x = torch.randn(2, 5, 8)
    for layer, count in ((ClassToken(8), 1), (RegisterTokens(4, 8), 4)):
        nn.init.normal_(layer.tokens)
        y = layer(x)
        assert torch.equal(y[:, count:], x)
        assert torch.equal(y[1, :count], layer.tokens)


def test_token_embedding_scales_and_reads_back():
    layer = TokenEmbedding(7, 16)
    words = torch.tensor([[1, 3]])
    assert_close(layer(words), layer.table.weight[words] * 4)
    assert_close(layer.logits(torch.eye(16)[None]), layer.table.weight.T[None])


def test_positions_are_added_from_where_the_cache_ends():
    x = torch.zeros(1, 3, 8)
    assert_close(SinusoidalPositions(8)(x, 4)[0], positions.sinusoidal(7, 8)[4:])
    learned = LearnedPositions(7, 8)
    nn.init.normal_(learned.table)
    assert torch.equal(learned(x, 4)[0], learned.table[4:7])
    with pytest.raises(ValueError, match=r"axis t \(tokens\): the sequence reaches 8, expected at most 7"):
        learned(x, 5)
    grid = LearnedGrid((4, 6), 8)
    nn.init.normal_(grid.table)
    assert torch.equal(grid((4, 6)), grid.table.flatten(0, 1))
    assert grid((8, 3)).shape == (24, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_positions_may_be_named_by_a_tensor(dtype):
    x, places = torch.zeros(1, 3, 8, dtype=dtype), torch.tensor([4, 4, 6])
    for layer in (SinusoidalPositions(8), SinusoidalPositions(8, 7)):
        assert torch.equal(layer.to(dtype)(x, places)[0], positions.sinusoidal(7, 8, dtype=dtype)[places])
        assert layer.state_dict() == {}


WRONG = {
    "width 30 can't be split into 4 heads; expected a multiple of 4": lambda: MultiHeadAttention(30, 4),
    "heads is 0; expected one or more": lambda: MultiHeadAttention(32, 0),
    "kv_heads is 3; expected a divisor of heads = 4": lambda: MultiHeadAttention(32, 4, kv_heads=3),
    "expected an even one": lambda: MultiHeadAttention(12, 4, rotary=10_000.0),
    "without an output projection": lambda: MultiHeadAttention(32, 4, value_width=3, out=False),
    r"axis d \(width\): query tokens have shape \[2, 5, 31\], expected \(b t d\) with d = 32": (
        lambda: MultiHeadAttention(32, 4)(torch.randn(2, 5, 31))
    ),
    r"axis d \(width\): key tokens have shape \[2, 5, 31\]": lambda: MultiHeadAttention(32, 4)(
        torch.randn(2, 5, 32), torch.randn(2, 5, 31)
    ),
    "belong to self-attention": lambda: MultiHeadAttention(32, 4)(*[torch.randn(2, 5, 32)] * 2, cache=KVCache()),
    "positions turn queries and keys": lambda: MultiHeadAttention(32, 4)(
        torch.randn(2, 5, 32), positions=torch.arange(5)
    ),
    "it has no W_o": lambda: MultiHeadAttention(32, 4, out=False).W_o,
    "can't express this attention; it needs kv_heads equal to heads, no rotary": lambda: MultiHeadAttention(
        32, 4, kv_heads=2, rotary=10_000.0
    ).to_torch(),
    "add_bias_kv": lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(32, 4, add_bias_kv=True)),
    "activation is 'tanh'": lambda: FeedForward(8, activation="tanh"),  # pyright: ignore[reportArgumentType]
    "norm kind is 'batch'": lambda: EncoderBlock(8, 2, norm="pre", norm_kind="batch"),
    "image axis y: 30 pixels, expected a multiple of the patch's 4": lambda: PatchEmbed(4, 8)(
        torch.randn(1, 3, 30, 32)
    ),
    r"image axis c \(channels\): got shape \[1, 4, 32, 32\]": lambda: PatchEmbed(4, 8)(torch.randn(1, 4, 32, 32)),
    "expected powers of two": lambda: PatchEmbed(6, 8, stem="conv"),
    "stem is 'magic'": lambda: PatchEmbed(4, 8, stem="magic"),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()
