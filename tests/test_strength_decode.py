"""What a mutation run found untested in decode."""

import pytest
from test_decode import HOW, contexts, same, talker

from pellucid.decode import beam_search, sample


def test_what_is_not_asked_for_is_five_beams_the_best_of_them_and_one_draw():
    model, context = talker(seed=5), contexts()
    same(beam_search(model, context, **HOW), beam_search(model, context, **HOW, beams=5, keep=1, length_penalty=1.0))
    with pytest.raises(ValueError, match="keep is 6; expected 1 to 5, the number of beams"):
        beam_search(model, context, **HOW, keep=6)
    assert sample(model, context, **HOW).tokens.shape[:2] == (4, 1)
