"""Every explanation against a slow truth: whole maps in float64, their gradients by autograd, products of matrices.

The explained models run the fused kernel. The truth comes from the same models with attention written as in a textbook,
which keeps each map and lets the gradient reach it.
"""

import math
from dataclasses import replace

import networkx
import pytest
import torch
import torch.nn.functional as F
from conftest import randomised
from torch import nn
from torch.testing import assert_close

from pellucid.data.tokenizer import START, CaptionTokenizer
from pellucid.explain import METHODS, Look, WordLook, chains, explain, explain_caption
from pellucid.explain.classes import look_at, reading
from pellucid.explain.flow import flow
from pellucid.explain.maps import pixels_of
from pellucid.layers import MultiHeadAttention
from pellucid.models import Captioner, CaptionerConfig, ViT, ViTConfig
from pellucid.watching import watch

COLOURS = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)}
BASE = {"classes": 4, "image": (8, 12), "patch": (4, 4), "width": 16, "depth": 3, "heads": 2, **COLOURS}
VITS = {
    "class token": {},
    "mean": {"pooling": "mean"},
    "class token and registers": {"registers": 2, "qk_norm": True},
    "mean and registers": {"pooling": "mean", "registers": 2, "positions": "rotary"},
    "sequence": {"pooling": "sequence", "registers": 1},
    "sequence, pooled before the norm": {"pooling": "sequence", "norm_first": False},
    "convolution stem": {"pooling": "mean", "stem": "conv", "norm_kind": "rms"},
}


