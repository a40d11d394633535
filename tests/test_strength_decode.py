"""What a mutation run found untested in decode."""

import pytest
import torch
from test_decode import END, HOW, START, contexts, same, slow_beams, talker, trimmed

from pellucid.decode import beam_search, sample
from pellucid.decode.rows import draw_tokens


def test_what_is_not_asked_for_is_five_beams_the_best_of_them_and_one_draw():
    model, context = talker(seed=5), contexts()
    same(beam_search(model, context, **HOW), beam_search(model, context, **HOW, beams=5, keep=1, length_penalty=1.0))
    with pytest.raises(ValueError, match="keep is 6; expected 1 to 5, the number of beams"):
        beam_search(model, context, **HOW, keep=6)
    assert sample(model, context, **HOW).tokens.shape[:2] == (4, 1)


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
