"""Scenes: the sentence is what a reader of the picture would write, boxes are tight, held-out pairs are held out."""

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from pellucid.data import scene_layout, scene_pixels, scenes
from pellucid.data.scene_layout import HELD_OUT, lay_out
from pellucid.data.scene_pixels import SCENE_COLOURS, SHAPES, Objects, draw_scenes
from pellucid.data.scenes import SceneConfig, SceneSet, make_scenes, scene_sentences

SIZES = [(64, 64), (48, 48), (32, 32), (60, 41)]
SHAPE_OF = {shape: shape for shape in SHAPES} | {f"{shape}s": shape for shape in SHAPES} | {"crosses": "cross"}
PHRASE = rf"(?:(?:small|large) )?(?:{'|'.join(SCENE_COLOURS)}) (?:{'|'.join(SHAPE_OF)})"
MIRROR = {"left": "right", "right": "left"}
GRAMMAR = {
    "single": rf"a {PHRASE} (?:on the left|on the right|at the top|at the bottom|in the middle)",
    "count": rf"(?:two|three|four) {PHRASE}",
    "groups": rf"(?:two|three) {PHRASE} and one {PHRASE}",
    "relation": rf"a {PHRASE} (?:left of|right of|above|below) a {PHRASE}",
    "inside": rf"a {PHRASE} inside a {PHRASE}",
}


@pytest.fixture(scope="module")
def splits():
    return make_scenes(SceneConfig(train=3000, validation=400, test=600, seed=5))


def layout(n=300, size=(64, 64), seed=1, unseen=False):
    return lay_out(seed, 0, np.arange(n), np.full(n, unseen), size)


def captions(objects, size=(64, 64)):
    return [sentence.text for sentence in scene_sentences(objects, size)]


def pairs(caption):
    """(colour, shape) of every phrase, from the words alone."""
    words = caption.split()
    return {(w, SHAPE_OF[after]) for w, after in pairwise(words) if w in SCENE_COLOURS}


def same(a: SceneSet, b: SceneSet):
    known = [(each.captions, each.ids, each.boxes, each.kinds) for each in (a, b)]
    return known[0] == known[1] and torch.equal(a.images.images, b.images.images) and torch.equal(a.unseen, b.unseen)


def test_a_scene_depends_on_seed_split_and_index_alone(monkeypatch):
    config = SceneConfig(train=70, validation=30, test=40, seed=3)
    whole = make_scenes(config)
    assert same(whole.train, make_scenes(config).train)
    monkeypatch.setattr(scenes, "SCENES_AT_ONCE", 13)
    monkeypatch.setattr(scene_pixels, "CHUNK", 7)
    small = make_scenes(replace(config, train=33))
    assert same(whole.train.subset(torch.arange(33)), small.train)
    assert same(whole.validation, small.validation)
    assert same(whole.test, small.test)
    other = make_scenes(replace(config, seed=4))
    assert not (whole.train.images.images == other.train.images.images).all((1, 2, 3)).any()
    assert not (whole.train.images.images[:30] == whole.validation.images.images).all((1, 2, 3)).any()


def test_a_subset_keeps_what_is_known_of_each_image(splits):
    chosen = torch.tensor([5, 0, 77])
    part = splits.test.subset(chosen)
    assert isinstance(part, SceneSet)
    for i, j in enumerate(chosen.tolist()):
        assert (part.captions[i], part.ids[i], part.boxes[i]) == tuple(
            values[j] for values in (splits.test.captions, splits.test.ids, splits.test.boxes)
        )
        assert (part.kinds[i], part.unseen[i]) == (splits.test.kinds[j], splits.test.unseen[j])
    assert torch.equal(part.images.images, splits.test.images.read(chosen))


def test_splits_have_the_shapes_they_say(splits):
    assert [len(each) for each in (splits.train, splits.validation, splits.test)] == [3000, 400, 600]
    assert splits.train.images.shape == (3, 64, 64)
    assert make_scenes(SceneConfig(2, 0, 0), (40, 50)).train.images.shape == (3, 40, 50)
    alone = make_scenes(SceneConfig(2, 0, 0))
    assert alone.validation is None
    assert alone.test is None


