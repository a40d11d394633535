"""watch: every attention seen, nothing changed, everything put back."""

import copy
import gc
import math
import pickle
import threading
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pellucid import ops
from pellucid.layers import EncoderBlock, KVCache, MultiHeadAttention
from pellucid.models import Transformer, TransformerConfig
from pellucid.ops import masks
from pellucid.watching import watch


def small_transformer(dropout=0.0, **options):
    config = TransformerConfig(
        vocabulary=12, width=32, hidden=64, heads=4, encoder_layers=2, decoder_layers=2, dropout=dropout, **options
    )
    return Transformer(config)


def tokens():
    return torch.randint(12, (2, 9)), torch.randint(12, (2, 6))


NAMES = [
    "encoder.blocks.0.attention",
    "encoder.blocks.1.attention",
    "decoder.blocks.0.attention",
    "decoder.blocks.0.cross_attention",
    "decoder.blocks.1.attention",
    "decoder.blocks.1.cross_attention",
]


def test_every_attention_by_its_dotted_name():
    model, (source, target) = small_transformer().eval(), tokens()
    with watch(model) as seen:
        model(source, target)
    assert list(seen) == NAMES
    record = seen["decoder.blocks.1.cross_attention"]
    assert record.q.shape == record.output.shape == (2, 4, 6, 8)
    assert record.k.shape == record.v.shape == (2, 4, 9, 8)
    assert record.beta == 1 / math.sqrt(8)
    assert not record.causal
    assert seen["decoder.blocks.0.attention"].causal
    assert not record.q.requires_grad
    assert 0 < seen.check() < 1e-5
    with pytest.raises(KeyError, match=r"no attention 'nowhere' was seen; seen: 'encoder.blocks.0.attention'"):
        seen["nowhere"]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference"])
