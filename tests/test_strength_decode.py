"""What a mutation run found untested in decode."""

import math
from dataclasses import replace

import pytest
import torch
from conftest import randomised
from speaking import CAPTIONS, captioner, pictures
from test_decode import END, HOW, START, contexts, same, slow_beams, talker, trimmed
from torch.testing import assert_close

from pellucid.data.images import ImageSet
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.decode import beam_search, cross_attention, greedy, sample
from pellucid.decode import captions as written
from pellucid.decode.beam import _Beam
from pellucid.decode.captions import Caption, caption_all, maps_of_words, write_captions
from pellucid.decode.rows import _Greedy, draw_tokens
from pellucid.decode.search import run_search
from pellucid.models import Transformer, TransformerConfig


def test_what_is_not_asked_for_is_five_beams_the_best_of_them_and_one_draw():
    model, context = talker(seed=5), contexts()
    same(beam_search(model, context, **HOW), beam_search(model, context, **HOW, beams=5, keep=1, length_penalty=1.0))
    with pytest.raises(ValueError, match="keep is 6; expected 1 to 5, the number of beams"):
        beam_search(model, context, **HOW, keep=6)
    drawn = [
        sample(model, context, **HOW, **how, generator=torch.Generator().manual_seed(1))
        for how in ({}, {"count": 1, "temperature": 1.0, "top_k": None, "top_p": None, "forbidden": ()})
    ]
    assert drawn[0].tokens.shape[:2] == (4, 1)
    same(*drawn)
    same(greedy(model, context, **HOW), greedy(model, context, **HOW, forbidden=()))


def test_what_is_drawn_comes_from_the_generator_that_is_given():
    model, context = talker(), contexts()
    found = []
    for seed, elsewhere in ((1, 1), (1, 2), (2, 1)):
        torch.manual_seed(elsewhere)
        found.append(sample(model, context, **HOW, count=5, generator=torch.Generator().manual_seed(seed)))
    same(found[0], found[1])
    assert found[0].tokens.tolist() != found[2].tokens.tolist()


def test_the_smallest_draw_never_takes_what_has_no_probability():
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0]).log_softmax(-1).expand(1, 3, -1)
    draws = torch.tensor([[0.0, 0.5, 0.75]])  # a half is passed by the first, so it is the second's
    assert draw_tokens(logits, draws, None, None).tolist() == [[1, 3, 3]]
    assert draw_tokens(logits, draws, None, 1.0).tolist() == [[1, 3, 3]]


def test_a_beam_that_nothing_continues_takes_no_place_even_if_it_says_the_end():
    """Eleven words make eleven beginnings for 21 beams: ten are nobody's, and give way to the 21 best of the next."""
    model, context = talker(seed=5), contexts(b=3)
    fast = beam_search(model, context, start=START, end=END, length=3, beams=21, keep=21)
    for i in range(3):
        slow = slow_beams(model, context[i], 3, 21, 1.0)
        assert [trimmed(fast, i, j) for j in range(21)] == [said for said, _ in slow]


# At the bounds of what may be asked for


