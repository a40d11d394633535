"""What a mutation run found untested in explain."""

import itertools
import math
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from conftest import make_mask, randomised, truth
from speaking import CAPTIONS, captioner, pictures
from torch.testing import assert_close

from pellucid import ops
from pellucid.data.images import ImageSet
from pellucid.data.tokenizer import NEVER, CaptionTokenizer
from pellucid.decode.captions import write_captions
from pellucid.explain import (
    Look,
    WordLook,
    ablate,
    chains,
    explain,
    explain_caption,
    faithfulness,
    timelapse,
    timelapse_caption,
    trace,
    trace_caption,
)
from pellucid.explain.classes import class_names, look_at, reading, target_of
from pellucid.explain.faithfulness import Faithfulness, areas_under, bootstrap_mean, fill_patches, measure_curves, ranks
from pellucid.explain.flow import LIMIT, flow, flow_decoder
from pellucid.explain.heads import CENTRED, SAME, caption_health, report_heads
from pellucid.explain.maps import input_gradient, needs_gradient, pick_layer, pixels_of, random_map
from pellucid.explain.trace import Layer, Stream, Trace, image_tokens, layer_of
from pellucid.layers import MultiHeadAttention
from pellucid.models import Captioner, CaptionerConfig, ViT, ViTConfig
from pellucid.ops.rules import Rule, Times
from pellucid.watching import Change, watch
from pellucid.watching.record import Record

SMALL = {"classes": 3, "image": (16, 16), "patch": (4, 4), "width": 16, "heads": 2}
SMALL |= {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}


def record(queries: int, keys: int, name: str = "attention") -> Record:
    q, k = torch.randn(1, 1, queries, 4), torch.randn(1, 1, keys, 4)
    return Record(name, q, k, k, None, 0.5, False, 0.0, torch.zeros(1, 1, queries, 4))


def test_what_is_never_said_is_not_said_to_be_explained_either():
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    model = captioner(tokenizer, steps=0)
    said = set()
    for seed in range(8):
        torch.manual_seed(seed)
        randomised(model)
        said |= set(write_captions(model, tokenizer, pictures()[:1])[0][0].tokens.tolist())
    assert len(said) > 3
    assert said.isdisjoint(NEVER)


def test_flow_is_for_few_words_too():
    words, image = LIMIT + 1, record(3, 3)
    with pytest.raises(ValueError, match=f"for {LIMIT} tokens at most; got {words}"):
        flow_decoder([(record(words, words), record(words, 3))], [image], 0)
    assert flow_decoder([(record(2, 2), record(2, 3))], [image], 0).shape == (1, 3)


def test_a_map_that_says_nothing_is_scored_in_an_order_that_the_seed_draws():
    """Queries and keys of zero attend to all alike: every patch is a tie, and only the seed tells them apart."""
    model = randomised(ViT(ViTConfig(**SMALL, depth=1))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".attention.q." in name or ".attention.k." in name:
                parameter.zero_()
    images = ImageSet(torch.randint(256, (6, 3, 16, 16), dtype=torch.uint8), torch.zeros(6).long(), ("a", "b", "c"))
    one, same, other = (faithfulness(model, images, ["raw"], seed=seed, batch=2).deletion for seed in (0, 0, 50))
    assert_close(one, same)
    assert_close(one[..., [0, -1]], other[..., [0, -1]])
    assert not torch.allclose(one, other)
    later = faithfulness(
        model, ImageSet(images.images[2:], images.labels[2:], images.classes), ["raw"], seed=2, batch=2
    )
    assert_close(one[:, 2:], later.deletion)  # a part is drawn by the seed and the place where it begins


@pytest.mark.parametrize("start", [0, 2])
def test_through_one_layer_flows_what_its_pipes_hold(start):
    image = record(3, 3)
    expected = image.weights().mean(1)[:, start] / 2
    expected[:, start] += 0.5  # what the residual carries
    assert_close(flow([image], start), expected)


def test_the_raw_map_is_of_the_layer_and_head_that_are_asked_for():
    model = randomised(ViT(ViTConfig(**SMALL, depth=2))).eval()
    image = torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    with watch(model) as seen, torch.no_grad():
        model(pixels_of(image[None], model))
    for layer, each in enumerate(seen.values()):
        rows = each.row(0)[0]
        for head, expected in ((0, rows[0]), (1, rows[1]), ("mean", rows.mean(0)), ("max", rows.amax(0))):
            assert_close(explain(model, image, "raw", layer=layer, head=head).values, expected)
        assert not torch.allclose(rows[0], rows[1])


@pytest.mark.parametrize("apart", ["words", "pictures"])
def test_maps_that_differ_in_just_enough_raise_no_alarm(apart, monkeypatch):
    monkeypatch.setattr("pellucid.explain.heads.SAME", 0.25)
    monkeypatch.setattr("pellucid.explain.heads.CENTRED", 9.0)
    whole, less, much = (torch.tensor([share, 1 - share, 0, 0]) for share in (1.0, 0.875, 0.75))

    def alarms(other):
        maps = [torch.stack([whole, other])] if apart == "words" else [whole[None], other[None]]
        return caption_health(maps, (2, 2)).alarms

    assert alarms(much) == ()
    assert [apart in alarm for alarm in alarms(less)] == [True]


def test_the_gradient_weighted_map_is_the_same_a_few_rows_at_a_time(monkeypatch):
    model = randomised(ViT(ViTConfig(**SMALL, depth=2)).double()).eval()
    image = torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    at_once = explain(model, image, "gradient", target=1).values
    monkeypatch.setattr("pellucid.ops.exact._BLOCK_NUMBERS", {"cpu": 200})  # of 17 queries, 5
    assert_close(explain(model, image, "gradient", target=1).values, at_once)


def test_in_one_step_everything_is_taken_away_or_put_back():
    def probabilities(images):
        return torch.stack([1 - images.mean((1, 2, 3)), images.mean((1, 2, 3))], 1)

    pixels, targets = torch.ones(2, 1, 4, 4), torch.ones(2).long()
    found = measure_curves(probabilities, pixels, pixels * 0, torch.rand(1, 2, 4), targets, (2, 2), steps=1)
    assert found.deletion.tolist() == [[[1.0, 0.0], [1.0, 0.0]]]
    assert found.insertion.tolist() == [[[0.0, 1.0], [0.0, 1.0]]]
    assert measure_curves(probabilities, pixels, pixels * 0, torch.rand(1, 2, 4), targets, (2, 2), steps=4)
    for steps in (0, 5):
        with pytest.raises(ValueError, match=f"steps is {steps}; expected 1…4, the number of patches"):
            measure_curves(probabilities, pixels, pixels * 0, torch.rand(1, 2, 4), targets, (2, 2), steps=steps)


@pytest.mark.parametrize("draws", [1, 2, 2**20 + 1])
def test_an_interval_is_of_as_many_draws_as_are_asked_for(draws):
    """Of two numbers, 2¹⁹ draws are made at once."""
    values, generator = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.Generator().manual_seed(0)
    means = [
        values[torch.randint(2, (min(2**19, draws - done), 2), generator=generator)].mean(1)
        for done in range(0, draws, 2**19)
    ]
    found = bootstrap_mean(values, draws=draws)
    bounds = torch.cat(means).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, *bounds.tolist()))