def test_watching_changes_no_bit(train, autocast, mode):
    model, (source, target) = small_transformer(dropout=0.1).train(train), tokens()
    exists = masks.padding(torch.tensor([9, 4]))
    context = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}[mode]

    def forward():
        torch.manual_seed(1)
        return model(source, target, exists)

    with context(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        plain = forward()
        with watch(model) as seen:
            watched = forward()
    assert torch.equal(plain, watched)
    assert list(seen) == NAMES
    if autocast:
        assert seen[NAMES[0]].q.dtype == torch.bfloat16
    if train:
        with pytest.raises(ValueError, match=r"dropped with probability 0.1; watch the model in eval\(\)"):
            seen.check()
    else:
        assert seen.check() < (0.05 if autocast else 1e-5)


def test_gradients_are_the_same_watched_or_not():
    model, (source, target) = small_transformer(), tokens()

    def gradients(watching, **options):
        model.zero_grad()
        if watching:
            with watch(model, **options):
                loss = model(source, target).square().mean()
        else:
            loss = model(source, target).square().mean()
        loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for a, b, c in zip(gradients(False), gradients(True), gradients(True, gradients=True), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_a_record_gives_every_summary():
    attention = MultiHeadAttention(32, 4, kv_heads=2).double()
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    mask = masks.window(7, radius=2)
    with watch(attention) as seen:
        attention(x, mask=mask)
    record = seen[""]
    p = record.weights()
    assert_close(p, ops.attention_weights(record.q, record.k, mask), rtol=0, atol=1e-14)
    assert_close(p @ record.v.repeat_interleave(2, 1), record.output, rtol=0, atol=1e-12)
    assert (p[..., ~mask] == 0).all()
    assert_close(record.row(3), p[:, :, 3])
    assert_close(record.rows([1, 2]), p[:, :, 1:3])
    assert_close(record.weights(heads=[1], queries=[0]), p[:, 1:2, :1])
    assert_close(record.column_mass(), p.sum(2))
    assert_close(record.column_mass(impl="fused"), p.sum(2))
    assert_close(record.entropy(), torch.special.entr(p).sum(-1))
    assert_close(record.topk(2).weights, p.topk(2).values)
    line = torch.arange(7.0)[:, None]
    assert_close(record.mean_distance(line), (p * torch.cdist(line, line)).sum(-1))
    assert_close(record.apply(record.v.repeat_interleave(2, 1)), record.output)
    ones = torch.ones(2, 4, 7, 1, dtype=torch.float64)
    assert_close(record.apply_transposed(ones)[..., 0], p.sum(2))
    assert repr(record) == "Record('', b=2, h=4, q=7, k=7, beta=0.3536)"


def test_rollout_from_what_was_seen():
    blocks = nn.Sequential(*(EncoderBlock(32, 4, norm="pre") for _ in range(3))).double()
    with watch(blocks) as seen:
        blocks(torch.randn(2, 5, 32, dtype=torch.float64))
    product = torch.eye(5, dtype=torch.float64)
    for record in seen.values():
        product = (0.5 * torch.eye(5) + 0.5 * record.weights().mean(1)) @ product
    assert_close(ops.rollout(seen, 2), product[:, 2], rtol=0, atol=1e-14)
    assert_close(ops.rollout(seen.values(), 2), product[:, 2], rtol=0, atol=1e-14)


def test_gradients_when_asked_for():
    attention = MultiHeadAttention(32, 4, kv_heads=2).double()
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    with watch(attention, gradients=True) as seen:
        out = attention(x, causal=True)
    record = seen[""]
    with pytest.raises(ValueError, match="has no gradient of output yet"):
        record.gradient("output")
    out.square().sum().backward()

    q, k, v = (t.clone().requires_grad_() for t in (record.q, record.k, record.v))
    p = ops.attention_weights(q, k, causal=True)
    p.retain_grad()
    mixed = p @ v.repeat_interleave(2, 1)
    attention.out(mixed.transpose(1, 2).flatten(2)).square().sum().backward()
    assert q.grad is not None
    assert k.grad is not None
    assert p.grad is not None
    assert_close(record.gradient("q"), q.grad, rtol=0, atol=1e-12)
    assert_close(record.gradient("k"), k.grad, rtol=0, atol=1e-12)
    assert_close(record.weights_gradient(), p.grad, rtol=0, atol=1e-12)
    assert_close(record.weights_gradient(heads=[2], queries=[1, 5]), p.grad[:, [2]][:, :, [1, 5]], rtol=0, atol=1e-12)


def test_gradients_that_cant_be_had_are_named():
    attention, x = MultiHeadAttention(32, 4), torch.randn(2, 7, 32)
    with watch(attention) as seen:
        attention(x)
    with pytest.raises(ValueError, match=r"use watch\(model, gradients=True\)"):
        seen[""].gradient("q")
    with torch.no_grad(), pytest.raises(ValueError, match="carries no gradient"), watch(attention, gradients=True):
        attention(x)


def test_check_measures_what_was_tampered_with():
    attention, x = MultiHeadAttention(32, 4), torch.randn(2, 7, 32)
    with torch.no_grad(), watch(attention) as seen:
        attention(x)
    record = seen[""]
    assert record.check() < 1e-6
    wrong = replace(record, beta=2 * record.beta)
    with pytest.raises(ValueError, match=r"misses the output by \d\.\de[-+]\d\d in the worst row, expected at most"):
        wrong.check()
    wrong = replace(record, mask=masks.causal(7))
    with pytest.raises(ValueError, match="are not what made this output"):
        wrong.check()
    record.output[1, 2, 3, 4] += 0.01
    with pytest.raises(ValueError, match="changed in place after it was recorded"):
        record.check()


def test_check_names_where_numbers_are_not_finite():
    attention, x = MultiHeadAttention(32, 4), torch.randn(2, 7, 32)
    with torch.no_grad(), watch(attention) as seen:
        attention(x)
    seen[""].k[1, 2, 3, 4] = math.nan
    message = "k holds 1 numbers that are NaN or infinite, the first at b=1, h=2, k=3, d=4; expected finite"
    with pytest.raises(ValueError, match=message):
        seen[""].check()


class Overwriting(nn.Module):
    """Writes into what its attention was given or gave, between the attention and the end of the forward."""

    def __init__(self, part: str):
        super().__init__()
        self.attention = MultiHeadAttention(16, 4)
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.unflatten(-1, (4, -1)).transpose(1, 2).contiguous() for _ in range(3))
        mask = masks.causal(x.shape[1])
        output = ops.attend(q, k, v, mask)
        parts = {"q": q, "k": k, "v": v, "mask": mask, "output": output}
        if self.part:
            parts[self.part].fill_(1)
        return output


@pytest.mark.parametrize("part", ["", "q", "k", "v", "mask", "output"])
def test_what_is_written_over_before_anybody_asks_is_noticed(part):
    with torch.no_grad(), watch(model := Overwriting(part)) as seen:
        model(torch.randn(1, 5, 16))
    if not part:
        assert seen[""].check() < 1e-6
        return
    with pytest.raises(ValueError, match=f"{part} was changed in place after it was recorded"):
        seen[""].check()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_records_are_the_same_whenever_and_wherever_they_are_asked_for(mode):
    model, x = nn.Sequential(MultiHeadAttention(32, 4), MultiHeadAttention(32, 4)), torch.randn(2, 7, 32)
    with mode(), watch(model) as seen:
        model(x)
        early = seen["1"]
        model(2 * x)
    assert early.name == "1"
    model[0] = nn.Identity()  # what the model becomes is nothing to its records
    asked = []
    thread = threading.Thread(target=lambda: asked.append(list(seen)))
    with torch.autocast("cpu", torch.bfloat16):
        thread.start()
        thread.join()
        names = list(seen)
    assert asked == [names] == [["0", "1", "0#2", "1#2"]]
    assert [seen[name].q.dtype for name in names] == [torch.float32] * 4
    assert seen.check() < 1e-6
    with pytest.raises(AssertionError):
        assert_close(seen["0"].q, seen["0#2"].q)


def test_what_nobody_keeps_is_gone_at_once():
    """No cycle holds it: neither what was seen, nor a query; and of what an attention was given nothing but records."""
    block, inputs, queries = EncoderBlock(16, 2, norm="pre").eval(), [], []
    block.attention.register_forward_pre_hook(lambda module, args: inputs.append(weakref.ref(args[0])))
    block.attention.q.register_forward_hook(lambda module, args, out: queries.append(weakref.ref(out)))
    gc.disable()
    try:
        with torch.no_grad(), watch(block) as seen:
            block(torch.randn(1, 5, 16))
        assert [each() for each in inputs] == [None]
        assert len(seen) == 1
        held = weakref.ref(seen), weakref.ref(seen["attention"])
        del seen
        assert [each() for each in held] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda seen: pickle.loads(pickle.dumps(seen))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("asked", [False, True])
def test_what_was_seen_can_be_copied(copied, asked):
    """A copy is as good as the original: it checks itself, and what was written over is no better for it."""
    model = nn.Sequential(EncoderBlock(16, 2, norm="pre"), EncoderBlock(16, 2, norm="pre")).eval()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 5, 16))
    if asked:
        seen.check()
    other = copied(seen)
    assert list(other) == list(seen) == ["0.attention", "1.attention"]
    assert other.check() < 1e-5
    assert_close(other["0.attention"].row(0), seen["0.attention"].row(0), rtol=0, atol=0)
    seen["0.attention"].k.add_(1.0)
    seen["0.attention"].output.mul_(2.0)
    for spoilt in (seen, copied(seen)):
        with pytest.raises(ValueError, match="changed in place after it was recorded"):
            spoilt["0.attention"].row(0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_check_knows_each_precision(dtype):
    attention = MultiHeadAttention(64, 4).to(dtype)
    with torch.no_grad(), watch(attention) as seen:
        attention(8 * torch.randn(2, 300, 64, dtype=dtype), causal=True)
    limit = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.06, torch.float16: 8e-3}[dtype]
    assert seen[""].check() < limit


