"""Pictures that keep the ratio of their sides: grids, canvases, the model's laws, and training on them."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import randomised
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from torch.testing import assert_close

from pellucid.config import override
from pellucid.data.aspect import Area, cut_out, join
from pellucid.data.augment import Augment, Normalise, augment, normalised
from pellucid.data.images import ImageSet, View, decode
from pellucid.data.lazy import LazyImageSet
from pellucid.data.sources import DataConfig, load_images, statistics
from pellucid.models import ViT, ViTConfig
from pellucid.ops.aspect import canvas_grid, find_patches, fit_grid
from pellucid.ops.positions import interpolate, resampling
from pellucid.ready import ReadyClassifier, load
from pellucid.runs import ClassifierRun, Optim
from pellucid.serve import confusion
from pellucid.training import Observer, train
from pellucid.watching import watch

OPTIONS = {
    "class": {},
    "mean": {"pooling": "mean"},
    "mean, then norm": {"pooling": "mean", "norm_first": False, "registers": 2},
    "sequence": {"pooling": "sequence"},
    "sinusoidal": {"positions": "sinusoidal"},
    "rotary": {"positions": "rotary", "registers": 1},
    "no positions": {"positions": "none"},
    "conv stem": {"stem": "conv"},
    "deep stem": {"stem": "deep", "pooling": "mean"},
    "flat patches": {"patch": (2, 8)},
    "one channel": {"channels": 1},
    "qk norm, layer scale": {"qk_norm": True, "layer_scale": 0.1},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
sides = st.integers(1, 4000)


def small(**options) -> ViT:
    usual = {"classes": 5, "image": (16, 16), "width": 32, "depth": 2, "heads": 4, "keep_aspect": True}
    return randomised(ViT(ViTConfig(**usual | options)).double()).eval()


def area_of(model) -> Area:
    return Area(model.config.image, model.embed.patch)


def draw_pictures(model, *shapes):
    """Normalised pictures (c h w) of the sizes that those shapes are brought to."""
    sizes = [area_of(model).of(*shape) for shape in shapes]
    return [torch.randn(model.config.channels, *size, dtype=torch.float64) for size in sizes]


def lay(model, pictures, beside=0.0):
    """On canvases with, beside the pictures, what must not matter."""
    channels, (height, width) = model.config.channels, area_of(model).canvas
    batch = torch.full((len(pictures), channels + 1, height, width), beside, dtype=torch.float64)
    batch[:, -1] = 0
    for row, picture in zip(batch, pictures, strict=True):
        row[:-1, : picture.shape[1], : picture.shape[2]] = picture
        row[-1, : picture.shape[1], : picture.shape[2]] = 1
    return batch


SHAPES = ((300, 300), (300, 450), (500, 260), (100, 900), (120, 160))


@given(st.integers(1, 40), st.integers(1, 40), sides, sides)
def test_a_grid_has_the_ratio_of_its_picture_and_stays_what_it_is(rows, columns, high, wide):
    y, x = fit_grid((rows, columns), high, wide)
    tallest, widest = canvas_grid((rows, columns))
    assert 1 <= y <= tallest
    assert 1 <= x <= widest
    assert y * x <= rows * columns
    assert fit_grid((rows, columns), y, x) == (y, x)
    if x < widest and y < tallest and min(y, x) > 1:  # off by less than one row or column
        assert y - 1 < x * high / wide < y + 1 or x - 1 < y * wide / high < x + 1
    assert fit_grid((rows, columns), rows, columns) == (rows, columns)


def test_ordinary_pictures_use_nearly_all_patches():
    for ratio in (1, 4 / 3, 3 / 2, 16 / 9, 2):
        for grid in (fit_grid((14, 14), 1000, round(1000 * ratio)), fit_grid((14, 14), round(1000 * ratio), 1000)):
            assert math.prod(grid) > 0.9 * 196, (ratio, grid)


def test_an_area_that_is_no_whole_patches_is_a_sentence():
    with pytest.raises(ValueError, match="size is \\(20, 16\\); expected multiples"):
        Area((20, 16), (8, 8))


def test_positions_of_each_grid_are_those_that_it_would_have_alone():
    table = torch.randn(5, 7, 6, dtype=torch.float64)
    down, across = resampling(5, 8), resampling(7, 9)
    for rows, columns in ((5, 7), (8, 4), (1, 9), (8, 1), (3, 3)):
        mine = torch.einsum("yi,xj,ijd->yxd", down[rows, :rows], across[columns, :columns], table)
        assert_close(mine, interpolate(table, (rows, columns)), atol=1e-12, rtol=0)


@every_option
def test_a_picture_on_a_canvas_has_the_answer_that_it_has_alone(options):
    model = small(**options)
    pictures = draw_pictures(model, *SHAPES)
    alone = torch.cat([model(picture[None]) for picture in pictures])
    assert len({picture.shape for picture in pictures}) >= 3
    assert_close(model(lay(model, pictures)), alone, atol=1e-10, rtol=0)
    if "stem" not in options:  # what lies beside a picture isn't looked at; stems want it to be nothing, as it is
        assert_close(model(lay(model, pictures, beside=3.0)), alone, atol=1e-10, rtol=0)


@every_option
def test_without_the_mask_it_would_not(options, monkeypatch):
    model = small(**options)
    full = math.prod(model.config.image)
    pictures = [each for each in draw_pictures(model, *SHAPES) if math.prod(each.shape[1:]) < full]
    alone = torch.cat([model(picture[None]) for picture in pictures])
    right = model(lay(model, pictures))

    def all_there(*args):
        patches = find_patches(*args)
        return patches._replace(there=torch.ones_like(patches.there))

    monkeypatch.setattr("pellucid.models.vit.find_patches", all_there)
    wrong = model(lay(model, pictures))
    assert_close(right, alone, atol=1e-10, rtol=0)
    assert (wrong - alone).abs().amax(1).min() > 1e-4


def test_convolutions_would_see_beside_the_picture():
    model = small(stem="deep")
    pictures = draw_pictures(model, (500, 260))
    batch = lay(model, pictures)
    size = pictures[0].shape[-2:]
    grid = model.embed.grid(*size)
    across = batch.shape[-1] // model.embed.patch[1]
    alone = model.embed(pictures[0][None])[0].view(*grid, -1)

    def laid(there):
        return model.embed(batch[:, :-1], there)[0].view(-1, across, alone.shape[-1])[: grid[0], : grid[1]]

    assert_close(laid(batch[:, -1]), alone, atol=1e-12, rtol=0)
    assert not torch.allclose(laid(None), alone, atol=1e-4)


@every_option
def test_a_picture_of_the_models_own_size_has_the_ordinary_answer(options):
    model = small(**options)
    ordinary = ViT(ViTConfig(**{**vars(model.config), "keep_aspect": False})).double().eval()
    ordinary.load_state_dict(model.state_dict())
    picture = torch.randn(2, model.config.channels, *model.config.image, dtype=torch.float64)
    assert area_of(model).of(16, 16) == (16, 16)
    assert_close(model(lay(model, list(picture))), ordinary(picture), atol=1e-12, rtol=0)
    assert torch.equal(model(picture), ordinary(picture))


def test_the_order_in_a_batch_changes_nothing():
    model = small()
    pictures = draw_pictures(model, *SHAPES)
    order = [3, 0, 4, 2, 1]
    first, second = model(lay(model, pictures)), model(lay(model, [pictures[i] for i in order]))
    assert_close(second, first[order], atol=1e-12, rtol=0)
    assert not torch.allclose(second, first)


@pytest.mark.parametrize("options", [{}, {"pooling": "mean", "positions": "rotary"}], ids=["class", "mean, rotary"])
def test_gradients_of_a_batch_are_those_of_its_pictures(options):
    model = small(**options)
    pictures = draw_pictures(model, *SHAPES)
    names, parameters = zip(*model.named_parameters(), strict=True)
    together = torch.autograd.grad(model(lay(model, pictures)).square().sum(), parameters)
    alone = torch.autograd.grad(sum(model(each[None]).square().sum() for each in pictures), parameters)
    for name, mine, its in zip(names, together, alone, strict=True):
        assert_close(mine, its, atol=1e-9, rtol=1e-9, msg=name)
        assert mine.isfinite().all()


def test_training_reads_the_class_token_alone_and_gets_the_same():
    model = small()
    batch = lay(model, draw_pictures(model, *SHAPES))
    assert_close(model.train()(batch), model.eval()(batch), atol=1e-12, rtol=0)


def test_patches_are_dropped_in_each_picture_by_its_own_share():
    model = small(drop_token=0.5, pooling="mean").train()
    pictures = draw_pictures(model, *SHAPES)
    _, there = model.tokens(lay(model, pictures))
    assert there is not None
    counts = [math.prod(model.embed.grid(*each.shape[-2:])) for each in pictures]
    assert there.sum(1).tolist() == [round(count / 2) for count in counts]
    assert model(lay(model, pictures)).isfinite().all()
    kept, _, still = model._drop_tokens(torch.arange(16.0).view(1, 16, 1), None, torch.arange(16)[None] < 10)
    assert still is not None
    assert kept[still].flatten().tolist() == sorted(set(kept[still].flatten().tolist()))
    assert kept[still].max() < 10


@pytest.mark.slow
def test_it_compiles_to_one_graph_whatever_the_shapes():
    script = Path(__file__).with_name("aspect_compiled.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "same\n"


def test_padding_is_seen_by_nobody():
    model = small()
    pictures = draw_pictures(model, (500, 260), (300, 300))
    with watch(model) as seen:
        model(lay(model, pictures))
    count = 1 + math.prod(model.embed.grid(*pictures[0].shape[-2:]))
    record = seen["blocks.1.attention"]
    record.check()
    assert count < record.k.shape[2]
    mass = record.column_mass()
    assert mass[0, :, count:].abs().max() == 0
    assert mass[0, :, :count].min() > 0
    assert mass[1].min() > 0


def test_more_patches_than_the_model_has_places_for_are_a_sentence():
    model = small()
    with pytest.raises(ValueError, match="a picture has 36 patches; expected up to 16"):
        model(torch.ones(1, 4, 24, 24, dtype=torch.float64))


@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal"])
def test_a_picture_longer_than_its_canvas_is_a_sentence(positions):
    model = small(positions=positions)
    with pytest.raises(ValueError, match="a picture has 10 rows or 1 columns of patches; expected up to 5 × 5"):
        model(torch.ones(1, 4, 40, 4, dtype=torch.float64))


@every_option
def test_no_pictures_have_no_answers(options):
    model = small(**options)
    height, width = area_of(model).canvas
    none = torch.zeros(0, model.config.channels + 1, height, width, dtype=torch.float64)
    assert model(none).shape == (0, 5)


def test_a_model_that_keeps_no_ratio_takes_no_canvas():
    with pytest.raises(ValueError, match="axis c \\(channels\\)"):
        small(keep_aspect=False)(torch.ones(1, 4, 16, 16, dtype=torch.float64))
    with pytest.raises(ValueError, match="keep_aspect is for models that give one answer"):
        ViTConfig(keep_aspect=True, pooling="none")


def test_a_batch_gives_back_its_pictures():
    area = Area((16, 16), (4, 4))
    pictures = [torch.randint(0, 256, (3, *area.of(*shape)), dtype=torch.uint8) for shape in SHAPES]
    for picture, row in zip(pictures, join(pictures, area), strict=True):
        assert torch.equal(cut_out(row), picture)
        assert int((row[-1] > 0).sum()) == picture.shape[1] * picture.shape[2]
        assert int(row[:-1].sum()) == int(picture.sum())


# From files to answers


def draw_shape(kind, number, squashed=False):
    """A circle, or an ellipse four times as long as wide, in a corner of a picture twice as long as wide.

    The middle square of the picture holds neither. Each is drawn as an ellipse of one square, alike for both kinds, and
    the square is stretched: across that ellipse for a circle, along it for the other. Squashed, they are those squares.
    """
    draw = np.random.default_rng([number, kind == "ellipse"])
    sides = draw.permutation([1.0, 0.5]) * draw.uniform(8.8, 11)
    centre = draw.uniform(sides / 2, 12 - sides / 2)
    centre = np.where(draw.random(2) < 0.5, centre, 48 - centre)
    scale = np.ones(2)
    scale[int(sides.argmax() if kind == "ellipse" else sides.argmin())] = 1 if squashed else 2
    picture = Image.new("RGB", tuple(int(x) for x in 48 * scale), tuple(int(x) for x in draw.integers(0, 90, 3)))
    box = [*((centre - sides / 2) * scale), *((centre + sides / 2) * scale)]
    ImageDraw.Draw(picture).ellipse(box, fill=tuple(int(x) for x in draw.integers(150, 256, 3)))
    return picture


def save_shapes(folder, counts, **how):
    start = 0
    for split, count in counts.items():
        for kind in ("circle", "ellipse"):
            (folder / split / kind).mkdir(parents=True)
            for i in range(start, start + count):
                draw_shape(kind, i, **how).save(folder / split / kind / f"{i:04}.png")
        start += count
    return folder


def shapes_run(folder, **changes):
    usual = ClassifierRun(
        model=ViTConfig(width=64, depth=2, heads=4, patch=(8, 8), stem="conv", pooling="mean"),
        data=DataConfig(f"folder:{folder}", size=(64, 64)),
        augment=Augment(flip="random"),
        optim=Optim("muon", lr=2e-3),
        duration="16 epochs",
        batch=32,
        evaluate_every="0 steps",
        checkpoint_every="0 steps",
        device="cpu",
    )
    return override(usual, {"data.keep_aspect": True} | changes)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return save_shapes(tmp_path_factory.mktemp("shapes"), {"train": 150, "val": 50})


@pytest.fixture(scope="module")
def trained(shapes, tmp_path_factory):
    """A few steps."""
    folder = tmp_path_factory.mktemp("runs") / "shapes"
    return train(shapes_run(shapes, duration="8 steps"), out=folder, progress=False)


@pytest.mark.slow
def test_shapes_that_only_the_ratio_of_the_sides_tells_apart_are_learned(shapes, tmp_path):
    whole = train(shapes_run(shapes), progress=False)
    assert whole.figures["top1"] >= 0.9
    cut = train(shapes_run(shapes, **{"data.keep_aspect": False}), progress=False)
    squares = save_shapes(tmp_path / "squares", {"train": 150, "val": 50}, squashed=True)
    squashed = train(shapes_run(squares, **{"data.keep_aspect": False}), progress=False)
    assert cut.figures["top1"] <= 0.65
    assert squashed.figures["top1"] <= 0.65


AREA = Area((64, 64), (8, 8))


@pytest.mark.slow
def test_files_are_read_alike_by_every_way(shapes, tmp_path):
    config = DataConfig(f"folder:{shapes}", size=(64, 64), keep_aspect=True, patch=(8, 8), workers=0)
    usual = load_images(config).train
    assert isinstance(usual, ImageSet)
    assert usual.area == AREA
    assert usual.shape == (4, *AREA.canvas)
    ways = {
        "lazy": {"zoom_into": "original"},
        "processes": {"zoom_into": "original", "workers": 2},
        "cache": {"cache": str(tmp_path / "cache")},
        "cache again": {"cache": str(tmp_path / "cache"), "zoom_into": "original"},
    }
    chosen = torch.arange(0, len(usual), 7)
    for name, changes in ways.items():
        images = load_images(replace(config, **changes)).train
        assert torch.equal(images.read(chosen), usual.read(chosen)), name
        assert images.area == AREA
        if isinstance(images, LazyImageSet):
            images.close()
    with Image.open(shapes / "train" / usual.names[0].partition("/")[2]) as file:
        size = AREA.of(file.height, file.width)
    assert cut_out(usual[0][0]).shape == (3, *size)
    assert size in ((40, 80), (80, 40))


def test_a_picture_is_scaled_and_not_squashed(tmp_path):
    """A circle stays one to a pixel, on pictures of every ratio; brought to a square it would not."""
    for width, height in ((96, 48), (60, 90), (50, 200)):
        picture = Image.new("L", (4 * width, 4 * height))
        x, y, r = 2 * width, 2 * height, width
        ImageDraw.Draw(picture).ellipse([x - r, y - r, x + r, y + r], fill=255)
        picture.save(tmp_path / "circle.png")
        pixels = decode(tmp_path / "circle.png", AREA, 1)[0] > 127
        tall, wide = (int(pixels.any(dim).sum()) for dim in (1, 0))
        assert abs(tall - wide) <= 1, (width, height)
        square = decode(tmp_path / "circle.png", (64, 64), 1, fit="stretch")[0] > 127
        assert abs(int(square.any(1).sum()) - int(square.any(0).sum())) > 8


def test_a_photograph_is_decoded_smaller_for_an_area_too(tmp_path):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 60, 3), dtype=np.uint8))
    picture.resize((2400, 1200), Image.Resampling.BICUBIC).save(tmp_path / "large.jpg", quality=95)
    picture.resize((2400, 1200), Image.Resampling.BICUBIC).save(tmp_path / "large.png")
    small, exact = (decode(tmp_path / f"large.{end}", AREA).float() for end in ("jpg", "png"))
    assert small.shape == (3, *AREA.of(1200, 2400))
    assert (small - exact).abs().mean() < 2


def test_statistics_are_of_pictures_and_not_of_what_lies_beside_them(shapes):
    images = load_images(DataConfig(f"folder:{shapes}", size=(64, 64), keep_aspect=True, patch=(8, 8))).train
    pixels = torch.cat([cut_out(image).flatten(1) for image, _ in (images[i] for i in range(len(images)))], 1)
    mean, std = statistics(images)
    assert_close(torch.tensor(mean), (pixels.double() / 255).mean(1).float(), atol=1e-6, rtol=0)
    assert_close(torch.tensor(std), (pixels.double() / 255).std(1, correction=0).float(), atol=1e-6, rtol=0)


def test_of_a_large_picture_a_part_keeps_its_ratio(tmp_path):
    Image.new("RGB", (300, 200), "white").save(tmp_path / "white.png")
    part = View(0.5, 3.0, 0.2, 0.7)
    _, _, tall, wide = part.box(200, 300)
    assert decode(tmp_path / "white.png", AREA, view=part).shape == (3, *AREA.of(tall, wide))


AUGMENTED = {
    "flip": Augment(flip="random"),
    "alternating": Augment(flip="alternating"),
    "crop, reflected": Augment(crop=5),
    "crop, black": Augment(crop=5, crop_fill="zero", flip="random"),
    "cutout": Augment(cutout=9),
    "erasing": Augment(erasing=1.0),
    "randaugment": Augment(policy="randaugment"),
    "trivial": Augment(policy="trivial"),
}


@pytest.mark.parametrize("config", AUGMENTED.values(), ids=AUGMENTED)
def test_a_picture_on_a_canvas_is_augmented_as_it_would_be_alone(config):
    normalise, count = Normalise((0.5, 0.4, 0.3), (0.25, 0.2, 0.3)), 60
    draw = np.random.default_rng(0)
    shapes = [(int(draw.integers(30, 90)), int(draw.integers(30, 90))) for _ in range(count)]
    pictures = [torch.randint(1, 256, (3, *AREA.of(*shape)), dtype=torch.uint8) for shape in shapes]
    batch, n = join(pictures, AREA), torch.arange(count)

    def run(images, index):
        how = {"seed": 3, "step": 5, "epoch": 1, "index": index, "positions": index}
        return augment(images, torch.zeros_like(index), config, normalise, **how).images

    together = run(batch, n)
    assert torch.equal(together[:, -1], (batch[:, -1] > 0).float())
    changed = 0
    for i, picture in enumerate(pictures):
        alone = run(picture[None], n[i : i + 1])[0]
        height, width = picture.shape[1:]
        assert_close(together[i, :3, :height, :width], alone, atol=1e-6, rtol=0)
        assert together[i, :3, height:].abs().max() == 0 if height < AREA.canvas[0] else True
        assert together[i, :3, :, width:].abs().max() == 0 if width < AREA.canvas[1] else True
        changed += not torch.allclose(alone, normalised(picture[None], normalise)[0])
    assert changed > count / 4


def test_zoom_keeps_the_ratio_and_fills_the_picture():
    pictures = [torch.arange(w, dtype=torch.uint8).expand(3, h, w).contiguous() for h, w in ((40, 80), (88, 40))]
    n = torch.arange(2)
    config, normalise = Augment(zoom=0.25), Normalise((0.0,) * 3, (1.0,) * 3)
    out = augment(join(pictures, AREA), n, config, normalise, seed=1, step=2, epoch=0, index=n, positions=n).images
    for row, picture in zip(out, pictures, strict=True):
        height, width = picture.shape[1:]
        line = row[0, 0, :width] * 255
        assert torch.equal(row[0, :height, :width] * 255, line.expand(height, -1))
        steps = line.diff()
        assert (steps >= 0).all()
        assert 0.4 < float(line[-1] - line[0]) / width < 1
        assert row[:3, height:].abs().sum() == row[:3, :, width:].abs().sum() == 0


@pytest.mark.parametrize(
    "changes",
    [{"augment.cutmix": 1.0}, {"augment.mixup": 0.2}, {"augment.small": 0.5}, {"distil.teacher": "vit-cifar10"}],
    ids=str,
)
def test_what_can_not_be_done_to_pictures_of_different_shapes_is_a_sentence(changes):
    with pytest.raises(ValueError, match="ratio of their sides"):
        shapes_run("nowhere", **changes)


def test_sets_of_one_shape_have_no_ratio_to_keep(shapes):
    with pytest.raises(ValueError, match="the images of digits all have one shape; leave out keep_aspect"):
        train(shapes_run("nowhere", **{"data.name": "digits"}), progress=False)
    with pytest.raises(ValueError, match="say how large those are"):
        load_images(DataConfig(f"folder:{shapes}", keep_aspect=True))


def test_evaluating_predicting_and_asking_again_agree(trained, shapes):
    model = load(trained.folder)
    report = model.evaluate(f"folder:{shapes}", "validation", batch=7)
    again = model.evaluate(f"folder:{shapes}", "validation", batch=100)
    assert report.top1 == again.top1 == pytest.approx(trained.kept["top1"])
    assert_close(report.probabilities, again.probabilities, atol=1e-5, rtol=0)
    paths = [shapes / name for name in report.images.names]
    singly = [model.predict(path, top=1)[0] for path in paths[:6]]
    together = model.predict(paths[:6], top=1)
    for place, (one, (other,)) in enumerate(zip(singly, together, strict=True)):
        assert one.label == other.label == report.classes[int(report.probabilities[place].argmax())]
        assert one.probability == pytest.approx(other.probability, abs=1e-5)
        assert one.probability == pytest.approx(report.probabilities[place].max().item(), abs=1e-5)
    assert model.evaluate(f"folder:{shapes}", "validation", views=10).probabilities.shape == (100, 2)
    mirrored = model.predict(
        [Image.open(path).transpose(Image.Transpose.FLIP_LEFT_RIGHT) for path in paths[:6]], views=2
    )
    for one, other in zip(model.predict(paths[:6], views=2), mirrored, strict=True):
        assert one[0].probability == pytest.approx(other[0].probability, abs=1e-5)
    assert torch.equal(
        model.evaluate(DataConfig(f"folder:{shapes}"), "validation", batch=7).probabilities, report.probabilities
    )
    square = ImageSet(
        torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8), torch.tensor([0, 1, 0, 1]), model.labels
    )
    on_canvas = replace(square, images=join(list(square.images), AREA), area=AREA)
    assert_close(model.evaluate(square).probabilities, model.evaluate(on_canvas).probabilities, atol=1e-5, rtol=0)
    ordinary = ReadyClassifier(ViT(replace(model.looks, keep_aspect=False)))
    with pytest.raises(ValueError, match="the model sees pictures of one shape"):
        ordinary.evaluate(on_canvas)


def test_a_look_at_one_picture_has_its_own_grid_and_no_padding(trained, shapes):
    model = load(trained.folder)
    path = next((shapes / "val" / "circle").iterdir())
    with Image.open(path) as picture:
        grid = (5, 10) if picture.width > picture.height else (10, 5)
    trace = model.trace(path, methods=["rollout", "gradient", "raw"])
    assert trace.streams[0].grid == grid
    assert trace.pictures[0].pixels.shape == (3, 8 * grid[0], 8 * grid[1])
    assert trace.layers[0].q.shape[1] == 50
    assert trace.answers[0][1] == pytest.approx(model.predict(path)[0].probability, abs=1e-5)
    assert model.explain(path, "gradient").values.shape == (50,)


def test_a_dataset_of_ones_own_keeps_its_ratios():
    pairs = [(draw_shape(kind, i), kind) for i in range(8) for kind in ("circle", "ellipse")]
    run = shapes_run("unused", duration="2 steps", batch=8, **{"data.size": (64, 64)})
    result = train(run, dataset={"train": pairs, "validation": pairs}, progress=False)
    assert 0 <= result.figures["top1"] <= 1
    assert result.model.looks.keep_aspect
    assert result.model.evaluate(pairs).probabilities.shape == (16, 2)
    assert {each.shape for each in (cut_out(result.model.read(pairs[i][0])[0]) for i in range(6))} <= {
        (3, 40, 80),
        (3, 80, 40),
    }


@pytest.mark.parametrize("where", ["data", "model"])
def test_the_page_draws_the_confusion_of_what_the_model_saw(shapes, tmp_path, monkeypatch, where):
    run = shapes_run(shapes, duration="2 steps", batch=16)
    keeps = {"data.keep_aspect": where == "data", "model.keep_aspect": where == "model"}
    train(override(run, keeps), out=tmp_path / "run", progress=False)
    shown = []
    plain = confusion.load_images
    monkeypatch.setattr(confusion, "load_images", lambda *how: shown.append(plain(*how)) or shown[-1])
    assert confusion.draw_confusion(tmp_path / "run", 20).images == 20
    assert shown[0].train.area == Area((64, 64), (8, 8))


@pytest.mark.parametrize("zoom_into", ["image", "original"])
def test_a_stopped_run_goes_on_to_the_same_weights(shapes, tmp_path, zoom_into):
    run = shapes_run(
        shapes,
        duration="6 steps",
        checkpoint_every="1 steps",
        **{"data.zoom_into": zoom_into, "augment.zoom": 0.5, "model.stem": "linear", "data.workers": 0},
    )
    train(run, out=tmp_path / "whole", progress=False)

    class Crash(Observer):
        def logged(self, lines):
            if any(line["step"] == 4 for line in lines):
                raise RuntimeError("the power is cut")

    with pytest.raises(RuntimeError, match="power"):
        train(run, out=tmp_path / "parts", progress=False, callbacks=[Crash()])
    assert train(tmp_path / "parts", progress=False).steps == 6
    whole, parts = (load(tmp_path / name).model.state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.slow
def test_another_model_goes_on_with_its_weights_on_pictures_of_any_ratio(shapes):
    run = shapes_run(shapes, duration="2 steps", batch=16)
    tuned = replace(run, start="vit-cifar10", model=ViTConfig(), data=replace(run.data, size=None))
    result = train(tuned, progress=False)
    assert result.model.looks.image == (32, 32)
    assert result.model.looks.keep_aspect
    assert result.model.looks.patch == (4, 4)
