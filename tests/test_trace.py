"""A trace holds what the model's attention, answers and words follow from."""

from dataclasses import replace

import pytest
import torch
from conftest import randomised
from speaking import CAPTIONS, captioner, pictures
from torch.testing import assert_close

from pellucid.data.tokenizer import END, START, CaptionTokenizer
from pellucid.decode.captions import write_captions
from pellucid.explain import Trace, explain, explain_caption, trace, trace_caption
from pellucid.explain.maps import pixels_of
from pellucid.models import Captioner, CaptionerConfig, ViT, ViTConfig
from pellucid.watching import watch

LABELS = ("cat", "dog", "owl")
CONFIG = ViTConfig(
    classes=3,
    image=(8, 12),
    patch=(4, 4),
    width=16,
    depth=2,
    heads=2,
    registers=2,
    labels=LABELS,
    mean=(0.4, 0.5, 0.6),
    std=(0.2, 0.25, 0.3),
)


def picture():
    return torch.randint(256, (3, 8, 12), dtype=torch.uint8)


def map_of(layer):
    """softmax(β·qkᵀ) of a layer, from nothing but the trace."""
    scores = layer.beta * layer.q @ layer.k.mT
    if layer.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    return scores.softmax(-1)


def test_a_trace_of_a_classifier():
    model, image = randomised(ViT(CONFIG)).eval(), picture()
    found = trace(model, image, name="small", methods=("raw", "rollout", "gradient", "input gradient", "random"), top=2)
    assert isinstance(found, Trace)
    assert (found.model, found.kind, found.words) == ("small", "classifier", ())
    assert torch.equal(found.pictures[0].pixels, image)
    (tokens,) = found.streams
    assert tokens.name == "image"
    assert tokens.labels[:4] == ("class", "register 1", "register 2", "patch 0,0")
    assert (tokens.labels[-1], len(tokens.labels), tokens.grid) == ("patch 1,2", 9, (2, 3))
    with watch(model) as seen, torch.no_grad():
        logits = model(pixels_of(image[None], model))
    shares = logits[0].softmax(-1)
    assert [label for label, _ in found.answers] == [LABELS[i] for i in shares.argsort(descending=True)[:2]]
    assert_close(torch.tensor([share for _, share in found.answers]), shares.sort(descending=True).values[:2])
    assert [layer.name for layer in found.layers] == list(seen)
    for layer, record in zip(found.layers, seen.values(), strict=True):
        assert (layer.queries, layer.keys, layer.causal, layer.mask) == ("image", "image", False, None)
        assert_close(map_of(layer), record.weights()[0])
        assert_close(layer.values, record.v[0].norm(dim=-1))
    for each in found.maps:
        assert (each.target, each.word, each.values.shape) == (found.answers[0][0], None, (9,))
        assert_close(each.values, explain(model, image, each.method).values)


def test_a_trace_asks_for_the_class_it_is_told():
    model, image = randomised(ViT(CONFIG)).eval(), picture()
    by_name, by_number = (trace(model, image, target=target, methods=["gradient"]) for target in ("owl", 2))
    assert by_name.maps[0].target == by_number.maps[0].target == "owl"
    assert torch.equal(by_name.maps[0].values, by_number.maps[0].values)
    assert not torch.allclose(by_name.maps[0].values, trace(model, image, target=0).maps[1].values)
    assert by_name.answers == trace(model, image, target=0).answers  # what is asked doesn't change what is answered
    named = trace(model, image, labels=("a", "b", "c"), target="c", methods=[])
    assert {label for label, _ in named.answers} == {"a", "b", "c"}
    assert named.maps == ()


def test_a_trace_changes_nothing():
    model = randomised(ViT(replace(CONFIG, dropout=0.5))).train()
    image = picture()
    one, two = trace(model, image), trace(model, image)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert one.answers == two.answers  # nothing was dropped
    assert not any(layer.q.requires_grad or layer.values.requires_grad for layer in one.layers)
    assert not any(each.values.requires_grad for each in one.maps)


@pytest.fixture(scope="module")
def speaker():
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    model = captioner(tokenizer)
    model.zero_grad()
    return model, tokenizer


