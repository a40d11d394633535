"""PyTorch's own attention kernels, watched: the output to the last bit, and a record that holds."""

import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import bias, flex_attention
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from pellucid.watching import Change, watch

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*nested tensor", "ignore:enable_nested_tensor", "ignore:flex_attention"
)
CONTEXTS = {"no_grad": torch.no_grad, "inference": torch.inference_mode}


def alike(one: Tensor, other: Tensor) -> bool:
    if one.is_nested:
        return all(alike(x, y) for x, y in zip(one.unbind(), other.unbind(), strict=True))
    return torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def look(model: nn.Module, *args, limit: float = 1e-5, context=torch.no_grad, **kwargs):
    """Watch, with the output the same to the last bit, nothing missed and every record right."""
    with context():
        plain = model(*args, **kwargs)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*could not be recorded")
            with watch(model) as seen:
                watched = model(*args, **kwargs)
    pairs = zip(plain, watched, strict=True) if isinstance(plain, tuple) else [(plain, watched)]
    assert all(alike(one, other) for one, other in pairs if one is not None)
    assert not seen.missed
    assert len(seen)
    assert seen.check() < limit
    return seen


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("mask", ["none", "padding", "nested", "causal"])
@pytest.mark.parametrize("context", ["no_grad", "inference"])
def test_fast_encoder(norm_first, activation, mask, context):
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation=activation, norm_first=norm_first, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=mask == "nested").eval()
    options = {}
    if mask in ("padding", "nested"):
        options["src_key_padding_mask"] = torch.arange(5).expand(2, -1) >= torch.tensor([[5], [3]])
    if mask == "causal":
        options |= {"mask": nn.Transformer.generate_square_subsequent_mask(5), "is_causal": True}
    seen = look(model, torch.randn(2, 5, 16), context=CONTEXTS[context], **options)
    assert list(seen) == ["layers.0", "layers.1"] or list(seen) == ["layers.0.self_attn", "layers.1.self_attn"]
    p = seen[next(iter(seen))].weights()
    if mask in ("padding", "nested"):
        assert (p[1, :, :3, 3:] == 0).all()
    if mask == "causal":
        assert (p.triu(1) == 0).all()
    assert [(tower.kind, tower.records) for tower in seen.towers] == [("self", tuple(seen))]


def test_a_fused_layer_is_followed_as_one_that_is_not():
    """Which tokens it reads: those of the layer before, or somebody else's."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.mine, self.theirs = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))

        def forward(self, x, y):
            x = x + self.mine(x, x, x)[0]
            return x + self.theirs(x, y, y)[0]

    model = Both().eval()
    given = torch.randn(1, 5, 16), torch.randn(1, 7, 16)
    seen = look(model, *given)
    with watch(model) as slow:
        model(*given)
    assert [record.reading.kind for record in seen.values()] == ["self", "cross"]
    assert (seen.towers, seen.graph()) == (slow.towers, slow.graph())


@pytest.mark.parametrize("how", ["bfloat16", "autocast"])
def test_fast_encoder_in_half_precision(how):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x = torch.randn(2, 5, 16)
    if how == "bfloat16":
        look(model.bfloat16(), x.bfloat16(), limit=0.05)
    else:
        with torch.autocast("cpu", torch.bfloat16):
            look(model, x, limit=0.05)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_fast_multihead_attention(need_weights, padded):
    model, x = nn.MultiheadAttention(16, 2, batch_first=True).eval(), torch.randn(2, 5, 16)
    hidden = torch.arange(5).expand(2, -1) >= torch.tensor([[5], [3]]) if padded else None
    seen = look(model, x, x, x, key_padding_mask=hidden, need_weights=need_weights)
    with torch.no_grad():
        _, weights = model(x, x, x, key_padding_mask=hidden, average_attn_weights=False)
    assert_close(seen[""].weights(), weights, rtol=0, atol=1e-6)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("causal", [False, True])
def test_nested_tensors(layout, causal):
    lengths = (3, 5, 1)
    parts = [[torch.randn(n, 2, 8) for n in lengths] for _ in range(3)]
    if layout is torch.strided:
        q, k, v = (torch.nested.nested_tensor([x.transpose(0, 1).contiguous() for x in part]) for part in parts)
    else:
        q, k, v = (torch.nested.nested_tensor(part, layout=layout).transpose(1, 2) for part in parts)
    function = Calls(lambda *x: F.scaled_dot_product_attention(*x, is_causal=causal))
    try:
        with torch.no_grad():
            function(q, k, v)
    except RuntimeError as error:
        pytest.skip(f"PyTorch itself doesn't take them: {error}")
    record = look(function, q, k, v)[""]
    for i, n in enumerate(lengths):
        one = F.scaled_dot_product_attention(*(x.unbind()[i][None] for x in (q, k, v)), is_causal=causal)
        assert_close(record.output[i, :, :n], one[0], rtol=0, atol=1e-6)
        assert (record.weights()[i, :, :n, n:] == 0).all()


@pytest.mark.parametrize("make", [bias.causal_lower_right, bias.causal_upper_left])
def test_causal_biases(make):
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    record = look(Calls(lambda q, k: F.scaled_dot_product_attention(q, k, k, make(3, 5))), q, k)[""]
    allowed = torch.ones(3, 5, dtype=torch.bool).tril(2 if make is bias.causal_lower_right else 0)
    assert ((record.weights() > 0) == allowed).all()


@pytest.mark.parametrize("causal", [False, True])
def test_kernels_behind_the_function(causal):
    x = [torch.randn(1, 2, 5, 8) for _ in range(3)]
    cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    look(Calls(lambda *x: cpu(*x, is_causal=causal)[0]), *x)
    look(Calls(lambda *x: torch.ops.aten._scaled_dot_product_attention_math(*x, is_causal=causal)[0]), *x)


class Twice(nn.Module):
    """One attention that PyTorch's kernel runs, one that is written out."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.scaled_dot_product_attention(x, x, x)
        return x + (x @ x.mT / 8**0.5).softmax(-1) @ x