def test_a_trace_may_keep_one_answer():
    model = randomised(ViT(ViTConfig(**SMALL, depth=1))).eval()
    image = torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    best, *_ = trace(model, image, methods=(), top=3).answers
    assert trace(model, image, methods=(), top=1).answers == (best,)
    with pytest.raises(ValueError, match="top is 0; expected one or more"):
        trace(model, image, methods=(), top=0)


# Chains, beside whole maps, products of matrices and gradients by autograd, for masks of any kind and heads that share


def exact_record(tokens=5, keys=None, heads=4, groups=2, kind="none", b=2, beta=0.4, name="attention"):
    """A record in float64 that knows the gradient of Σ output·weight, and the map and its gradient beside it."""
    keys = tokens if keys is None else keys
    q = torch.randn(b, heads, tokens, 8, dtype=torch.float64)
    k, v = (torch.randn(b, groups, keys, 8, dtype=torch.float64) for _ in range(2))
    mask, causal = make_mask(kind, b=b, h=heads, n_q=tokens, n_k=keys)
    out, p = truth(q, k, v, mask, beta, causal)
    felt = torch.randn_like(out)
    live = out.clone().requires_grad_()
    live.grad = felt
    slope = felt @ v.repeat_interleave(heads // groups, 1).mT
    record = Record(name, q, k, v, mask, beta, causal, 0.0, out, {"output": (live, lambda x: x)})
    return record, p, (p * slope).clamp(min=0).mean(1)


KINDS = ("none", "causal", "padding", "boolean", "alibi", "dead")


@pytest.fixture(params=[10**6, 2 * 4 * 5 * 2], ids=["one block", "blocks of two rows"])
def blocks(request, monkeypatch):
    monkeypatch.setattr("pellucid.ops.exact._BLOCK_NUMBERS", {"cpu": request.param})


@pytest.mark.parametrize("kinds", [("none", "boolean", "alibi"), ("causal", "dead", "padding"), ("none",)])
@pytest.mark.parametrize("start", [0, 4, -1, -5, "weights"])
def test_chains_of_self_attention_are_products_of_matrices(kinds, start, blocks):
    made = [exact_record(kind=kind) for kind in kinds]
    records, eye = [record for record, *_ in made], torch.eye(5, dtype=torch.float64)
    weights = torch.rand(2, 5, dtype=torch.float64) if start == "weights" else eye[start].expand(2, -1)
    begin = weights if start == "weights" else start
    rolled = relevance = eye
    for _, p, kept in made:
        rolled = (p.mean(1) + eye) / 2 @ rolled
        relevance = relevance + kept @ relevance
    assert_close(chains.rollout(records, begin), torch.einsum("bq,bqk->bk", weights, rolled), rtol=0, atol=1e-10)
    found = chains.gradient_weighted(records, begin)
    assert_close(found, torch.einsum("bq,bqk->bk", weights, relevance - eye), rtol=0, atol=1e-10)
    assert_close(chains.gradient_weighted({r.name + str(i): r for i, r in enumerate(records)}, begin), found)
    spread = torch.einsum("bq,bhqk->bhk", weights, made[-1][1])
    for head, expected in (("mean", spread.mean(1)), ("max", spread.amax(1)), (0, spread[:, 0]), (-1, spread[:, 3])):
        assert_close(chains.raw(records[-1], begin, head=head), expected, rtol=0, atol=1e-10)
    assert_close(chains.raw(records[-1], begin, head=-4), spread[:, 0], rtol=0, atol=1e-10)
    for head in (4, -5, 1.0, "min"):
        with pytest.raises(ValueError, match="expected 'mean', 'max' or one of the heads 0…3"):
            chains.raw(records[-1], begin, head=head)


def normalised_relevance(r, eye):
    sums = (r - eye).sum(-1, keepdim=True)
    return torch.where(sums > 0, (r - eye) / sums.clamp(min=1e-300), 0.0) + eye


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("own", [(True,), (True, True), (False, True), (True, False)])
@pytest.mark.parametrize("residual", [0.5, 0.2])
def test_chains_through_a_decoder_are_products_of_matrices(depth, own, residual, blocks):
    encoder = [exact_record(kind="boolean") for _ in range(depth)]
    layers = [
        (exact_record(3, 3, kind="causal") if there else None, exact_record(3, 5, kind="padding")) for there in own
    ]
    decoder = [(None if mine is None else mine[0], cross[0]) for mine, cross in layers]
    records = [record for record, *_ in encoder]
    words, image = torch.eye(3, dtype=torch.float64).expand(2, 3, 3), torch.eye(5, dtype=torch.float64)
    rolled = relevance = image.expand(2, 5, 5)
    for _, p, kept in encoder:
        rolled = (residual * image + (1 - residual) * p.mean(1)) @ rolled
        relevance = relevance + kept @ relevance
    drawn = across = torch.zeros(2, 3, 5, dtype=torch.float64)
    left, r = words, words
    for mine, cross in layers:
        if mine is not None:
            mixed = residual * words + (1 - residual) * mine[1].mean(1)
            drawn, left = mixed @ drawn, mixed @ left
            across, r = across + mine[2] @ across, r + mine[2] @ r
        drawn, left = residual * drawn + (1 - residual) * cross[1].mean(1), residual * left
        across = across + normalised_relevance(r, words).mT @ cross[2] @ normalised_relevance(relevance, image)
    weights = torch.rand(2, 3, dtype=torch.float64)
    for begin, chosen in ((0, words[:, 0]), (-1, words[:, 2]), (weights, weights)):
        of_image, of_words = chains.rollout_decoder(decoder, records, begin, residual=residual)
        assert_close(of_image, torch.einsum("bq,bqk->bk", chosen, drawn @ rolled), rtol=0, atol=1e-10)
        assert_close(of_words, torch.einsum("bq,bqk->bk", chosen, left), rtol=0, atol=1e-10)
        found = chains.gradient_weighted_decoder(decoder, records, begin)
        assert_close(found, torch.einsum("bq,bqk->bk", chosen, across), rtol=0, atol=1e-10)
    plain = chains.rollout_decoder(decoder, records, 1)
    assert_close(plain[0], chains.rollout_decoder(decoder, records, 1, residual=0.5)[0])


@pytest.mark.parametrize("residual", [0.0, 1.0])
def test_all_or_nothing_may_pass_by_a_decoder(residual):
    cross, p, _ = exact_record(3, 5)
    of_image, of_words = chains.rollout_decoder([(None, cross)], [], 2, residual=residual)
    assert_close(of_image, (1 - residual) * p.mean(1)[:, 2], rtol=0, atol=1e-12)
    assert_close(of_words, residual * torch.eye(3, dtype=torch.float64)[2].expand(2, -1))
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match="expected a share between 0 and 1"):
            chains.rollout_decoder([(None, cross)], [], 2, residual=wrong)


