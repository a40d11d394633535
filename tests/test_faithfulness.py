"""Deletion, insertion and their intervals, against what is known without them."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pellucid.data.images import ImageSet
from pellucid.explain import faithfulness
from pellucid.explain.faithfulness import AnswerCurves, areas_under, bootstrap_mean, fill_patches, measure_curves, ranks
from pellucid.models import ViT, ViTConfig

GRID = (2, 3)
PATCHES = 6


def weigher(weights):
    """A model whose probability is the sum of the weights of the patches that are shown: what is right is known."""

    def probabilities(images):
        shown = images[:, 0].unflatten(2, (3, 4)).unflatten(1, (2, 4)).mean((2, 4)).flatten(1)  # 1 where shown, else 0
        yes = (shown * weights).sum(1)
        return torch.stack([1 - yes, yes], 1)

    return probabilities


def weighed(values, weights, steps=PATCHES):
    pixels = torch.ones(len(values[0]), 1, 8, 12)
    targets = torch.ones(len(pixels), dtype=torch.long)
    return measure_curves(weigher(weights), pixels, torch.zeros_like(pixels), values, targets, GRID, steps=steps)


def test_curves_take_away_and_put_back_in_the_order_of_the_map():
    weights = torch.tensor([0.1, 0.4, 0.05, 0.2, 0.15, 0.1])
    found = weighed(torch.stack([weights[None], -weights[None]]), weights)
    falling = weights.sort(descending=True).values.cumsum(0)
    best, worst = (
        torch.cat([torch.zeros(1), falling]),
        torch.cat([torch.zeros(1), 1 - falling.flip(0)[1:], torch.ones(1)]),
    )
    assert_close(found.insertion[0, 0], best)
    assert_close(found.deletion[0, 0], 1 - best)
    assert_close(found.insertion[1, 0], worst)
    assert_close(found.deletion[1, 0], 1 - worst)
    areas = AnswerCurves(*(areas_under(each) for each in found))
    assert areas.deletion[0] < areas.deletion[1]  # a map turned round is as bad as the map is good
    assert areas.insertion[0] > areas.insertion[1]


def test_steps_take_several_patches_at_once():
    weights = torch.tensor([0.1, 0.4, 0.05, 0.2, 0.15, 0.1])
    fine, coarse = (weighed(weights[None, None], weights, steps) for steps in (6, 3))
    assert_close(coarse.deletion, fine.deletion[..., ::2])
    assert_close(coarse.insertion, fine.insertion[..., ::2])
    uneven = weighed(weights[None, None], weights, 4)
    assert_close(uneven.deletion[0, 0], fine.deletion[0, 0, [0, 2, 3, 4, 6]])  # 1.5 patches are 2, by round()


def test_no_map_scores_better_than_the_truth_and_random_scores_half():
    torch.manual_seed(1)
    weights = torch.rand(PATCHES).softmax(0)
    values = torch.cat([weights.expand(1, 400, -1), torch.rand(1, 400, PATCHES), torch.zeros(1, 400, PATCHES)])
    best, random, empty = areas_under(weighed(values, weights).deletion).mean(1)
    assert best < random - 0.02
    for mean in (random, empty):  # a map without content takes patches in any order: on average a straight line
        assert abs(mean - 0.5) < 0.01


def test_equal_values_are_ordered_at_random_and_others_are_not():
    values = torch.tensor([[3.0, 1.0, 2.0, 1.0, 1.0]]).expand(500, -1)
    found = ranks(values, seed=3)
    assert (found[:, 0] == 0).all()
    assert (found[:, 2] == 1).all()
    assert {tuple(row) for row in found[:, [1, 3, 4]].tolist()} == {
        (2, 3, 4), (2, 4, 3), (3, 2, 4), (3, 4, 2), (4, 2, 3), (4, 3, 2)
    }  # fmt: skip
    assert torch.equal(found, ranks(values, seed=3))
    with pytest.raises(ValueError, match="NaN or infinite"):
        ranks(torch.tensor([[1.0, torch.nan]]))


def test_area_is_of_trapezoids_over_the_share_of_patches():
    assert areas_under(torch.tensor([1.0, 0.5, 0.0])).item() == 0.5
    assert areas_under(torch.tensor([1.0, 0.0, 0.0])).item() == 0.25
    assert areas_under(torch.ones(2, 9)).tolist() == [1.0, 1.0]


def test_blur_keeps_even_images_and_the_mean_of_the_middle():
    even = torch.full((1, 3, 16, 16), 0.7)
    assert_close(fill_patches(even, "blur", (4, 4)), even)
    assert not fill_patches(even, "mean", (4, 4)).any()
    dot = torch.zeros(1, 1, 41, 41)
    dot[..., 20, 20] = 1.0
    spread = fill_patches(dot, "blur", (2, 4))[0, 0]
    assert_close(spread.sum(), torch.tensor(1.0))
    at = torch.arange(41.0) - 20
    for axis, sigma in ((1, 2.0), (0, 4.0)):  # wider along x, where patches are
        variance = (spread.sum(axis) * at.square()).sum()
        assert abs(variance.sqrt() - sigma) < 0.08
    with pytest.raises(ValueError, match="fill is 'black'; expected 'blur' or 'mean'"):
        fill_patches(dot, "black", (2, 2))


def test_bootstrap_covers_what_it_should():
    """Of 200 samples of a known mean, about 95 in 100 intervals hold it."""
    generator = torch.Generator().manual_seed(5)
    held = 0
    for i in range(200):
        found = bootstrap_mean(torch.randn(60, generator=generator), draws=400, seed=i)
        held += found.low < 0 < found.high
    assert 180 <= held <= 198
    found = bootstrap_mean(torch.full((10,), 0.25), draws=50)
    assert found == (0.25, 0.25, 0.25)
    assert str(found) == "0.250 [0.250, 0.250]"


def images(n=40):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(90, 130, (n, 1, 16, 16), generator=generator, dtype=torch.uint8)
    for i, place in enumerate(torch.randint(16, (n,), generator=generator).tolist()):
        y, x = place // 4 * 4, place % 4 * 4
        pixels[i, :, y : y + 4, x : x + 4] = 250
    return ImageSet(pixels, torch.ones(n, dtype=torch.long), ("dark", "bright"))


CONFIG = ViTConfig(
    classes=2, image=(16, 16), patch=(4, 4), width=16, depth=2, heads=1, channels=1, mean=(0.5,), std=(0.5,)
)


@pytest.fixture(scope="module")
def bright():
    """A vision transformer that has learned one thing: whether there is a bright patch."""
    torch.manual_seed(0)
    model = ViT(CONFIG)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    there = images(100).images.float() / 127.5 - 1
    gone = there.where(there < 0.5, -0.15)
    pixels, labels = torch.cat([there, gone]), torch.tensor([1] * 100 + [0] * 100)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
    assert (model(pixels).argmax(1) == labels).float().mean() > 0.95
    return model.eval()


def test_maps_that_find_the_reason_beat_random_and_random_does_not(bright):
    found = faithfulness(bright, images(), fill="mean", steps=16, batch=16)
    assert found.deletion.shape == found.insertion.shape == (6, 40, 17)
    ends = found.deletion[..., 0], found.deletion[..., -1]
    assert_close(ends[0], ends[0][:1].expand(6, -1))  # whatever the method, a whole image is a whole image
    assert_close(found.insertion[..., -1], ends[0])
    assert_close(found.insertion[..., 0], ends[1])
    for method in ("rollout", "gradient", "input gradient"):
        assert found.area("deletion", method, beside="random").high < -0.3
        assert found.area("insertion", method, beside="random").low > 0.3
    assert found.area("deletion", "random", beside="random") == (0, 0, 0)
    again = faithfulness(bright, images(), ("random", "gradient"), fill="mean", steps=16, batch=16)
    assert_close(again.deletion[1], found.deletion[3])
    assert_close(again.deletion[0], found.deletion[5])
    rounded = faithfulness(bright, images(), ("gradient",), fill="mean", steps=16, batch=16, half=True)
    assert_close(rounded.deletion[0], found.deletion[3], rtol=0, atol=0.05)
    assert not torch.equal(rounded.deletion[0], found.deletion[3])
    other = faithfulness(bright, images(), ("random",), fill="mean", steps=16, batch=16, seed=7)
    assert other.area("deletion", "random").mean != found.area("deletion", "random").mean
    assert abs(other.area("deletion", "random").mean - found.area("deletion", "random").mean) < 0.2


def test_wrong_arguments_are_named(bright):
    with pytest.raises(ValueError, match=r"steps is 17; expected 1…16, the number of patches"):
        faithfulness(bright, images(2), steps=17)
    with pytest.raises(ValueError, match="there are 0 methods and 2 images"):
        faithfulness(bright, images(2), ())
    with pytest.raises(ValueError, match="method is 'magic'"):
        faithfulness(bright, images(2), ("magic",))
    found = faithfulness(bright, images(2), ("raw",), steps=2)
    with pytest.raises(ValueError, match="method is 'random'; expected one of raw"):
        found.area("deletion", "raw", beside="random")
