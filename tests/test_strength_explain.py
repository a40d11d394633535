"""What a mutation run found untested in explain."""

import pytest
import torch
from conftest import randomised
from speaking import CAPTIONS, captioner, pictures
from torch.testing import assert_close

from pellucid.data.images import ImageSet
from pellucid.data.tokenizer import NEVER, CaptionTokenizer
from pellucid.decode.captions import write_captions
from pellucid.explain import explain, faithfulness, trace
from pellucid.explain.faithfulness import bootstrap_mean, measure_curves
from pellucid.explain.flow import LIMIT, flow, flow_decoder
from pellucid.explain.heads import caption_health
from pellucid.explain.maps import pixels_of
from pellucid.models import ViT, ViTConfig
from pellucid.watching import watch
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