def test_chains_that_do_not_fit_are_refused_in_a_sentence():
    mine, cross, image = exact_record(3, 3)[0], exact_record(3, 5)[0], exact_record(5)[0]
    chains.check_decoder([(mine, cross), (None, cross)], [image])
    for decoder, encoder in (
        ([], [image]),
        ([(image, cross)], [image]),
        ([(mine, cross)], [mine]),
        ([(mine, exact_record(4, 5)[0]), (mine, cross)], [image]),
        ([(mine, exact_record(3, 4)[0]), (mine, cross)], [image]),
        ([(exact_record(3, 4)[0], cross)], [image]),
        ([(mine, cross)], [exact_record(5, 4)[0]]),
        ([(mine, cross)], [exact_record(4, 5)[0]]),
    ):
        with pytest.raises(ValueError, match=r"expected|at least one layer"):
            chains.check_decoder(decoder, encoder)
    for start in (3, -4):
        with pytest.raises(ValueError, match=f"start is {start}; expected a token in 0…2"):
            chains.weigh_start(start, cross)
    for start in (torch.ones(2, 5), torch.ones(3, 3), torch.ones(3)):
        with pytest.raises(ValueError, match=r"expected \(b t\) = \[2, 3\]"):
            chains.weigh_start(start, cross)
    assert chains.weigh_start(-3, cross).tolist() == [[1.0, 0.0, 0.0]] * 2
    half = Record("half", *(x.bfloat16() for x in (cross.q, cross.k, cross.v)), None, 0.4, False, 0.0, cross.output)
    assert chains.weigh_start(0, half).dtype == chains.weigh_start(torch.ones(2, 3), half).dtype == torch.float32


def test_the_gradient_of_an_answer_reaches_the_records_and_no_parameter():
    model = randomised(ViT(ViTConfig(**SMALL, depth=2))).eval()
    with watch(model, gradients=True) as seen:
        logits = model(torch.randn(2, 3, 16, 16))
    first, second = logits[:, 0].sum(), logits[:, 1].sum()
    chains.backward(first, seen, keep_graph=True)
    gradients = [record.gradient("output").clone() for record in seen.values()]
    chains.backward(second, seen, keep_graph=True)
    assert not torch.allclose(gradients[0], next(iter(seen.values())).gradient("output"))
    chains.backward(first, seen)
    for record, expected in zip(seen.values(), gradients, strict=True):
        assert_close(record.gradient("output"), expected)
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(RuntimeError, match="second time"):
        chains.backward(first, seen)


# Flow


@pytest.mark.parametrize("start", [1, "weights"])
def test_flow_is_as_exact_as_it_says(start):
    """Through one layer what flows is what its pipes hold; through two, no more than the narrowest of the ways."""
    one, p, _ = exact_record(kind="boolean")
    weights = torch.rand(2, 5, dtype=torch.float64) / 5 if start == "weights" else None
    read = torch.eye(5, dtype=torch.float64)[1].expand(2, -1) if weights is None else weights
    pipes = (p.mean(1) + torch.eye(5, dtype=torch.float64)) / 2
    expected = torch.minimum(read[..., None], pipes).sum(1)
    assert_close(flow([one], 1 if weights is None else weights), expected, rtol=0, atol=2e-10)
    two, q, _ = exact_record()
    above = (q.mean(1) + torch.eye(5, dtype=torch.float64)) / 2
    both = flow([one, two], 1 if weights is None else weights)
    ways = torch.minimum(above[..., None], pipes[:, None])  # from each token of the middle
    assert (both <= torch.minimum(read[..., None], above).sum(1).sum(1, keepdim=True) + 1e-9).all()
    assert (both <= pipes.sum(1) + 1e-9).all()
    assert ways.shape == (2, 5, 5, 5)


def test_next_to_nothing_flows_through_the_narrowest_pipes():
    """Narrower than any unit of the first count."""
    one, p, _ = exact_record(beta=6.0)
    pipes = (p.mean(1) + torch.eye(5, dtype=torch.float64)) / 2
    assert 0 < pipes.min() < 2**-30
    for start in range(5):
        assert_close(flow([one], start), pipes[:, start], rtol=0, atol=2e-10)


def test_flow_of_words_and_its_limit(monkeypatch):
    cross, p, _ = exact_record(3, 5)
    expected = p.mean(1)[:, 1] / 2
    assert_close(flow_decoder([(None, cross)], [], 1), expected, rtol=0, atol=2e-10)
    monkeypatch.setattr("pellucid.explain.flow.LIMIT", 5)
    flow_decoder([(None, cross)], [exact_record(5)[0]], 1)
    for decoder, encoder in (
        ([(None, exact_record(3, 6)[0])], []),
        ([(None, exact_record(6, 3)[0])], []),
        ([], [exact_record(6)[0]]),
        ([(exact_record(6)[0], exact_record(6, 3)[0])], []),
    ):
        with pytest.raises(ValueError, match="for 5 tokens at most; got 6"):
            flow_decoder(decoder, encoder, 0)


def test_records_may_be_given_by_their_names():
    """As `watch` keeps them."""
    encoder, cross, mine = exact_record(5, name="e")[0], exact_record(3, 5, name="c")[0], exact_record(3, name="m")[0]
    for call in (flow, chains.rollout, chains.gradient_weighted):
        assert_close(call({"e": encoder}, 1), call([encoder], 1))
    for call in (flow_decoder, chains.rollout_decoder, chains.gradient_weighted_decoder):
        assert_close(call([(mine, cross)], {"e": encoder}, 1), call([(mine, cross)], [encoder], 1))
    assert [layer.name for layer in report_heads({"e": encoder, "c": cross})] == ["e", "c"]


