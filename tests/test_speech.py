"""What a captioner says, where it looks, whether it looks at what it names, and the picture of it."""

import pytest
import torch
from speaking import CAPTIONS, NORMALISE, REGISTERS, captioner, pictures
from torch.testing import assert_close

from pellucid.data.augment import normalised
from pellucid.data.images import ImageSet
from pellucid.data.reader import PictureReader
from pellucid.data.tokenizer import END, START, CaptionTokenizer
from pellucid.decode.captions import caption_all, write_captions
from pellucid.evaluation.pointing import aligned, multiply_layers, pointing, pointing_at, read_along
from pellucid.models import Captioner, CaptionerConfig
from pellucid.views.captions import caption_figure
from pellucid.watching import watch


@pytest.fixture(scope="module")
def tokenizer():
    return CaptionTokenizer.train(CAPTIONS, min_count=1)


@pytest.fixture(scope="module")
def model(tokenizer):
    return captioner(tokenizer)


@pytest.fixture(scope="module")
def pixels():
    return pictures()


def of(pixels) -> ImageSet:
    return ImageSet(pixels, torch.zeros(len(pixels), dtype=torch.int64), ("picture",))


def reread(model, tokenizer, pixels, captions):
    """The slow truth: one picture at a time, the whole sentence through the model, every attention watched."""
    for image, caption in zip(pixels, captions, strict=True):
        tokens = torch.tensor([[START, *tokenizer.encode(caption), END]])
        with torch.no_grad(), watch(model) as seen:
            logits = model(normalised(image[None], NORMALISE), tokens[:, :-1])
        log_probs = logits[0].double().log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        cross = torch.stack([seen[f"decoder.blocks.{i}.cross_attention"].weights()[0] for i in range(2)])
        yield log_probs, cross, seen


@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_what_is_said_has_the_probability_and_the_attention_of_the_whole_sentence(kind, pixels):
    tokenizer = CaptionTokenizer.train(CAPTIONS * 3, min_count=1, kind=kind, size=40)
    model = captioner(tokenizer)
    found = write_captions(model, tokenizer, pixels, beam=4, n_best=3, attention=True)
    said = [best for best, *_ in found]
    assert [best.text for best in said] == list(CAPTIONS)
    assert max(len(tokenizer.encode(caption)) for caption in CAPTIONS) > (5 if kind == "bpe" else 4)
    for best, (log_probs, cross, _) in zip(said, reread(model, tokenizer, pixels, CAPTIONS), strict=True):
        spelled = tokenizer.words(tokenizer.encode(best.text))
        assert best.words == tuple(best.text.split())
        assert best.log_prob == pytest.approx(log_probs.sum().item(), abs=1e-4)
        assert best.word_log_probs == pytest.approx([log_probs[each].sum().item() for _, each in spelled], abs=1e-4)
        maps = torch.stack([cross[:, :, each].mean(2) for _, each in spelled], 2)[..., REGISTERS:]
        assert_close(best.attention, maps.unflatten(-1, (2, 3)), rtol=0, atol=1e-5)
        assert 0.05 < best.attention.sum((-2, -1)).mean() < 0.95  # the registers have the rest
    for several in found:
        scores = [each.score for each in several]
        assert scores == sorted(scores, reverse=True)
        assert len({each.text for each in several}) == 3


def test_special_tokens_are_never_said(tokenizer, pixels):
    model = captioner(tokenizer, steps=1, tied=False)
    with torch.no_grad():
        model.decoder.output.bias[[0, 1, 3, 4, 5]] += 20  # it would love to
    for (said,) in write_captions(model, tokenizer, pixels, beam=2):
        assert said.words
        assert "<" not in said.text
        assert said.attention is None


def test_few_words_make_few_sentences(pixels):
    tokenizer = CaptionTokenizer.train(["a"], min_count=1)
    encoder = captioner(CaptionTokenizer.train(CAPTIONS, min_count=1), steps=0).config.encoder
    model = Captioner(CaptionerConfig(vocabulary=7, encoder=encoder, layers=1, heads=2, max_length=3)).eval()
    for said in write_captions(model, tokenizer, pixels, beam=6, n_best=6):
        assert sorted(each.text for each in said) == ["", "a", "a a"]


def test_captions_of_a_set_are_those_of_its_pictures(model, tokenizer, pixels):
    told = []
    model.train()
    assert caption_all(model, tokenizer, of(pixels), beam=3, batch=2, progress=lambda *done: told.append(done)) == list(
        CAPTIONS
    )
    assert told == [(2, 5), (4, 5), (5, 5)]
    assert model.training
    model.eval()


