"""Pictures of a trace, by what is drawn in them: the numbers are the data's, and no text lies on another."""

import itertools
import math

import numpy as np
import pytest
import torch
from conftest import truth
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import EllipseCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.text import Text

from pellucid.explain.faithfulness import Faithfulness, areas_under
from pellucid.explain.timelapse import Moment
from pellucid.explain.trace import Layer, Map, SeenPicture, Stream, Trace
from pellucid.ops import masks
from pellucid.views.bundle import load_trace, save_trace
from pellucid.views.colours import Scale, overlay, pixels
from pellucid.views.draw import (
    draw_graph,
    draw_head_report,
    draw_heads,
    draw_lapse,
    draw_maps,
    draw_mask,
    draw_matrix,
    draw_word_heads,
    draw_words,
)
from pellucid.views.figures import attention_figure, mask_figure, save_figure
from pellucid.views.graph import Nodes, graph_figure, heaviest
from pellucid.views.maps import RESCALED, MapPanel, grid_figure, maps_figure, methods_figure
from pellucid.views.reports import Measure, faithfulness_figure, head_report_figure

GRID = (2, 3)
SAID = ("two", "red", "dogs", "run")


def layer(name, queries, keys, n_queries, n_keys, *, heads=2, causal=False, mask=None, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(heads, n, 8, generator=drawn) for n in (n_queries, n_keys))
    return Layer(name, queries, keys, q, k, 0.8, causal, mask, torch.ones(heads, n_keys))


def image_row(extra=("class",)):
    patches = tuple(f"patch {row},{column}" for row in range(GRID[0]) for column in range(GRID[1]))
    return Stream.patches("image", (*extra, *patches), GRID)


def picture(height=20, width=30):
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def classifier(extra=("class",), share=0.9):
    row = image_row(extra)
    n = len(row.labels)
    layers = tuple(layer(f"blocks.{i}.attention", "image", "image", n, n, seed=i) for i in range(3))
    shared_out = torch.rand(n, generator=torch.Generator().manual_seed(5)).softmax(0)
    maps = (Map("rollout", "cat", None, shared_out), Map("gradient", "cat", None, 40 * shared_out.flip(0)))
    return Trace(
        "tiny",
        "classifier",
        (row,),
        (SeenPicture("image", picture()),),
        layers,
        (("cat", share), ("dog", 1 - share)),
        (),
        maps,
    )


def captioner(name="teller"):
    row, words = image_row(("register 1",)), Stream("words", "text", ("<start>", *SAID[:-1]), prompt=1)
    n, t = len(row.labels), len(SAID)
    layers = [layer(f"encoder.blocks.{i}.attention", "image", "image", n, n, seed=i) for i in range(2)]
    for i in range(2):
        layers.append(layer(f"decoder.blocks.{i}.attention", "words", "words", t, t, causal=True, seed=10 + i))
        layers.append(layer(f"decoder.blocks.{i}.cross_attention", "words", "image", t, n, seed=20 + i))
    said = tuple((word, math.log(share)) for word, share in zip(SAID, (0.9, 0.5, 0.25, 0.999), strict=True))
    maps = tuple(Map("gradient", word, i, torch.arange(n) * (i + 1.0)) for i, word in enumerate(SAID))
    return Trace(name, "captioner", (row, words), (SeenPicture("image", picture()),), tuple(layers), (), said, maps)


def weights_of(layer):
    """The textbook's map (h q k)."""
    q, k = layer.q[None].double(), layer.k[None].double()
    return truth(q, k, k, layer.mask, layer.beta, layer.causal)[1][0]


