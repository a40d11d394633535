"""Augmentation: draws without state, and what they do to a batch."""

import math
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pellucid.data import augment as room
from pellucid.data import draws
from pellucid.data.augment import Augment, Normalise, augment, normalised, shrink
from pellucid.data.policy import OPERATIONS, perturb

N = 1 << 16
RGB = Normalise((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))
PLAIN = Normalise((0.0,) * 3, (1.0,) * 3)  # pixels / 255
MIXED = Augment("random", 2, zoom=0.5, cutout=3, erasing=0.5, policy="randaugment", mixup=0.4, cutmix=1.0)


def photos(b=8, c=3, height=12, width=16):
    return torch.randint(256, (b, c, height, width), dtype=torch.uint8)


def run(images, config, normalise=PLAIN, *, seed=0, step=0, epoch=0, index=None, positions=None, labels=None):
    n = torch.arange(len(images))
    index, positions, labels = (n if given is None else given for given in (index, positions, labels))
    return augment(
        images, labels, config, normalise, seed=seed, step=step, epoch=epoch, index=index, positions=positions
    )


def levels(pixels):
    """Pixels / 255 back to bytes."""
    return (pixels * 255).round().to(torch.uint8)


# Draws.


def lowbias32(x):
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def test_words_are_the_hash_in_plain_integers():
    for seed, step, stream in ((0, 0, 0), (2**32 - 1, 2**32 - 1, 300), (7, 123_456, 3)):
        outer = lowbias32(lowbias32((seed + 0x9E3779B9) % 2**32) ^ step)
        inner = lowbias32((outer + 0x9E3779B9) % 2**32)
        where = [0, 1, 511, 2**31, 2**32 - 1]
        expected = [lowbias32(lowbias32(at ^ outer) ^ inner ^ lowbias32(stream + 1)) for at in where]
        assert draws.random_bits(seed, step, torch.tensor(where), stream).tolist() == expected
        tensors = torch.tensor(seed), torch.tensor(step)
        assert draws.random_bits(*tensors, torch.tensor(where), stream).tolist() == expected


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_draws_are_uniform_and_independent_of_their_neighbours(seed):
    n = torch.arange(N)
    u = draws.uniform(seed, 5, n, 2)
    assert u.dtype == torch.float32
    assert 0 <= u.min() < 1e-3
    assert 1 - 1e-3 < u.max() < 1
    bins = torch.bincount((u * 256).long(), minlength=256).double()
    chi2 = ((bins - N / 256) ** 2 / (N / 256)).sum().item()
    assert abs(chi2 - 255) < 4.5 * math.sqrt(2 * 255)
    others = {
        "positions": u.roll(1),
        "steps": draws.uniform(seed, 6, n, 2),
        "streams": draws.uniform(seed, 5, n, 3),
        "seeds": draws.uniform(seed + 1, 5, n, 2),
    }
    for name, other in others.items():
        r = torch.corrcoef(torch.stack([u, other]))[0, 1].item()
        assert abs(r) < 4.5 / math.sqrt(N), name
    over_steps = torch.cat([draws.uniform(seed, step, torch.arange(16), 2) for step in range(1024)])
    bins = torch.bincount((over_steps * 256).long(), minlength=256).double()
    assert abs(((bins - 64) ** 2 / 64).sum().item() - 255) < 4.5 * math.sqrt(2 * 255)


@pytest.mark.parametrize("name", ["seed", "step", "positions", "stream"])
def test_one_bit_in_flips_half_the_bits_out(name):
    n = torch.arange(4096)
    given = {"seed": 3, "step": 1000, "positions": n, "stream": 2}
    before = draws.random_bits(**given)
    for bit in (0, 1, 4, 9, 15):
        changed = draws.random_bits(**(given | {name: given[name] ^ 1 << bit})) ^ before
        flips = (changed[:, None] >> torch.arange(32) & 1).double().mean(0)
        # Five standard deviations; a key changes for all words at once.
        assert (flips - 0.5).abs().max() < 5 * 0.5 / math.sqrt(4096), (bit, flips)


def test_steps_share_no_batch_of_draws():
    words = torch.stack([draws.random_bits(0, step, torch.arange(1024), 0) for step in range(300)])
    repeated = words.numel() - words.unique().numel()
    assert repeated < 30  # 11 expected of 307,200 random words