class Textbook:
    """Attention with whole maps, kept in the order in which they were made."""

    def __init__(self, monkeypatch):
        self.maps = []
        monkeypatch.setattr("pellucid.layers.attention.attend", self.ours)
        monkeypatch.setattr(F, "scaled_dot_product_attention", self.torch)

    def ours(self, q, k, v, mask=None, *, beta=None, causal=False, listed=None, dropout=0.0):
        assert listed is None
        assert mask is None
        assert not dropout
        scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if beta is None else beta)
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
        p = scores.softmax(-1)
        p.retain_grad()
        self.maps.append(p)
        return p @ v

    def torch(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        assert not enable_gqa
        return self.ours(query, key, value, attn_mask, beta=scale, causal=is_causal, dropout=dropout_p)


def vit(which):
    return randomised(ViT(ViTConfig(**(BASE | VITS[which])))).double().eval()


def pictures(n=2):
    return torch.randn(n, 3, 8, 12, dtype=torch.float64)


def identity(p):
    return torch.eye(p.shape[-1], dtype=p.dtype)


def kept(p):
    """Ā: what speaks for the answer, mean over heads."""
    return (p.grad * p).clamp(min=0).mean(1)


def rolled(maps):
    total = identity(maps[0])
    for p in maps:
        total = (p.mean(1) + identity(p)) / 2 @ total
    return total


def relevances(steps):
    total = identity(steps[0])
    for a in steps:
        total = total + a @ total
    return total


def most_that_flows(edges, source, sinks):
    graph = networkx.DiGraph()
    for start, end, width in edges:
        graph.add_edge(start, end, capacity=float(width.detach()))
    solver = networkx.algorithms.flow.edmonds_karp
    return [networkx.maximum_flow_value(graph, source, sink, flow_func=solver) for sink in sinks]


def layer_edges(p, here, there):
    """Half a layer's attention, and the other half to oneself; p (t t) is the mean over heads."""
    widths = (p + identity(p)) / 2
    return [((here, i), (there, j), widths[i, j]) for i in range(len(p)) for j in range(len(p))]


def patch_sums(x, extra, grid=(2, 3)):
    """Sums over the pixels and channels of each patch, after zeros for the tokens of no patch."""
    rows = []
    for image in x:
        cells = [
            image[:, y : y + x.shape[2] // grid[0], z : z + x.shape[3] // grid[1]].sum()
            for y in range(0, x.shape[2], x.shape[2] // grid[0])
            for z in range(0, x.shape[3], x.shape[3] // grid[1])
        ]
        rows.append(torch.stack([x.new_zeros(())] * extra + cells))
    return torch.stack(rows)


def truth_of_class(model, pixels, target, start, monkeypatch):
    with monkeypatch.context() as patch:
        book = Textbook(patch)
        pixels = pixels.clone().requires_grad_()
        model(pixels)[:, target].sum().backward()
    maps = book.maps
    read = start[:, None]
    flows = []
    for i in range(len(pixels)):
        edges = [("read", (len(maps), j), start[i, j]) for j in range(start.shape[1])]
        for depth, p in enumerate(maps):
            edges += layer_edges(p[i].mean(0).detach(), depth + 1, depth)
        flows.append(most_that_flows(edges, "read", [(0, j) for j in range(start.shape[1])]))
    return {
        "raw": (read @ maps[-1].mean(1))[:, 0],
        "max": (start[:, None, None] @ maps[1])[:, :, 0].amax(1),
        "head": (start[:, None, None] @ maps[0])[:, 1, 0],
        "rollout": (read @ rolled(maps))[:, 0],
        "flow": torch.tensor(flows, dtype=torch.float64),
        "gradient": (read @ (relevances([kept(p) for p in maps]) - identity(maps[0])))[:, 0],
        "input gradient": patch_sums((pixels.grad * pixels).abs(), model.extra_tokens),
    }


def weights_read(model, tokens):
    """What the head reads, read off the head: how its input moves with each token."""
    if model.class_token is not None:
        return F.one_hot(torch.zeros(len(tokens), dtype=torch.long), tokens.shape[1]).double()
    patches = tokens[:, model.extra_tokens :]
    if model.pool is None:
        shares = torch.full(patches.shape[:2], 1 / patches.shape[1], dtype=torch.float64)
    else:
        scores = (patches * model.pool.weight[0]).sum(-1)
        shares = scores.exp() / scores.exp().sum(1, keepdim=True)
    return torch.cat([torch.zeros(len(tokens), model.extra_tokens, dtype=torch.float64), shares], 1)


@pytest.mark.parametrize("which", VITS)
def test_every_method_equals_the_materialised_truth(which, monkeypatch):
    model, pixels = vit(which), pictures()
    with torch.no_grad():
        before = []
        handle = model.blocks[-1].register_forward_hook(lambda module, args, out: before.append(out))
        features = model.features(pixels)
        handle.remove()
        start = weights_read(model, features if model.config.norm_first else before[0])
    truth = truth_of_class(model, pixels, 2, start, monkeypatch)
    assert all(parameter.grad is not None for parameter in model.head.parameters())
    model.zero_grad()

    look = look_at(model, pixels, 2)
    assert_close(chains.weigh_start(look.start, look.records[-1]), start)
    for method in ("raw", "rollout", "flow", "gradient", "input gradient"):
        values = look.map(method)
        assert values.dtype == torch.float64
        assert_close(values, truth[method], rtol=0, atol=1e-8)
    assert_close(look.map("raw", layer=1, head="max"), truth["max"], rtol=0, atol=1e-8)
    assert_close(look.map("raw", layer=0, head=1), truth["head"], rtol=0, atol=1e-8)
    assert all(parameter.grad is None for parameter in model.parameters())  # explaining leaves nothing behind
    assert_close(look.map("rollout").sum(1), torch.ones(2, dtype=torch.float64))
    assert truth["gradient"].amax() > 1e-4  # the truths are not all alike, and none is empty
    assert not torch.allclose(truth["raw"], truth["rollout"], atol=1e-4)


def test_wrong_rules_miss_the_truth(monkeypatch):
    """What the comparison above would not forgive."""
    model, pixels = vit("mean and registers"), pictures()
    start = reading(model, pixels)
    truth = truth_of_class(model, pixels, 2, start, monkeypatch)
    look = look_at(model, pixels, 2)
    forwards = [replace(record, reading=None) for record in look.records[::-1]]  # or they would refuse
    chains.backward(look.score.sum(), look.records)
    assert not torch.allclose(chains.rollout(forwards, start), truth["rollout"], atol=1e-6)
    assert not torch.allclose(chains.rollout(look.records, start, residual=0.0), truth["rollout"], atol=1e-6)
    assert not torch.allclose(chains.rollout(look.records, 0), truth["rollout"], atol=1e-6)
    assert not torch.allclose(chains.gradient_weighted(forwards, start), truth["gradient"], atol=1e-6)
    assert not torch.allclose(chains.gradient_weighted(look.records[:2], start), truth["gradient"], atol=1e-6)
    other = look_at(model, pixels, 1)
    assert not torch.allclose(other.map("gradient"), truth["gradient"], atol=1e-6)
    assert not torch.allclose(other.map("input gradient"), truth["input gradient"], atol=1e-6)
    assert torch.equal(other.map("rollout"), look.map("rollout"))  # rollout doesn't know what is asked
    assert not torch.allclose(flow(forwards, start), truth["flow"], atol=1e-6)


def test_gradients_of_the_answer_before_are_forgotten():
    model, pixels = vit("class token"), pictures()
    look = look_at(model, pixels, 2)
    first = look.map("gradient")
    look.map("input gradient")
    assert_close(look.map("gradient"), first)
    assert_close(look.map("gradient", last=True), first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        look.map("gradient")


def test_a_frozen_model_is_explained_too():
    model, pixels = vit("class token"), pictures()
    expected = look_at(model, pixels, 2).map("gradient")
    model.requires_grad_(False)
    assert_close(look_at(model, pixels, 2).map("gradient"), expected)


def test_each_image_is_explained_for_itself():
    model, pixels = vit("class token"), pictures()
    both = look_at(model, pixels, torch.tensor([2, 0]))
    for i, target in enumerate((2, 0)):
        alone = look_at(model, pixels[i : i + 1], target)
        for method in ("raw", "rollout", "flow", "gradient", "input gradient"):
            assert_close(alone.map(method)[0], both.map(method)[i], rtol=0, atol=1e-10)
    best = look_at(model, pixels, None)
    assert_close(best.score, model(pixels).amax(1))


def test_explain_takes_bytes_and_names():
    model = randomised(ViT(ViTConfig(**BASE, labels=("cat", "dog", "owl", "eel")))).double()
    model.train()
    image = torch.randint(256, (3, 8, 12), dtype=torch.uint8)
    look = look_at(model.eval(), pixels_of(image[None], model), 1)
    model.train()
    for method in METHODS:
        found = explain(model, image, method, target="dog")
        assert (found.method, found.target, found.word) == (method, "dog", None)
        assert_close(found.values, look.map(method)[0])
    assert model.training
    likeliest = int(model.eval()(pixels_of(image[None], model)).argmax())
    assert explain(model, image, "raw").target == ("cat", "dog", "owl", "eel")[likeliest]
    assert torch.equal(explain(model, image, "random", seed=1).values, explain(model, image, "random", seed=1).values)
    assert not torch.equal(
        explain(model, image, "random", seed=1).values, explain(model, image, "random", seed=2).values
    )


# Captioners


def captioner(layers=2, registers=1, depth=2):
    encoder = ViTConfig(**(BASE | {"pooling": "none", "registers": registers, "depth": depth}))
    return (
        randomised(Captioner(CaptionerConfig(vocabulary=12, encoder=encoder, layers=layers, heads=4))).double().eval()
    )


def normalised(r):
    """R̄ of the paper: what was added to the identity, rows summing to one, and the identity."""
    added = r - identity(r)
    sums = added.sum(-1, keepdim=True)
    return torch.where(sums > 0, added / sums.clamp(min=1e-300), 0.0) + identity(r)


def truth_of_word(model, pixels, said, word, monkeypatch):
    with monkeypatch.context() as patch:
        book = Textbook(patch)
        pixels = pixels.clone().requires_grad_()
        read = torch.cat([torch.full((len(said), 1), START), said[:, :-1]], 1)
        model(pixels, read)[torch.arange(len(said)), word, said[:, word]].sum().backward()
    depth = model.config.encoder.depth
    encoder, decoder = book.maps[:depth], list(zip(book.maps[depth::2], book.maps[depth + 1 :: 2], strict=True))
    b, words, tokens = len(said), said.shape[1], encoder[0].shape[-1]

    images, own = relevances([kept(p) for p in encoder]), torch.eye(words, dtype=torch.float64).expand(b, -1, -1)
    across = torch.zeros(b, words, tokens, dtype=torch.float64)
    unnormalised, drawn = across.clone(), across.clone()
    said_of = own.clone()
    for self_map, cross_map in decoder:
        a, c = kept(self_map), kept(cross_map)
        across, unnormalised = across + a @ across, unnormalised + a @ unnormalised
        own = own + a @ own
        across = across + normalised(own).mT @ c @ normalised(images)
        unnormalised = unnormalised + own.mT @ c @ images
        mixed = (self_map.mean(1) + identity(self_map)) / 2
        drawn, said_of = mixed @ drawn, mixed @ said_of
        drawn, said_of = (drawn + cross_map.mean(1)) / 2, said_of / 2
    flows = []
    for i in range(b):
        edges, here = [], 2 * len(decoder)
        for level, p in enumerate(encoder):
            edges += layer_edges(p[i].mean(0).detach(), ("image", level + 1), ("image", level))
        for self_map, cross_map in reversed(decoder):
            for w in range(words):
                edges.append(((here, w), (here - 1, w), torch.tensor(0.5)))
                for j in range(tokens):
                    edges.append(((here, w), (("image", depth), j), cross_map[i, :, w, j].mean() / 2))
            edges += layer_edges(self_map[i].mean(0).detach(), here - 1, here - 2)
            here -= 2
        flows.append(most_that_flows(edges, (2 * len(decoder), word), [(("image", 0), j) for j in range(tokens)]))
    return {
        "raw": decoder[-1][1].mean(1)[:, word],
        "max": decoder[0][1].amax(1)[:, word],
        "rollout": (drawn @ rolled(encoder))[:, word],
        "words": said_of[:, word],
        "flow": torch.tensor(flows, dtype=torch.float64),
        "gradient": across[:, word],
        "unnormalised": unnormalised[:, word],
        "input gradient": patch_sums((pixels.grad * pixels).abs(), model.encoder.extra_tokens),
    }


@pytest.mark.parametrize(("layers", "registers", "word"), [(1, 0, 3), (2, 1, 0), (2, 1, 3), (3, 2, 2)])
def test_every_method_of_words_equals_the_materialised_truth(layers, registers, word, monkeypatch):
    model, pixels, said = captioner(layers, registers), pictures(), torch.randint(6, 12, (2, 4))
    truth = truth_of_word(model, pixels, said, word, monkeypatch)
    look = WordLook.of(model, pixels, said)
    for method in ("raw", "rollout", "flow", "gradient", "input gradient"):
        values = look.map(method, word)
        assert values.dtype == torch.float64
        assert_close(values, truth[method], rtol=0, atol=1e-8)
    assert_close(look.map("raw", word, layer=0, head="max"), truth["max"], rtol=0, atol=1e-8)
    of_image, of_words = chains.rollout_decoder(look.decoder, look.encoder, word)
    assert_close(of_words, truth["words"], rtol=0, atol=1e-8)
    assert_close(of_image.sum(1) + of_words.sum(1), torch.ones(2, dtype=torch.float64))
    assert truth["gradient"].amax() > 1e-4
    assert not torch.allclose(truth["gradient"], truth["unnormalised"], atol=1e-6)  # a rule that forgets R̄ is seen
    if word:
        assert not torch.allclose(look.map("gradient", word - 1), truth["gradient"], atol=1e-6)


def test_words_to_come_are_never_explained_by():
    """What is said later changes no map of an earlier word."""
    model, pixels, said = captioner(), pictures(), torch.randint(6, 12, (2, 4))
    changed = said.clone()
    changed[:, 3] = (said[:, 3] - 5) % 6 + 6
    changed[:, 2] = (said[:, 2] - 5) % 6 + 6
    one, other = WordLook.of(model, pixels, said), WordLook.of(model, pixels, changed)
    for method in ("raw", "rollout", "flow", "gradient", "input gradient"):
        assert_close(one.map(method, 1), other.map(method, 1), rtol=0, atol=1e-10)
        if method != "flow":  # which is narrowest in the encoder, whatever is said
            assert not torch.allclose(one.map(method, 3), other.map(method, 3), rtol=0, atol=1e-10)


def test_explain_caption_has_a_map_for_each_word():
    tokenizer = CaptionTokenizer.train(["a red dog runs on grass"], min_count=1)
    encoder = ViTConfig(**(BASE | {"pooling": "none", "registers": 1}))
    model = Captioner(CaptionerConfig(vocabulary=len(tokenizer), encoder=encoder, layers=2, heads=4, max_length=6))
    randomised(model).double()
    image = torch.randint(256, (3, 8, 12), dtype=torch.uint8)
    found = explain_caption(model, tokenizer, image, "gradient", caption="A red dog")
    assert [(each.target, each.word) for each in found] == [("a", 0), ("red", 1), ("dog", 2)]
    look = WordLook.of(
        model.eval(), pixels_of(image[None], model.encoder), torch.tensor([tokenizer.encode("a red dog")])
    )
    assert_close(
        torch.stack([each.values for each in found]), torch.stack([look.map("gradient", i)[0] for i in range(3)])
    )
    said = explain_caption(model, tokenizer, image, "rollout", beam=2)
    assert 1 <= len(said) <= 5
    assert all(each.values.shape == (7,) for each in said)
    with pytest.raises(ValueError, match=r"has 7 tokens; expected 1…6"):
        explain_caption(model, tokenizer, image, caption="a a a a a a a")


# Other people's modules


def truth_of_tokens(model, inputs, score, start, monkeypatch, extra=0, grid=None):
    with monkeypatch.context() as patch:
        book = Textbook(patch)
        inputs = inputs.clone().requires_grad_()
        score(model(inputs)).sum().backward()
    read = start[:, None]
    felt = (inputs.grad * inputs).abs()
    return {
        "raw": (read @ book.maps[-1].mean(1))[:, 0],
        "rollout": (read @ rolled(book.maps))[:, 0],
        "gradient": (read @ (relevances([kept(p) for p in book.maps]) - identity(book.maps[0])))[:, 0],
        "input gradient": felt.sum(-1) if grid is None else patch_sums(felt, extra, grid),
    }


def compare(look, truth):
    for method, expected in truth.items():
        assert_close(look.map(method), expected, rtol=0, atol=1e-8)
    assert truth["gradient"].amax() > 1e-6
    assert_close(look.map("rollout").sum(1), torch.ones(len(look.score), dtype=torch.float64))


def first(b, tokens):
    return F.one_hot(torch.zeros(b, dtype=torch.long), tokens).double()


def test_torch_encoder(monkeypatch):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    model = randomised(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)).double().eval()
    tokens = torch.randn(2, 5, 16, dtype=torch.float64)

    def score(found):
        return found[:, :, 3].mean(1)

    truth = truth_of_tokens(model, tokens, score, torch.full((2, 5), 0.2, dtype=torch.float64), monkeypatch)
    compare(Look.at(model, tokens, score, read="mean"), truth)


def test_timm_vit(timm, monkeypatch):
    options = {"img_size": 32, "patch_size": 16, "embed_dim": 24, "num_heads": 2, "depth": 3, "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, reg_tokens=2, **options)
    randomised(model).double().eval()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)

    def score(logits):
        return logits[:, 4]

    truth = truth_of_tokens(model, images, score, first(2, 7), monkeypatch, extra=3, grid=(2, 2))
    compare(Look.at(model, images, score, read=0, grid=(2, 2)), truth)


def test_hugging_face_vit(transformers, monkeypatch):
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=2, intermediate_size=48, image_size=32, patch_size=16
    )
    config._attn_implementation = "sdpa"
    model = randomised(transformers.ViTForImageClassification(config)).double().eval()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)

    def score(found):
        return found.logits[:, 1]

    truth = truth_of_tokens(model, images, score, first(2, 5), monkeypatch, extra=1, grid=(2, 2))
    compare(Look.at(model, images, score, read=0, grid=(2, 2)), truth)


@pytest.mark.parametrize("ours", [True, False])
def test_cross_attention_alone(ours, monkeypatch):
    """Queries that ask a context nobody encoded: gradient-weighted attention is Ā itself."""
    module = MultiHeadAttention(16, heads=2) if ours else nn.MultiheadAttention(16, 2, batch_first=True)
    randomised(module).double().eval()
    asked, context = torch.randn(2, 3, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)

    def answer():
        found = module(asked, context) if ours else module(asked, context, context, need_weights=False)[0]
        return found[:, 1, 4].sum()

    with monkeypatch.context() as patch:
        book = Textbook(patch)
        answer().backward()
    with watch(module, gradients=True) as seen:
        chains.backward(answer(), seen)
    (record,) = seen.values()
    found = chains.gradient_weighted_decoder([(None, record)], [], 1)
    assert_close(found, kept(book.maps[0])[:, 1], rtol=0, atol=1e-8)
    assert found.amax() > 1e-4
    image, words = chains.rollout_decoder([(None, record)], [], 1)
    assert_close(image, book.maps[0].mean(1)[:, 1] / 2, rtol=0, atol=1e-8)
    assert_close(words, torch.tensor([[0.0, 0.5, 0.0]] * 2, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_torch_encoder_decoder(monkeypatch):
    model = randomised(nn.Transformer(16, 2, 2, 2, 32, batch_first=True)).double().eval()
    source, target = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 3, 16, dtype=torch.float64)

    def answer():
        return model(source, target)[:, 2, 4].sum()

    with monkeypatch.context() as patch:
        book = Textbook(patch)
        answer().backward()
    encoder, decoder = book.maps[:2], [(book.maps[2], book.maps[3]), (book.maps[4], book.maps[5])]
    images, own = relevances([kept(p) for p in encoder]), torch.eye(3, dtype=torch.float64)
    across = torch.zeros(2, 3, 5, dtype=torch.float64)
    for self_map, cross_map in decoder:
        across = across + kept(self_map) @ across
        own = own + kept(self_map) @ own
        across = across + normalised(own).mT @ kept(cross_map) @ normalised(images)
    with watch(model, gradients=True) as seen:
        chains.backward(answer(), seen)
    pairs = [tuple(seen[f"decoder.layers.{i}.{name}"] for name in ("self_attn", "multihead_attn")) for i in range(2)]
    records = [seen[f"encoder.layers.{i}.self_attn"] for i in range(2)]
    assert_close(chains.gradient_weighted_decoder(pairs, records, 2), across[:, 2], rtol=0, atol=1e-8)
    # Here words see the words after them, and R̄ᵀ is not R̄.
    assert not torch.allclose((normalised(own) @ kept(cross_map) @ normalised(images))[:, 2], across[:, 2], atol=1e-6)


# What may not enter


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda look: look.map("magic"), "method is 'magic'; expected one of raw, rollout, flow"),
        (lambda look: look.map("raw", layer=3), r"layer is 3; expected one of 0…2"),
        (lambda look: look.map("raw", head=2), r"head is 2; expected 'mean', 'max' or one of the heads 0…1"),
        (lambda look: look.map("raw", head="sum"), "head is 'sum'; expected"),
        (lambda look: chains.raw(look.records[0], 7), r"start is 7; expected a token in 0…6"),
        (lambda look: chains.gradient_weighted(look.records, torch.ones(1, 7)), r"expected \(b t\) = \[2, 7\]"),
        (lambda look: chains.gradient_weighted([], 0), "at least one record"),
        (lambda look: flow([], 0), "at least one record"),
        (lambda look: chains.rollout_decoder([(None, look.records[0])], [], 0, residual=2.0), "residual is 2.0"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    look = look_at(vit("class token"), pictures(), 2)
    with pytest.raises(ValueError, match=message):
        call(look)


def test_what_can_not_be_explained_is_said():
    model, image = vit("class token"), torch.zeros(3, 8, 12, dtype=torch.uint8)
    with pytest.raises(ValueError, match="target is 4; expected a class in 0…3"):
        explain(model, image, target=4)
    with pytest.raises(ValueError, match="target is 'cow'; expected one of 0, 1, 2, 3"):
        explain(model, image, target="cow")
    with pytest.raises(ValueError, match="keeps no gradients"):
        look_at(model, pictures(), 2, gradients=False).map("gradient")
    with pytest.raises(ValueError, match="watched without gradients"):
        look_at(model, pictures(), 2, gradients=False).map("input gradient")
    with pytest.raises(ValueError, match="pooling is 'none'"):
        explain(ViT(ViTConfig(**(BASE | {"pooling": "none"}))), image)
    with pytest.raises(ValueError, match="put mean and std into its config"):
        explain(ViT(ViTConfig(**(BASE | {"mean": None}))), image)
    with pytest.raises(ValueError, match=r"score gives shape \[2, 4\], expected one number for each of 2"):
        Look.at(model, pictures(), lambda logits: logits)
    with pytest.raises(ValueError, match="read is 'all'"):
        Look.at(model, pictures(), lambda logits: logits[:, 0], read="all")
    with pytest.raises(ValueError, match="neither 7 tokens"):
        Look.at(model, pictures(), lambda logits: logits[:, 0]).map("input gradient")


def test_records_that_are_no_chain_are_named():
    model = captioner()
    look = WordLook.of(model, pictures(), torch.randint(6, 12, (2, 4)))
    own, cross = look.decoder[0]
    for call in (chains.gradient_weighted, flow, chains.rollout):
        with pytest.raises(ValueError, match="is cross-attention, whose keys are other tokens"):
            call([own, cross], 0)
        with pytest.raises(ValueError, match="4 queries and 7 keys, expected 4 of both"):
            call([own, replace(cross, reading=None)], 0)
    with pytest.raises(ValueError, match="4 queries and 4 keys, expected 7 of both"):
        chains.gradient_weighted_decoder([(own, cross)], [own], 0)
    with pytest.raises(ValueError, match="7 queries and 7 keys, expected 4 and 7"):
        chains.rollout_decoder([(None, look.encoder[0]), (None, cross)], [], 0)
    with pytest.raises(ValueError, match="at least one layer"):
        chains.rollout_decoder([], look.encoder, 0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True).train()
    with pytest.raises(ValueError, match=r"call model\.eval\(\) first"):
        Look.at(layer, torch.randn(1, 5, 16), lambda tokens: tokens[:, 0, 0])


def test_explanations_take_their_gradients_wherever_they_are_asked_for():
    model, pixels = vit("class token"), pictures()
    expected = look_at(model, pixels, 2).map("gradient")
    with torch.no_grad():
        assert_close(look_at(model, pixels, 2).map("gradient"), expected)


def test_flow_is_for_few_tokens():
    config = ViTConfig(classes=2, image=(34, 34), patch=(2, 2), width=8, depth=1, heads=1, pooling="mean")
    look = look_at(ViT(config), torch.randn(1, 3, 34, 34), 0, gradients=False)
    with pytest.raises(ValueError, match="for 256 tokens at most; got 289: use rollout or gradient"):
        look.map("flow")