def texts(figure):
    """Every text that is drawn, with its box in pixels."""
    drawn, really = [], Text.draw

    def noted(text, renderer, *rest):
        if text.get_visible() and text.get_text().strip():
            drawn.append((text, text.get_window_extent(renderer)))
        really(text, renderer, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", noted)
        FigureCanvasAgg(figure).draw()
    return drawn


def written(figure):
    return [text.get_text() for text, _ in texts(figure)]


def assert_readable(figure):
    """No text lies on another, and none leaves the picture."""
    found, page = texts(figure), figure.bbox
    for text, box in found:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= page.x1 + 1 and box.y1 <= page.y1 + 1
        assert inside, f"{text.get_text()!r} leaves the picture"
    for (one, a), (other, b) in itertools.combinations(found, 2):
        slanted = one.get_rotation() == other.get_rotation() == 45  # their boxes are wider than they
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart or slanted, f"{one.get_text()!r} lies on {other.get_text()!r}"


EVERY = {
    "maps": lambda: draw_maps(classifier()),
    "maps rescaled": lambda: draw_maps(classifier(), rescale=True),
    "heads": lambda: draw_heads(classifier()),
    "heads of a patch": lambda: draw_heads(classifier(), "patch 1,2", rescale=True),
    "heads of a word": lambda: draw_heads(captioner(), "dogs"),
    "word heads": lambda: draw_word_heads(captioner()),
    "words": lambda: draw_words(captioner(), head=1),
    "words by a method": lambda: draw_words(captioner(), method="gradient"),
    "matrix": lambda: draw_matrix(classifier(), 0, 1),
    "matrix of words": lambda: draw_matrix(captioner(), "decoder.blocks.1.attention"),
    "oblong matrix": lambda: attention_figure(torch.rand(3, 40).softmax(-1), queries=SAID[:3], top=0.1),
    "upright matrix": lambda: attention_figure(torch.rand(40, 3).softmax(-1), keys=SAID[:3]),
    "mask": lambda: draw_mask(captioner(), "decoder.blocks.0.attention"),
    "graph": lambda: draw_graph(classifier(), 0),
    "graph of words": lambda: draw_graph(captioner(), "decoder.blocks.0.attention"),
    "graph of words to the image": lambda: draw_graph(captioner(), -1),
    "lapse": lambda: draw_lapse(picture(), moments(), GRID),
    "faithfulness": lambda: faithfulness_figure(measured(), title="tiny"),
    "heads of a trace in numbers": lambda: draw_head_report(classifier()),
    "heads in numbers": lambda: head_report_figure(measures(), layers=["layer 0", "layer 1"], title="tiny"),
}


@pytest.mark.parametrize("name", EVERY)
def test_no_text_lies_on_another(name):
    assert_readable(EVERY[name]())


@pytest.mark.parametrize(
    "shown",
    [
        draw_words,
        draw_word_heads,
        draw_matrix,
        draw_mask,
        draw_graph,
        draw_head_report,
        draw_heads,
    ],
)
def test_a_long_title_is_wrapped(shown):
    name = "the captioner that was trained for eleven days on every photograph of a dog and then on those of cats"
    figure = shown(captioner(name))
    assert_readable(figure)
    titles = [figure.get_suptitle(), *(ax.get_title() for ax in figure.axes)]
    whole = " ".join(" ".join(titles).split())
    assert name in whole or shown is draw_mask


def test_overlapping_text_would_be_seen():
    figure = draw_maps(classifier())
    figure.text(0.5, 0.93, "on the title")
    with pytest.raises(AssertionError, match="lies on"):
        assert_readable(figure)


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_same_picture_is_the_same_bytes(tmp_path, suffix):
    for name in ("a", "b"):
        save_figure(draw_heads(classifier()), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_pictures_from_a_file(tmp_path):
    save_trace(captioner(), tmp_path / "seen.pellucid")
    loaded = load_trace(tmp_path / "seen.pellucid")
    for old, new in zip(draw_words(captioner()).axes[1:5], draw_words(loaded).axes[1:5], strict=True):
        assert new.get_title() == old.get_title()
        np.testing.assert_allclose(new.images[0].get_array(), old.images[0].get_array(), atol=5e-3)  # half precision


# Scales


def test_the_absolute_scale_begins_at_zero_and_marks_one_nth():
    scale = Scale.absolute([torch.tensor([0.1, 0.4]), torch.tensor([0.3])], tokens=8)
    assert (scale.low, scale.high, scale.mark) == (0.0, pytest.approx(0.4), (1 / 8, "1/8"))
    even = Scale.absolute([torch.full((8,), 1 / 8)], tokens=8)
    assert even(np.array(1 / 8)) == pytest.approx(0.5)  # weights that are all alike are not the brightest
    assert not scale.cut
    cut = Scale.absolute([torch.tensor([0.1, 0.4])], tokens=8, top=0.2)
    assert cut.cut
    assert cut(np.array([0.1, 0.4])).tolist() == pytest.approx([0.5, 1.0])
    with pytest.raises(ValueError, match="top is 0"):
        Scale.absolute([torch.tensor([0.1])], tokens=8, top=0.0)


def test_a_method_has_its_own_unit():
    shared_out = torch.tensor([0.6, 0.1, 0.1, 0.2])  # one token of no patch
    scale = Scale.own(shared_out, patches=3)
    assert (scale.low, scale.mark) == (0.0, (1 / 4, "1/4"))
    assert scale.high == 0.5  # twice 1/4: what isn't seen doesn't count, and little stays dark
    other = Scale.own(30 * shared_out, patches=3)
    assert other.mark == (pytest.approx(4.0), "mean")
    assert other.high == pytest.approx(8.0)
    assert Scale.own(torch.tensor([90.0, 1.0, 9.0]), patches=2).high == pytest.approx(10.0)
    assert Scale.own(torch.tensor([1.0, 1.0, 90.0]), patches=2).high == pytest.approx(91.0)
    assert Scale.own(torch.tensor([-1.0, 3.0]), patches=2).low == -1.0
    assert Scale.own(torch.zeros(4), patches=4).high > 0


def test_rescaling_is_said_on_the_picture_and_shows():
    weak, strong = torch.full((2, 2), 0.01), torch.full((2, 2), 0.01)
    weak[0, 0], strong[1, 1] = 0.02, 0.9
    panels = [MapPanel("weak", weak), MapPanel("strong", strong)]
    white = torch.full((3, 8, 8), 255, dtype=torch.uint8)

    def colours(rescale):
        figure = maps_figure(white, panels, tokens=4, title="", rescale=rescale)
        return figure, figure.axes[1].images[0].get_array()[0, 0], figure.axes[2].images[0].get_array()[7, 7]

    figure, first, second = colours(False)
    assert not np.allclose(first, second)
    assert not any(RESCALED in text for text in written(figure))
    assert "1/4" in written(figure)
    assert "largest 0.02" in written(figure)
    figure, first, second = colours(True)
    assert np.allclose(first, second)  # each map's largest is the brightest
    assert any(RESCALED in text for text in written(figure))
    assert {"0.01 to 0.02", "0.01 to 0.9", "smallest", "largest"} <= set(written(figure))
    assert "1/4" not in written(figure)
    with pytest.raises(ValueError, match="leave out top or rescale"):
        maps_figure(white, panels, tokens=4, title="", rescale=True, top=0.5)


def test_a_weight_above_the_top_is_said_to_be():
    panels = [MapPanel("one", torch.tensor([[0.9, 0.1]]))]
    for top, extended in ((None, "neither"), (0.5, "max")):
        figure = maps_figure(picture(), panels, tokens=2, title="", top=top)
        bars = [ax._colorbar for ax in figure.axes if hasattr(ax, "_colorbar")]  # matplotlib keeps it there
        assert [bar.extend for bar in bars] == [extended]


# Maps over the picture


def test_every_head_of_every_layer_of_the_class_token():
    seen = classifier()
    figure = draw_heads(seen)
    left, grid, *_ = figure.axes
    rows = torch.stack([weights_of(each)[:, 0, 1:].unflatten(-1, GRID) for each in seen.layers])  # layers heads y x
    (sheet,), shown = grid.images, pixels(seen.pictures[0].pixels)
    height, width = sheet.get_array().shape[0] // 3, sheet.get_array().shape[1] // 2  # of a cell and its gap
    for i, j in np.ndindex(3, 2):
        drawn = sheet.get_array()[i * height : i * height + 20, j * width : j * width + 30]
        np.testing.assert_allclose(drawn, overlay(shown, rows[i, j].numpy() / rows.max().item()), atol=1e-6)
    assert [text.get_text() for text in grid.texts] == [f"{w.max().item():.2g}" for w in rows.flatten(0, 1)]
    assert [tick.get_text() for tick in grid.get_yticklabels()] == ["layer 0", "layer 1", "layer 2"]
    assert [tick.get_text() for tick in grid.get_xticklabels()] == ["head 0", "head 1"]
    assert "where the token “class” looks" in figure.get_suptitle()
    assert not left.patches
    assert "1/7" in written(figure)


def test_the_heads_of_a_chosen_patch():
    seen = classifier()
    by_label, by_number = draw_heads(seen, "patch 1,2"), draw_heads(seen, 6)
    (frame,) = by_label.axes[0].patches
    assert (frame.get_x(), frame.get_y()) == (2 / 3, 1 / 2)
    largest = [f"{w.max().item():.2g}" for each in seen.layers for w in weights_of(each)[:, 6, 1:]]
    for figure in (by_label, by_number):
        assert [text.get_text() for text in figure.axes[1].texts] == largest
    with pytest.raises(ValueError, match=r"no token 'patch 9,9'; expected 0…6 or one of class, patch 0,0"):
        draw_heads(seen, "patch 9,9")
    with pytest.raises(ValueError, match="no token 7"):
        draw_heads(seen, 7)


def test_without_a_class_token_the_mean_of_all_is_shown():
    seen = classifier(extra=())
    figure = draw_heads(seen)
    largest = [f"{w.max().item():.2g}" for each in seen.layers for w in weights_of(each).mean(1)]
    assert [text.get_text() for text in figure.axes[1].texts] == largest
    assert "all 6 tokens look, on average" in figure.get_suptitle()


def test_a_row_of_a_long_image_needs_no_matrix():
    row = Stream.patches("image", ("class", *(f"patch {i},{j}" for i in range(64) for j in range(64))), (64, 64))
    long = layer("blocks.0.attention", "image", "image", 4097, 4097)
    seen = Trace(
        "long", "classifier", (row,), (SeenPicture("image", picture(64, 64)),), (long,), (("cat", 1.0),), (), ()
    )
    assert len(draw_heads(seen).axes[1].texts) == 2
    for shown in (draw_matrix, draw_mask, draw_graph):
        with pytest.raises(ValueError, match=r"at most 512 tokens; blocks\.0\.attention has 4097; draw_heads shows"):
            shown(seen)


def test_every_word_of_every_head():
    seen = captioner()
    figure = draw_word_heads(seen)
    cross = torch.cat(
        [weights_of(each)[:, :, 1:] for each in seen.layers if "cross" in each.name]
    )  # heads words patches
    largest = [f"{w.max().item():.2g}" for w in cross.transpose(0, 1).flatten(0, 1)]
    assert [text.get_text() for text in figure.axes[1].texts] == largest
    assert [tick.get_text() for tick in figure.axes[1].get_yticklabels()] == [
        "two  90 %",
        "red  50 %",
        "dogs  25 %",
        "run  >99 %",
    ]
    assert [tick.get_text() for tick in figure.axes[1].get_xticklabels()][1:3] == ["layer 0\nhead 1", "layer 1\nhead 0"]


def test_the_words_of_one_head_or_their_mean():
    seen = captioner()
    last = weights_of(seen.layers[-1])[:, :, 1:]
    for head, weights, said in ((None, last.mean(0), "mean of 2 heads"), (1, last[1], "head 1")):
        figure = draw_words(seen, head=head)
        assert [ax.texts[0].get_text() for ax in figure.axes[1:5]] == [f"largest {w.max().item():.2g}" for w in weights]
        assert f"cross-attention of decoder layer 1, {said}" in figure.get_suptitle()
    assert "decoder layer 0" in draw_words(seen, layer=0).get_suptitle()
    with pytest.raises(ValueError, match="layer is 2; expected 0…1"):
        draw_words(seen, layer=2)
    with pytest.raises(ValueError, match="head is 2; expected 0…1"):
        draw_words(seen, head=2)
    with pytest.raises(ValueError, match="no words; words are drawn for captioners"):
        draw_words(classifier())


def test_the_words_by_a_method():
    figure = draw_words(captioner(), method="gradient")
    assert [ax.texts[0].get_text() for ax in figure.axes[1:5]] == [
        "largest 6",
        "largest 12",
        "largest 18",
        "largest 24",
    ]
    assert {"mean", "how much a patch counts"} <= set(written(figure))
    with pytest.raises(ValueError, match="no map of the method 'flow'; it has: gradient"):
        draw_words(captioner(), method="flow")


def test_methods_side_by_side_each_on_its_scale():
    seen = classifier()
    figure = draw_maps(seen)
    panels = figure.axes[:3]
    unseen = f"{100 * seen.maps[0].values[0].item():.0f} % on other tokens"
    assert [ax.get_title() for ax in panels] == ["the picture", f"rollout\nfor cat\n{unseen}", "gradient\nfor cat"]
    for ax, found in zip(panels[1:], seen.maps, strict=True):
        values = found.values[1:].numpy()
        top = max(values.max(), 2 / 7 if found.method == "rollout" else 2 * values.mean())
        wanted = overlay(pixels(seen.pictures[0].pixels), values.reshape(GRID) / top)
        np.testing.assert_allclose(ax.images[0].get_array(), wanted, atol=1e-6)
    assert {"1/7", "mean"} <= set(written(figure))
    assert RESCALED in draw_maps(seen, rescale=True).get_suptitle()
    with pytest.raises(ValueError, match=r"none of the trace's 4 maps is of an answer; draw_words"):
        draw_maps(captioner())


def test_a_grey_picture_and_flat_maps():
    grey = torch.zeros(1, 4, 4, dtype=torch.uint8)
    flat = torch.zeros(2, 2)
    for figure in (
        maps_figure(grey, [MapPanel("flat", flat)], tokens=4, title="", rescale=True),
        methods_figure(grey, [("flat", flat, Scale.own(flat.flatten(), 4))], title=""),
    ):
        assert figure.axes[1].images[0].get_array().max() <= 1.0
        FigureCanvasAgg(figure).draw()


def test_a_name_for_each_row_and_column():
    with pytest.raises(ValueError, match="2 rows of up to 1 maps, 1 names of rows and 1 of columns"):
        grid_figure(picture(), [[torch.rand(2, 2)]] * 2, rows=["a"], columns=["b"], tokens=4, title="")


def moments(method="gradient"):
    values = torch.rand(3, 7, generator=torch.Generator().manual_seed(8))
    names, shares = ("dog", "cat", "cat"), (0.4, 0.5, 0.9)
    return [
        Moment(step, Map(method, name, None, each**3), share)
        for step, name, each, share in zip((0, 100, 2000), names, values, shares, strict=True)
    ]


def test_a_training_in_steps():
    figure = draw_lapse(picture(), moments(), GRID, name="tiny")
    titles = ["step 0\ndog 40 %", "step 100\ncat 50 %", "step 2,000\ncat 90 %"]
    assert [ax.get_title() for ax in figure.axes[1:4]] == titles
    assert figure.get_suptitle() == "tiny while it learns: gradient"
    top = max(moment.map.values.max().item() for moment in moments())
    for ax, moment in zip(figure.axes[1:], moments(), strict=False):  # on one scale
        shares = moment.map.values[1:].unflatten(0, GRID).numpy() / top
        np.testing.assert_allclose(ax.images[0].get_array(), overlay(pixels(picture()), shares), atol=1e-6)
    with pytest.raises(ValueError, match="one moment or more"):
        draw_lapse(picture(), [], GRID)
    with pytest.raises(ValueError, match="by gradient, rollout, whose units differ"):
        draw_lapse(picture(), [*moments(), *moments("rollout")], GRID)


# Matrices and masks


def test_the_numbers_in_a_matrix_are_the_weights():
    seen = captioner()
    (ax, bar) = draw_matrix(seen, "decoder.blocks.1.attention", 1).axes
    weights = weights_of(seen.layers[4])[1]
    assert [text.get_text() for text in ax.texts] == [f"{w:.2f}" for w in weights.flatten().tolist()]
    np.testing.assert_allclose(ax.images[0].get_array(), weights, atol=1e-6)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == list(SAID)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["<start>", *SAID[:-1]]
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("word that is said", "word that was read")
    assert bar.get_ylim() == (0.0, 1.0)
    assert [text.get_text() for text in bar.texts] == ["1/4"]


def test_a_larger_matrix_goes_to_its_largest_weight_and_has_no_numbers():
    labels = tuple(f"t{i}" for i in range(40))
    flat = layer("flat", "tokens", "tokens", 40, 40)
    seen = Trace(
        "",
        "classifier",
        (image_row(), Stream("tokens", "tokens", labels)),
        (SeenPicture("image", picture()),),
        (flat,),
        (),
        (),
        (),
    )
    ax, bar = draw_matrix(seen, "flat", 0).axes
    assert not ax.texts
    assert bar.get_ylim()[1] == pytest.approx(weights_of(flat)[0].max().item(), rel=1e-5)
    with pytest.raises(ValueError, match="no layer 3; expected 0…0 or one of flat"):
        draw_matrix(seen, 3)


def test_who_may_see_whom():
    ax = draw_mask(captioner(), "decoder.blocks.0.attention").axes[0]
    wanted = masks.causal(4).int().flatten().tolist()
    assert [int(text.get_text()) for text in ax.texts] == wanted
    assert 0 < sum(wanted) < 16
    padded = layer("p", "words", "words", 4, 4, causal=True, mask=torch.tensor([True, True, False, True]).expand(4, 4))
    seen = captioner()
    seen = Trace("", "captioner", seen.streams, seen.pictures, (padded,), (), seen.words, ())
    both = masks.causal(4) & torch.tensor([True, True, False, True])
    assert [int(text.get_text()) for text in draw_mask(seen, 0).axes[0].texts] == both.int().flatten().tolist()
    (large,) = mask_figure(masks.causal(40)).axes
    assert not large.texts


# Graphs


@pytest.mark.parametrize("share", [0.5, 0.8, 0.99])
@pytest.mark.parametrize("seed", range(5))
def test_the_edges_carry_the_share_and_one_fewer_does_not(share, seed):
    weights = (3 * torch.randn(12, 9, generator=torch.Generator().manual_seed(seed))).softmax(-1)
    found = heaviest(weights, share)
    total = weights.double().sum()
    assert found.weights.sum() >= share * total
    assert found.weights[:-1].sum() < share * total
    assert found.share == pytest.approx((found.weights.sum() / total).item())
    assert torch.equal(weights.double()[found.queries, found.keys], found.weights)
    left_out = weights.double().clone()
    left_out[found.queries, found.keys] = -1
    assert left_out.max() <= found.weights[-1]  # nothing heavier was left out


def test_edges_at_the_ends():
    even = torch.full((4, 5), 0.2)
    assert len(heaviest(even, 0.8).weights) == 16
    assert len(heaviest(even, 1.0).weights) == 20
    assert len(heaviest(torch.zeros(2, 2)).weights) == 0
    for share in (0.0, 1.1):
        with pytest.raises(ValueError, match=f"share is {share}"):
            heaviest(even, share)


def test_a_graph_draws_those_edges_and_says_how_much_they_carry():
    seen = classifier()
    figure = draw_graph(seen, 0, 1)
    weights = weights_of(seen.layers[0])[1]
    found = heaviest(weights)
    bodies = next(each for each in figure.axes[0].collections if isinstance(each, PolyCollection))
    rings, dots = (each for each in figure.axes[0].collections if isinstance(each, EllipseCollection))
    itself = int((found.queries == found.keys).sum())
    assert len(bodies.get_paths()) == len(found.weights) - itself
    assert len(rings.get_offsets()) == itself > 0
    assert len(dots.get_offsets()) == 7
    (said,) = [text for text in written(figure) if "of all attention" in text]
    assert said.startswith(f"{100 * found.share:.1f} % of all attention, in {len(found.weights)} of 49 edges")
    assert found.share >= 0.8
    area = dots.get_widths() ** 2  # a dot's area is what its token receives
    np.testing.assert_allclose(area / area.sum(), weights.sum(0) / weights.sum(), rtol=1e-5)


def test_an_edge_is_wide_at_the_query_and_pointed_at_the_key():
    weights = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    nodes = Nodes.patches(("a", "b"), (1, 2))
    figure = graph_figure(weights, nodes, title="")
    bodies = next(each for each in figure.axes[0].collections if isinstance(each, PolyCollection))
    (corners,) = [path.vertices for path in bodies.get_paths()]
    at_query, at_key = (corners[np.abs(corners[:, 0] - x) < 1e-6] for x in (0.25, 0.75))
    assert np.ptp(at_query[:, 1]) > 0.02
    assert np.ptp(at_key[:, 1]) < 1e-9


def test_where_the_tokens_of_a_graph_lie():
    nodes = Nodes.patches(("class", *("p",) * 6), GRID)
    assert nodes.at[0, 0] < 0  # beside the picture
    assert nodes.at[1].tolist() == pytest.approx([1 / 6, 1 / 4])
    assert nodes.at[-1].tolist() == pytest.approx([5 / 6, 3 / 4])
    circle = Nodes.circle("abcd")
    assert circle.at[1].tolist() == pytest.approx([1.0, 0.5])
    names = written(draw_graph(captioner(), -1))
    assert {*SAID, "register 1"} <= set(names)
    assert "<start>" not in names
    assert {"<start>", *SAID[:-1]} <= set(written(draw_graph(captioner(), "decoder.blocks.0.attention")))
    with pytest.raises(ValueError, match=r"shape \[3, 2\]; expected \[4, 4\]"):
        graph_figure(torch.rand(3, 2), circle, title="")
    with pytest.raises(ValueError, match="at most 512 tokens; got 513"):
        graph_figure(torch.rand(513, 513), Nodes.circle(["x"] * 513), title="")


# Reports


def measured(images=6):
    drawn = torch.Generator().manual_seed(1)
    curves = torch.rand(2, 3, images, 9, generator=drawn).sort(-1).values
    return Faithfulness(("gradient", "rollout", "random"), curves[0].flip(-1), curves[1])


def test_curves_are_the_means_and_their_areas_are_said():
    found = measured()
    figure = faithfulness_figure(found, title="tiny")
    for ax, values, which in zip(
        figure.axes, (found.deletion, found.insertion), ("deletion", "insertion"), strict=True
    ):
        assert which in ax.get_title()
        for line, mine, method in zip(ax.lines, values, found.methods, strict=True):
            np.testing.assert_allclose(line.get_ydata(), mine.mean(0), rtol=1e-6)
            assert list(line.get_xdata()) == pytest.approx([i / 8 for i in range(9)])
            assert line.get_label() == f"{method}  {found.area(which, method)}"
            assert f"{areas_under(mine).mean():.3f} [" in line.get_label()
        assert to_hex(ax.lines[2].get_color()) == "#000000"
        assert ax.lines[2].get_linestyle() != ax.lines[0].get_linestyle()
        assert len({line.get_color() for line in ax.lines}) == 3
        band = ax.collections[0].get_paths()[0].vertices
        widest = (1.96 * values[0].std(0) / math.sqrt(6)).max().item()
        spread = max(np.ptp(band[np.isclose(band[:, 0], x), 1]) for x in np.linspace(0, 1, 9))
        assert spread == pytest.approx(2 * widest, rel=1e-5)
    assert figure.get_suptitle() == "tiny (6 images)"


def test_one_image_has_no_interval():
    figure = faithfulness_figure(measured(images=1))
    assert not figure.axes[0].collections
    assert not any("[" in line.get_label() for line in figure.axes[0].lines)
    assert figure.get_suptitle() == "one image"


def test_the_heads_of_a_trace_in_numbers():
    seen = classifier()
    figure = draw_head_report(seen)
    maps = [weights_of(each) for each in seen.layers]  # h q k
    entropy = [torch.special.entr(p).sum(-1).mean(-1) for p in maps]
    at = torch.tensor([[0.0, 0.0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]).double()
    far = [(p[:, 1:, 1:] * torch.cdist(at, at)).sum((1, 2)) / p[:, 1:, 1:].sum((1, 2)) for p in maps]
    on_class = [p[:, :, 0].mean(-1) for p in maps]
    alike = [torch.cosine_similarity(p[0].flatten(), p[1].flatten(), dim=0).expand(2) for p in maps]
    for ax, wanted in zip(figure.axes[:4], (entropy, far, on_class, alike), strict=True):
        np.testing.assert_allclose(ax.images[0].get_array(), torch.stack(wanted), atol=1e-5)
    first = ["entropy", "mean distance", "on tokens of no patch", "like other heads"]
    assert [ax.get_title() for ax in figure.axes[:4]] == first
    assert figure.axes[4].get_xlim()[1] == pytest.approx(math.log(7))
    without = draw_head_report(classifier(extra=()))
    assert [ax.get_title() for ax in without.axes[:3]] == [first[0], first[1], first[3]]
    assert [ax.get_title() for ax in draw_head_report(captioner()).axes[:3]] == [first[0], first[2], first[3]]


def measures():
    values = torch.tensor([[0.5, 1.25, 2.0], [3.0, 12.0, math.nan]])
    return [Measure("entropy", "nats", values, 0.0, 4.2), Measure("share", "", values / 20, 0.0, 1.0)]


def test_the_numbers_of_every_head():
    figure = head_report_figure(measures(), layers=["layer 0", "layer 1"], title="tiny")
    first, second, *bars = figure.axes
    assert [text.get_text() for text in first.texts] == ["0.5", "1.2", "2.0", "3.0", "12", ""]
    assert [text.get_text() for text in second.texts][:3] == ["0.03", "0.06", "0.10"]
    assert (bars[0].get_xlim(), bars[1].get_xlim()) == ((0.0, 4.2), (0.0, 1.0))  # of what is possible
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["layer 0", "layer 1"]
    with pytest.raises(ValueError, match=r"\[2, 3\], \[2, 3\] and 1 names of layers"):
        head_report_figure(measures(), layers=["layer 0"], title="")