def test_draws_come_in_slices_and_ranges():
    n = torch.arange(1000, 1100)
    whole = draws.random_bits(1, 2, n, range(5, 11, 3))
    assert torch.equal(whole[1], draws.random_bits(1, 2, n, 8))
    assert torch.equal(whole[:, 7:31], draws.random_bits(1, 2, n[7:31], range(5, 11, 3)))
    assert torch.equal(whole, draws.random_bits(1, torch.tensor(2), n.int(), range(5, 11, 3)))
    assert not torch.equal(whole[0], whole[1])


def test_integers_are_even_and_below():
    for high in (1, 2, 3, 14, 1000):
        k = draws.integers(0, 0, torch.arange(N), 0, high)
        counts = torch.bincount(k, minlength=high).double()
        assert len(counts) == high
        assert (counts - N / high).abs().max() < 5 * math.sqrt(N / high)
    high = torch.arange(1, 101)
    assert (draws.integers(0, 0, torch.arange(100), 0, high) < high).all()


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0, 2.0, 30.0])
def test_beta_is_beta(alpha):
    x = draws.beta(0, 0, torch.arange(N), 0, alpha).double()
    assert 0 <= x.min() <= x.max() <= 1
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(x.mean() - 0.5) < 4.5 * math.sqrt(variance / N)
    assert abs(x.var() / variance - 1) < 0.02
    u = draws.uniform(0, 0, torch.arange(N), 0).double()  # what x came from: its distribution function
    assert (x[u.argsort()].diff() >= 0).all()
    truth = {0.5: lambda x: 2 / math.pi * x.sqrt().asin(), 1.0: lambda x: x, 2.0: lambda x: 3 * x**2 - 2 * x**3}
    if alpha in truth:
        lower = x < 0.5  # near 1 float32 is coarser
        assert_close(truth[alpha](x[lower]), u[lower], rtol=0, atol=1e-5)


def test_draws_refuse_what_they_cannot_hash():
    n = torch.arange(2)
    with pytest.raises(ValueError, match="seed is -1; expected 0…"):
        draws.uniform(-1, 0, n, 0)
    with pytest.raises(ValueError, match="step is 4294967296; expected 0…"):
        draws.uniform(0, 2**32, n, 0)
    with pytest.raises(ValueError, match="high is 0; expected 1…"):
        draws.integers(0, 0, n, 0, 0)
    with pytest.raises(ValueError, match="alpha is 0; expected a number above zero"):
        draws.beta(0, 0, n, 0, 0)


# The batch.


def test_normalised_is_the_formula():
    images = photos()
    mean, std = (torch.tensor(part, dtype=torch.float64)[:, None, None] for part in (RGB.mean, RGB.std))
    expected = (images.double() / 255 - mean) / std
    assert_close(normalised(images, RGB).double(), expected, rtol=0, atol=2e-6)
    out = run(images, Augment(), RGB)
    assert torch.equal(out.images, normalised(images, RGB))
    assert out.images.dtype == out.weight.dtype == torch.float32
    assert (out.weight == 1).all()
    assert torch.equal(out.others, out.labels)