def test_what_can_not_be_described_is_refused(tokenizer, pixels):
    model = captioner(tokenizer, steps=0)
    with pytest.raises(ValueError, match="beam is 0; expected one or more"):
        write_captions(model, tokenizer, pixels, beam=0)
    with pytest.raises(ValueError, match="n_best is 3; expected 1…2"):
        write_captions(model, tokenizer, pixels, beam=2, n_best=3)
    for part in (model.decoder.norm, model.encoder.norm):
        with torch.no_grad():
            part.weight[0] = torch.nan
        with pytest.raises(ValueError, match="its weights are damaged"):
            write_captions(model, tokenizer, pixels)


def test_a_blank_picture_is_the_mean_colour(model):
    blank = PictureReader.of(model.config.encoder).blank()[None]
    assert blank.shape == (1, 3, 8, 12)
    assert normalised(blank, NORMALISE).abs().max() < 0.5 / 255 / 0.25 + 1e-6


# The pointing game


def test_pointing_against_every_patch_looked_at_in_turn():
    draw = torch.Generator().manual_seed(0)
    size, grid = (30, 40), (3, 5)  # patches of 10 × 8 pixels
    maps = [torch.rand(2, 3, words, *grid, generator=draw) for words in (4, 2, 3)]
    boxes = [
        [[(0, 0, 10, 8)], [], [(3, 5, 21, 30), (25, 0, 30, 3)], [(5, 4, 6, 5)]],
        [[(0, 0, 30, 40)], [(11, 9, 14, 11)]],
        [[], [(5, 12, 15, 20)], [(29, 39, 30, 40)]],
    ]
    found = pointing(maps, boxes, size)
    assert found.words == 7
    for tolerant, wanted, chance in (
        (False, *_slow(maps, boxes, centre)),
        (True, *_slow(maps, boxes, overlap)),
    ):
        for which, hits in wanted.items():
            assert found.share(which, tolerant=tolerant) == pytest.approx(hits / 7)
        assert (found.tolerant_chance if tolerant else found.chance) == pytest.approx(chance / 7)
    assert found.tolerant_chance > found.chance
    shares = [found.share(which) for which in wanted]
    assert found.share(found.best) == max(shares) > min(shares)


def centre(box, row, column):
    y, x = 10 * row + 5, 8 * column + 4
    return box[0] <= y < box[2] and box[1] <= x < box[3]


def overlap(box, row, column):
    inside = ((y, x) for y in range(10 * row, 10 * row + 10) for x in range(8 * column, 8 * column + 8))
    return any(box[0] <= y < box[2] and box[1] <= x < box[3] for y, x in inside)