def test_every_caption_is_of_the_grammar_and_words_that_name_have_boxes(splits):
    for caption, kind, boxes in zip(splits.train.captions, splits.train.kinds, splits.train.boxes, strict=True):
        assert len(caption) == 1
        assert re.fullmatch(GRAMMAR[kind], caption[0])
        assert ("small" in caption[0] or "large" in caption[0]) == (kind in ("single", "count"))
        words = caption[0].split()
        assert len(boxes) == len(words)
        for word, lying in zip(words, boxes, strict=True):
            names = word in SCENE_COLOURS or word in SHAPE_OF or word in ("small", "large")
            assert bool(lying) == names


def test_backgrounds_are_dark_everywhere():
    """Also where a slope would leave the range of bytes: it ends there, and doesn't begin again at the other end."""
    scenes = make_scenes(SceneConfig(train=4000, validation=0, test=0), (32, 32)).train
    outside = torch.ones(4000, 32, 32, dtype=torch.bool)
    for mine, words in zip(outside, scenes.boxes, strict=True):
        for y0, x0, y1, x1 in (box for boxes in words for box in boxes):
            mine[y0:y1, x0:x1] = False
    ground = scenes.images.images.movedim(1, -1)[outside]
    assert ground.min() == 0
    assert ground.max() < 100


def test_there_is_variety(splits):
    said = Counter(caption for (caption,) in splits.train.captions)
    assert len(said) > 2000
    shares = Counter(splits.train.kinds)
    assert set(shares) == set(GRAMMAR)
    assert min(shares.values()) > 300
    words = Counter(word for caption, count in said.items() for word in caption.split() * count)
    assert len(words) == 45
    assert min(words.values()) >= 30
    seen = Counter(pair for caption in said for pair in pairs(caption))
    assert len(seen) == 56
    assert min(seen.values()) > 10


def test_held_out_pairs_are_in_the_unseen_half_of_test_and_nowhere_else(splits):
    held = set(HELD_OUT.items())
    assert {colour for colour, _ in held} == set(SCENE_COLOURS)
    assert {shape for _, shape in held} == set(SHAPES)
    for part in (splits.train, splits.validation):
        assert not part.unseen.any()
        assert not any(pairs(caption) & held for (caption,) in part.captions)
    assert int(splits.test.unseen.sum()) == 300
    assert [bool(pairs(caption) & held) for (caption,) in splits.test.captions] == splits.test.unseen.tolist()
    assert set().union(*(pairs(caption) for (caption,) in splits.test.captions)) >= held
    unseen = [kind for kind, new in zip(splits.test.kinds, splits.test.unseen.tolist(), strict=True) if new]
    assert set(unseen) == set(GRAMMAR)


def read_off(image):
    """Colour and box of everything in a picture: patches of the pure colours that hang together, largest patch first.

    Knows nothing of how scenes are laid out. A patch within another one of its colour is seen through a ring's hole.
    """
    found = []
    for name, paint in SCENE_COLOURS.items():
        left = {tuple(p) for p in np.argwhere((image == np.array(paint)[:, None, None]).all(0)).tolist()}
        while left:
            patch, edge = set(), [left.pop()]
            while edge:
                y, x = edge.pop()
                patch.add((y, x))
                for near in ((y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)):
                    if near in left:
                        left.remove(near)
                        edge.append(near)
            ys, xs = zip(*patch, strict=True)
            found.append((len(patch), name, (min(ys), min(xs), max(ys) + 1, max(xs) + 1)))
    kept = []
    for _, name, box in sorted(found, reverse=True):
        if not any(name == other and holds(whole, box) for other, whole in kept):
            kept.append((name, box))
    return kept


def holds(outer, inner):
    return all(outer[i] < inner[i] and inner[i + 2] < outer[i + 2] for i in (0, 1))


