"""The report of heads against whole maps, the health of a captioner's maps, and a run's time-lapse."""

import pytest
import torch
from conftest import randomised
from torch.testing import assert_close

from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.explain import (
    caption_health,
    explain,
    explain_caption,
    report_heads,
    timelapse,
    timelapse_caption,
    trace,
    trace_caption,
)
from pellucid.explain.maps import pixels_of
from pellucid.models import Captioner, CaptionerConfig, ViT, ViTConfig
from pellucid.ops import exact
from pellucid.watching import watch

CONFIG = ViTConfig(
    classes=3, image=(8, 12), patch=(4, 4), width=16, depth=2, heads=3, registers=1, mean=(0.5,) * 3, std=(0.25,) * 3
)


def vit(seed=0, **changes):
    torch.manual_seed(seed)
    config = ViTConfig(**(vars(CONFIG) | {"width": 24} | changes))
    return randomised(ViT(config)).eval()


def truth(maps):
    """The same numbers from whole maps (b h q k), one pair at a time; two tokens before 2 × 3 patches."""
    b, h, n, _ = maps.shape
    entropy = -(maps * maps.log()).sum(-1).mean((0, 2))
    extra = maps[..., :2].sum(-1).mean((0, 2))
    far, same = torch.zeros(b, h), torch.zeros(b, h, h)
    for i in range(b):
        for head in range(h):
            total, mass = 0.0, 0.0
            for query in range(2, n):
                for key in range(2, n):
                    dy, dx = (query - 2) // 3 - (key - 2) // 3, (query - 2) % 3 - (key - 2) % 3
                    total += maps[i, head, query, key] * (dy**2 + dx**2) ** 0.5
                    mass += maps[i, head, query, key]
            far[i, head] = total / mass
            for other in range(h):
                a, c = maps[i, head].flatten(), maps[i, other].flatten()
                same[i, head, other] = (a @ c) / (a.norm() * c.norm())
    return entropy, far.mean(0), extra, same.mean(0)


@pytest.mark.parametrize("block", [2**20, 3 * 8 * 2 * 3])  # in one block, and in blocks that cut through the patches
def test_head_report_equals_the_maps(block, monkeypatch):
    monkeypatch.setitem(exact._BLOCK_NUMBERS, "cpu", block)
    model = vit()
    with watch(model) as seen, torch.no_grad():
        model(torch.randn(2, 3, 8, 12))
    found = report_heads(seen, (2, 3))
    assert [layer.name for layer in found] == list(seen)
    for layer, record in zip(found, seen.values(), strict=True):
        expected = truth(record.weights())
        for mine, theirs in zip((layer.entropy, layer.distance, layer.extra, layer.similarity), expected, strict=True):
            assert_close(mine, theirs.double(), rtol=0, atol=1e-5)
        assert_close(layer.similarity.diagonal(), torch.ones(3, dtype=torch.float64))
        assert layer.similarity[0, 1] < 0.999
    (alone,) = report_heads([seen["blocks.0.attention"]])
    assert alone.distance is None
    assert alone.extra is None
    with pytest.raises(ValueError, match=r"has 8 keys, expected the \(4, 4\) patches at least"):
        report_heads(seen, (4, 4))


def test_head_report_of_a_trace():
    model, image = vit(), torch.randint(256, (3, 8, 12), dtype=torch.uint8)
    with watch(model) as seen, torch.no_grad():
        model(pixels_of(image[None], model))
    for mine, theirs in zip(report_heads(trace(model, image, methods=())), report_heads(seen, (2, 3)), strict=True):
        assert_close(mine.entropy, theirs.entropy)
        assert_close(mine.distance, theirs.distance)
        assert_close(mine.similarity, theirs.similarity)


def speaker():
    torch.manual_seed(0)
    tokenizer = CaptionTokenizer.train(["a red dog runs on grass"], min_count=1)
    encoder = ViTConfig(**(vars(CONFIG) | {"width": 24, "pooling": "none"}))
    config = CaptionerConfig(vocabulary=len(tokenizer), encoder=encoder, layers=1, heads=2, max_length=8)
    return randomised(Captioner(config)).eval(), tokenizer