def test_wishes_at_their_bounds():
    model, context = talker(), contexts(2)
    assert beam_search(model, context, **HOW, beams=1, keep=1).tokens.shape[:2] == (2, 1)
    assert beam_search(model, context, **HOW, beams=3, keep=3).tokens.shape[:2] == (2, 3)
    assert greedy(model, context, **HOW | {"length": 1}).tokens.shape == (2, 1, 1)
    assert sample(model, context, **HOW, top_k=1, top_p=1.0, temperature=1e-3).tokens.shape[:2] == (2, 1)
    for search, wrong in (
        (beam_search, {"beams": 0}),
        (beam_search, {"keep": 0}),
        (beam_search, {"beams": 2, "keep": 3}),
        (beam_search, {"length_penalty": -0.5}),
        (beam_search, {"length_penalty": math.inf}),
        (beam_search, {"length_penalty": math.nan}),
        (sample, {"count": 0}),
        (sample, {"temperature": 0.0}),
        (sample, {"temperature": -1.0}),
        (sample, {"temperature": math.inf}),
        (sample, {"temperature": math.nan}),
        (sample, {"top_k": 0}),
        (sample, {"top_p": 0.0}),
        (sample, {"top_p": 1.5}),
        (greedy, {"length": 0}),
        (sample, {"length": -1}),
    ):
        with pytest.raises(ValueError, match=f"{list(wrong)[-1]} is {list(wrong.values())[-1]}; expected"):
            search(model, context, **HOW | wrong)
    for tokens in (torch.zeros(2, 3, dtype=torch.long), torch.zeros(3, 1, 4, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"expected \(b n t\) with b = 2"):
            cross_attention(model, context, tokens, START)


@pytest.mark.parametrize("forbidden", [(0, 3), (END,), tuple(w for w in range(11) if w != 5)])
def test_of_many_draws_each_is_a_row_of_its_own(forbidden):
    """Drawn one at a time with the same numbers, the same is said; what is forbidden never is."""
    model, context = talker(seed=3), contexts(3)
    how = HOW | {"forbidden": forbidden, "temperature": 2.0, "top_k": 7, "top_p": 0.95}
    many = sample(model, context, **how, count=4, generator=torch.Generator().manual_seed(0))
    draws = torch.rand(12, 7, generator=torch.Generator().manual_seed(0)).view(3, 4, 7)
    for i in range(3):
        said = []
        for row in draws[i]:
            words, log_probs = [], []
            for draw in row:
                before = torch.tensor([[START, *words]])
                with torch.no_grad():
                    values = model.decode(before, context[i : i + 1])[0, -1].log_softmax(-1)
                allowed = values.clone()
                allowed[list(forbidden)] = -torch.inf
                word = int(draw_tokens(allowed[None, None] / 2.0, draw[None, None], 7, 0.95))
                words.append(word)
                log_probs.append(float(values[word]))
                if word == END:
                    break
            said.append((sum(log_probs) / len(words), words))
        said.sort(key=lambda each: -each[0])
        assert [trimmed(many, i, j) for j in range(4)] == [words for _, words in said]
        assert_close(many.scores[i], torch.tensor([value for value, _ in said], dtype=torch.float64))
    assert not torch.isin(many.tokens[..., 0], torch.tensor(forbidden)).any()


def test_half_precision_is_scored_in_float32():
    model = talker(seed=1).bfloat16()
    for found in (greedy(model, contexts(2).bfloat16(), **HOW), beam_search(model, contexts(2).bfloat16(), **HOW)):
        assert found.scores.dtype == found.log_probs.dtype == torch.float32
    found = greedy(talker(seed=1), contexts(2), **HOW)
    assert found.scores.dtype == found.log_probs.dtype == torch.float64


@pytest.mark.parametrize("decode", [greedy, sample, beam_search])
def test_a_search_takes_as_many_steps_as_it_says_words(decode, monkeypatch):
    model, context = talker(seed=3), contexts(5)
    taken, step = [], model.decode
    monkeypatch.setattr(model, "decode", lambda *a, **k: taken.append(1) or step(*a, **k))
    for i in range(5):
        taken.clear()
        found = decode(model, context[i : i + 1], **HOW)
        if decode is not beam_search:
            assert len(taken) == found.lengths.max()
        assert found.lengths.max() <= len(taken) <= 7
    taken.clear()
    together = decode(model, context, **HOW)
    assert together.lengths.max() <= len(taken)


# Captions


@pytest.fixture(scope="module")
def speaker():
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    return captioner(tokenizer), tokenizer


def test_five_beams_and_the_best_of_them_unless_asked_otherwise(speaker, monkeypatch):
    model, tokenizer = speaker
    calls, search = [], written.beam_search
    monkeypatch.setattr(written, "beam_search", lambda *a, **k: calls.append(k) or search(*a, **k))
    ((said,), *rest) = write_captions(model, tokenizer, pictures())
    assert said.attention is None
    assert all(len(each) == 1 for each in rest)
    images = ImageSet(pictures()[[0, 1, 2, 3, 4] * 13], torch.zeros(65, dtype=torch.long), ("picture",))
    assert caption_all(model, tokenizer, images) == list(CAPTIONS) * 13
    assert [call["beams"] for call in calls] == [5, 5, 5]  # 64 pictures, and one
    assert {call["keep"] for call in calls} == {1}
    assert {call["length"] for call in calls} == {15}  # of 16 tokens the first is the start
    for wrong in ({"n_best": 0}, {"n_best": 6}, {"beam": 0}, {"beam": 2, "n_best": 3}):
        with pytest.raises(ValueError, match="expected"):
            write_captions(model, tokenizer, pictures(), **wrong)
    assert len(write_captions(model, tokenizer, pictures()[:1], beam=2, n_best=2)[0]) == 2


def test_a_caption_says_its_figures(speaker):
    model, tokenizer = speaker
    ((best, second),) = write_captions(model, tokenizer, pictures()[:1], beam=4, n_best=2)
    assert str(best) == best.text == " ".join(best.words) == CAPTIONS[0]
    assert best.score > second.score
    assert best.score == pytest.approx(best.log_prob / (len(best.tokens) + 1), rel=1e-6)  # the end is a token, too
    assert best.tokens.tolist() == tokenizer.encode(best.text)
    assert best.probabilities == pytest.approx([math.exp(value) for value in best.word_log_probs])
    assert best.token_log_probs.tolist() == pytest.approx(best.word_log_probs, rel=1e-5)
    assert best.log_prob - sum(best.word_log_probs) < 0  # the end's
    figures = f"words={best.words!r}, log_prob={best.log_prob!r}, score={best.score!r}, expected=None"
    assert repr(best) == f"Caption(text={best.text!r}, {figures})"  # no tensors
    assert best.to_json() == {
        "caption": best.text,
        "log_prob": best.log_prob,
        "score": best.score,
        "expected": None,  # nobody has measured how far this model is to be trusted
        "unsure": False,
        "words": [{"word": w, "probability": p} for w, p in zip(best.words, best.probabilities, strict=True)],
    }


def test_a_sentence_that_never_ends_keeps_all_its_words_and_a_silent_one_its_end(speaker):
    model, tokenizer = speaker
    word = tokenizer.encode("dog")[0]
    log_probs = -torch.arange(1.0, 4.0)

    def caption(*tokens) -> Caption:
        return written._caption(model, tokenizer, torch.tensor(tokens), log_probs, torch.tensor(-1.5), None)

    endless = caption(word, word, word)
    assert (endless.text, endless.log_prob, endless.score) == ("dog dog dog", -6.0, -1.5)
    assert endless.token_log_probs.tolist() == [-1.0, -2.0, -3.0]
    short = caption(word, END, END)
    assert (short.tokens.tolist(), short.token_log_probs.tolist()) == ([word], [-1.0])
    silent = caption(END, END, END)
    assert (silent.text, silent.tokens.tolist(), silent.token_log_probs.tolist()) == ("", [END], [-1.0])


def test_maps_are_of_patches_and_of_whole_words(speaker):
    model, _ = speaker
    attention = torch.rand(2, 4, 5, 8)  # two registers, then 2 × 3 patches
    found = maps_of_words(model, [("one", slice(0, 1)), ("two", slice(1, 4))], attention)
    assert_close(found[:, :, 0], attention[:, :, 0, 2:].unflatten(-1, (2, 3)))
    assert_close(found[:, :, 1], attention[:, :, 1:4, 2:].mean(2).unflatten(-1, (2, 3)))
    assert maps_of_words(model, [], attention).shape == (2, 4, 0, 2, 3)


def test_cross_attention_is_that_of_a_pass_over_each_sentence_alone():
    model, context = talker(seed=2), contexts(2)
    tokens = torch.randint(3, 11, (2, 3, 4))
    found = cross_attention(model, context, tokens, START)
    assert found.shape[:2] == (2, 3)
    for b in range(2):
        for n in range(3):
            for t in range(1, 5):  # what is said later changes nothing
                alone = cross_attention(model, context[b : b + 1], tokens[b : b + 1, n : n + 1, :t], START)
                assert_close(alone[0, 0], found[b, n, :, :, :t], rtol=0, atol=1e-10)
    assert_close(found.sum(-1), torch.ones_like(found.sum(-1)))
    assert not torch.allclose(found[0, 0], found[0, 1])
    other = cross_attention(model, context, tokens, END)
    assert not torch.allclose(other[..., 0, :], found[..., 0, :])


@pytest.mark.parametrize("static", [True, False])
@torch.no_grad()
def test_a_search_that_begins_again_reads_its_context_again(static):
    """As captured ones do: what another call brings is copied over what was there."""
    model, one, other = talker(seed=3), contexts(2), contexts(2)
    makers = (
        lambda context: _Greedy(model, context, **HOW, static=static),
        lambda context: _Beam(model, context, **HOW, beams=3, keep=3, penalty=1.0, static=static),
    )
    for make in makers:
        again, fresh = make(one.clone()), make(other)
        again.begin()
        for _ in range(4):
            again.advance(model)
        again.context.copy_(other)
        for search in (again, fresh):
            search.begin()
            for _ in range(7):
                search.advance(model)
        same(again.result(), fresh.result())


@pytest.mark.parametrize("kind", ["captioner", "transformer"])
def test_models_of_one_layer_are_searched_too(kind):
    model = talker(layers=1) if kind == "captioner" else one_layer()
    context = contexts(2)
    found = beam_search(model, context, **HOW, beams=3, keep=3)
    for i in range(2):
        slow = slow_beams(model, context[i], 7, 3, 1.0)
        assert [trimmed(found, i, j) for j in range(3)] == [said for said, _ in slow]
        assert found.scores[i].tolist() == pytest.approx([score for _, score in slow])


def one_layer():
    sizes = {"vocabulary": 11, "width": 16, "hidden": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    return randomised(Transformer(TransformerConfig(**sizes, norm="pre")).double().eval())


class Sure:
    """Says the end at once, or an endless sentence, with the probability that each context (b 1 1) is."""

    def __init__(self):
        self.steps = 0

    def cache(self, length=None):
        return []

    def decode(self, tokens, context, *, mask, causal, positions, cache):
        self.steps += 1
        shares = ((1 - context) / 9).repeat(1, tokens.shape[1], 11)
        shares[..., END] = context[..., 0]
        shares[..., START] = 0.0
        return shares.log()


class Forgetful(_Beam):
    """Beams of a model that keeps no past."""

    def _log_probs(self, model):
        return model.decode(self.token, self.context, mask=None, causal=True, positions=None, cache=None)


@pytest.mark.parametrize(("ends", "steps"), [((0.9, 0.9), 1), ((0.9, 1e-6), 7), ((1e-6, 1e-6), 7)])
def test_a_search_ends_when_nothing_better_can_come_of_any_context(ends, steps):
    """Said at once with nine tenths, the end is better than whatever else three beams go on with; one just ends."""
    model, context = Sure(), torch.tensor(ends, dtype=torch.float64)[:, None, None]
    found = greedy(model, context, **HOW)
    assert found.lengths[:, 0].tolist() == [1 if end > 0.5 else 7 for end in ends]
    assert model.steps == steps
    model.steps = 0
    run_search(Forgetful, model, context, **HOW, beams=3, keep=1, penalty=1.0)
    assert model.steps == steps


def test_weights_of_which_some_are_no_numbers_are_damaged(speaker, monkeypatch):
    """One number of what the encoder gives, or what is said of one picture, is enough."""
    model, tokenizer = speaker
    encode = model.encode

    def broken(pixels):
        context = encode(pixels).clone()
        context[1, 2, 3] = math.nan
        return context

    monkeypatch.setattr(model, "encode", broken)
    with pytest.raises(ValueError, match="what the model makes of the picture is no number"):
        write_captions(model, tokenizer, pictures())
    monkeypatch.undo()
    search = written.beam_search

    def lost(*a, **k):
        found = search(*a, **k)
        scores = found.scores.clone()
        scores[1, 0] = -math.inf
        return replace(found, scores=scores)

    monkeypatch.setattr(written, "beam_search", lost)
    with pytest.raises(ValueError, match="what the model says has no probability"):
        write_captions(model, tokenizer, pictures())


def test_a_caption_has_no_maps_unless_it_is_given_some(speaker):
    model, tokenizer = speaker
    (best,), *_ = write_captions(model, tokenizer, pictures(), attention=True)
    assert best.attention.shape == (2, 4, 4, 2, 3)
    bare = Caption(
        best.text, best.words, best.log_prob, best.score, best.word_log_probs, best.tokens, best.tokens * 0.0
    )
    assert bare.attention is None
    assert "attention" not in repr(best)
    with pytest.raises(ValueError, match="zip"):
        replace(best, words=best.words[:2]).to_json()


@pytest.mark.parametrize("decode", [greedy, sample, beam_search])
def test_after_the_end_the_end_is_repeated_and_costs_nothing(decode):
    how = HOW | ({"count": 6, "temperature": 3.0} if decode is sample else {})
    how |= {"beams": 6, "keep": 6} if decode is beam_search else {}
    found = decode(talker(seed=2), contexts(20), **how)
    place = torch.arange(found.tokens.shape[-1])
    beyond = place >= found.lengths[..., None]
    assert beyond.any()
    assert (found.tokens[beyond] == END).all()
    assert not found.log_probs[beyond].any()
    last = found.tokens.gather(-1, found.lengths[..., None] - 1)[..., 0]
    assert ((last == END) | (found.lengths == 7)).all()
    assert not (found.tokens[~beyond & (place < found.lengths[..., None] - 1)] == END).any()
    assert_close(found.scores, found.log_probs.sum(-1) / found.lengths)


def test_the_likeliest_are_as_few_as_their_probabilities_take_to_sum_up():
    """Of four quarters, two are a half to the last bit, and for a little more it takes three."""
    draws = torch.arange(8.0)[None] / 8
    for top_p, said in ((0.25, 1), (0.5, 2), (0.501, 3), (0.75, 3), (0.751, 4), (1.0, 4)):
        assert len(set(draw_tokens(torch.zeros(1, 8, 4), draws, None, top_p)[0].tolist())) == said