@pytest.mark.parametrize("value", [-1e4, torch.finfo(torch.float32).min])
def test_check_knows_what_a_finite_bias_does_to_a_row_with_nothing_allowed(value):
    attention = MultiHeadAttention(64, 4)
    mask = masks.causal(9)
    mask[3] = False
    with torch.no_grad(), watch(attention) as seen:
        attention(torch.randn(2, 9, 64), mask=masks.additive(mask, value))
    seen.check()
    wrong = replace(seen[""], mask=masks.additive(masks.causal(9), value))
    with pytest.raises(ValueError, match="misses the output"):
        wrong.check()


def test_a_module_that_attends_twice_has_two_records():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = MultiHeadAttention(32, 4)

        def forward(self, x):
            return self.shared(self.shared(x))

    model, x = Twice(), torch.randn(1, 5, 32)
    with watch(model) as seen:
        model(x)
        model(x)
    assert list(seen) == ["shared", "shared#2", "shared#3", "shared#4"]
    assert_close(seen["shared"].output, seen["shared#3"].output)
    assert not torch.allclose(seen["shared"].output, seen["shared#2"].output)


def test_step_by_step_decoding_is_seen_step_by_step():
    attention, x, cache = MultiHeadAttention(32, 4).eval(), torch.randn(1, 5, 32), KVCache()
    full = attention(x, causal=True)
    with torch.no_grad(), watch(attention) as seen:
        steps = [attention(x[:, i : i + 1], causal=True, cache=cache) for i in range(5)]
    assert_close(torch.cat(steps, 1), full)
    assert [record.k.shape[2] for record in seen.values()] == [1, 2, 3, 4, 5]
    seen.check()