def expected(image, shape_at):
    """The caption that a reader of the picture writes, told only what shape the thing in a box has."""
    height, width = image.shape[1:]
    seen = read_off(image)
    middle = [((y0 + y1) / 2 / height, (x0 + x1) / 2 / width) for _, (y0, x0, y1, x1) in seen]
    side = [max(y1 - y0, x1 - x0) / min(height, width) for _, (y0, x0, y1, x1) in seen]
    things = [(name, shape_at(box)) for name, box in seen]
    groups = Counter(things).most_common()
    size = "large" if side[0] > 0.245 else "small"
    many = {shape: word for word, shape in SHAPE_OF.items() if word != shape}
    number = {1: "one", 2: "two", 3: "three", 4: "four"}
    if len(seen) == 1:
        (down, right), (colour, shape) = np.subtract(middle[0], 0.5), things[0]
        place = "in the middle"
        if max(abs(down), abs(right)) > 0.15:
            sideways = "on the right" if right > 0 else "on the left"
            place = sideways if abs(right) > abs(down) else "at the bottom" if down > 0 else "at the top"
        return f"a {size} {colour} {shape} {place}"
    if len(groups) == 1:
        return f"{number[len(seen)]} {size} {things[0][0]} {many[things[0][1]]}"
    if len(seen) > 2:
        ((colour, shape), n), (one, _) = groups
        return f"{number[n]} {colour} {many[shape]} and one {' '.join(one)}"
    down, right = np.subtract(middle[1], middle[0])  # the larger patch comes first, so the smaller thing is told of
    if holds(seen[0][1], seen[1][1]):
        words = "inside"
    else:
        sideways = "right of" if right > 0 else "left of"
        words = sideways if abs(right) > abs(down) else "below" if down > 0 else "above"
    return f"a {' '.join(things[1])} {words} a {' '.join(things[0])}"


def test_captions_follow_from_the_pictures(splits):
    for part in (splits.train.subset(torch.arange(400)), splits.test.subset(torch.arange(100))):
        for image, (caption,), boxes in zip(part.images.images.numpy(), part.captions, part.boxes, strict=True):
            lying = {
                box: SHAPE_OF[word]
                for word, named in zip(caption.split(), boxes, strict=True)
                if word in SHAPE_OF
                for box in named
            }

            def shape_at(box, lying=lying):
                """The shape whose box fits: pure pixels reach to within three pixels of it, the rest is blurred."""
                near = [shape for whole, shape in lying.items() if np.abs(np.subtract(whole, box)).max() <= 3]
                assert len(near) == 1
                return near[0]

            assert expected(image, shape_at) == caption


def without(objects, slot):
    colour = objects.colour.copy()
    colour[:, slot] = -1
    return replace(objects, colour=colour)


@pytest.mark.parametrize("size", SIZES)
def test_boxes_hold_every_pixel_of_their_object_and_none_to_spare(size):
    objects = layout(200, size)
    images, boxes = draw_scenes(objects, size)
    for slot in range(4):
        changed = (draw_scenes(without(objects, slot), size)[0] != images).any(1)
        # Of what holds another thing, the part beneath it is not seen to change; its edge is.
        for i, mask in enumerate(changed):
            ys, xs = np.nonzero(mask)
            box = [ys.min(), xs.min(), ys.max() + 1, xs.max() + 1] if len(ys) else [0, 0, 0, 0]
            assert boxes[i, slot].tolist() == box
            assert bool(len(ys)) == (objects.colour[i, slot] >= 0)


@pytest.mark.parametrize("size", SIZES)
def test_objects_keep_apart_unless_one_is_inside(size):
    objects = layout(500, size)
    _, boxes = draw_scenes(objects, size)
    for sentence, lying, colours in zip(scene_sentences(objects, size), boxes, objects.colour, strict=True):
        lying = lying[colours >= 0]
        for i, a in enumerate(lying):
            for b in lying[:i]:
                apart = max((a[:2] - b[2:]).max(), (b[:2] - a[2:]).max())
                assert (apart >= 0) != (sentence.kind == "inside")


@pytest.mark.parametrize("size", SIZES)
def test_the_mirrored_picture_is_that_of_mirrored_objects_and_its_caption_exchanges_left_and_right(size):
    objects = layout(400, size)
    mirrored = objects.mirrored(size[1])
    images, boxes = draw_scenes(objects, size)
    turned, moved = draw_scenes(mirrored, size)
    assert np.array_equal(turned, images[..., ::-1])
    there = objects.colour >= 0
    assert np.array_equal(moved[there], (boxes[..., [0, 3, 2, 1]] * (1, -1, 1, -1) + (0, size[1], 0, size[1]))[there])
    before, after = captions(objects, size), captions(mirrored, size)
    assert after == [" ".join(MIRROR.get(word, word) for word in caption.split()) for caption in before]
    assert after != before


