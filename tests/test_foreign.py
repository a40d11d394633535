"""Watching other people's modules: PyTorch's, timm's and Hugging Face's."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from pellucid.ops import masks
from pellucid.watching import watch


@pytest.fixture
def slow_path():
    """PyTorch's fused encoder path is another kernel: without it, watched and unwatched run the same one."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_torch_multihead_attention(need_weights, batch_first, masked, cross, slow_path):
    module = nn.MultiheadAttention(32, 4, batch_first=batch_first, **({"kdim": 10, "vdim": 14} if cross else {})).eval()
    x = torch.randn(2, 5, 32)
    key, value = (torch.randn(2, 7, 10), torch.randn(2, 7, 14)) if cross else (x, x)
    options = {"need_weights": need_weights, "average_attn_weights": False}
    if masked:
        options["attn_mask"] = ~masks.causal(5, key.shape[1])
        options["key_padding_mask"] = torch.arange(key.shape[1]).expand(2, -1) >= torch.tensor([[key.shape[1]], [3]])
    given = [t if batch_first else t.transpose(0, 1) for t in (x, key, value)]
    if not cross:
        given = [given[0]] * 3
    plain, weights = module(*given, **options)
    with watch(module) as seen:
        watched, _ = module(*given, **options)
    assert torch.equal(plain, watched)
    assert seen.check() < 1e-5
    record = seen[""]
    assert record.q.shape == (2, 4, 5, 8)
    assert record.k.shape == (2, 4, key.shape[1], 8)
    if need_weights:
        assert_close(record.weights(), weights, rtol=0, atol=1e-6)
    tokens = next(line for line in seen.table() if line.name == "tokens")
    assert (tokens.axes, tokens.shape) == (("b t d", (2, 5, 32)) if batch_first else ("t b d", (5, 2, 32)))


@pytest.mark.parametrize("need_weights", [True, False])
def test_gradients_of_torch_multihead_attention(need_weights):
    module = nn.MultiheadAttention(32, 4, batch_first=True).double()
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    with watch(module, gradients=True) as seen:
        module(x, x, x, need_weights=need_weights)[0].square().sum().backward()
    record = seen[""]
    q, k, v = (t.clone().requires_grad_() for t in (record.q, record.k, record.v))
    mixed = F.scaled_dot_product_attention(q, k, v)
    module.out_proj(mixed.transpose(1, 2).flatten(2)).square().sum().backward()
    for part, tensor in (("q", q), ("k", k), ("v", v)):
        assert_close(record.gradient(part), tensor.grad, rtol=0, atol=1e-10)


def test_torch_multihead_attention_with_dropout_is_refused_by_check():
    module = nn.MultiheadAttention(32, 4, dropout=0.5)
    x = torch.randn(5, 2, 32)
    with watch(module) as seen:
        module(x, x, x)
    assert seen[""].dropout == 0.5
    with pytest.raises(ValueError, match=r"dropped with probability 0\.5"):
        seen.check()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_transformer(norm_first, slow_path):
    model = nn.Transformer(32, 4, 2, 2, 64, batch_first=True, norm_first=norm_first).eval()
    source, target = torch.randn(2, 7, 32), torch.randn(2, 5, 32)
    hidden = torch.arange(7).expand(2, -1) >= torch.tensor([[7], [3]])
    options = {"tgt_is_causal": True, "tgt_mask": nn.Transformer.generate_square_subsequent_mask(5)}
    options |= {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}
    with torch.no_grad():
        plain = model(source, target, **options)
        with watch(model) as seen:
            watched = model(source, target, **options)
    assert torch.equal(plain, watched)
    assert list(seen) == [
        "encoder.layers.0.self_attn",
        "encoder.layers.1.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
        "decoder.layers.1.self_attn",
        "decoder.layers.1.multihead_attn",
    ]
    assert seen.check() < 1e-5
    assert (seen["encoder.layers.1.self_attn"].weights()[1, :, :, 3:] == 0).all()


