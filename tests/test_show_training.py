"""Pictures of training, by what is drawn in them."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from PIL import Image

from pellucid.views.figures import save_figure
from pellucid.views.training import (
    LINES,
    History,
    Point,
    SampleRow,
    confusion_figure,
    curves_figure,
    samples_figure,
    shorten_name,
)


def run(name="mine", epochs=10, per_epoch=4, length=None):
    """Loss 1/step on training images; one evaluation an epoch, with accuracy epoch/100."""
    step = 1 / per_epoch
    steps = [Point(i * step, 1 / i, 0.5) for i in range(1, epochs * per_epoch + 1)]
    held_out = [Point(float(e), 2 / e, e / 100) for e in range(1, epochs + 1)]
    return History(name, tuple(steps), tuple(held_out), float(length or epochs), step)


def lines(ax):
    return [(list(line.get_xdata()), list(line.get_ydata()), line) for line in ax.lines]


def drawn(figure):
    return [ax for ax in figure.axes if ax.lines]


def test_training_is_the_mean_of_each_epoch_in_its_middle():
    points = run(epochs=3).by_epoch()
    assert [point.epoch for point in points] == [0.625, 1.625, 2.625]
    assert points[1].loss == pytest.approx((1 / 5 + 1 / 6 + 1 / 7 + 1 / 8) / 4)
    assert points[1].loss != pytest.approx((1 / 4 + 1 / 5 + 1 / 6 + 1 / 7) / 4)  # an epoch ends with its last step


def test_a_step_over_the_last_epoch_is_no_epoch():
    whole = run(epochs=3)
    one_more = History("mine", (*whole.steps, Point(3.25, 9.0, 0.0)), whole.held_out, 3.25, whole.step)
    assert one_more.by_epoch() == whole.by_epoch()
    half = (*whole.steps, Point(3.25, 9.0, 0.0), Point(3.5, 9.0, 0.0))
    assert len(History("mine", half, (), 3.5, whole.step).by_epoch()) == 4


def test_a_run_that_has_hardly_begun_still_has_a_point():
    assert len(History("mine", (Point(0.01, 2.3, 0.1),), (), 50.0, 0.01).by_epoch()) == 1


def test_a_run_cut_short():
    long = run(epochs=50)
    cut = long.first(10)
    assert max(point.epoch for point in cut.steps + cut.held_out) == 10.0
    assert cut.held_out == long.held_out[:10]
    assert long.lasts(50)
    assert not long.lasts(10)
    assert not cut.lasts(10)  # it is still the beginning of fifty


def test_evaluations_that_drift_from_whole_epochs_are_kept():
    # 50,000 images in batches of 512: 97.66 steps an epoch, so "every epoch" is every 98 steps
    step = 512 / 50_000
    held_out = tuple(Point(98 * step * e, 1.0, 0.5) for e in range(1, 50))
    long = History("mine", (Point(step, 2.3, 0.1),), held_out, 50.0, step)
    assert [len(long.first(count).held_out) for count in (10, 20, 30)] == [10, 20, 30]


def test_curves_are_drawn_from_left_to_right():
    axes = drawn(curves_figure([("", [run(), run("other", epochs=6)])]))
    assert len(axes) == 2
    for ax in axes:
        assert len(ax.lines) == 4
        assert all(np.all(np.diff(xs) > 0) for xs, _, _ in lines(ax))
    losses = lines(axes[0])
    assert losses[1][1] == [2 / e for e in range(1, 11)]  # the first epoch has the highest loss
    assert losses[1][1] != losses[1][1][::-1]


def test_dashed_is_training_and_a_colour_is_a_run():
    axes = drawn(curves_figure([("", [run(), run("other")])]))
    train, held_out, *others = axes[1].lines
    assert train.get_linestyle() == "--"
    assert held_out.get_linestyle() == "-"
    assert {to_hex(line.get_color()).upper() for line in (train, held_out)} == {LINES[0]}
    assert {to_hex(line.get_color()).upper() for line in others} == {LINES[1]}


def test_accuracy_from_zero_to_a_hundred_and_panels_on_one_scale():
    figure = curves_figure([("first 5 of 10 epochs", [run().first(5)]), ("10 epochs", [run()])])
    assert len(drawn(figure)) == 4
    first, second, *accuracies = drawn(figure)
    assert {ax.get_ylim() for ax in accuracies} == {(0.0, 1.0)}
    assert first.get_ylim() == second.get_ylim()
    assert first.get_ylim()[0] == 0.0
    assert first.get_ylim()[1] >= 2.0
    assert [ax.get_xlim() for ax in (first, second)] == [(0.0, 5.0), (0.0, 10.0)]
    assert first.get_title() == "first 5 of 10 epochs"
    short = History("short", (Point(3.92, 1.0, 0.5),), (), 8.0, 0.089)
    assert drawn(curves_figure([("", [short])]))[0].get_xlim() == (0.0, 4.0)
    texts = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in accuracies]
    assert texts == [["mine  5.0 %"], ["mine  10.0 %"]]


def test_curves_without_an_evaluation(tmp_path):
    bare = History("mine", (Point(0.5, 2.0, math.nan), Point(1.0, 1.0, math.nan)), (), 1.0, 0.5)
    save_figure(curves_figure([("", [bare])]), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_confusion_colours_are_shares_of_the_row_and_numbers_are_counts():
    table = torch.tensor([[30, 10, 0], [0, 5, 0], [0, 0, 0]])
    figure = confusion_figure(table, ["ant", "bee", "cow"])
    ax = figure.axes[0]
    image = ax.images[0]
    shares = np.ma.filled(image.get_array(), np.nan)
    np.testing.assert_array_equal(shares, [[0.75, 0.25, 0], [0, 1, 0], [np.nan] * 3])
    assert image.get_clim() == (0.0, 1.0)
    assert [text.get_text() for text in ax.texts] == [str(count) for count in table.flatten().tolist()]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["ant", "bee", "cow"]
    assert any(isinstance(artist, QuadMesh) for artist in figure.axes[1].get_children())  # the colour bar
    with pytest.raises(ValueError, match="names has 2 entries; expected one for each of 3 classes"):
        confusion_figure(table, ["ant", "bee"])


def test_confusion_of_many_classes_has_no_numbers():
    figure = confusion_figure(torch.eye(60, dtype=torch.int64), [str(i) for i in range(60)])
    assert not figure.axes[0].texts
    assert len(figure.axes[0].get_xticks()) == 30
    assert len(confusion_figure(torch.eye(20, dtype=torch.int64), ["x"] * 20).axes[0].texts) == 400


def pixels_of(figure, path: Path):
    save_figure(figure, path)
    with Image.open(path) as picture:
        return np.array(picture.convert("RGB"))


@pytest.mark.parametrize(("height", "width", "scale"), [(8, 8, 14), (32, 32, 4), (28, 20, 4), (150, 130, 1)])
def test_samples_are_exact_to_the_pixel(tmp_path, height, width, scale):
    images = torch.randint(256, (2, 3, height, width), dtype=torch.uint8)
    rows = [SampleRow("original", images[:1], ["ant"]), SampleRow("draw 1", images[1:], [""])]
    picture = pixels_of(samples_figure(rows), tmp_path / "grid.png")
    for image in images:
        big = image.permute(1, 2, 0).numpy().repeat(scale, 0).repeat(scale, 1)
        assert any(found(picture, big))
    other = (255 - images[0]).permute(1, 2, 0).numpy().repeat(scale, 0).repeat(scale, 1)
    assert not any(found(picture, other))


def found(picture, block):
    """Whether the block is in the picture, for every place that its first row of pixels is at."""
    h, w, _ = block.shape
    windows = np.lib.stride_tricks.sliding_window_view(picture, (1, min(w, 40), 3))[:, :, 0, 0]
    for y, x in np.argwhere((windows == block[0, : min(w, 40)]).all((-1, -2))):
        yield np.array_equal(picture[y : y + h, x : x + w], block)


def test_grey_samples_and_long_names(tmp_path):
    grey = torch.full((1, 1, 8, 8), 77, dtype=torch.uint8)
    picture = pixels_of(samples_figure([SampleRow("original", grey, ["x"])]), tmp_path / "grid.png")
    assert (picture == 77).all(-1).sum() >= (8 * 14) ** 2
    assert shorten_name("a" * 40) == "a" * 14 + "…"
    assert shorten_name("a" * 15) == "a" * 15
