"""Against PyTorch's own modules with the same weights: outputs, per-head weights and gradients."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pellucid.layers import DecoderBlock, EncoderBlock, MultiHeadAttention
from pellucid.models import Transformer, TransformerConfig
from pellucid.models.transformer import Decoder, Encoder
from pellucid.ops import masks
from pellucid.watching import watch

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
OUTPUT = {torch.float64: 1e-10, torch.float32: 1e-6}
DTYPES = tuple(OUTPUT)


def jitter(module: nn.Module) -> nn.Module:
    """Biases and norms start at zero and one: move them, or a swapped bias would go unseen."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert_close(ours, theirs, rtol=OUTPUT[ours.dtype], atol=OUTPUT[ours.dtype])


def assert_same_gradients(ours, theirs, inputs, pairs) -> None:
    """Gradients of inputs and of paired parameters, after backward through the same random projection."""
    direction = torch.randn_like(theirs)
    mine = torch.autograd.grad(ours, [*inputs, *(p for p, _ in pairs)], direction)
    wanted = torch.autograd.grad(theirs, [*inputs, *(p for _, p in pairs)], direction)
    for a, b in zip(mine, wanted, strict=True):
        assert_close(a, b, rtol=1e-9, atol=1e-9)


MHA_CASES = {
    "self": {},
    "cross": {"cross": True},
    "kdim and vdim": {"cross": True, "options": {"kdim": 10, "vdim": 14}},
    "no bias": {"options": {"bias": False}},
    "causal": {"causal": True},
    "padding": {"padding": True},
    "causal and padding": {"causal": True, "padding": True},
    "cross, padded": {"cross": True, "padding": True},
    "kdim without bias": {"cross": True, "options": {"kdim": 10, "vdim": 14, "bias": False}},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MHA_CASES)
def test_multi_head_attention(name, dtype):
    case = MHA_CASES[name]
    options = case.get("options", {})
    theirs = jitter(nn.MultiheadAttention(24, 4, batch_first=True, **options)).to(dtype)
    ours = MultiHeadAttention.from_torch(theirs)
    x = torch.randn(3, 6, 24, dtype=dtype, requires_grad=True)
    key = torch.randn(3, 9, options.get("kdim", 24), dtype=dtype, requires_grad=True)
    value = torch.randn(3, 9, options.get("vdim", 24), dtype=dtype, requires_grad=True)
    key, value = (key, value) if case.get("cross") else (x, x)
    n = key.shape[1]
    lengths = torch.tensor([n, 4, 2])
    exists = masks.padding(lengths, n) if case.get("padding") else None
    causal = case.get("causal", False)

    expected, per_head = theirs(
        x,
        key,
        value,
        attn_mask=~masks.causal(6, n) if causal else None,
        key_padding_mask=None if exists is None else ~exists[:, 0, 0],
        average_attn_weights=False,
    )
    with watch(ours) as seen:
        got = ours(x, key, value, exists, causal=causal) if case.get("cross") else ours(x, mask=exists, causal=causal)
    assert_same(got, expected)
    assert_same(seen[""].weights(), per_head)
    if dtype == torch.float64:
        inputs = [x, key, value] if case.get("cross") else [x]
        assert_same_gradients(got, expected, inputs, [(ours.out.weight, theirs.out_proj.weight)])
        if theirs.in_proj_weight is not None:
            direction = torch.randn_like(expected)
            again, _ = theirs(x, key, value, need_weights=False)
            mine = ours(x, key, value) if case.get("cross") else ours(x)
            packed = torch.autograd.grad(again, theirs.in_proj_weight, direction)[0]
            parts = torch.autograd.grad(mine, [ours.q.weight, ours.k.weight, ours.v.weight], direction)
            assert_close(torch.cat(parts), packed, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 10, "vdim": 14}, {"kdim": 10, "bias": False}])