def test_the_order_in_which_objects_are_listed_does_not_matter():
    objects = layout()
    turned = Objects(**{
        name: values[:, ::-1] if values.shape[1] == 4 else values for name, values in vars(objects).items()
    })  # fmt: skip
    # Objects stand first in their row, the empty places last.
    order = np.argsort(turned.colour < 0, axis=1, kind="stable")
    turned = replace(turned, **{
        name: np.take_along_axis(getattr(turned, name), order, 1) for name in ("colour", "shape", "y", "x", "radius")
    })  # fmt: skip
    assert captions(turned) == captions(objects)
    assert not np.array_equal(turned.x, objects.x)


@pytest.mark.parametrize("size", SIZES)
def test_patches_hold_all_of_their_object(size, monkeypatch):
    objects = layout(200, size)
    patched = draw_scenes(objects, size)
    monkeypatch.setattr(scene_pixels, "STEP", 1000)  # the whole picture
    for a, b in zip(patched, draw_scenes(objects, size), strict=True):
        assert np.array_equal(a, b)


def test_the_layout_avoids_what_could_be_read_in_two_ways():
    """Sizes, places and directions keep away from the limits at which another word would be said."""
    objects = layout(3000)
    for sentence, colour, y, x, radius in zip(
        scene_sentences(objects, (64, 64)), objects.colour, objects.y, objects.x, objects.radius, strict=True
    ):
        n = (colour >= 0).sum()
        y, x, radius = y[:n] / 64, x[:n] / 64, radius[:n] / 64
        assert ((radius < 0.1) | (radius > 0.15)).all()
        if sentence.kind == "single":
            far = np.sort(np.abs([y[0] - 0.5, x[0] - 0.5]))
            assert far[1] < 0.05 or (far[1] > 0.2 and far[0] < 0.09)
        if sentence.kind == "relation":
            far = np.sort(np.abs([y[0] - y[1], x[0] - x[1]]))
            assert far[1] > 4 * far[0]
            assert radius.max() > 1.5 * radius.min()


@pytest.mark.parametrize("radius", [4.125, 5.5, 10.0])
def test_shapes_differ_at_every_size(radius):
    """The smallest radius is that of a small thing at 48 × 48. Of what either covers, two shapes share 85 % at most."""
    n = len(SHAPES)
    table = np.zeros((n, 1))
    objects = Objects(
        table.astype(np.int64), np.arange(n)[:, None], table + 16.25, table + 15.5, table + radius,
        np.zeros((n, 3)), np.zeros((n, 2)),
    )  # fmt: skip
    covered = draw_scenes(objects, (32, 32))[0][:, 0] / SCENE_COLOURS["white"][0]
    for i in range(n):
        for j in range(i):
            shared = np.minimum(covered[i], covered[j]).sum() / np.maximum(covered[i], covered[j]).sum()
            assert shared < 0.85


def test_colours_are_told_apart_by_lightness():
    value = np.array(list(SCENE_COLOURS.values())) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    lightness = 116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16
    assert (np.diff(lightness) < -7).all()
    objects = layout(1000)
    brightest = (objects.background.max(1) + np.abs(objects.slope).sum(1) / 2).max()
    assert 116 * np.cbrt(((brightest / 255 + 0.055) / 1.055) ** 2.4) - 16 < lightness[-1] - 7


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"train": 0}, "train is 0; expected 1 or more scenes"),
        ({"validation": -1}, "validation is -1; expected 0 or more scenes"),
        ({"test": -5}, "test is -5; expected 0 or more scenes"),
        ({"seed": -1}, "seed is -1; expected 0…2^32 − 1"),
        ({"seed": 2**32}, "seed is 4294967296; expected 0…2^32 − 1"),
    ],
)
def test_a_bad_config_is_one_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        SceneConfig(**wrong)


@pytest.mark.parametrize("size", [(31, 64), (64, 100), (64,), (0, 0)])
def test_a_picture_too_small_or_too_long_is_refused(size):
    with pytest.raises(ValueError, match=r"^size is .*; expected \(height, width\) of scenes, 32 or more pixels each"):
        make_scenes(SceneConfig(1, 0, 0), size)


def test_held_out_pairs_leave_every_kind_something_to_hold():
    """A thing inside another is two steps of lightness away from it, held out or not."""
    for unseen in (False, True):
        objects = layout(2000, unseen=unseen)
        inside = [s.kind == "inside" for s in scene_sentences(objects, (64, 64))]
        assert (np.abs(np.diff(objects.colour[inside, :2], axis=1)) >= 2).all()
        outer = {list(SHAPES)[i] for i in objects.shape[inside, 0]}
        assert outer == set(scene_layout.OUTER)