def test_exported_programs():
    x = torch.randn(1, 2, 5, 8)
    model = torch.export.export(Twice(), (x,)).module()
    assert len(look(model, x)) == 2


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch 2.15 says it of vmap
def test_vmap_is_named():
    model = Calls(torch.vmap(lambda x: F.scaled_dot_product_attention(x, x, x)))
    with pytest.raises(ValueError, match="runs under vmap, whose tensors can't be kept"), watch(model):
        model(torch.randn(3, 2, 5, 8))


def test_flex_attention_is_changed():
    class Flex(nn.Module):
        def forward(self, x, lse=False):
            return flex_attention.flex_attention(
                x, x, x, return_aux=flex_attention.AuxRequest(lse=True) if lse else None
            )

    x = torch.randn(1, 2, 5, 16)
    with watch(model := Flex(), change=Change(beta=0.0)) as seen:
        out = model(x)
    assert_close(out, x.mean(2, keepdim=True).expand_as(x))
    assert torch.equal(seen[""].output, out)
    with pytest.raises(ValueError, match="gives more than its output"), watch(model, change=Change(beta=0.0)):
        model(x, lse=True)


@pytest.mark.parametrize("beside", [False, True])
def test_flex_attention(beside):
    def far(score, b, h, q, k):
        return score - 0.1 * (h + 1) * (q - k).abs()

    block = flex_attention.create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")

    def run(x: Tensor) -> Tensor:
        x = F.scaled_dot_product_attention(x, x, x) if beside else x
        return flex_attention.flex_attention(x, x, x, score_mod=far, block_mask=block)

    seen = look(Calls(run), torch.randn(1, 2, 128, 16))
    assert len(seen) == 1 + beside
    p = list(seen.values())[-1].weights()
    assert (p.triu(1) == 0).all()


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool):
        super().__init__()
        self.inner, self.reentrant = Twice(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def test_checkpointing():
    x = torch.randn(1, 2, 5, 8, requires_grad=True)
    with pytest.raises(ValueError, match="use use_reentrant=False"), watch(model := Checkpointed(True), gradients=True):
        model(x)
    model = Checkpointed(False)
    with watch(model, gradients=True) as seen:
        model(x).square().sum().backward()
    assert len(seen) >= 2
    assert seen.check() < 1e-5
    plain = x.detach().clone().requires_grad_()
    model.inner(plain).square().sum().backward()
    assert torch.equal(x.grad, plain.grad)
    record = next(iter(seen.values()))
    assert record.gradient("output").shape == record.output.shape


@pytest.mark.parametrize("written", [False, True])
def test_masks_are_detached(written):
    table = torch.randn(2, 5, 5, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        if written:
            return (x @ x.mT + table).softmax(-1) @ x
        return F.scaled_dot_product_attention(x, x, x, table[None])

    record = look(Calls(run), torch.randn(1, 2, 5, 8), context=nullcontext)[""]
    assert not record.mask.requires_grad
