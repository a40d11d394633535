"""Changing an attention while a model runs: exactly what was asked for, in anybody's model."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from pellucid.explain import ablate
from pellucid.layers import EncoderBlock, MultiHeadAttention
from pellucid.watching import Change, watch


class Own(nn.Module):
    """Attention with a kernel, or written out."""

    def __init__(self, written: bool, width: int = 16, heads: int = 4):
        super().__init__()
        self.heads, self.written = heads, written
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def split(self, x):
        return (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))

    def forward(self, x):
        q, k, v = self.split(x)
        if self.written:
            y = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


def by_hand(module, x, beta=None, keys=lambda k: k, mask=None, off=()):
    """The truth, one step at a time."""
    q, k, v = module.split(x)
    scores = (q @ keys(k).mT) * (q.shape[-1] ** -0.5 if beta is None else beta)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    y = scores.softmax(-1) @ v
    y[:, list(off)] = 0
    return module.out(y.transpose(1, 2).flatten(2))


MASK = torch.rand(5, 5, generator=torch.Generator().manual_seed(0)) > 0.4
MASK.fill_diagonal_(True)
CHANGES = {
    "beta": (Change(beta=1.7), {"beta": 1.7}),
    "mean": (Change(beta=0.0), {"beta": 0.0}),
    "off": (Change(off=[1, -1]), {"off": [1, 3]}),
    "mask": (Change(mask=MASK), {"mask": MASK}),
    "factor": (
        Change(keys={2: 3.0}),
        {"keys": lambda k: k * torch.tensor([1, 1, 3.0, 1, 1], dtype=k.dtype)[:, None]},
    ),
    "keys": (Change(keys=lambda k: k.flip(2)), {"keys": lambda k: k.flip(2)}),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("written", [True, False])
def test_a_change_is_what_it_says(name, written):
    module, x = Own(written).double(), torch.randn(2, 5, 16, dtype=torch.float64)
    change, truth = CHANGES[name]
    plain = module(x)
    with watch(module, change=change) as seen:
        changed = module(x)
    assert_close(changed, by_hand(module, x, **truth), rtol=0, atol=1e-12)
    assert not torch.allclose(changed, plain)
    assert seen.check() < 1e-12
    assert torch.equal(module(x), plain)


@pytest.mark.parametrize("kind", ["ours", "kernel", "written", "torch"])
def test_a_head_that_is_off_gives_nothing(kind):
    if kind == "ours":
        module = MultiHeadAttention(16, 4)
    elif kind == "torch":
        module = nn.MultiheadAttention(16, 4, batch_first=True)
    else:
        module = Own(kind == "written")
    module, x = module.double().eval(), torch.randn(2, 5, 16, dtype=torch.float64)

    def forward():
        return module(x, x, x, need_weights=False)[0] if kind == "torch" else module(x)

    with torch.no_grad():
        plain = forward()
        with watch(module, change={"": Change(off=[2])}):
            off = forward()
        weight = module.out_proj.weight if kind == "torch" else module.out.weight
        weight[:, 8:12] = 0  # what comes from the third head is read by nobody
        assert_close(off, forward(), rtol=0, atol=1e-12)
    assert not torch.allclose(off, plain)


def test_records_are_replaced_from_the_next_forward_on():
    model = nn.Sequential(Own(True), Own(False)).double()
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    plain = model(x)
    with watch(model) as seen:
        assert torch.equal(model(x), plain)
        seen["1"].replace(beta=0.0)
        changed = model(x)
        seen["1"].replace()
        assert torch.equal(model(x), plain)
    assert_close(changed, by_hand(model[1], model[0](x), beta=0.0), rtol=0, atol=1e-12)
    assert [seen[name].beta for name in ("1", "1#2", "1#3")] == [0.5, 0.0, 0.5]
    with pytest.raises(ValueError, match=r"a block that is over; use watch\(model, change=…\)"):
        seen["1"].replace(beta=1.0)


def test_gradients_go_through_what_was_changed():
    for written in (True, False):
        module, x = Own(written).double(), torch.randn(1, 5, 16, dtype=torch.float64, requires_grad=True)
        with watch(module, gradients=True, change=Change(beta=2.0)) as seen:
            module(x).square().sum().backward()
        mine, x.grad = x.grad, None
        by_hand(module, x, beta=2.0).square().sum().backward()
        assert_close(mine, x.grad, rtol=0, atol=1e-10)
        assert seen[""].gradient("output").abs().sum() > 0


def test_what_cant_be_changed_is_told():
    module, x = Own(False), torch.randn(1, 5, 16)
    with (
        pytest.raises(ValueError, match="head 4 is asked for; expected one of 0…3"),
        watch(module, change=Change(off=[4])),
    ):
        module(x)
    with (
        pytest.raises(ValueError, match="key 5 is asked for; expected one of 0…4"),
        watch(module, change=Change(keys={5: 0.0})),
    ):
        module(x)
    dropping = nn.MultiheadAttention(16, 4, dropout=0.5)
    with pytest.raises(ValueError, match=r"call model\.eval\(\) first"), watch(dropping, change=Change(beta=1.0)):
        dropping(x, x, x)


def test_heads_of_any_model_are_ablated(transformers):
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, vocab_size=50
    )
    model = transformers.BertModel(config).eval()
    ids = torch.randint(50, (3, 6))
    losses = ablate(model, lambda: model(ids).last_hidden_state[:, 0].sum(-1))
    assert {name: tuple(t.shape) for name, t in losses.items()} == dict.fromkeys(losses, (4, 3))
    assert len(losses) == 2
    name = list(losses)[1]
    with torch.no_grad():
        plain = model(ids).last_hidden_state[:, 0].sum(-1)
        with watch(model, change={name: Change(off=[1])}):
            without = model(ids).last_hidden_state[:, 0].sum(-1)
    assert_close(losses[name][1], plain - without)


def test_a_head_that_nobody_reads_costs_nothing():
    model = nn.Sequential(EncoderBlock(16, 4, norm="pre"), EncoderBlock(16, 4, norm="pre")).double().eval()
    with torch.no_grad():
        model[1].attention.out.weight[:, 4:8] = 0
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    losses = ablate(model, lambda: model(x).sum((1, 2)))
    assert_close(losses["1.attention"][1], torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)
    assert losses["1.attention"][[0, 2, 3]].abs().min() > 1e-6


def test_a_change_that_would_change_nothing_is_an_error():
    model, x = nn.Sequential(Own(True), nn.Sequential(Own(False))), torch.randn(1, 5, 16)

    def watched(change):
        with watch(model, change=change):
            model(x)

    for change, sentence in (
        ({"1.1": Change(beta=1.0)}, r"the model has no module '1\.1'; did you mean '1\.0'\?"),
        (
            {"1": Change(beta=1.0)},
            r"change=\{'1': …\} changed nothing: no attention of that name ran; did you mean '1.0'",
        ),
        ({"0#2": Change(beta=1.0)}, r"change=\{'0#2': …\} changed nothing: no attention of that name ran"),
        ({"0": 0.5}, r"a change is 0\.5; expected a Change, as Change\(off=\[3\]\)"),
        (0.5, r"a change is 0\.5; expected a Change"),
        (lambda name: 3, "a change is 3; expected a Change"),
    ):
        with pytest.raises(ValueError, match=sentence):
            watched(change)
    watched({"1.0": Change(beta=1.0)})
    with watch(model, change={"0": Change(beta=1.0)}):
        pass  # nothing ran that could be changed


def test_a_module_is_changed_by_the_name_that_it_is_recorded_by():
    shared = Own(False)
    model = nn.ModuleDict({"one": shared, "two": shared})
    with (
        pytest.raises(ValueError, match="'two' is the same module as 'one', by which it is recorded"),
        watch(model, change={"two": Change(beta=1.0)}),
    ):
        pass


def test_a_replacement_that_would_replace_nothing_is_an_error():
    model, x = Own(True), torch.randn(1, 5, 16)
    with watch(model) as seen:
        model(x)
        for change, sentence in (
            ({"bta": 1.0}, "replace takes no 'bta'; did you mean 'beta'.* expected beta, mask, off, keys"),
            ({"off": [4]}, r"head 4 is asked for; expected one of 0…3"),
            ({"off": 2}, r"off is 2; expected a list of heads, as \[3\]"),
            ({"beta": math.nan}, "beta is nan; expected a number"),
            ({"keys": 3}, "keys is 3; expected key numbers"),
        ):
            with pytest.raises(ValueError, match=sentence):
                seen[""].replace(**change)
        seen[""].replace(off=[1])
        seen[""].replace()  # taken back

    def replace_last():
        with watch(model) as seen:
            model(x)
            seen[""].replace(off=[1])

    with pytest.raises(ValueError, match=r"seen\[''\].replace\(…\) changed nothing: no forward ran after it"):
        replace_last()


def test_what_ran_in_the_fast_path_is_replaced_outside_it():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 5, 16)
    alone = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    with torch.no_grad():
        with watch(model, change={"layers.1.self_attn": Change(off=[1])}):
            changed = model(x)
        with watch(model) as seen:
            plain = model(x)
            seen["layers.1.self_attn"].replace(off=[1])
            assert torch.equal(model(x), changed)
            seen["layers.1.self_attn"].replace()
            assert torch.equal(model(x), plain)
        assert not torch.allclose(changed, plain, atol=1e-3)
        with watch(alone) as seen:
            plain = alone(x, x, x, need_weights=False)[0]
            seen[""].replace(off=[0, 1, 2, 3])
            assert_close(alone(x, x, x, need_weights=False)[0], alone.out_proj.bias.expand_as(plain))


def test_a_head_is_ablated_the_one_time_that_is_named():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = Own(False)

        def forward(self, x):
            return self.own(x) + 10 * self.own(2 * x)

    model, x = Twice().double(), torch.randn(2, 5, 16, dtype=torch.float64)
    losses = ablate(model, lambda: model(x).sum((1, 2)), layers=["own"])
    with torch.no_grad():
        once = model.own(x).sum((1, 2)) - by_hand(model.own, x, off=[1]).sum((1, 2))
    assert_close(losses["own"][1], once)
    with pytest.raises(ValueError, match="no attention 'owm' was seen; seen: 'own', 'own#2'"):
        ablate(model, lambda: model(x).sum((1, 2)), layers=["owm"])
    with pytest.raises(ValueError, match="layers is empty"):
        ablate(model, lambda: model(x).sum((1, 2)), layers=[])


def people(name: str, transformers, timm):
    """A model of others, what it reads, its first attention's name, what makes its queries and what reads its heads."""
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    ids = torch.randint(30, (2, 6))
    if name == "timm":
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=16, num_heads=4, depth=2)
        first = model.blocks[0].attn
        return (
            model,
            torch.randn(2, 3, 32, 32),
            "blocks.0.attn",
            first.qkv,
            first.proj,
        )
    written = name.partition(" ")[2]
    if name.startswith("bert"):
        config = transformers.BertConfig(**small, vocab_size=30, attn_implementation=written)
        model = transformers.BertModel(config)
        first = model.encoder.layer[0].attention
        return model, ids, "encoder.layer.0.attention.self", first.self.query, first.output.dense
    config = transformers.LlamaConfig(**small, num_key_value_heads=2, vocab_size=30, attn_implementation=written)
    model = transformers.LlamaModel(config)
    first = model.layers[0].self_attn
    return model, ids, "layers.0.self_attn", first.q_proj, first.o_proj