# Looks


def vit(**changes):
    return randomised(ViT(ViTConfig(**SMALL | {"depth": 2} | changes))).eval()


def test_layers_and_targets_at_their_bounds():
    records = ["a", "b", "c"]
    assert [pick_layer(records, i) for i in (0, 2, -1, -3)] == ["a", "c", "c", "a"]
    for layer in (3, -4):
        with pytest.raises(ValueError, match=f"layer is {layer}; expected one of 0…2, or −1 for the last"):
            pick_layer(records, layer)
    names = ("a", "b", "c")
    assert [target_of(target, names) for target in (0, 2, "a", "c", None)] == [0, 2, 0, 2, None]
    for target in (-1, 3, "d"):
        with pytest.raises(ValueError, match="expected"):
            target_of(target, names)
    assert class_names(vit()) == ("0", "1", "2")
    assert class_names(vit(), names) == names
    for wrong in (("a", "b"), ("a", "b", "c", "d")):
        with pytest.raises(ValueError, match=f"labels names {len(wrong)} classes; expected 3"):
            class_names(vit(), wrong)
    assert [needs_gradient([m]) for m in ("raw", "rollout", "flow", "gradient", "input gradient", "random")] == [
        False, False, False, True, True, False
    ]  # fmt: skip
    assert needs_gradient(iter(["raw", "gradient"]))
    assert not needs_gradient([])