def state_of(model):
    hooks = [
        {key: dict(value) for key, value in vars(m).items() if "hooks" in key and value is not None}
        for m in model.modules()
    ]
    return hooks, [type(m).forward for m in model.modules()]


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = MultiHeadAttention(32, 4)

    def forward(self, x, fail=True):
        y = self.attention(x)
        if fail:
            raise RuntimeError("on purpose")
        return y


def test_everything_is_put_back_even_when_the_forward_raises():
    model, x = Breaks(), torch.randn(1, 5, 32)
    before, kernel = state_of(model), torch.nn.functional.scaled_dot_product_attention
    plain = model(x, fail=False)
    with pytest.raises(RuntimeError, match="on purpose"), watch(model) as seen:
        model(x)
    assert list(seen) == ["attention"]
    assert state_of(model) == before
    assert torch.nn.functional.scaled_dot_product_attention is kernel
    assert torch.equal(model(x, fail=False), plain)
    assert len(seen) == 1  # nothing is recorded after the block
    with watch(model) as seen:  # a failure that the caller catches leaves the names right
        with pytest.raises(RuntimeError):
            model(x)
        model(x, fail=False)
    assert list(seen) == ["attention", "attention#2"]


def test_only_the_model_asked_for_is_seen():
    one, other, x = MultiHeadAttention(32, 4), MultiHeadAttention(32, 4), torch.randn(1, 5, 32)
    with watch(one) as seen:
        other(x)
        ops.attend(*[torch.randn(1, 1, 3, 4)] * 3)
        one(x)
    assert len(seen) == 1


def test_watching_can_be_nested():
    model, x = nn.Sequential(MultiHeadAttention(32, 4), MultiHeadAttention(32, 4)), torch.randn(1, 5, 32)
    with watch(model) as outer, watch(model[1]) as inner:
        model(x)
    assert list(outer) == ["0", "1"]
    assert list(inner) == [""]
    assert torch.equal(outer["1"].output, inner[""].output)


def test_a_thread_is_watched_too():
    model, x = nn.Sequential(MultiHeadAttention(32, 4)), torch.randn(1, 5, 32)
    with watch(model) as seen:
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()
        model(x)
    assert list(seen) == ["0", "0#2"]
    assert_close(seen["0"].output, seen["0#2"].output)


def test_a_model_with_nothing_to_see_is_told_so():
    with pytest.raises(ValueError, match="saw no attention in Linear"), watch(nn.Linear(4, 4)) as seen:
        seen._model(torch.randn(1, 4))
    with watch(nn.Linear(4, 4)) as seen:  # no forward, no complaint
        pass
    assert len(seen) == 0


def test_a_compiled_model_is_told_so():
    compiled = torch.compile(MultiHeadAttention(32, 4))
    with pytest.raises(ValueError, match=r"watch the model that was given to torch\.compile"), watch(compiled):
        pass


def test_the_table_lists_every_intermediate():
    attention = MultiHeadAttention(768, 12)
    with torch.no_grad(), watch(attention) as seen:
        attention(torch.randn(1, 5, 768), causal=True)
    table = seen.table()
    shapes = {line.name: line.shape for line in table}
    assert shapes["tokens"] == shapes["output"] == shapes["queries"] == (1, 5, 768)
    assert shapes["queries per head"] == shapes["keys per head"] == shapes["values per head"] == (1, 5, 12, 64)
    assert shapes["scores"] == shapes["attention"] == (1, 12, 5, 5)
    assert shapes["mask"] == (5, 5)
    assert shapes["mixed heads"] == (1, 5, 12, 64)
    columns = {line.name: (line.equation, line.axes, line.shape) for line in seen.table(columns=True)}
    assert columns["tokens"] == ("X", "d t", (768, 5))
    assert columns["queries"] == ("Q = W^Q·X", "hd t", (768, 5))
    assert columns["scores"] == ("S_h = β·K_hᵀ·Q_h, β = 1/√64", "h k q", (12, 5, 5))
    assert columns["mixed heads"] == ("Z_h = V_h·A_h", "h d t", (12, 64, 5))
    assert "Z_h = A_h·V_h" in str(table)
    assert str(table).count("\n") == len(table)


def test_the_table_tells_cross_from_self_attention():
    model, (source, target) = small_transformer(), tokens()
    with watch(model) as seen:
        model(source, target)
    lines = [line for line in seen.table() if line.where == "decoder.blocks.0.cross_attention"]
    by_name = {line.name: line for line in lines}
    assert by_name["context"].shape == (2, 9, 32)
    assert by_name["keys"].equation == "K = C·W_k"
    assert by_name["queries"].equation == "Q = X·W_q"
    assert len({line.where for line in seen.table()}) == 6