@pytest.mark.parametrize("name", ["bert sdpa", "bert eager", "llama sdpa", "llama eager", "timm"])
def test_a_change_in_a_model_of_others_is_the_same_in_its_weights(name, transformers, timm):
    """β as queries that are so much longer; a head that is off as columns that nobody reads."""
    model, given, at, asks, behind = people(name, transformers, timm)
    model, output = model.double().eval(), (lambda out: out if isinstance(out, torch.Tensor) else out[0])
    given = given.double() if given.is_floating_point() else given
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
        with watch(model) as seen:
            plain = output(model(given))
        beta = seen[at].beta
        with watch(model, change={at: Change(beta=3 * beta)}) as seen:
            sharper = output(model(given))
        assert seen.check() < 1e-6
        with watch(model, change={at: Change(off=[1, 2])}):
            off = output(model(given))
        queries = [part[:16] for part in asks.parameters()]
        for part in queries:
            part *= 3
        tight = 1e-5 if name == "llama eager" else 1e-10  # whose softmax is in float32
        assert_close(sharper, output(model(given)), rtol=0, atol=tight)
        for part in queries:
            part /= 3
        behind.weight[:, 4:12] = 0
        assert_close(off, output(model(given)), rtol=0, atol=tight)
    assert not torch.allclose(plain, sharper, atol=1e-3)
    assert not torch.allclose(plain, off, atol=1e-3)
    with (
        pytest.raises(ValueError, match=rf"no module '{at}x'; did you mean '{at}'"),
        watch(model, change={f"{at}x": Change(beta=1.0)}),
    ):
        model(given)
