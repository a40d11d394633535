"""Nothing is missed in silence, nothing is changed without a word, and records notice when they are written over."""

import math
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


@torch.jit.script
def scripted(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 2.0, -1) @ v


@torch.jit.script
def scripted_classes(x):
    return torch.softmax(x, -1)


def by_products(q, k):
    return (q[..., :, None, :] * k[..., None, :, :]).sum(-1) / 2


def one_by_one(attend, q, k, v):
    """Heads and queries one at a time: (k d) and (d)."""
    rows = [attend(one, k[0, h], v[0, h]) for h in range(q.shape[1]) for one in q[0, h]]
    return torch.stack(rows).reshape(1, *q.shape[1:])


# each computes softmax(q·kᵀ/2)·v, or what is drawn from it
NAMED = {
    "a query at a time": lambda q, k, v: one_by_one(lambda q, k, v: (k @ q / 2).softmax(0) @ v, q, k, v),
    "mv": lambda q, k, v: one_by_one(lambda q, k, v: torch.mv(v.T, F.softmax(torch.mv(k, q) / 2, 0)), q, k, v),
    "gumbel": lambda q, k, v: F.gumbel_softmax(q @ k.mT / 2, dim=-1) @ v,
    "multiplied one by one": lambda q, k, v: by_products(q, k).softmax(-1) @ v,
    "scaled and multiplied one by one": lambda q, k, v: (2 * by_products(q / 2, k)).softmax(-1) @ v,
    "weighted one by one": lambda q, k, v: (by_products(q, k).softmax(-1)[..., None] * v[..., None, :, :]).sum(-2),
    "scripted": lambda q, k, v: scripted(q, k, v),
}
RECORDED = {
    "softmin": lambda q, k, v: F.softmin(q @ k.mT / -2, -1) @ v,
    "normalize": lambda q, k, v: F.normalize((q @ k.mT / 2).exp(), p=1, dim=-1) @ v,
    "normalize by place": lambda q, k, v: F.normalize((q @ k.mT / 2).exp(), 1.0, -1) @ v,
    "exp2": lambda q, k, v: (e := torch.exp2(q @ k.mT / 2 / math.log(2))) / e.sum(-1, keepdim=True) @ v,
    "linear": lambda q, k, v: F.linear((F.linear(q[0, 0], k[0, 0]) / 2).softmax(-1), v[0, 0].T).expand(1, *q.shape[1:]),
}


class Strange(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def project(self, x):
        return (m(x).unflatten(-1, (2, 4)).transpose(1, 2) for m in (self.q, self.k, self.v))

    def forward(self, x):
        return x + self.attend(*self.project(x)).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("way", NAMED)
@torch.no_grad()
def test_attention_that_cannot_be_followed_is_named(way):
    model, x = (
        nn.Sequential(nn.TransformerEncoderLayer(8, 2, batch_first=True), Strange(NAMED[way])).eval(),
        torch.randn(1, 5, 8),
    )
    if way != "gumbel":  # the truth
        q, k, v = model[1].project(x)
        assert_close(NAMED[way](q, k, v), F.scaled_dot_product_attention(q, k, v))
    with pytest.warns(MissedAttention), watch(model) as seen:
        model(x)
    assert list(seen) == ["0.self_attn"]
    assert {missed.module for missed in seen.missed} == {"1"}
    with pytest.raises(ValueError, match=r"could not be recorded; .* in '1'"), watch(model, strict=True):
        model(x)


@pytest.mark.parametrize("way", RECORDED)
@torch.no_grad()
def test_a_softmax_in_other_words_is_recorded(way):
    model, x = Strange(RECORDED[way]), torch.randn(1, 5, 8)
    with watch(model, strict=True) as seen:
        model(x)
    q, k, v = model.project(x)
    heads = 1 if way == "linear" else 2
    assert_close(seen[""].weights(), (q @ k.mT / 2).softmax(-1)[:, :heads])
    assert_close(seen[""].output, F.scaled_dot_product_attention(q, k, v)[:, :heads])


class Beside(nn.Module):
    """One attention, and beside it something that is none."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.head, self.mix = nn.Linear(8, 4), nn.Parameter(torch.randn(3))

    def forward(self, x):
        x = x + F.scaled_dot_product_attention(x, x, x)
        logits = self.head(x)
        return self.way(self, x, logits)


NONE = {
    "classes": lambda m, x, y: y.mean(1)[0].softmax(0),
    "classes that are mixed": lambda m, x, y: y.mean(1)[0].softmax(0) @ m.head.weight,
    "layers that are mixed": lambda m, x, y: m.mix.softmax(0) @ torch.stack([x[0]] * 3).flatten(1),
    "softmin": lambda m, x, y: F.softmin(y, -1),
    "gumbel": lambda m, x, y: F.gumbel_softmax(y, dim=-1) @ m.head.weight,
    "a gumbel of likenesses": lambda m, x, y: F.gumbel_softmax(x @ x.mT, dim=-1),
    "a code of a book": lambda m, x, y: F.gumbel_softmax(x @ m.head.weight.T, dim=-1),
    "cosines": lambda m, x, y: (F.normalize(x[0], dim=-1) @ F.normalize(x[0, 0], dim=-1)).softmax(0),
    "all cosines": lambda m, x, y: F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).mT,
    "normalised": lambda m, x, y: F.normalize(x.exp(), p=1, dim=-1),
    "all pairs": lambda m, x, y: (x[:, :, None] * x[:, None]).sum(-1),
    "likest of all pairs": lambda m, x, y: (x[:, :, None] * x[:, None]).sum(-1).softmax(-1),
    "exp2": lambda m, x, y: torch.exp2(y) / torch.exp2(y).sum(-1, keepdim=True),
    "a map that is made": lambda m, x, y: F.linear(x, m.head.weight * 2).softmax(-1),
    "scripted": lambda m, x, y: scripted_classes(y),
    "scripted, and not called": lambda m, x, y: y if scripted else scripted(x, x, x),
}


@pytest.mark.parametrize("way", NONE)
@torch.no_grad()
def test_what_is_no_attention_is_not_named(way):
    model, x = Beside(NONE[way]), torch.randn(1, 5, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with watch(model, strict=True) as seen:
            model(x)
    assert (list(seen), seen.missed) == ([""], [])
