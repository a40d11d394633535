"""The truth that benchmarks/pointing.py makes: what covers what, and when a map is a hit."""

import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from pointing import compose, interval, judge, paste, plan, quarters


def test_a_mosaic_has_each_picture_in_its_quarter():
    pictures = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 3, 8, 12) * 10
    made, masks = compose(pictures, "mosaic", 0)
    assert torch.equal(masks, quarters((8, 12)))
    assert torch.equal(masks.sum(0), torch.ones(8, 12))
    for number, mask in enumerate(masks):
        assert set(made[:, mask > 0].flatten().tolist()) == {10 * number}
    made, masks = compose(pictures, "pasted", 2)
    assert masks.shape == (1, 8, 12)
    assert set(made[:, masks[0] > 0].flatten().tolist()) == {0}  # the first, in the third quarter
    assert set(made[:, masks[0] == 0].flatten().tolist()) == {10}  # of the second


def test_a_cut_out_covers_what_its_mask_says():
    stamp = Image.new("RGBA", (10, 20), (200, 0, 0, 0))
    stamp.paste((200, 0, 0, 255), (0, 10, 10, 20))  # its lower half
    made, covers = paste(torch.zeros(3, 32, 32, dtype=torch.uint8), stamp, torch.Generator().manual_seed(0))
    assert torch.equal(made[0] > 0, covers[0] > 0)
    assert covers.sum() == pytest.approx(8 * 8, abs=9)  # half of 8 × 16
    assert made[1:].sum() == 0


def test_a_map_hits_where_its_peak_lies():
    masks = quarters((8, 8))[:2]
    maps = torch.zeros(2, 4, 4)
    maps[0, 0, 1], maps[0, 3, 3] = 3.0, 1.0  # in its quarter, and beside
    maps[1, 2, 0], maps[1, 0, 3] = 3.0, 1.0  # the other way round
    peaks, shares, chances = judge(maps, masks)
    assert (peaks, shares, chances) == ([1.0, 0.0], [0.75, 0.25], [0.25, 0.25])
    peaks, shares, _ = judge(torch.ones(1, 4, 4), masks[:1])
    assert (peaks, shares) == ([0.25], [0.25])  # a map without a peak hits by chance


def test_things_are_alone_in_their_mosaic():
    named = [{"dog": 1.0, "cat": 0.0, "car": 0.0, "sea": 0.0}, {"dog": 0.2, "cat": 1.0, "car": 0.0, "sea": 0.0}]
    named += [{"dog": 0.0, "cat": 0.0, "car": 1.0, "sea": 0.0}, {"dog": 0.0, "cat": 0.0, "car": 0.0, "sea": 0.8}]
    assert plan(named, list(named[0]), 3) == []  # somebody sees a dog beside the cat
    named[1]["dog"] = 0.0
    plans = plan(named, list(named[0]), 3)
    assert len(plans) == 3
    assert all(
        [named[i][thing] >= 0.6 for i, thing in zip(images, things, strict=True)] == [True] * 4
        for images, things in plans
    )
    assert interval([1.0, 0.0, 1.0, 0.0])[0] == 0.5