def test_the_same_key_gives_the_same_batch_and_another_key_another():
    images = photos(16)
    first = run(images, MIXED, RGB, seed=1, step=2)
    again = run(images, MIXED, RGB, seed=torch.tensor(1), step=torch.tensor(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (
        {"seed": 2, "step": 2},
        {"seed": 1, "step": 3},
        {"seed": 1, "step": 2, "positions": torch.arange(16, 32)},
    ):
        out = run(images, MIXED, RGB, **other)
        assert (out.images != first.images).flatten(1).any(1).all()
        assert (out.weight != first.weight).any()


@settings(max_examples=25, deadline=None)
@given(
    b=st.integers(1, 9),
    c=st.sampled_from([1, 3]),
    height=st.integers(4, 11),
    width=st.integers(4, 11),
    cut=st.integers(0, 4).map(lambda half: 2 * half),
    policy=st.sampled_from(["none", "randaugment", "trivial"]),
    fill=st.sampled_from(["zero", "reflect"]),
    mixup=st.sampled_from([0.0, 0.3]),
    cutmix=st.sampled_from([0.0, 1.0]),
)
def test_even_slices_make_the_whole(b, c, height, width, cut, policy, fill, mixup, cutmix):
    config = Augment("alternating", 3, fill, 0.4, cutout=3, erasing=0.5, policy=policy, mixup=mixup, cutmix=cutmix)
    images, normalise, n = photos(b, c, height, width), Normalise((0.5,) * c, (0.2,) * c), torch.arange(b)
    whole = run(images, config, normalise, step=4, epoch=1)
    assert whole.images.shape == images.shape
    assert whole.images.isfinite().all()
    assert ((whole.weight >= 0) & (whole.weight <= 1)).all()
    parts = [
        run(images[part], config, normalise, step=4, epoch=1, index=n[part], positions=n[part], labels=n[part])
        for part in (slice(0, cut), slice(cut, b))
        if n[part].numel()
    ]
    for name in whole._fields:
        got = torch.cat([getattr(part, name) for part in parts])
        assert_close(got, getattr(whole, name), rtol=0, atol=1e-6 if name == "images" else 0)


@pytest.mark.parametrize("fill", ["reflect", "zero"])
def test_crop_is_pad_and_slice(fill):
    images = photos(64, 3, 7, 9)
    out = levels(run(images, Augment(crop=4, crop_fill=fill)).images)
    shift = draws.integers(0, 0, torch.arange(64), range(room.CROP, room.CROP + 2), 9)
    padded = F.pad(images.float(), (4, 4, 4, 4), **({"mode": "reflect"} if fill == "reflect" else {}))
    for i, (y, x) in enumerate(shift.T.tolist()):
        assert torch.equal(out[i], padded[i, :, y : y + 7, x : x + 9].to(torch.uint8))
    assert shift.unique().tolist() == list(range(9))
    assert (out != images).any()


def test_a_flip_is_a_flip():
    images = photos(64)
    out = levels(run(images, Augment(flip="random")).images)
    flipped = (out == images.flip(-1)).flatten(1).all(1)
    assert torch.equal(flipped, ~(out == images).flatten(1).all(1))
    assert 16 < flipped.sum() < 48


def test_alternating_flips_show_both_faces_in_turn():
    images, index = photos(64), torch.randperm(1000)[:64]
    faces = [
        run(images, Augment(flip="alternating"), step=step, epoch=epoch, index=index).images
        for epoch, step in ((0, 5), (1, 90), (2, 101), (torch.tensor(2), 102))
    ]
    assert torch.equal(faces[0], faces[1].flip(-1))
    assert torch.equal(faces[0], faces[2])
    assert torch.equal(faces[2], faces[3])
    first = (levels(faces[0]) == images.flip(-1)).flatten(1).all(1)
    assert 16 < first.sum() < 48  # a random half
    elsewhere = run(images, Augment(flip="alternating"), index=index + 1000).images
    assert not torch.equal(faces[0], elsewhere)


def test_zoom_is_a_part_scaled_to_the_whole():
    """As PyTorch scales the part that is cut out, to a level: here the arithmetic is whole."""
    images, n = photos(64, 3, 20, 31), torch.arange(64)
    found = run(images, Augment(zoom=0.2)).images * 255
    share, ratio = draws.uniform(0, 0, n, range(90, 92))
    area, stretch = 0.2 + 0.8 * share, (4 / 3) ** (2 * ratio - 1)
    high = (20 * (area * stretch).sqrt()).round().clamp(max=20)
    wide = (31 * (area / stretch).sqrt()).round().clamp(max=31)
    above = draws.integers(0, 0, n, 92, (21 - high).long())
    before = draws.integers(0, 0, n, 93, (32 - wide).long())
    for i in range(64):
        y, x, h, w = (int(value[i]) for value in (above, before, high, wide))
        part = images[i : i + 1, :, y : y + h, x : x + w].float()
        whole = F.interpolate(part, size=(20, 31), mode="bilinear", align_corners=False)
        assert_close(found[i : i + 1], whole, rtol=0, atol=2.0)
    assert high.min() < 14 < 19 < high.max()


def test_what_is_zoomed_into_can_be_brought_to_another_side():
    """The same parts, to fewer pixels or more: as PyTorch does it, to a level; without a side it is their own."""
    images = photos(32, 3, 24, 24)
    same = run(images, Augment(zoom=0.2)).images
    assert torch.equal(same, run(images, Augment(zoom=0.2, zoom_side=24)).images)
    share, ratio = draws.uniform(0, 0, torch.arange(32), range(90, 92))
    area, stretch = 0.2 + 0.8 * share, (4 / 3) ** (2 * ratio - 1)
    sides = [(24 * (area * by).sqrt()).round().clamp(max=24).long() for by in (stretch, 1 / stretch)]
    corners = [draws.integers(0, 0, torch.arange(32), 92 + i, 25 - side) for i, side in enumerate(sides)]
    for to in (16, 40):
        found = run(images, Augment(zoom=0.2, zoom_side=to)).images * 255
        assert found.shape == (32, 3, to, to)
        for i in range(32):
            (h, w), (y, x) = ((int(each[i]) for each in pair) for pair in (sides, corners))
            part = images[i : i + 1, :, y : y + h, x : x + w].float()
            whole = F.interpolate(part, size=(to, to), mode="bilinear", align_corners=False)
            assert_close(found[i : i + 1], whole, rtol=0, atol=2.0)


def test_shrunk_images_are_pytorchs_between_pixels():
    images = photos(4, 3, 32, 48)
    small = shrink(images, 24)
    assert small.dtype == torch.uint8
    expected = F.interpolate(images.float(), size=(24, 36), mode="bilinear", align_corners=False)
    assert_close(small.float(), expected, rtol=0, atol=2.0)
    assert torch.equal(shrink(images, 32), images)


def test_cutout_erases_a_square_anywhere():
    images = torch.full((512, 3, 12, 16), 200, dtype=torch.uint8)
    erased = run(images, Augment(cutout=5), RGB).images == 0
    assert torch.equal(erased, erased[:, :1].expand_as(erased))
    rows, columns = erased[:, 0].any(2).sum(1), erased[:, 0].any(1).sum(1)
    assert torch.equal(erased[:, 0].sum((1, 2)), rows * columns)
    assert (rows.max(), columns.max()) == (5, 5)
    assert rows.min() == columns.min() == 3  # a centre on the edge leaves the middle and two more
    assert erased.any(0).all()


def test_erasing_takes_its_share_of_the_images_and_of_the_area():
    images = torch.full((2048, 1, 40, 32), 200, dtype=torch.uint8)
    erased = run(images, Augment(erasing=0.25), Normalise((0.5,), (0.2,))).images[:, 0] == 0
    chosen = erased.any((1, 2)).nonzero()[:, 0]
    assert abs(len(chosen) / 2048 - 0.25) < 0.05
    area = erased[chosen].double().mean((1, 2))
    assert 0.015 < area.min() < 0.03
    assert 0.31 < area.max() < 0.35
    assert abs(area.mean() - 0.175) < 0.015
    rows, columns = erased[chosen].any(2).sum(1), erased[chosen].any(1).sum(1)
    assert torch.equal(erased[chosen].sum((1, 2)), rows * columns)
    ratio = rows / columns
    assert ratio.min() < 0.4
    assert ratio.max() > 2.5
    assert ((ratio > 0.24) & (ratio < 4.1)).all()  # 0.3…3.3, sides rounded to pixels


def two_tones(b=64, height=8, width=10):
    """Even positions white, odd ones black, so that a pixel tells whose it is."""
    return (255 * (1 - torch.arange(b) % 2)).to(torch.uint8)[:, None, None, None].expand(b, 3, height, width)


def test_mixup_weighs_pixels_as_labels():
    images = two_tones()
    out = run(images, Augment(mixup=0.4))
    own = images.float() / 255
    partner = own.view(32, 2, *own.shape[1:]).flip(1).flatten(0, 1)
    weight = out.weight[:, None, None, None]
    assert_close(out.images, weight * own + (1 - weight) * partner, rtol=0, atol=1e-6)
    assert torch.equal(out.others, torch.arange(64) ^ 1)
    assert torch.equal(out.weight[::2], out.weight[1::2])
    assert len(out.weight.unique()) == 32
    assert_close(out.weight[::2], draws.beta(0, 0, torch.arange(32), room.LAMBDA, 0.4))


def test_cutmix_weighs_what_is_left_of_the_image():
    images = two_tones()
    out = run(images, Augment(cutmix=1.0))
    own = (out.images == images.float() / 255).float()
    assert_close(own[:, 0].mean((1, 2)), out.weight, rtol=0, atol=1e-6)
    given = own[:, 0] == 0
    assert torch.equal(given.sum((1, 2)), given.any(2).sum(1) * given.any(1).sum(1))  # a box
    assert torch.equal(given[::2], given[1::2])
    assert out.weight.unique().numel() > 10
    counts = torch.zeros(64).index_add(0, out.labels, out.weight).index_add(0, out.others, 1 - out.weight)
    assert_close(counts, torch.ones(64))


def test_with_both_each_pair_does_one():
    out = run(two_tones(), Augment(mixup=1.0, cutmix=1.0))
    pure = ((out.images == 0) | (out.images == 1)).flatten(1).all(1)
    assert torch.equal(pure[::2], pure[1::2])
    assert 8 < pure[::2].sum() < 24
    assert_close(out.images[::2, 0].mean((1, 2)), out.weight[::2], rtol=0, atol=1e-6)


def test_an_image_without_its_partner_stays_whole():
    images = two_tones(7)
    odd = run(images, Augment(mixup=1.0))
    assert (odd.weight[:6] < 1).all()
    assert odd.weight[6] == 1
    assert odd.others[6] == odd.labels[6]
    assert torch.equal(odd.images[6], images[6].float() / 255)
    apart = run(images, Augment(mixup=1.0), positions=torch.arange(1, 8))  # pairs (2, 3), … stand at odd places
    assert (apart.weight == 1).all()
    assert torch.equal(apart.images, images.float() / 255)


def test_mixing_comes_after_the_image_is_made():
    images, config = photos(8), replace(MIXED, mixup=0.4, cutmix=0.0)
    alone = run(images, replace(config, mixup=0.0), RGB).images
    out = run(images, config, RGB)
    weight = out.weight[:, None, None, None]
    assert_close(out.images, weight * alone + (1 - weight) * alone[out.others], rtol=0, atol=1e-5)


# The operations of the policies, against torchvision.


@pytest.fixture(scope="module")
def vision(torchvision):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchvision.transforms import InterpolationMode, autoaugment

    nearest = InterpolationMode.NEAREST
    names = {"colour": "Color", "autocontrast": "AutoContrast"}
    names |= {name: "".join(part.capitalize() for part in name.split("_")) for name in OPERATIONS if name not in names}

    def apply(image, name, level, wide):
        height, width = image.shape[-2:]
        policy = autoaugment.TrivialAugmentWide() if wide else autoaugment.RandAugment()
        space = policy._augmentation_space(*((31,) if wide else (31, (height, width))))
        strengths, signed = space[names[name]]
        strength = float(strengths[abs(level)]) if strengths.ndim else 0.0
        strength = -strength if signed and level < 0 else strength
        return autoaugment._apply_op(image, names[name], strength, nearest, None)

    return apply


def pictures(c, height, width):
    """Noise, a dim and narrow range, a ramp, one tone, and two tones."""
    ramp = torch.arange(height * width).view(height, width) * 255 // (height * width - 1)
    return torch.stack(
        [
            torch.randint(256, (c, height, width)),
            torch.randint(40, 90, (c, height, width)),
            ramp.expand(c, -1, -1),
            torch.full((c, height, width), 77),
            255 * torch.randint(2, (c, height, width)),
        ]
    ).to(torch.uint8)


def source(name, level, wide, height, width):
    """Where each pixel comes from, as (row, column): sheared from the top left corner, turned about the centre."""
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    shear, angle = level * (0.033 if wide else 0.01), math.radians(level * (4.5 if wide else 1.0))
    if name == "shear_x":
        return y, x + shear * (y + 0.5)
    if name == "shear_y":
        return y + shear * (x + 0.5), x
    v, u = y + 0.5 - height / 2, x + 0.5 - width / 2
    row = math.sin(angle) * u + math.cos(angle) * v
    return row + height / 2 - 0.5, math.cos(angle) * u - math.sin(angle) * v + width / 2 - 0.5


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("c", "height", "width"), [(3, 20, 26), (1, 33, 17)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_torchvisions(vision, name, c, height, width, wide):
    images, changed, apart = pictures(c, height, width), 0, []
    n = len(images)
    operation = torch.full((n,), OPERATIONS.index(name))
    for level in (-30, -17, -10, -9, -1, 0, 3, 9, 14, 20, 24, 30):
        expected = torch.stack([vision(image, name, level, wide) for image in images])
        got = perturb(images, operation, torch.full((n,), level), wide=wide)
        difference = got.int() - expected.int()
        if name in ("shear_x", "shear_y", "rotate"):
            # Equal but where the source point lies halfway between two pixels.
            row, column = (part - part.floor() - 0.5 for part in source(name, level, wide, height, width))
            tie = (row.abs() < 1e-3) | (column.abs() < 1e-3)
            assert (difference == 0)[..., ~tie].all(), level
            assert tie.double().mean() < 0.25, level
        elif name in ("brightness", "colour", "contrast", "sharpness", "autocontrast"):
            assert difference.abs().max() <= 1, level
            apart.append(difference[:2])
        else:
            assert torch.equal(got, expected), level
        changed += (got != images).sum().item()
    assert (changed == 0) == (name == "identity" or (name == "colour" and c == 1))
    if apart:
        assert (torch.cat(apart) != 0).double().mean() < 0.04
        assert (torch.cat(apart) < 0).double().mean() < 0.001


def test_where_torchvision_cuts_off_what_should_be_whole_ours_is_whole(vision):
    def ours(image, name, level, wide=False):
        return perturb(image, torch.tensor([OPERATIONS.index(name)]), torch.tensor([level]), wide=wide)

    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    expected = [min(255, 127 * v // 100) for v in range(256)]
    assert ours(ramp, "brightness", 9).flatten().tolist() == expected
    flat = torch.full((1, 1, 5, 5), 77, dtype=torch.uint8)
    assert all(torch.equal(ours(flat, "sharpness", level), flat) for level in range(-30, 31))
    assert any(not torch.equal(vision(flat[0], "sharpness", level, False), flat[0]) for level in range(-30, 31))
    wide = torch.randint(256, (1, 1, 4, 40), dtype=torch.uint8)
    assert torch.equal(ours(wide, "translate_x", 15, wide=True)[..., 16:], wide[..., :-16])  # 32 · 15 / 30 pixels
    assert torch.equal(vision(wide[0], "translate_x", 15, True)[..., 15:], wide[0, ..., :-15])  # 15.999999 there


def test_each_image_has_its_own_operation():
    images = photos(3 * len(OPERATIONS))
    operation, level = torch.arange(len(images)) % len(OPERATIONS), torch.randint(-30, 31, (len(images),))
    whole = perturb(images, operation, level)
    for i in range(len(images)):
        assert torch.equal(whole[i : i + 1], perturb(images[i : i + 1], operation[i : i + 1], level[i : i + 1]))


@pytest.mark.parametrize("policy", ["randaugment", "trivial"])
def test_policies_draw_every_operation_and_sign(policy, monkeypatch):
    seen = []
    monkeypatch.setattr(room, "perturb", lambda images, *drawn, wide, sides: (seen.append((*drawn, wide)), images)[1])
    images = torch.zeros(2000, 3, 4, 4, dtype=torch.uint8)
    run(images, Augment(policy=policy) if policy == "trivial" else Augment(policy=policy, operations=3, magnitude=7))
    assert len(seen) == (1 if policy == "trivial" else 3)
    for operation, level, wide in seen:
        assert wide == (policy == "trivial")
        counts = torch.bincount(operation, minlength=14)
        assert len(counts) == 14
        assert (counts - 2000 / 14).abs().max() < 60
        assert level.unique().tolist() == (list(range(-30, 31)) if policy == "trivial" else [-7, 7])
    if policy == "randaugment":
        assert not torch.equal(seen[0][0], seen[1][0])


def test_tiny_images_pass_through_the_policies():
    for height, width in ((1, 1), (2, 5), (3, 1)):
        out = run(photos(28, 3, height, width), Augment(policy="trivial"))
        assert out.images.isfinite().all()


# What isn't accepted.


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"flip": "vertical"}, "flip is 'vertical'; expected one of none, random, alternating"),
        ({"crop_fill": "edge"}, "crop_fill is 'edge'; expected one of zero, reflect"),
        ({"policy": "auto"}, "policy is 'auto'; expected one of none, randaugment, trivial"),
        ({"crop": -1}, "crop is -1 pixels; expected zero or more"),
        ({"cutout": -2}, "cutout is -2 pixels; expected zero or more"),
        ({"zoom": 0.0}, "zoom is 0.0; expected a share of the area above 0, or 1 for none"),
        ({"zoom_side": 16}, "zoom_side is 16 and zoom 1.0; expected a side, and a zoom below 1"),
        ({"zoom_side": 0, "zoom": 0.5}, "zoom_side is 0 and zoom 0.5; expected a side"),
        ({"small": 0.95}, "small is 0.95; expected a share of the run, 0…0.9"),
        (
            {"small": 0.5, "smaller": 0.6},
            "smaller is 0.6 with a side of 16, small 0.5 with 24; expected a smaller share",
        ),
        ({"small": 0.5, "smaller": 0.2, "smaller_side": 24}, "smaller is 0.2 with a side of 24, small 0.5 with 24; .*"),
        ({"small": 0.5, "small_side": 0}, "small_side is 0 and zoom_side None; expected one pixel or more"),
        ({"small": 0.5, "zoom": 0.5, "zoom_side": 24}, "small_side is 24 and zoom_side 24; .* and one of the two"),
        ({"erasing": 1.5}, "erasing is 1.5; expected a probability"),
        ({"mixup": -0.1}, "mixup is -0.1; expected α of Beta"),
        ({"cutmix": math.nan}, "cutmix is nan; expected α of Beta"),
        ({"policy": "randaugment", "magnitude": 31}, "magnitude is 31; expected 0…30"),
        ({"policy": "randaugment", "operations": 0}, "operations is 0; expected one or more"),
        ({"policy": "trivial", "magnitude": 5}, "belong to policy='randaugment'; got policy='trivial'"),
    ],
)
def test_a_config_that_cannot_act_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Augment(**options)


def test_normalise_is_for_pixels_from_0_to_1():
    with pytest.raises(ValueError, match="divide those of bytes by 255"):
        Normalise((127.0,), (60.0,))
    with pytest.raises(ValueError, match="divide those of bytes by 255"):
        Normalise((0.5,), (0.0,))
    with pytest.raises(ValueError, match="mean has 3 channels and std 1"):
        Normalise((0.5,) * 3, (0.2,))


def test_a_batch_that_does_not_fit_is_refused():
    images, n = photos(4), torch.arange(4)
    for wrong, sentence in (
        ({"images": images.float()}, "images must be bytes .b c y x.; got torch.float32"),
        ({"images": images[0]}, r"images must be bytes .b c y x.; got torch.uint8 of shape \[3, 12, 16\]"),
        ({"images": images[:, :1]}, "images have 1, normalise has 3"),
        ({"labels": n[:2]}, r"labels must be 4 whole numbers .* shape \[2\]"),
        ({"index": n.float()}, "index must be 4 whole numbers .* got torch.float32"),
        ({"config": Augment(crop=12)}, "crop is 12 pixels of reflection, expected less than the image's 12 × 16"),
    ):
        given = {"images": images, "labels": n, "config": Augment(), "index": n} | wrong
        with pytest.raises(ValueError, match=sentence):
            augment(normalise=PLAIN, seed=0, step=0, epoch=0, positions=n, **given)
    two = Normalise((0.5, 0.5), (0.2, 0.2))
    with pytest.raises(ValueError, match="policy='trivial' knows grey and RGB; got 2"):
        run(photos(2, 2), Augment(policy="trivial"), two)
    assert run(photos(2, 2), Augment(crop=2), two).images.shape == (2, 2, 12, 16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_same_batch_never_waits_and_replays():
    config, n = replace(MIXED, crop_fill="zero", operations=3, magnitude=20), torch.arange(64)
    images = photos(64, 3, 32, 30)
    there, at = (images.cuda(), n.cuda()), torch.tensor(5, device="cuda")

    def draw(step):
        out = augment(there[0], there[1], config, RGB, seed=1, step=step, epoch=0, index=there[1], positions=there[1])
        return [part.clone() for part in out]

    draw(at)
    torch.cuda.synchronize()
    with warnings.catch_warnings():  # that it may overlook some
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            direct = draw(at)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for got, expected in zip(direct, run(images, config, RGB, seed=1, step=5), strict=True):
        assert_close(got.cpu(), expected, rtol=0, atol=1e-5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = draw(at)
    for step in (5, 6):
        at.fill_(step)
        graph.replay()
        for got, expected in zip(recorded, run(images, config, RGB, seed=1, step=step), strict=True):
            assert_close(got.cpu(), expected, rtol=0, atol=1e-5)


def test_compiles_to_one_graph():
    """In a process of its own: the run-time check of axes would be traced too."""
    script = Path(__file__).parent / "augment_compiled.py"
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.startswith("same"), result.stdout
