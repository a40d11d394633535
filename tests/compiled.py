"""Run by test_compile: compile one thing with fullgraph=True and compare it with itself uncompiled."""

import math
import sys

import torch
from conftest import MASK_KINDS, make_mask, qkv

from pellucid.layers import DecoderBlock, EncoderBlock, MultiHeadAttention
from pellucid.models import Transformer, TransformerConfig, ViT, ViTConfig
from pellucid.ops import attend, masks
from pellucid.watching import watch


def compiled(function, backend):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


def compare(function, *args, backend="aot_eager"):
    """aot_eager traces forward and backward as inductor does, without the minutes that generating code takes."""
    got, expected = compiled(function, backend)(*args), function(*args)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def tokens(n=6, width=32):
    return torch.randn(2, n, width)


def case_attend():
    for kind in MASK_KINDS:
        q, k, v = qkv(g=2, dtype=torch.float32)
        mask, causal = make_mask(kind)
        compare(lambda q, k, v, mask=mask, causal=causal: attend(q, k, v, mask, causal=causal), q, k, v)
    for options in ({"impl": "reference"}, {"beta": 0.0}, {"beta": math.inf}, {"beta": -1.0, "causal": True}):
        compare(lambda q, k, v, options=options: attend(q, k, v, **options), q, k, v)


def case_attention():
    compare(MultiHeadAttention(32, 4), tokens(), backend="inductor")
    compare(MultiHeadAttention(32, 4, kv_heads=2, qk_norm=True, rotary=10_000.0), tokens())
    cross = MultiHeadAttention(32, 4, key_input=16, value_input=16)
    compare(lambda x, c: cross(x, c, mask=masks.window(6, 9, radius=3)), tokens(), tokens(9, 16))


def case_encoder_block():
    for norm in ("pre", "post"):
        for activation in ("relu", "gelu", "swiglu"):
            block = EncoderBlock(32, 4, norm=norm, activation=activation, norm_kind="rms")
            compare(lambda x, block=block: block(x, causal=True), tokens())


def case_decoder_block():
    for norm in ("pre", "post"):
        compare(DecoderBlock(32, 4, norm=norm), tokens(), tokens(9))


def make_transformer(**options):
    config = TransformerConfig(
        vocabulary=12, width=32, hidden=64, heads=4, encoder_layers=2, decoder_layers=2, dropout=0.0, **options
    )
    return Transformer(config)


def case_transformer():
    source, target = torch.randint(12, (2, 9)), torch.randint(12, (2, 6))
    exists = masks.padding(torch.tensor([9, 5]))
    for options in ({}, {"positions": "learned", "tied": False, "norm": "pre"}):
        compare(make_transformer(**options), source, target, exists)


def case_vit():
    image = torch.randn(2, 3, 16, 16)
    for options in ({}, {"positions": "rotary", "registers": 2}, {"pooling": "mean", "positions": "sinusoidal"}):
        model = ViT(ViTConfig(image=(16, 16), width=32, depth=2, heads=4, **options))
        compare(model.train(), image)
        compare(model.eval(), image)


def case_training():
    model = make_transformer()
    source, target = torch.randint(12, (2, 9)), torch.randint(12, (2, 6))

    def loss():
        return torch.nn.functional.cross_entropy(model(source, target).flatten(0, 1), target.flatten())

    loss().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    compiled(loss, "inductor")().backward()
    for name, parameter in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-5)


def case_watched():
    """Watching one model neither breaks nor recompiles another that is compiled."""
    model, other, x = MultiHeadAttention(32, 4), MultiHeadAttention(32, 4), tokens()
    fast = compiled(model, "aot_eager")
    before = fast(x)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with watch(other) as seen:
        other(x)
        torch.testing.assert_close(fast(x), before, rtol=0, atol=0)
    assert list(seen) == [""]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs == 1


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[f"case_{sys.argv[1]}"]()
    print("same")
