# %% [markdown]
# # Teacher forcing
#
# A decoder says a sentence token by token. In training the whole sentence is known, and all tokens are learned in one
# pass: the decoder reads the true tokens, and its scores at place i are compared with token i of the target. That only
# teaches something if it has not read token i. Two things see to it: what it reads is the target *one step late*, with
# a start token in front, and a causal mask keeps it from reading on.
#
# Sentences differ in length; shorter ones are filled up with a padding token, which nobody should learn to say.
#
# **Predict first.** The mask is there but the target isn't shifted: what does the model learn? It is shifted but the
# mask is missing: what then? Which accuracy would you see in training, in both cases?

# %%
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.lab.exercises import check
from pellucid.models import Transformer, TransformerConfig

# %% [markdown]
# Write what the decoder reads, and the loss: the mean of −ln p(target) over all tokens of the batch that aren't
# padding.


# %%
def decoder_input(target: Int[Tensor, "b t"], start: int) -> Int[Tensor, "b t"]:
    """What the decoder reads so that its scores at place i may be compared with target i."""
    # solution
    return torch.cat([target.new_full((len(target), 1), start), target[:, :-1]], dim=1)
    # end of solution


def loss(scores: Float[Tensor, "b t v"], target: Int[Tensor, "b t"], padding: int) -> Float[Tensor, ""]:
    """Cross-entropy of the scores, before the softmax, and the target; padding counts for nothing."""
    # solution
    log_probs = scores.log_softmax(-1).gather(-1, target[..., None])[..., 0]
    real = target != padding
    return -log_probs[real].sum() / real.sum()
    # end of solution


# %%
START, PADDING, WORDS = 1, 0, 12


def model() -> Transformer:
    """A small transformer with random weights. Its decoder has a causal mask."""
    torch.manual_seed(0)
    shape = TransformerConfig(vocabulary=WORDS, width=16, hidden=32, heads=2, encoder_layers=1, decoder_layers=1)
    return Transformer(shape).eval()


def moved(place: int) -> Tensor:
    """How much each place's scores move when the target's token at `place` is changed."""
    source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[4, 8, 3, 9, 2]])
    changed = target.clone()
    changed[0, place] = 11
    one = model()
    with torch.no_grad():
        before, after = (one(source, decoder_input(y, START)) for y in (target, changed))
    return (after - before).abs().amax((0, 2))


def test_reads_the_past_alone() -> None:
    """A place's scores don't depend on the token that they are compared with, nor on later ones."""
    for place in range(5):
        changes = moved(place)
        assert changes.shape == (5,), f"a target of 5 tokens gave scores for {len(changes)} places"
        for i in range(place + 1):
            assert changes[i] == 0, f"the scores at place {i} move by {changes[i]:.2g} when token {place} changes"


def test_reads_the_whole_past() -> None:
    """They do depend on every token before."""
    for place in range(4):
        change = moved(place)[place + 1]
        assert change > 1e-4, f"the scores at place {place + 1} don't know token {place}"


def test_begins_with_start() -> None:
    """The first thing that is read is the start token, and nothing is made up."""
    tokens = decoder_input(torch.tensor([[4, 8, 3], [7, 2, 2]]), START)
    assert tokens.dtype == torch.int64, f"tokens became {tokens.dtype}"
    assert bool((tokens[:, 0] == START).all()), f"the first tokens are {tokens[:, 0].tolist()}"


def test_knowing_nothing() -> None:
    """Equal scores cost ln(number of words), whatever the target."""
    target = torch.tensor([[4, 8, 3, 2], [7, 2, PADDING, PADDING]])
    cost = loss(torch.zeros(2, 4, WORDS), target, PADDING)
    assert abs(cost - math.log(WORDS)) < 1e-5, f"it costs {cost:.4f}, and ln {WORDS} is {math.log(WORDS):.4f}"


def test_padding() -> None:
    """What is said in place of padding costs nothing."""
    torch.manual_seed(1)
    scores, target = torch.randn(2, 4, WORDS), torch.tensor([[4, 8, 3, 2], [7, 2, PADDING, PADDING]])
    changed = scores.clone()
    changed[1, 2:] = 100 * torch.randn(2, WORDS)
    difference = (loss(scores, target, PADDING) - loss(changed, target, PADDING)).abs()
    assert difference < 1e-5, f"other scores at the padding change the loss by {difference:.2g}"


def test_tokens_count_alike() -> None:
    """Every token counts the same, in a short sentence and in a long one."""
    torch.manual_seed(2)
    scores, target = torch.randn(2, 4, WORDS), torch.tensor([[4, 8, 3, 2], [7, PADDING, PADDING, PADDING]])
    long, short = (loss(scores[i : i + 1], target[i : i + 1], PADDING) for i in (0, 1))
    difference = (loss(scores, target, PADDING) - (4 * long + short) / 5).abs()
    assert difference < 1e-5, f"four tokens and one give a loss {difference:.2g} away from the mean of the five"


def test_sure_and_right() -> None:
    """Being sure of the right token costs nothing, of a wrong one much."""
    target = torch.tensor([[4, 8, 3]])
    sure = torch.full((1, 3, WORDS), -50.0).scatter(2, target[..., None], 50.0)
    assert loss(sure, target, PADDING) < 1e-5, f"being right costs {loss(sure, target, PADDING):.2g}"
    assert loss(sure, target + 1, PADDING) > 50, f"being wrong costs only {loss(sure, target + 1, PADDING):.2g}"


# %%
if __name__ == "__main__":
    check(
        test_reads_the_past_alone,
        test_reads_the_whole_past,
        test_begins_with_start,
        test_knowing_nothing,
        test_padding,
        test_tokens_count_alike,
        test_sure_and_right,
    )

# %% [markdown] answer
# **What came out.** In both cases the model learns to copy: not shifted, the token stands at its own place; without
# the mask it stands one place to the right. The training accuracy goes to 100 % and means nothing. "The output of the
# decoder is compared with the target" is right only with the shift *and* the mask. `pellucid lab forcing` and
# `pellucid lab leaking` measure it.