def _slow(maps, boxes, rule):
    hits = {(layer, head): 0 for layer in range(2) for head in (None, 0, 1, 2)} | {(None, None): 0}
    chance = 0.0
    for picture, words in zip(maps, boxes, strict=True):
        for w, of_word in enumerate(words):
            if not of_word:
                continue
            chance += sum(any(rule(box, r, c) for box in of_word) for r in range(3) for c in range(5)) / 15
            for layer, head in hits:
                layers, heads = (slice(None) if i is None else slice(i, i + 1) for i in (layer, head))
                peak = int(picture[layers, heads, w].double().mean((0, 1)).argmax())
                hits[layer, head] += any(rule(box, peak // 5, peak % 5) for box in of_word)
    return hits, chance


def test_a_map_without_a_peak_points_by_chance():
    found = pointing([torch.full((1, 2, 1, 4, 4), 1 / 16)], [[[(0, 0, 4, 12)]]], (16, 16))
    assert found.share((0, 1)) == found.share((0, None)) == found.chance == 3 / 16
    nothing = pointing([torch.rand(1, 2, 1, 4, 4)], [[[]]], (16, 16))
    assert (nothing.share((0, 0)), nothing.chance, nothing.words) == (None, 0.0, 0)


def test_what_can_not_be_pointed_at_is_refused():
    with pytest.raises(ValueError, match="maps of 1 pictures and boxes of 2"):
        pointing([torch.rand(1, 1, 1, 2, 2)], [[], []], (8, 8))
    with pytest.raises(ValueError, match="with 2 words"):
        pointing([torch.rand(1, 1, 1, 2, 2)], [[[], []]], (8, 8))
    with pytest.raises(ValueError, match="no pictures"):
        pointing([], [], (8, 8))
    with pytest.raises(ValueError, match="'a dog' has 2 words and boxes for 1"):
        aligned(["a"], "a dog", [[]])


def test_reading_along_looks_where_the_sentence_is_read(model, tokenizer, pixels):
    captions = ["a red dog", "the cat sit on grass", "a", "red cat runs", "zebra on grass"]
    found = read_along(model, tokenizer, pixels, captions)
    through = read_along(model, tokenizer, pixels, captions, through=True)
    for caption, (words, maps), (_, rolled), (_, cross, seen) in zip(
        captions, found, through, reread(model, tokenizer, pixels, captions), strict=True
    ):
        assert words == tuple(caption.replace("zebra", "<unknown>").split())
        wanted = cross[:, :, : len(words)]
        assert_close(maps.flatten(-2), wanted[..., REGISTERS:], rtol=0, atol=1e-5)
        eye = torch.eye(8, dtype=torch.float64)
        total = eye
        for layer in range(2):
            record = seen[f"encoder.blocks.{layer}.attention"]
            total = (0.5 * eye + 0.5 * record.weights()[0].double().mean(0)) @ total
        assert_close(total.sum(-1), torch.ones(8, dtype=torch.float64), rtol=0, atol=1e-6)
        assert_close(rolled.flatten(-2).double(), (wanted.double() @ total)[..., REGISTERS:], rtol=0, atol=1e-5)
        assert not torch.allclose(rolled, maps, atol=1e-3)


def test_rollout_needs_records():
    with pytest.raises(ValueError, match="watch the model while it encodes"):
        multiply_layers([])


def test_only_words_in_their_place_count_for_what_is_said(model, tokenizer, pixels):
    whole = [(0, 0, 8, 12)]

    def played(captions, **options):
        boxes = [[whole] * len(caption.split()) for caption in captions]
        return pointing_at(model, tokenizer, of(pixels), captions, boxes, batch=2, **options)

    right = played(CAPTIONS, own=2)
    assert (right.words, right.share((1, 3)), right.chance) == (15, 1.0, 1.0)
    assert played(["a red cat runs", "sit cats two", "grass the", "cat", "birds fly"], own=2).words == 3 + 1 + 1
    assert played(["zebra"] * 5, own=2).words == 0
    assert played(["a red dog"] * 5).words == played(["A red dog"] * 5, through=True).words == 15
    with pytest.raises(ValueError, match="leave out own, or through"):
        played(CAPTIONS, own=2, through=True)


# The picture


def test_all_panels_share_one_scale_with_numbers():
    maps = torch.rand(4, 2, 3) / 10
    maps[2, 1, 2] = 0.4
    picture = torch.randint(256, (3, 40, 60), dtype=torch.uint8)
    figure = caption_figure(
        picture, ["a", "red", "dog", "runs"], [0.9999, 0.5, 0.01, 0.001], maps, tokens=8, title="a red dog runs"
    )
    *panels, bar = figure.axes
    titles = [ax.get_title() for ax in panels]
    assert titles[:5] == ["the picture", "a  >99 %", "red  50 %", "dog  1 %", "runs  <1 %"]
    assert bar.get_ylim() == pytest.approx((0.0, 0.4))
    figure.canvas.draw()
    ticks = [float(tick.get_text()) for tick in bar.get_yticklabels()]
    assert ticks[0] == 0.0
    assert len(ticks) >= 3
    assert [text.get_text() for text in bar.texts] == ["1/8"]
    assert bar.texts[0].get_position()[1] == 1 / 8
    (frame,) = panels[3].patches
    assert (frame.get_x(), frame.get_y()) == (2 / 3, 1 / 2)
    # The same weight has the same colour in every panel: here on a white picture.
    maps[0, 0, 0] = maps[3, 1, 1] = 0.2
    white = caption_figure(torch.full_like(picture, 255), "abcd", [1.0] * 4, maps, tokens=8, title="")
    first, last = (white.axes[i].images[0].get_array() for i in (1, 4))
    assert (first[0, 0] == last[39, 30]).all()
    assert (first[0, 0] != last[0, 0]).any()


def test_a_figure_of_as_many_words_as_maps():
    with pytest.raises(ValueError, match="2 words, 1 probabilities and 1 maps"):
        caption_figure(
            torch.zeros(3, 4, 4, dtype=torch.uint8), ["a", "b"], [1.0], torch.rand(1, 2, 2), tokens=4, title=""
        )
    nothing = caption_figure(torch.zeros(1, 4, 4, dtype=torch.uint8), [], [], torch.rand(0, 2, 2), tokens=4, title="")
    assert len(nothing.axes) == 2