def test_head_report_of_a_captioner():
    model, tokenizer = speaker()
    found = report_heads(trace_caption(model, tokenizer, torch.randint(256, (3, 8, 12), dtype=torch.uint8), methods=()))
    by_name = {layer.name: layer for layer in found}
    words, cross = by_name["decoder.blocks.0.attention"], by_name["decoder.blocks.0.cross_attention"]
    assert (words.distance, words.extra, cross.distance) == (None, None, None)  # words have no place in the image
    assert cross.extra is not None
    assert ((cross.extra > 0) & (cross.extra < 1)).all()  # the register's share


def one_hot(*places, n=16):
    return torch.eye(n)[list(places)]


def test_health_sees_what_is_wrong():
    corners = [one_hot(0, 3, 12, 15), one_hot(15, 12, 3), one_hot(0, 15)]
    well = caption_health(corners, (4, 4))
    assert well.alarms == ()
    assert well.between_words == 1.0
    assert (well.centre, well.even_centre) == (0.0, 0.25)

    same = caption_health([one_hot(0, 0, 0), one_hot(15, 15)], (4, 4))
    assert same.between_words == 0.0
    assert same.between_pictures == 1.0
    assert [alarm for alarm in same.alarms if "whatever it says" in alarm] == list(same.alarms)

    blind = caption_health([one_hot(0, 3, 12), one_hot(0, 3, 12)], (4, 4))
    assert blind.between_pictures == 0.0
    assert "whatever it is shown" in blind.alarms[0]
    assert len(blind.alarms) == 1

    centred = caption_health([one_hot(5, 6), one_hot(9, 10)], (4, 4))
    assert centred.centre == 1.0
    assert "they show the centre" in centred.alarms[0]

    half = torch.stack([torch.tensor([0.5, 0.5] + [0.0] * 14), torch.tensor([0.5, 0.0, 0.5] + [0.0] * 13)])
    assert caption_health([half], (4, 4)).between_words == 0.5
    assert caption_health([half * torch.tensor([[1.0], [100.0]])], (4, 4)).between_words == 0.5  # the unit is nothing
    single = caption_health([one_hot(0)], (4, 4))
    assert (single.between_words, single.between_pictures, single.alarms) == (None, None, ())
    for wrong in ([], [torch.ones(3, 15)], [torch.ones(0, 16)]):
        with pytest.raises(ValueError, match="with 16 patches for one picture or more"):
            caption_health(wrong, (4, 4))


def test_timelapse_is_each_model_in_turn():
    models = {0: vit(seed=1), 50: vit(seed=2), 100: vit(seed=3)}
    image = torch.randint(256, (3, 8, 12), dtype=torch.uint8)
    held = []

    def kept():
        for step, model in models.items():
            held.append(step)
            yield step, model

    found = timelapse(kept(), image, "gradient", target=1)
    assert [moment.step for moment in found] == held == [0, 50, 100]
    for moment in found:
        assert_close(moment.map.values, explain(models[moment.step], image, "gradient", target=1).values)
        with torch.no_grad():
            shares = models[moment.step](pixels_of(image[None], models[moment.step]))[0].softmax(-1)
        assert moment.probability == pytest.approx(shares[1].item(), rel=1e-5)
    assert not torch.allclose(found[0].map.values, found[1].map.values)
    likeliest = timelapse(models.items(), image, "rollout")
    assert [moment.map.target for moment in likeliest] == [explain(m, image, "raw").target for m in models.values()]
    model, tokenizer = speaker()
    ((step, maps),) = timelapse_caption([(7, model)], tokenizer, image, "raw", caption="a dog")
    assert step == 7
    expected = explain_caption(model, tokenizer, image, "raw", caption="a dog")
    assert [each.target for each in maps] == [each.target for each in expected] == ["a", "dog"]
    assert_close(maps[1].values, expected[1].values)