def test_to_torch_and_back(options):
    theirs = jitter(nn.MultiheadAttention(24, 4, dropout=0.1, **options))
    ours = MultiHeadAttention.from_torch(theirs)
    again = ours.to_torch()
    assert again.dropout == 0.1
    for (name, a), (other, b) in zip(theirs.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(a, b)


def test_packed_weights_are_read_in_thirds():
    theirs = nn.MultiheadAttention(24, 4)
    ours = MultiHeadAttention.from_torch(theirs)
    packed = theirs.in_proj_weight
    assert torch.equal(ours.W_q.T, packed[:24])
    assert torch.equal(ours.W_k.T, packed[24:48])
    assert torch.equal(ours.W_v.T, packed[48:])
    assert packed[1].shape == (24,)  # in_proj_weight[1] is one row, not W_k
    with torch.no_grad():
        ours.k.weight.add_(1)
    assert not torch.equal(ours.to_torch().in_proj_weight, packed)


def copy_linear(ours: nn.Linear, theirs: nn.Linear) -> list:
    ours.load_state_dict(theirs.state_dict())
    return [(ours.weight, theirs.weight), *([(ours.bias, theirs.bias)] if theirs.bias is not None else [])]


def copy_encoder_layer(ours: EncoderBlock, theirs: nn.TransformerEncoderLayer) -> list:
    ours.attention = MultiHeadAttention.from_torch(theirs.self_attn)
    ours.attention_norm.load_state_dict(theirs.norm1.state_dict())
    ours.feed_forward_norm.load_state_dict(theirs.norm2.state_dict())
    pairs = copy_linear(ours.feed_forward.inner, theirs.linear1)
    pairs += copy_linear(ours.feed_forward.outer, theirs.linear2)
    return [*pairs, (ours.attention_norm.weight, theirs.norm1.weight)]


def copy_decoder_layer(ours: DecoderBlock, theirs: nn.TransformerDecoderLayer) -> list:
    ours.attention = MultiHeadAttention.from_torch(theirs.self_attn)
    ours.cross_attention = MultiHeadAttention.from_torch(theirs.multihead_attn)
    ours.attention_norm.load_state_dict(theirs.norm1.state_dict())
    ours.cross_attention_norm.load_state_dict(theirs.norm2.state_dict())
    ours.feed_forward_norm.load_state_dict(theirs.norm3.state_dict())
    pairs = copy_linear(ours.feed_forward.inner, theirs.linear1)
    pairs += copy_linear(ours.feed_forward.outer, theirs.linear2)
    return [*pairs, (ours.cross_attention_norm.weight, theirs.norm2.weight)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_layer(norm, activation, dtype):
    options = {"activation": activation, "dropout": 0.0, "batch_first": True}
    theirs = jitter(nn.TransformerEncoderLayer(24, 4, 48, norm_first=norm == "pre", **options)).to(dtype)
    ours = EncoderBlock(24, 4, norm=norm, hidden=48, activation=activation).to(dtype)
    pairs = copy_encoder_layer(ours, theirs)
    x = torch.randn(3, 6, 24, dtype=dtype, requires_grad=True)
    exists = masks.padding(torch.tensor([6, 4, 2]))
    expected = theirs(x, src_key_padding_mask=~exists[:, 0, 0])
    got = ours(x, exists)
    assert_same(got, expected)
    if dtype == torch.float64:
        assert_same_gradients(got, expected, [x], pairs)
    other = EncoderBlock(24, 4, norm="post" if norm == "pre" else "pre", hidden=48, activation=activation).to(dtype)
    copy_encoder_layer(other, theirs)
    assert not torch.allclose(other(x, exists), expected, atol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_layer(norm, dtype):
    theirs = nn.TransformerDecoderLayer(24, 4, 48, dropout=0.0, norm_first=norm == "pre", batch_first=True)
    theirs = jitter(theirs).to(dtype)
    ours = DecoderBlock(24, 4, norm=norm, hidden=48, activation="relu").to(dtype)
    pairs = copy_decoder_layer(ours, theirs)
    x = torch.randn(3, 6, 24, dtype=dtype, requires_grad=True)
    context = torch.randn(3, 9, 24, dtype=dtype, requires_grad=True)
    exists = masks.padding(torch.tensor([9, 4, 2]))
    expected = theirs(x, context, tgt_mask=~masks.causal(6), memory_key_padding_mask=~exists[:, 0, 0])
    got = ours(x, context, context_mask=exists)
    assert_same(got, expected)
    if dtype == torch.float64:
        assert_same_gradients(got, expected, [x, context], pairs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_transformer(norm, dtype):
    theirs = nn.Transformer(24, 4, 2, 2, 48, dropout=0.0, norm_first=norm == "pre", batch_first=True)
    theirs = jitter(theirs).to(dtype)
    config = TransformerConfig(
        vocabulary=11,
        width=24,
        heads=4,
        encoder_layers=2,
        decoder_layers=2,
        hidden=48,
        norm=norm,
        final_norm=True,
        dropout=0.0,
    )
    model = Transformer(config).to(dtype)
    encoder, decoder = model.encoder, model.decoder
    assert isinstance(encoder, Encoder)
    assert isinstance(decoder, Decoder)
    pairs = []
    for ours, layer in zip(encoder.blocks, theirs.encoder.layers, strict=True):
        pairs += copy_encoder_layer(ours, layer)
    for ours, layer in zip(decoder.blocks, theirs.decoder.layers, strict=True):
        pairs += copy_decoder_layer(ours, layer)
    encoder.norm.load_state_dict(theirs.encoder.norm.state_dict())
    decoder.norm.load_state_dict(theirs.decoder.norm.state_dict())
    source = torch.randn(3, 9, 24, dtype=dtype, requires_grad=True)
    target = torch.randn(3, 6, 24, dtype=dtype, requires_grad=True)
    exists = masks.padding(torch.tensor([9, 4, 2]))
    hidden = ~exists[:, 0, 0]
    expected = theirs(
        source,
        target,
        tgt_mask=~masks.causal(6),
        src_key_padding_mask=hidden,
        memory_key_padding_mask=hidden,
    )
    got = decoder(target, encoder(source, exists), None, exists)
    assert_same(got, expected)
    if dtype == torch.float64:
        assert_same_gradients(got, expected, [source, target], pairs)
    with watch(theirs) as there, watch(model) as here:
        theirs(source, target, tgt_mask=~masks.causal(6), memory_key_padding_mask=hidden, src_key_padding_mask=hidden)
        decoder(target, encoder(source, exists), None, exists)
    assert len(there) == len(here) == 6
    for a, b in zip(here.values(), there.values(), strict=True):
        assert_same(a.weights(), b.weights())
    # The whole model is these two stacks between its embeddings and its logits.
    tokens, words = torch.randint(11, (3, 9)), torch.randint(11, (3, 6))
    context = encoder(model.source_positions(model.source_embedding(tokens)), exists)
    x = decoder(model.target_positions(model.source_embedding(words)), context, None, exists)
    assert_same(model(tokens, words, exists), model.source_embedding.logits(x))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
def test_whole_layers_both_ways(norm, activation, bias):
    """What PyTorch's layers compute, and a layer made of our block, are the block; in float32, as people have them."""
    options = {"activation": activation, "norm_first": norm == "pre", "batch_first": True, "bias": bias, "dropout": 0.1}
    x, context = torch.randn(2, 6, 24), torch.randn(2, 5, 24)
    for kind, block, inputs in (
        (nn.TransformerEncoderLayer, EncoderBlock, (x,)),
        (nn.TransformerDecoderLayer, DecoderBlock, (x, context)),
    ):
        theirs = jitter(kind(24, 4, 40, **options)).eval()
        ours = block.from_torch(theirs)
        how = {"causal": False} if block is DecoderBlock else {}
        assert_close(ours(*inputs, **how), theirs(*inputs), rtol=1e-5, atol=1e-5)
        assert (ours.norm, ours.training, ours.dropout.p, ours.attention.dropout) == (norm, False, 0.1, 0.1)
        again = ours.to_torch()
        assert type(again) is kind
        assert_close(again.state_dict(), theirs.state_dict(), rtol=0, atol=0)
        with torch.no_grad():
            theirs.norm1.weight.add_(1.0)
        assert not torch.allclose(ours(*inputs, **how), theirs(*inputs), atol=1e-2)


def test_layers_that_have_no_likeness_are_refused():
    encoder, decoder = nn.TransformerEncoderLayer(8, 2, 8), nn.TransformerDecoderLayer(8, 2, 8)
    with pytest.raises(ValueError, match=r"a TransformerDecoderLayer; expected an nn\.TransformerEncoderLayer"):
        EncoderBlock.from_torch(decoder)
    with pytest.raises(ValueError, match=r"a TransformerEncoderLayer; expected an nn\.TransformerDecoderLayer"):
        DecoderBlock.from_torch(encoder)
    encoder.activation = torch.tanh
    with pytest.raises(ValueError, match="expected relu or gelu"):
        EncoderBlock.from_torch(encoder)
    for options, sentence in (
        ({"norm_kind": "rms"}, "norm_kind='layer'"),
        ({"activation": "swiglu"}, "activation='relu' or 'gelu'"),
        ({"qk_norm": True}, "no layer_scale, qk_norm"),
        ({"rotary": 100.0}, "no rotary"),
        ({"kv_heads": 1}, "kv_heads equal to heads"),
    ):
        with pytest.raises(ValueError, match=f"can't express this block; it needs {sentence}"):
            EncoderBlock(8, 2, norm="pre", **options).to_torch()
    block = jitter(EncoderBlock(8, 2, norm="pre", bias=False))
    with pytest.raises(ValueError, match="it needs biases, or none in its norms"):
        block.to_torch()
