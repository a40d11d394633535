# %% [markdown]
# # Beam search
#
# A captioner gives the probability of each next token. Which sentence should it say? Greedy decoding takes the
# likeliest token each time, and can walk into a trap: a good first word may have only bad sentences behind it. Beam
# search follows several sentences at once. These are the rules:
#
# 1. Begin with one sentence, [start], whose sum of log-probabilities is 0.
# 2. At each step every sentence that has not ended is continued by every token. A sentence has ended when its last
#    token is `end`. Those that have ended keep their places; the best continuations, by their sums, fill the other
#    places, so that there are at most `beams` sentences.
# 3. Stop when all have ended, or after `length` tokens (start not counted).
# 4. Give the sentence with the best *mean*: its sum divided by the number of its tokens, `end` counted, start not.
#
# **Predict first.** Which sentence do you get with one beam? With as many beams as there are sentences? Why isn't the
# sum used at the end?

# %%
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from pellucid import decode
from pellucid.data.scenes import SceneConfig, make_scenes
from pellucid.data.tokenizer import END, START
from pellucid.lab.exercises import check
from pellucid.ready import load_captioner

LogProbs = Callable[[list[int]], Tensor]  # the tokens so far, start included → ln p of each next token (v)


# %%
def beam_search(log_probs: LogProbs, start: int, end: int, beams: int, length: int) -> list[int]:
    """The best sentence found, without the start token; with its end token if it has one."""
    # solution
    sentences = [([start], 0.0)]
    for _ in range(length):
        ended = [sentence for sentence in sentences if sentence[0][-1] == end]
        grown = []
        for tokens, total in sentences:
            if tokens[-1] != end:
                grown += [([*tokens, i], total + p) for i, p in enumerate(log_probs(tokens).tolist())]
        grown.sort(key=lambda sentence: -sentence[1])
        sentences = ended + grown[: beams - len(ended)]
        if all(tokens[-1] == end for tokens, _ in sentences):
            break
    return max(sentences, key=lambda sentence: sentence[1] / (len(sentence[0]) - 1))[0][1:]
    # end of solution


# %%
Table = dict[tuple[int, ...], tuple[float, ...]]

# Token 2 looks best at first, but only token 3 is followed by something that is likely. 1 ends.
TRAP: Table = {(0,): (0, 0.1, 0.5, 0.4), (0, 2): (0.25,) * 4, (0, 3): (0, 0.02, 0.96, 0.02)}
# To end at once is quite likely, and what the long sentence is made of is likelier, each time.
LONG: Table = {(0,): (0, 0.4, 0.6, 0), (0, 2): (0, 0.4, 0, 0.6), (0, 2, 3): (0.1, 0.9, 0, 0)}


def spoken(table: Table) -> LogProbs:
    """What follows is looked up; elsewhere the sentence ends."""
    return lambda tokens: torch.tensor(table.get(tuple(tokens), (0, 1.0, 0, 0))).clamp(min=1e-9).log()


def language(tokens: list[int]) -> Tensor:
    """Five tokens whose probabilities depend on all that was said, as in a model."""
    seed = int("1" + "".join(map(str, tokens)), 6)
    return (2 * torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).log_softmax(-1)


def mean_log_prob(tokens: list[int]) -> float:
    """What rule 4 compares."""
    return math.fsum(language([0, *tokens[:i]])[token].item() for i, token in enumerate(tokens)) / len(tokens)


def test_one_beam() -> None:
    """One beam falls into the trap."""
    sentence = beam_search(spoken(TRAP), 0, 1, beams=1, length=4)
    assert sentence[:1] == [2], f"it says {sentence}"


def test_two_beams() -> None:
    """Two beams don't, and the sentence ends where it should."""
    sentence = beam_search(spoken(TRAP), 0, 1, beams=2, length=4)
    assert sentence == [3, 2, 1], f"they say {sentence}"


def test_long_sentences() -> None:
    """A long sentence of likely tokens is better than an early end that is not."""
    sentence = beam_search(spoken(LONG), 0, 1, beams=3, length=4)
    assert sentence == [2, 3, 1], f"it says {sentence}"


def test_all_sentences() -> None:
    """With room for every sentence it finds the best of all."""
    everything = [
        [*words, last]
        for n in range(4)
        for words in itertools.product((0, 2, 3, 4), repeat=n)
        for last in ((1,) if n < 3 else (0, 1, 2, 3, 4))
    ]
    best = max(everything, key=mean_log_prob)
    sentence = beam_search(language, 0, 1, beams=1000, length=4)
    assert sentence == best, f"it says {sentence}, and {best} has a better mean"


def test_few_beams() -> None:
    """More beams look at more continuations, and never at more than they have room for."""
    lengths: list[int] = []

    def counted(tokens: list[int]) -> Tensor:
        lengths.append(len(tokens))
        return language(tokens).index_fill(0, torch.tensor([1]), -50.0)

    beam_search(counted, 0, 1, beams=3, length=4)
    at_once = [lengths.count(n) for n in (1, 2, 3, 4)]
    assert at_once == [1, 3, 3, 3], f"three beams asked for the continuations of {at_once} sentences in four steps"


@torch.no_grad()
def test_a_captioner() -> None:
    """captioner-scenes says with your search what it says with pellucid's."""
    speaker = load_captioner("captioner-scenes")
    model, tokenizer = speaker.model, speaker.tokenizer
    scenes = make_scenes(SceneConfig(train=4, validation=0, test=0, seed=7), (48, 48)).train
    context = model.encode(speaker.reader.prepare(scenes.images.read(torch.arange(4)), model))
    for i in range(4):
        mine = context[i : i + 1]

        def log_probs(tokens: list[int], mine: Tensor = mine) -> Tensor:
            return model.decode(torch.tensor([tokens]), mine)[0, -1].log_softmax(-1)

        truth = decode.beam_search(model, mine, start=START, end=END, length=11, beams=3)
        sentence = beam_search(log_probs, START, END, beams=3, length=11)
        expected = truth.tokens[0, 0, : int(truth.lengths[0, 0])].tolist()
        assert sentence == expected, f"it says {tokenizer.decode(sentence)!r}, pellucid {tokenizer.decode(expected)!r}"


# %%
if __name__ == "__main__":
    check(test_one_beam, test_two_beams, test_long_sentences, test_all_sentences, test_few_beams, test_a_captioner)

# %% [markdown] answer
# **What came out.** One beam is greedy decoding. With room for all, nothing is given up, and the best sentence is
# found. Every token makes the sum smaller, so by the sum the shortest sentence nearly always wins: the mean lets long
# ones compete.