def test_a_look_takes_gradients_only_if_they_will_be_asked_for():
    model, image = vit(), torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    pixels = pixels_of(image[None], model)
    for gradients in (True, False):
        look = look_at(model, pixels, 1, gradients=gradients)
        assert look.inputs.requires_grad == look.score.requires_grad == gradients
        assert look.grid == (4, 4)
        assert not pixels.requires_grad
    assert look_at(model, pixels, 1).score.requires_grad  # unless told otherwise
    assert_close(look_at(model, pixels, None).score, model(pixels).amax(1))
    random = look.map("random", seed=3)
    assert torch.equal(random, torch.rand(1, 17, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(look.map("random"), random_map(look.records[0], 0))
    with pytest.raises(ValueError, match="no self-attention is named"):
        Look.at(model, pixels, lambda logits: logits[:, 0], layers=[])
    some = Look.at(model, pixels, lambda logits: logits[:, 0], layers=["blocks.1.attention"])
    assert [record.name for record in some.records] == ["blocks.1.attention"]
    with pytest.raises(ValueError, match="neither 17 tokens"):
        Look.at(model, pixels, lambda logits: logits[:, 0]).map("input gradient")


def test_words_are_given_maps_from_their_own_draws_and_the_last_layer():
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    model, image = captioner(tokenizer, steps=5), pictures()[0]
    maps = explain_caption(model, tokenizer, image, "random", caption="a red dog", seed=4)
    for word, each in enumerate(maps):
        assert torch.equal(each.values, torch.rand(1, 8, generator=torch.Generator().manual_seed(4 + word))[0])
    plain = explain_caption(model, tokenizer, image, "random", caption="a red dog")
    assert torch.equal(plain[1].values, torch.rand(1, 8, generator=torch.Generator().manual_seed(1))[0])
    tokens = torch.tensor([tokenizer.encode("a red dog")])
    look = WordLook.of(model, pixels_of(image[None], model.encoder), tokens)
    for method in ("raw", "gradient", "input gradient"):
        for layer, head in ((-1, "mean"), (0, 1)):
            maps = explain_caption(model, tokenizer, image, method, caption="a red dog", layer=layer, head=head)
            for word in range(3):
                assert_close(maps[word].values, look.map(method, word, layer=layer, head=head)[0])
        assert_close(
            explain_caption(model, tokenizer, image, method, caption="a red dog")[2].values, look.map(method, 2)[0]
        )
    assert look.scores.requires_grad
    assert not WordLook.of(model, pixels_of(image[None], model.encoder), tokens, gradients=False).scores.requires_grad
    assert torch.equal(replace(look, decoder=look.decoder[:1]).map("random", 2), look.map("random", 2))
    with pytest.raises(ValueError, match="method is 'magic'"):
        look.map("magic", 0)
    longest = " ".join(["a"] * 16)
    assert len(explain_caption(model, tokenizer, image, "raw", caption=longest)) == 16
    assert len(explain_caption(model, tokenizer, image, "raw", caption="birds")) == 1
    for wrong in ("", longest + " a"):
        with pytest.raises(ValueError, match="expected 1…16"):
            explain_caption(model, tokenizer, image, "raw", caption=wrong)


def test_what_is_said_of_a_picture_is_searched_for_with_five_beams(monkeypatch):
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    model, image = captioner(tokenizer, steps=5), pictures()[0]
    beams = []

    def noted(*a, **k):
        beams.append(k["beam"])
        return write_captions(*a, **k)

    for room in ("words", "trace"):  # the second is a function's name, too
        monkeypatch.setattr(sys.modules[f"pellucid.explain.{room}"], "write_captions", noted)
    for call in (
        lambda **k: explain_caption(model, tokenizer, image, "raw", **k),
        lambda **k: trace_caption(model, tokenizer, image, methods=(), **k),
        lambda **k: timelapse_caption([(1, model)], tokenizer, image, "raw", **k),
    ):
        beams.clear()
        call()
        call(beam=2)
        assert beams == [5, 2]
    said = write_captions(model, tokenizer, image[None])[0][0]
    beams.clear()
    found = trace_caption(model, tokenizer, image, caption=said)
    assert beams == []
    assert [word for word, _ in found.words] == list(said.words)
    assert {each.method for each in found.maps} == {"rollout", "gradient"}


@pytest.mark.parametrize("pooling", ["class", "mean"])
@pytest.mark.parametrize("registers", [0, 2])
def test_the_tokens_of_an_image_in_their_order(pooling, registers):
    tokens = image_tokens(vit(pooling=pooling, registers=registers), (2, 3))
    extra = (["class"] if pooling == "class" else []) + [f"register {i + 1}" for i in range(registers)]
    assert tokens.labels == (*extra, *(f"patch {y},{x}" for y in range(2) for x in range(3)))
    assert (tokens.name, tokens.grid) == ("image", (2, 3))


def test_a_trace_keeps_five_answers_and_the_lengths_of_values_unless_told_otherwise():
    model, image = vit(classes=9), torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    found = trace(model, image)
    assert len(found.answers) == 5
    shares = model(pixels_of(image[None], model))[0].softmax(-1).sort(descending=True).values
    assert [share for _, share in found.answers] == pytest.approx(shares[:5].tolist(), rel=1e-5)
    assert [each.method for each in found.maps] == ["rollout", "gradient"]
    assert len(trace(model, image, top=20).answers) == 9
    assert not any(each.values.requires_grad for each in found.maps)
    with watch(model) as seen, torch.no_grad():
        model(pixels_of(image[None], model))
    for layer, record in zip(found.layers, seen.values(), strict=True):
        assert_close(layer.values, record.v[0].square().sum(-1).sqrt())
        assert_close(layer.q, record.q[0])
        assert not layer.q.requires_grad


def test_a_model_is_explained_as_it_answers_and_left_as_it_was():
    model = ViT(ViTConfig(**SMALL | {"depth": 2, "dropout": 0.5}))
    randomised(model)
    image = torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    expected = explain(model.eval(), image, "gradient", target=1).values
    model.train()
    assert_close(explain(model, image, "gradient", target=1).values, expected)
    assert_close(trace(model, image, target=1, methods=["gradient"]).maps[0].values, expected)
    (moment,) = timelapse([(3, model)], image, target=1)
    assert_close(moment.map.values, expected)
    assert model.training


# Heads


@pytest.mark.parametrize("kind", ["none", "causal", "boolean"])
@pytest.mark.parametrize("extra", [0, 2])
def test_the_report_of_heads_is_that_of_whole_maps(kind, extra, blocks):
    n = 6 + extra
    record, p, _ = exact_record(n, kind=kind)
    (found,) = report_heads([record], (2, 3))
    assert_close(found.entropy, -(p * p.clamp(min=1e-300).log()).sum(-1).mean((0, 2)), rtol=0, atol=1e-10)
    assert_close(found.extra, p[..., :extra].sum(-1).mean((0, 2)), rtol=0, atol=1e-10)
    places = torch.tensor([(y, x) for y in range(2) for x in range(3)], dtype=torch.float64)
    among = p[:, :, extra:, extra:]
    far = (among * torch.cdist(places, places)).sum((2, 3)) / among.sum((2, 3))
    assert_close(found.distance, far.mean(0), rtol=0, atol=1e-10)
    flat = F.normalize(p.flatten(2), dim=-1)
    assert_close(found.similarity, (flat @ flat.mT).mean(0), rtol=0, atol=1e-10)
    assert found.name == "attention"
    with pytest.raises(ValueError, match="patches at least"):
        report_heads([record], (3, 3))


@pytest.mark.parametrize("grid", [(4, 4), (6, 8), (5, 7), (1, 3), (2, 9)])
def test_the_middle_is_the_patches_whose_centre_lies_in_the_middle_half(grid):
    rows, columns = grid
    inside = [
        abs((y + 0.5) / rows - 0.5) < 0.25 and abs((x + 0.5) / columns - 0.5) < 0.25
        for y, x in itertools.product(range(rows), range(columns))
    ]
    maps = torch.rand(3, rows * columns, dtype=torch.float64)
    found = caption_health([maps[:2], maps[2:]], grid)
    shares = maps / maps.sum(1, keepdim=True)
    mean = (shares[:2].mean(0) + shares[2]) / 2
    assert found.even_centre == pytest.approx(sum(inside) / len(inside))
    assert found.centre == pytest.approx(mean[torch.tensor(inside)].sum().item())
    assert found.between_words == pytest.approx((shares[0] - shares[1]).abs().sum().item() / 2)
    assert found.between_pictures == pytest.approx((shares[:2].mean(0) - shares[2]).abs().sum().item() / 2)


def test_alarms_come_just_beyond_their_bounds():
    """Twice what an even map has in the middle, and a twentieth of the mass."""
    assert (SAME, CENTRED) == (0.05, 2.0)

    def centred(share):
        corners = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) * (1 - share)
        middle = torch.zeros(16)
        middle[5] = share
        return caption_health([(corners + middle)[None]], (4, 4)).alarms

    assert centred(0.5) == ()
    assert len(centred(0.5625)) == 1
    for apart, alarms in ((1 / 16, 0), (1 / 32, 1)):
        one, other = torch.zeros(2, 16)
        one[0], other[0], other[15] = 1.0, 1 - apart, apart
        assert len(caption_health([torch.stack([one, other])], (4, 4)).alarms) == alarms
        assert len(caption_health([one[None], other[None]], (4, 4)).alarms) == alarms
    nothing = caption_health([torch.stack([torch.zeros(16), -torch.ones(16)])], (4, 4))
    assert (nothing.between_words, nothing.centre) == (0.0, 0.25)  # a map of nothing is even
    pairs = caption_health([torch.eye(16)[[0, 0, 15]]], (4, 4))
    assert pairs.between_words == pytest.approx(2 / 3)


# Faithfulness


@pytest.mark.parametrize("patch", [(2, 2), (1, 4), (3, 1)])
def test_blurred_is_a_gaussian_as_wide_as_a_patch_cut_at_three_of_them(patch):
    pixels = torch.randn(2, 3, 16, 12, dtype=torch.float64)
    expected = pixels
    for axis, sigma in ((2, patch[0]), (3, patch[1])):
        n, out = expected.shape[axis], torch.zeros_like(expected)
        offsets = range(-3 * sigma, 3 * sigma + 1)
        weights = [math.exp(-(o**2) / (2 * sigma**2)) for o in offsets]
        for o, weight in zip(offsets, weights, strict=True):
            at = (torch.arange(n) + o).clamp(0, n - 1)  # the edge goes on
            out += weight / sum(weights) * expected.index_select(axis, at)
        expected = out
    assert_close(fill_patches(pixels, "blur", patch), expected, rtol=0, atol=1e-12)


def test_curves_beside_one_picture_at_a_time():
    """Patches of 2 × 3 pixels, two maps, three pictures; what is replaced is not zero."""
    torch.manual_seed(1)
    pixels, other = torch.rand(3, 2, 4, 9), torch.rand(3, 2, 4, 9)
    weight = torch.randn(72, 4)
    values, targets = torch.rand(2, 3, 6), torch.tensor([0, 3, 1])

    def probabilities(x):
        return (x.flatten(1) @ weight).softmax(-1)

    found = measure_curves(probabilities, pixels, other, values, targets, (2, 3), steps=4)
    for method, i, step in itertools.product(range(2), range(3), range(5)):
        count = round(step * 6 / 4)
        order = values[method, i].argsort(descending=True).tolist()
        taken = other[i].clone(), pixels[i].clone()
        for place in order[:count]:
            y, x = place // 3 * 2, place % 3 * 3
            taken[0][:, y : y + 2, x : x + 3] = pixels[i, :, y : y + 2, x : x + 3]
            taken[1][:, y : y + 2, x : x + 3] = other[i, :, y : y + 2, x : x + 3]
        inserted, deleted = (probabilities(each[None])[0, targets[i]] for each in taken)
        assert_close(found.insertion[method, i, step], inserted)
        assert_close(found.deletion[method, i, step], deleted)


def test_what_is_measured_is_eight_steps_in_float32_in_the_seeds_order():
    model = vit()
    some = ImageSet(torch.randint(256, (3, 3, 16, 16), dtype=torch.uint8), torch.zeros(3).long(), ("a", "b", "c"))
    told = []
    plain = faithfulness(model, some, ("raw", "random"), progress=told.append)
    assert plain.deletion.shape == (2, 3, 9)
    assert told == [3]
    same = faithfulness(
        model, some, ("raw", "random"), fill="blur", steps=8, batch=64, seed=0, half=False, progress=None
    )
    assert torch.equal(plain.deletion, same.deletion)
    assert torch.equal(plain.insertion, same.insertion)
    for other in ({"half": True}, {"seed": 1}, {"fill": "mean"}):
        assert not torch.allclose(
            plain.deletion, faithfulness(model, some, ("raw", "random"), **other).deletion, atol=1e-6
        )
    told.clear()
    parts = faithfulness(model, some, ("raw",), batch=2, progress=told.append)
    assert told == [2, 3]
    assert_close(parts.deletion[0], plain.deletion[0])
    assert_close(plain.deletion[0, :, 0], model(pixels_of(some.images, model)).softmax(-1).amax(1).detach())
    assert not plain.deletion.requires_grad
    for wrong in ((), ("magic",)):
        with pytest.raises(ValueError, match="expected one"):
            faithfulness(model, some, wrong)
    with pytest.raises(ValueError, match="0 images"):
        faithfulness(model, ImageSet(some.images[:0], some.labels[:0], some.classes), ("raw",))


def test_areas_and_their_differences():
    deletion, insertion = torch.rand(2, 30, 5), torch.rand(2, 30, 5)
    found = Faithfulness(("raw", "random"), deletion, insertion)
    areas = (deletion[..., 1:] + deletion[..., :-1]).double().sum(-1) / 8
    assert_close(areas_under(deletion), areas)
    assert found.area("deletion", "random") == pytest.approx(bootstrap_mean(areas[1]))
    assert found.area("deletion", "raw", beside="random") == pytest.approx(bootstrap_mean(areas[0] - areas[1]))
    assert found.area("insertion", "raw").mean == pytest.approx(areas_under(insertion)[0].mean().item())
    values = torch.rand(40)
    assert bootstrap_mean(values) == bootstrap_mean(values, draws=10_000, seed=0)
    assert bootstrap_mean(values) != bootstrap_mean(values, draws=10_001) != bootstrap_mean(values, seed=1)
    assert not ranks(torch.zeros(4, 9)).equal(ranks(torch.zeros(4, 9), seed=1))
    assert ranks(torch.zeros(4, 9)).equal(ranks(torch.zeros(4, 9), seed=0))


# What inner functions do unless told otherwise, and models of one layer and of three


def test_curves_ranks_and_looks_unless_told_otherwise():
    torch.manual_seed(0)
    pixels, targets = torch.rand(2, 1, 4, 4), torch.zeros(2).long()

    def probabilities(images):
        return torch.stack([images.mean((1, 2, 3)), 1 - images.mean((1, 2, 3))], 1)

    even = torch.zeros(1, 2, 16)  # ties, which the seed puts in an order
    plain = measure_curves(probabilities, pixels, pixels * 0, even, targets, (4, 4))
    told = measure_curves(probabilities, pixels, pixels * 0, even, targets, (4, 4), steps=8, seed=0)
    other = measure_curves(probabilities, pixels, pixels * 0, even, targets, (4, 4), seed=1)
    assert plain.deletion.shape == (1, 2, 9)
    assert torch.equal(plain.deletion, told.deletion)
    assert not torch.equal(plain.deletion, other.deletion)
    values = torch.zeros(3, 50)
    assert torch.equal(ranks(values), ranks(values, 0))
    assert not torch.equal(ranks(values), ranks(values, 1))
    values[1, 7] = math.nan
    with pytest.raises(ValueError, match="a map holds numbers that are NaN or infinite"):
        ranks(values)
    model = vit()
    some = ImageSet(torch.randint(256, (3, 3, 16, 16), dtype=torch.uint8), torch.zeros(3).long(), ("a", "b", "c"))
    assert faithfulness(model, some, ["raw"], steps=3).insertion.shape == (1, 3, 4)
    look = Look.at(model, pixels_of(some.images, model), lambda logits: logits[:, 1])
    assert_close(look.map("raw"), look.records[-1].row(0).mean(1))  # of the last layer, read at the first token
    assert torch.equal(look.map("random"), look.map("random", seed=0))


@pytest.mark.parametrize("depth", [1, 3])
def test_a_classifier_of_any_depth_is_explained_by_its_last_layer_unless_asked_otherwise(depth):
    model = vit(depth=depth)
    image = torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    pixels = pixels_of(image[None], model)
    with watch(model) as seen, torch.no_grad():
        logits = model(pixels)
    layers = list(seen.values())
    assert_close(explain(model, image, "raw").values, layers[-1].row(0)[0].mean(0))
    assert_close(explain(model, image, "raw", layer=depth - 1, head="max").values, layers[-1].row(0)[0].amax(0))
    assert torch.equal(explain(model, image, "random").values, explain(model, image, "random", seed=0).values)
    assert not torch.equal(explain(model, image, "random").values, explain(model, image, "random", seed=1).values)
    look = Look.at(model, pixels, lambda logits: logits[:, 2], read="mean", grid=(4, 4))
    assert_close(look.start, torch.full((1, 17), 1 / 17))
    assert_close(look.map("raw"), layers[-1].weights().mean((1, 2)))
    assert_close(look.map("rollout"), chains.rollout(layers, look.start))
    live = pixels.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(live)[:, 2].sum(), live)
    felt = (slope * pixels).abs().sum(1).unflatten(2, (4, 4)).unflatten(1, (4, 4)).sum((2, 4)).flatten(1)
    for _ in range(2):  # it may be asked again
        assert_close(look.map("input gradient"), F.pad(felt, (1, 0)))
    assert look.map("gradient", last=True).shape == (1, 17)
    for method in ("flow", "gradient"):
        assert explain(model, image, method).target == str(int(logits.argmax()))
    with pytest.raises(ValueError, match="read is 'first'; expected a token's number, 'mean' or weights"):
        Look.at(model, pixels, lambda logits: logits[:, 2], read="first")
    with pytest.raises(ValueError, match=r"score gives shape \[1, 3\], expected one number for each of 1"):
        Look.at(model, pixels, lambda logits: logits)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_captioner_of_any_depth_is_explained_by_its_last_layer_unless_asked_otherwise(layers):
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    model = randomised(deep_captioner(tokenizer, layers)).eval()
    image, said = pictures()[0], "a red dog"
    look = WordLook.of(model, pixels_of(image[None], model.encoder), torch.tensor([tokenizer.encode(said)]))
    assert len(look.decoder) == layers
    for word in range(3):
        expected = look.decoder[-1][1].row(word)[0]
        assert_close(look.map("raw", word)[0], expected.mean(0))
        assert_close(look.map("raw", word, head="max")[0], expected.amax(0))
        assert torch.equal(look.map("random", word), look.map("random", word, seed=0))
    maps = explain_caption(model, tokenizer, image, "raw", caption=said)
    assert_close(maps[2].values, look.decoder[-1][1].row(2)[0].mean(0))
    assert_close(look.map("input gradient", 1), look.map("input gradient", 1, last=True))
    for method in ("rollout", "flow", "gradient", "input gradient"):
        (first, *_) = explain_caption(model, tokenizer, image, method, caption=said)
        assert first.values.shape == (8,)
        assert first.values.isfinite().all()