def test_a_trace_of_a_captioner(speaker):
    model, tokenizer = speaker
    image = pictures()[0]
    found = trace_caption(model, tokenizer, image, methods=("raw", "gradient"), name="five")
    assert (found.model, found.kind, found.answers) == ("five", "captioner", ())
    said = CAPTIONS[0].split()
    assert [word for word, _ in found.words] == said
    image_row, words_row = found.streams
    assert image_row.labels[:3] == ("register 1", "register 2", "patch 0,0")
    assert image_row.grid == (2, 3)
    assert words_row.labels == ("<start>", *said[:-1])  # what was read; query i said word i
    assert (words_row.name, words_row.grid) == ("words", None)
    assert [(layer.name, layer.queries, layer.keys, layer.causal) for layer in found.layers] == [
        ("encoder.blocks.0.attention", "image", "image", False),
        ("encoder.blocks.1.attention", "image", "image", False),
        ("decoder.blocks.0.attention", "words", "words", True),
        ("decoder.blocks.0.cross_attention", "words", "image", False),
        ("decoder.blocks.1.attention", "words", "words", True),
        ("decoder.blocks.1.cross_attention", "words", "image", False),
    ]
    with watch(model) as seen, torch.no_grad():
        ids = tokenizer.encode(CAPTIONS[0])
        logits = model(pixels_of(image[None], model.encoder), torch.tensor([[START, *ids[:-1]]]))
    for layer in found.layers:
        assert_close(map_of(layer), seen[layer.name].weights()[0])
        assert layer.q.shape[1] == (len(said) if layer.queries == "words" else 8)
    assert_close(
        torch.tensor([log_prob for _, log_prob in found.words]),
        logits[0].log_softmax(-1)[torch.arange(len(ids)), ids],
        rtol=1e-4,
        atol=1e-5,
    )
    assert [(each.method, each.target, each.word) for each in found.maps] == [
        (method, word, i) for method in ("raw", "gradient") for i, word in enumerate(said)
    ]
    last = found.layers[-1]
    for word in range(len(said)):
        assert_close(found.maps[word].values, map_of(last)[:, word].mean(0))
    by_hand = explain_caption(model, tokenizer, image, "gradient", caption=CAPTIONS[0])
    for mine, theirs in zip(found.maps[len(said) :], by_hand, strict=True):
        assert_close(mine.values, theirs.values)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_end_is_left_out_unless_nothing_else_is_said(speaker):
    model, tokenizer = speaker
    ((best,),) = write_captions(model, tokenizer, pictures()[:1])
    assert END not in best.tokens
    assert best.tokens.shape == best.token_log_probs.shape == (4,)
    config = CaptionerConfig(
        vocabulary=8, encoder=replace(model.config.encoder, registers=0), layers=1, heads=4, tied=False
    )
    silent = Captioner(config).eval()
    with torch.no_grad():
        silent.decoder.output.weight.zero_()
        silent.decoder.output.bias.copy_(torch.eye(8)[END] * 20)
    ((best,),) = write_captions(silent, tokenizer, pictures()[:1])
    assert best.tokens.tolist() == [END]
    assert best.words == ()


def test_wrong_arguments_are_named():
    model, image = ViT(CONFIG), picture()
    for options, message in (
        ({"methods": ["magic"]}, "method is 'magic'; expected one of raw, rollout"),
        ({"top": 0}, "top is 0; expected one or more"),
        ({"labels": ("a", "b")}, "labels names 2 classes; expected 3"),
        ({"target": "cow"}, "target is 'cow'; expected one of cat, dog, owl"),
        ({"target": 3}, "target is 3; expected a class in 0…2"),
    ):
        with pytest.raises(ValueError, match=message):
            trace(model, image, **options)
    with pytest.raises(ValueError, match="channels"):
        trace(model, torch.zeros(4, 8, 12, dtype=torch.uint8))
    with pytest.raises(ValueError, match="image axis x: 13 pixels"):
        trace(model, torch.zeros(3, 8, 13, dtype=torch.uint8))