class Calls(nn.Module):
    """A model that calls PyTorch's kernel as others do."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **self.options)


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)), {}),
        (((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)), {"scale": 0.1}),
        (((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)), {"is_causal": True}),  # PyTorch's triangle starts top left
        (((2, 4, 7, 8), (2, 4, 5, 8), (2, 4, 5, 8)), {"is_causal": True}),
        (((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)), {"enable_gqa": True}),
        (((2, 5, 8), (2, 7, 8), (2, 7, 8)), {"attn_mask": torch.rand(2, 5, 7) > 0.3}),
        (((5, 8), (7, 8), (7, 8)), {}),
        (((2, 4, 5, 8), (1, 4, 7, 8), (1, 4, 7, 8)), {}),
        (((3, 2, 4, 5, 8), (3, 2, 4, 7, 8), (3, 2, 4, 7, 8)), {"attn_mask": torch.randn(4, 5, 7)}),
    ],
)
def test_every_way_to_call_the_kernel(shapes, options):
    model, tensors = Calls(**options), [torch.randn(shape) for shape in shapes]
    plain = model(*tensors)
    with watch(model) as seen:
        watched = model(*tensors)
    assert torch.equal(plain, watched)
    record = seen[""]
    assert record.check() < 1e-5
    assert record.q.ndim == 4
    assert_close(record.output.reshape(plain.shape), plain)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {"img_size": 64}),
        ("vit_tiny_patch16_224", {"img_size": 64, "global_pool": "avg", "class_token": False}),
        ("vit_tiny_patch16_224", {"img_size": 64, "reg_tokens": 4, "qk_norm": True}),
    ],
)
def test_timm_vit(timm, name, options):
    model = timm.create_model(name, pretrained=False, depth=3, num_classes=7, **options).eval()
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        plain = model(image)
        with watch(model) as seen:
            watched = model(image)
    assert torch.equal(plain, watched)
    assert list(seen) == ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]
    assert seen.check() < 1e-5
    assert_close(seen["blocks.2.attn"].weights().sum(-1), torch.ones(2, 3, seen["blocks.2.attn"].q.shape[2]))


def test_timm_with_its_own_softmax(timm):
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=64, depth=2).eval()
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad(), watch(model) as fused:
        model(image)
    for block in model.blocks:
        block.attn.fused_attn = False
    with torch.no_grad(), watch(model) as written:
        model(image)
    assert list(written) == list(fused) == ["blocks.0.attn", "blocks.1.attn"]
    assert written.check() < 1e-5
    for name in fused:
        assert_close(written[name].weights(), fused[name].weights(), rtol=0, atol=1e-6)
        assert written[name].beta == pytest.approx(fused[name].beta, rel=1e-12)


def hugging_face_vit(transformers, attention):
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8
    )
    config._attn_implementation = attention
    return transformers.ViTForImageClassification(config).eval()


def test_hugging_face_vit(transformers):
    model = hugging_face_vit(transformers, "sdpa")
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        plain = model(image).logits
        with watch(model) as seen:
            watched = model(image).logits
    assert torch.equal(plain, watched)
    assert len(seen) == 3
    assert all(name in dict(model.named_modules()) for name in seen)
    assert seen.check() < 1e-5

    eager = hugging_face_vit(transformers, "eager")
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():
        maps = eager(image, output_attentions=True).attentions
    for record, expected in zip(seen.values(), maps, strict=True):
        assert_close(record.weights(), expected, rtol=0, atol=1e-6)


def test_hugging_face_eager(transformers):
    model, image = hugging_face_vit(transformers, "eager"), torch.randn(2, 3, 32, 32)
    with torch.no_grad(), watch(model) as seen:
        maps = model(image, output_attentions=True).attentions
    assert len(seen) == 3
    assert seen.check() < 1e-5
    for record, expected in zip(seen.values(), maps, strict=True):
        assert_close(record.weights(), expected, rtol=0, atol=1e-6)
        assert record.beta == pytest.approx(12**-0.5)