def deep_captioner(tokenizer, layers):
    encoder = ViTConfig(
        image=(8, 12), patch=(4, 4), width=16, depth=layers, heads=2, registers=2, pooling="none",
        mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25),
    )  # fmt: skip
    config = CaptionerConfig(vocabulary=len(tokenizer), encoder=encoder, layers=layers, heads=2, max_length=16)
    return Captioner(config)


@pytest.mark.parametrize("pooling", ["class", "mean", "sequence"])
@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("norm_first", [True, False])
def test_what_the_head_reads_are_the_tokens_that_are_pooled_by_these_weights(pooling, registers, norm_first):
    model = vit(pooling=pooling, registers=registers, norm_first=norm_first)
    pixels = torch.randn(2, 3, 8, 16)  # 2 × 4 patches
    start = reading(model, pixels)
    extra = registers + (pooling == "class")
    weights = F.one_hot(torch.tensor([start, start]), extra + 8).float() if pooling == "class" else start
    assert weights.shape == (2, extra + 8)
    assert_close(weights.sum(1), torch.ones(2))
    if pooling != "class":
        assert not weights[:, :extra].any()
    with torch.no_grad():
        tokens = model.tokens(pixels)[0]
        tokens = model.norm(tokens) if norm_first else tokens
        pooled = torch.einsum("bt,btd->bd", weights, tokens)
        assert_close(model.head(pooled if norm_first else model.norm(pooled)), model(pixels))
    look = look_at(model, pixels, torch.tensor([2, 0]))
    assert_close(look.score, model(pixels)[[0, 1], [2, 0]])
    assert look.grid == (2, 4)
    with pytest.raises(ValueError, match="gives tokens and no answer"):
        reading(vit(pooling="none"), pixels)


