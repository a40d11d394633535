"""What waits for what, and how far a signal travels: in a recurrent network, a convolution, attention."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most, exponent, seeded
from pellucid.lab.panels import line_chart
from pellucid.layers import MultiHeadAttention

Transform = Callable[[Tensor], Tensor]  # words (1 n d) to words


class SequentialSettings(NamedTuple):
    """Sentences of which lengths, of words how wide."""

    words: tuple[int, ...] = (16, 32, 64, 128)  # In a sentence.
    width: int = 32  # Of a word.
    kernel: int = 3  # Words that a convolution reads, odd.
    seed: int = 0  # Of weights and words.


class SequentialMeasurement(NamedTuple):  # each by layer
    chains: dict[str, list[int]]  # operations that wait for each other, for each number of words
    seconds: dict[str, list[float]]  # of one layer
    layers: dict[str, int]  # until the last of the fewest words depends on the first
    exponents: dict[str, float]  # of the chains


def make_layers(p: SequentialSettings) -> dict[str, Transform]:
    """One layer of each kind, from words to as many words."""
    cell = nn.LSTMCell(p.width, p.width)
    convolution = nn.Conv1d(p.width, p.width, p.kernel, padding=p.kernel // 2)

    def recur(x: Float[Tensor, "1 n d"]) -> Float[Tensor, "1 n d"]:
        state, said = None, []
        for word in x.unbind(1):
            state = cell(word, state)
            said.append(state[0])
        return torch.stack(said, 1)

    return {
        "LSTM": recur,
        "convolution": lambda x: convolution(x.mT).mT,
        "attention": MultiHeadAttention(p.width, heads=4),
    }


def longest_chain(y: Tensor) -> int:
    """The most operations that lie on one way from what was given to y: no machine can do these at one time.

    >>> x = torch.ones(1, requires_grad=True)
    >>> longest_chain((x * 2).exp() + x)
    3
    """
    length: dict[Any, int] = {None: 0}
    waiting: list[Any] = [y.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [each for each, _ in node.next_functions]
        if unknown := [each for each in before if each not in length]:
            waiting += unknown
            continue
        own = 0 if type(node).__name__ == "AccumulateGrad" else 1
        length[waiting.pop()] = own + max((length[each] for each in before), default=0)
    return length[y.grad_fn]


def layers_between(layer: Transform, x: Float[Tensor, "1 n d"]) -> int:
    """How many layers of a kind it takes until the last word depends on the first."""
    first = x[:, :1].clone().requires_grad_()
    y = torch.cat([first, x[:, 1:]], 1)
    for layers in count(1):
        y = layer(y)
        (gradient,) = torch.autograd.grad(y[:, -1].sum(), first, retain_graph=True, allow_unused=True)
        if gradient is not None and gradient.any():
            return layers
    raise AssertionError("count has no end")


def seconds_of(function: Callable[[], Any], repeats: int = 3) -> float:
    """Of the fastest of some calls."""

    def times() -> Iterator[float]:
        for _ in range(repeats):
            started = time.perf_counter()
            function()
            yield time.perf_counter() - started

    return min(times())


def measure_sequential(p: SequentialSettings) -> SequentialMeasurement:
    """Follow each layer's graph from its answer back to its words, for sentences longer and longer."""
    if p.kernel < 3 or p.kernel % 2 == 0:
        raise ValueError(f"kernel is {p.kernel}; expected 3, 5, …, so that a word reads others and as many come out")
    with seeded(p.seed):
        layers = make_layers(p)
        sentences = [torch.randn(1, n, p.width) for n in p.words]
        chains = {name: [longest_chain(layer(x)) for x in sentences] for name, layer in layers.items()}
        with torch.no_grad():
            times = {name: [seconds_of(partial(layer, x)) for x in sentences] for name, layer in layers.items()}
        between = {name: layers_between(layer, min(sentences, key=len)) for name, layer in layers.items()}
    return SequentialMeasurement(
        chains, times, between, {name: exponent(p.words, values) for name, values in chains.items()}
    )


def claim_sequential(p: SequentialSettings, m: SequentialMeasurement) -> Claims:
    grows, recurrent = "exponent of the longest chain of operations", m.exponents["LSTM"]
    yield Thesis(
        "sequential.recurrent", "A recurrent network has to go step by step; a transformer, in training, needn't."
    ).true(at_most(0.1, f"attention: {grows}", m.exponents["attention"]), twin=("LSTM", recurrent))
    yield Thesis(
        "sequential.convolution",
        "Convolutions are computed one place after the other, so a transformer can be computed in parallel and a CNN "
        "can't.",
    ).false(
        at_least(0.9, f"convolution: {grows}", m.exponents["convolution"]),
        twin=("LSTM", recurrent),
        truth="A layer of either is parallel over its places; a recurrent network is what goes step by step.",
        heard=True,
    )
    yield Thesis(
        "sequential.path", "From the first word to the last it is one layer of attention, whatever lies between."
    ).true(
        at_most(1, f"layers of attention between the ends of {p.words[0]} words", m.layers["attention"]),
        twin=(f"layers of convolutions of {p.kernel}", m.layers["convolution"]),
    )


def draw_sequential(p: SequentialSettings, m: SequentialMeasurement) -> Drawing:
    numbers: dict[str, float] = {f"{name}: exponent of the chain": value for name, value in m.exponents.items()}
    numbers |= {f"{name}: chain for {p.words[-1]} words": values[-1] for name, values in m.chains.items()}
    numbers |= {f"{name}: layers between the ends of {p.words[0]} words": n for name, n in m.layers.items()}
    numbers |= {f"{name}: seconds for {p.words[-1]} words": values[-1] for name, values in m.seconds.items()}
    return numbers, [
        line_chart("what has to wait", ("words", "operations, one after the other"), p.words, m.chains, log="xy"),
        line_chart("time of one layer, here and now", ("words", "seconds"), p.words, m.seconds, log="xy"),
    ]


SEQUENTIAL = Experiment(
    name="sequential",
    title="Step by step, or all at once",
    statement="An LSTM's chain of operations grows with the sentence; that of a convolution or of attention doesn't. "
    "Between two words there lie n steps, n/(kernel − 1) layers, or one.",
    formula="h_i = f(x_i, h_{i−1}) waits for every word before it; softmax(β·qkᵀ)·v and Σ_δ W_δ·x_{i+δ} for none",
    predict="Which of the three can't be computed for all words at one time: LSTM, convolution, attention?",
    fails="Parallel is not cheap: attention does N² work at one time. A sum over N keys is log N deep inside one "
    "operation. And when it speaks, a transformer goes word by word too.",
    functions=(measure_sequential, claim_sequential, draw_sequential),
    helpers=(make_layers, longest_chain, layers_between),
)
