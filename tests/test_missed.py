"""Nothing is missed in silence, nothing is changed without a word, and records notice when they are written over."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from pellucid.watching import ChangedOutput, MissedAttention, Record, watch


class Kernel(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class Linear(nn.Module):
    """Linear attention: a softmax over the tokens, and no map of them."""

    def forward(self, x):
        return x @ (x.softmax(-2).mT @ x)


def test_a_half_that_is_missed_is_named():
    model, x = nn.Sequential(Kernel(), Linear()), torch.randn(2, 4, 5, 8)
    plain = model(x)
    named = "1 of 2 attentions of Sequential could not be recorded; it is in '1'"
    with pytest.warns(MissedAttention, match=named), watch(model) as seen:
        watched = model(x)
    assert torch.equal(plain, watched)
    assert list(seen) == ["0"]
    (missed,) = seen.missed
    assert (missed.module, missed.shape) == ("1", (2, 4, 5, 8))
    assert missed.reason == "its weights come from no product of queries and keys"
    with pytest.raises(ValueError, match="1 of 2 attentions of Sequential"), watch(model, strict=True):
        model(x)
    with warnings.catch_warnings(), watch(model[0]) as seen:
        model[0](x)
    assert seen.missed == []


def test_only_missed_ones_are_an_error():
    model = nn.Sequential(Linear(), nn.LayerNorm(8), Linear())
    named = "2 of 2 attentions of Sequential could not be recorded; the first is in '0'"
    with pytest.raises(ValueError, match=named), watch(model):
        model(torch.randn(1, 5, 8))


def test_scripted_halves_are_named():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(Kernel())
    model, x = nn.Sequential(Kernel(), scripted), torch.randn(1, 2, 5, 8)
    named = "TorchScript, which runs outside Python; watch the module that was scripted"
    with pytest.warns(MissedAttention, match=named), watch(model) as seen:
        model(x)
    assert [missed.module for missed in seen.missed] == ["1"]


@pytest.mark.parametrize("need_weights", [True, False])
def test_the_fast_path_is_kept(need_weights):
    module, x = nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(2, 5, 16)
    with torch.no_grad():
        plain = module(x, x, x, need_weights=need_weights)
        with watch(module) as seen:
            watched = module(x, x, x, need_weights=need_weights)
    assert torch.equal(plain[0], watched[0])
    assert seen.check() < 1e-5
    if need_weights:
        assert_close(seen[""].weights().mean(1), plain[1])


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_an_encoder_is_the_same_to_the_last_bit(norm_first, padded, autocast):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not (norm_first or autocast)).eval()
    x = torch.randn(2, 5, 16)
    mask = torch.tensor([[False] * 5, [False, False, True, True, True]]) if padded else None
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of nested tensors
        plain = model(x, src_key_padding_mask=mask)
        with watch(model) as seen:
            watched = model(x, src_key_padding_mask=mask)
        with watch(model, exact_output=False) as slow:
            model(x, src_key_padding_mask=mask)
    assert torch.equal(plain, watched)
    assert list(seen) == list(slow) == ["layers.0.self_attn", "layers.1.self_attn"]
    seen.check()
    if not autocast:
        there = slice(None) if mask is None else slice(0, 2)
        ours, theirs = (s["layers.0.self_attn"].weights()[1, :, there] for s in (seen, slow))
        assert_close(ours, theirs, rtol=0, atol=1e-5)


class Overwrites(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        q, k, v = x.clone(), x.clone(), x.clone()
        out = F.scaled_dot_product_attention(q, k, v)
        {"q": q, "k": k, "v": v, "output": out}[self.part].mul_(3.0)
        return out


@pytest.mark.parametrize("part", ["q", "k", "v", "output"])
def test_a_record_that_was_written_over_says_so(part):
    model, x = Overwrites(part), torch.randn(1, 2, 5, 8)
    with torch.no_grad(), watch(model) as seen:
        model(x)
    with pytest.raises(
        ValueError, match=rf"{part} was changed in place after it was recorded; use watch\(model, copy=T"
    ):
        seen.check()
    if part in ("q", "k"):
        with pytest.raises(ValueError, match=rf"no longer says what happened: {part} was changed in place"):
            seen[""].row(0)
    else:
        seen[""].row(0)  # the weights don't depend on it
    with torch.no_grad(), watch(model, copy=True) as seen:
        model(x)
    assert seen.check() < 1e-5


def test_a_write_that_changes_nothing_is_no_matter():
    cache = torch.zeros(1, 2, 8, 8)

    class Cached(nn.Module):
        def forward(self, x, n):
            cache[:, :, n : n + 1] = x
            return F.scaled_dot_product_attention(x, cache[:, :, : n + 1], cache[:, :, : n + 1])

    model = Cached()
    with torch.no_grad(), watch(model) as seen:
        for n in range(3):
            model(torch.randn(1, 2, 1, 8), n)
    assert seen["#2"].row(0).shape == (1, 2, 2)
    assert seen.check() < 1e-5


def test_masks_hold_on_to_no_graph():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.randn(5, 5))

        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x, self.bias) + (x @ x.mT + self.bias).softmax(-1) @ x

    model = Biased()
    with watch(model) as seen:
        model(torch.randn(1, 2, 5, 8))
    assert [record.mask.requires_grad for record in seen.values()] == [False, False]
    assert all(isinstance(record, Record) for record in seen.values())


def test_reentrant_checkpointing_is_told_what_to_do():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.inner, self.linear, self.reentrant = Kernel(), nn.Linear(8, 8), reentrant

        def forward(self, x):
            return checkpoint(self.inner, self.linear(x), use_reentrant=self.reentrant)

    x = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match="use_reentrant=False"), watch(model := Checkpointed(True), gradients=True):
        model(x)
    with watch(model := Checkpointed(False), gradients=True) as seen:
        model(x).sum().backward()
    assert seen["inner"].gradient("q").shape == (1, 2, 5, 8)


def test_the_model_is_left_as_it_was():
    import threading

    has, start, code = (
        torch.overrides.has_torch_function,
        threading.Thread.start,
        torch.nn.attention.flex_attention.flex_attention.__code__,
    )
    model, x = nn.Sequential(Kernel()), torch.randn(1, 2, 5, 8)
    with pytest.raises(RuntimeError), watch(model):
        model(x[0, 0, 0])  # a vector: the kernel refuses it
    assert torch.overrides.has_torch_function is has
    assert threading.Thread.start is start
    assert torch.nn.attention.flex_attention.flex_attention.__code__ is code
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert issubclass(ChangedOutput, UserWarning)