def test_a_look_takes_the_inputs_off_whatever_graph_they_were_on():
    model, tokenizer = vit(), CaptionTokenizer.train(CAPTIONS, min_count=1)
    for gradients in (True, False):
        inputs = torch.randn(1, 3, 16, 16, requires_grad=True)
        look = Look.at(model, inputs * 2, lambda logits: logits[:, 0], grid=(4, 4), gradients=gradients)
        assert look.inputs.is_leaf
        assert look.inputs.requires_grad == gradients
        talking = deep_captioner(tokenizer, 1).eval()
        pixels = torch.randn(1, 3, 8, 12, requires_grad=True)
        words = WordLook.of(talking, pixels * 2, torch.tensor([[5, 6]]), gradients=gradients)
        assert words.pixels.is_leaf
        assert words.pixels.requires_grad == gradients
        if gradients:
            look.map("input gradient")
            words.map("input gradient", 0)
        assert (inputs.grad, pixels.grad) == (None, None)


def test_weights_that_one_layer_alone_has_dropped_are_noticed():
    class Two(torch.nn.Module):
        def forward(self, x):
            x = ops.attend(x[:, None], x[:, None], x[:, None])[:, 0]
            return ops.attend(x[:, None], x[:, None], x[:, None], dropout=self.dropout)[:, 0]

    model = Two()
    for model.dropout in (0.0, 0.5):
        if model.dropout:
            with pytest.raises(ValueError, match=r"dropped attention weights as it does in training; call model.eval"):
                Look.at(model, torch.randn(2, 5, 8), lambda x: x[:, 0, 0])
        else:
            look = Look.at(model, torch.randn(2, 5, 8), lambda x: x[:, 0, 0])
            felt = look.map("input gradient")
            assert felt.shape == (2, 5)  # inputs that are tokens are their own


def test_inputs_that_are_neither_tokens_nor_images_are_refused():
    x = torch.randn(1, 5, 4, requires_grad=True)
    assert input_gradient(x[..., 0].sum(), x, 5, None).shape == (1, 5)
    for grid in (None, (1, 5)):
        with pytest.raises(ValueError, match=r"inputs of shape \[1, 5, 4\] are neither 6 tokens"):
            input_gradient(x.sum(), x, 6, grid)
    images = torch.randn(1, 4, 2, 2, requires_grad=True)  # as many channels as tokens
    assert input_gradient(images.sum(), images, 4, (2, 2)).shape == (1, 4)
    with pytest.raises(ValueError, match="neither 4 tokens"):
        input_gradient(images.sum(), images, 4, None)
    with pytest.raises(ValueError, match="watched without gradients"):
        input_gradient(x.detach().sum(), x.detach(), 5, None)


# More of flow, of heads, and of traces


def test_flow_is_of_chains_alone_and_its_limit_is_of_whatever_is_longest():
    words, image, cross = exact_record(3)[0], exact_record(5)[0], exact_record(3, 5)[0]
    for decoder, encoder, why in (
        ([], [image, words], "expected 3 of both"),
        ([], [cross], "expected 3 of both"),
        ([(image, cross)], [image], "expected 3 of both"),
        ([(words, cross), (words, exact_record(3, 4)[0])], [], "expected 3 and 4"),
        ([], [], "at least one record"),
    ):
        with pytest.raises(ValueError, match=why):
            flow_decoder(decoder, encoder, 0)
    long = LIMIT + 1
    for decoder, encoder in (
        ([(None, record(long, 3))], []),
        ([(None, record(3, long))], []),
        ([(None, record(long, 3))], [record(3, 3)]),
        ([(None, record(3, 3))], [record(long, long)]),
    ):
        with pytest.raises(ValueError, match=f"for {LIMIT} tokens at most; got {long}"):
            flow_decoder(decoder, encoder, 0)
    assert flow_decoder([(None, record(LIMIT, 1))], [], 0).shape == (1, 1)


def test_nothing_flows_from_what_nobody_looks_at():
    """The last tokens of a context: no pipe leads to them."""
    q, k, v = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 4, 4), torch.randn(1, 1, 4, 4)
    mask = torch.tensor([True, True, False, False])
    cross = Record("c", q, k, v, mask, 0.5, False, 0.0, torch.zeros(1, 1, 2, 4))
    found = flow_decoder([(None, cross)], [], 1)
    assert_close(found[0, :2], cross.weights()[0, 0, 1, :2] / 2)
    assert found[0, 2:].tolist() == [0.0, 0.0]
    assert found.dtype == torch.float32
    assert flow([exact_record(3)[0]], 0).dtype == torch.float64


def test_the_report_of_float32_heads_is_summed_in_float64():
    q, k = torch.randn(1, 2, 60, 4), torch.randn(1, 2, 60, 4)
    layer = Record("a", q, k, k, None, 0.5, False, 0.0, torch.zeros(1, 2, 60, 4))
    p = layer.weights().double()
    (found,) = report_heads([layer], (6, 9))
    assert found.entropy.dtype == found.extra.dtype == found.distance.dtype == torch.float64
    assert_close(found.entropy, torch.special.entr(p).sum(-1).mean((0, 2)), rtol=1e-13, atol=0)
    assert_close(found.extra, p[..., :6].sum(-1).mean((0, 2)), rtol=1e-13, atol=0)
    flat = F.normalize(p.flatten(2), dim=-1)
    assert_close(found.similarity, (flat @ flat.mT).mean(0), rtol=1e-13, atol=0)


def test_heads_of_a_trace_are_reported_by_the_tokens_they_ask_and_are_asked():
    """Words have no place; two grids have no distance between them; one grid has, whatever stands before it."""

    def tokens(name, extra, grid):
        labels = tuple("x" * (extra + (grid[0] * grid[1] if grid else 0)))
        return Stream.patches(name, labels, grid, None) if grid else Stream(name, "text", labels)

    sizes = {"a": tokens("a", 1, (2, 2)), "b": tokens("b", 2, (2, 3)), "w": tokens("w", 3, None)}

    def layer(queries, keys):
        q, k = (torch.randn(2, len(sizes[name].labels), 4) for name in (queries, keys))
        return Layer(f"{queries}{keys}", queries, keys, q, k, 0.5, False, None, torch.ones(2, k.shape[1]))

    pairs = [("a", "a"), ("a", "b"), ("w", "a"), ("w", "w"), ("a", "w"), ("b", "b")]
    whole = Trace("m", "captioner", tuple(sizes.values()), (), tuple(layer(*pair) for pair in pairs), (), (), ())
    reports = {each.name: each for each in report_heads(whole)}
    assert {name for name, each in reports.items() if each.distance is not None} == {"aa", "bb"}
    assert {name for name, each in reports.items() if each.extra is None} == {"ww", "aw"}
    for name, each in reports.items():
        assert each.entropy.isfinite().all(), name
        if each.distance is not None:
            assert each.distance.isfinite().all()
    crossed = whole.layers[1]
    p = (0.5 * crossed.q.double() @ crossed.k.double().mT).softmax(-1)
    assert_close(reports["ab"].extra, p[..., :2].sum(-1).mean(-1), rtol=0, atol=1e-6)


def test_maps_of_any_sum_are_shares_and_what_is_less_than_nothing_is_nothing():
    maps = torch.tensor([[0.2, 0.1, 0.0, 0.1], [4.0, -3.0, 0.0, 4.0]])
    found = caption_health([maps], (2, 2))
    shares = torch.tensor([[0.5, 0.25, 0.0, 0.25], [0.5, 0.0, 0.0, 0.5]])
    assert found.between_words == pytest.approx((shares[0] - shares[1]).abs().sum().item() / 2)
    whole = caption_health([torch.tensor([[1.0, 0.2, 0.0, 0.0]])], (1, 4))
    assert whole.centre == pytest.approx(0.2 / 1.2)
    even = torch.ones(1, 16)
    for wrong in ([], [even, even[0]], [even, even[:0]], [even, even[:, :15]]):
        with pytest.raises(ValueError, match="expected \\(words patches\\) with 16 patches for one picture or more"):
            caption_health(wrong, (4, 4))


def test_what_a_trace_has_no_words_for_is_not_held():
    mine = replace(record(3, 3, "mine"), mask=Rule(after=(Times(torch.ones(3, 3)),)))
    with pytest.raises(
        ValueError, match=r"'mine' does to its scores what a trace has no words for: Rule\(after: Times"
    ):
        layer_of(mine, "image", "image")


def test_what_can_be_switched_off_is_what_was_seen():
    attention = MultiHeadAttention(8, heads=2)
    x = torch.randn(3, 4, 8)

    def score():
        return attention(x)[:, 0, 1]

    losses = ablate(attention, score)
    assert losses.keys() == ablate(attention, score, layers=[""]).keys() == {""}
    whole = score()
    for head in range(2):
        with watch(attention, change={"": Change(off=[head])}):
            assert_close(losses[""][head], (whole - score()).detach())
    assert not torch.allclose(losses[""][0], losses[""][1])
    assert not losses[""].requires_grad
    with pytest.raises(ValueError, match="no attention 'c' was seen; seen: ''"):
        ablate(attention, score, layers=["c", "", "b"])
