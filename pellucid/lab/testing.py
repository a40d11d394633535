"""What differs between training and testing: dropout, teacher forcing, and what a model's own mistakes do to it."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.data.tokenizer import END, PAD, START
from pellucid.decode import greedy
from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most, max_error, relative_error, seeded
from pellucid.lab.panels import bar_chart
from pellucid.lab.shipped import load_scenes
from pellucid.layers import EncoderBlock
from pellucid.models import Transformer, TransformerConfig


class DropoutSettings(NamedTuple):
    """A block and how often its numbers are dropped."""

    width: int = 32  # Of a token.
    tokens: int = 8  # Number of tokens.
    p: float = 0.3  # Probability that a number is dropped.
    draws: int = 10_000  # How many masks are drawn.
    seed: int = 0  # Of tokens, weights and masks.


class DropoutMeasurement(NamedTuple):
    twice: dict[str, float]  # largest difference of two answers to one input
    bias: dict[str, float]  # relative distance of the mean answer from that of eval()


def measure_dropout(p: DropoutSettings) -> DropoutMeasurement:
    """The same input many times through a linear map and through a block, with dropout before each."""
    twice, bias = {}, {}
    with seeded(p.seed), torch.no_grad():
        x = torch.randn(1, p.tokens, p.width)
        models = {
            "linear map": nn.Sequential(nn.Dropout(p.p), nn.Linear(p.width, p.width)),
            "block": nn.Sequential(nn.Dropout(p.p), EncoderBlock(p.width, heads=4, norm="pre")),
        }
        for name, model in models.items():
            twice[f"{name}, eval"] = max_error(model.eval()(x), model(x))
            twice[f"{name}, train"] = max_error(model.train()(x), model(x))
            mean = torch.stack([model(x.expand(100, -1, -1)).mean(0) for _ in range(p.draws // 100)]).mean(0)
            bias[name] = relative_error(mean, model.eval()(x)[0])
    return DropoutMeasurement(twice, bias)


def claim_dropout(p: DropoutSettings, m: DropoutMeasurement) -> Claims:
    yield Thesis("testing.eval", "In eval() a model gives the same answer twice.").true(
        at_most(0.0, "largest difference of two answers", max(m.twice["linear map, eval"], m.twice["block, eval"])),
        twin=("in train()", min(m.twice["linear map, train"], m.twice["block, train"])),
    )
    yield Thesis(
        "testing.dropout_mean", "On average, dropout changes nothing: the mean over its masks is the answer of eval()."
    ).conditional(
        at_most(0.02, f"linear map: relative distance of the mean of {p.draws} draws", m.bias["linear map"]),
        ("through a block of a transformer", m.bias["block"]),
        truth="True of linear maps. A norm, a softmax or a GELU of a mean isn't the mean of theirs.",
    )


def draw_dropout(p: DropoutSettings, m: DropoutMeasurement) -> Drawing:
    title = f"mean of {p.draws} draws against eval()"
    return m.twice | {f"{name}: mean against eval()": value for name, value in m.bias.items()}, [
        bar_chart("two answers to one input", "largest difference", {"": m.twice}),
        bar_chart(title, "relative distance", {"": m.bias}, line=("tolerance", 0.02)),
    ]


class ForcingSettings(NamedTuple):
    """A small encoder–decoder, with weights as they are drawn."""

    vocabulary: int = 12  # Different tokens.
    length: int = 8  # Tokens of the target.
    seed: int = 0  # Of weights and tokens.


class ForcingMeasurement(NamedTuple):
    changes: dict[str, float]  # of the scores of a token when that token changes, the largest
    masked_error: float  # of one pass, beside decoding step by step
    unmasked_error: float


def measure_forcing(p: ForcingSettings) -> ForcingMeasurement:
    """Change one token of the target: do the scores that are compared with this very token change?"""
    config = TransformerConfig(
        p.vocabulary, width=32, hidden=64, heads=4, encoder_layers=1, decoder_layers=2, dropout=0.0
    )
    with seeded(p.seed):
        model = Transformer(config).eval()
        source, target = torch.randint(1, p.vocabulary, (2, 1, p.length))

    @torch.no_grad()
    def scores(target: Int[Tensor, "1 t"], shifted: bool, causal: bool) -> Float[Tensor, "1 t v"]:
        """Place i speaks of target i; token 0 says that the sentence begins."""
        read = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1) if shifted else target
        return model.decode(read, model.encode(source), causal=causal)

    def largest_change(shifted: bool, causal: bool) -> float:
        before, changes = scores(target, shifted, causal), []
        for i in range(p.length):
            other = target.clone()
            other[0, i] = target[0, i] % (p.vocabulary - 1) + 1
            changes.append(max_error(scores(other, shifted, causal)[:, i], before[:, i]))
        return max(changes)

    stepwise = torch.stack([scores(target[:, : i + 1], True, True)[:, -1] for i in range(p.length)], 1)
    return ForcingMeasurement(
        {
            "shifted, mask": largest_change(True, True),
            "not shifted, mask": largest_change(False, True),
            "shifted, no mask": largest_change(True, False),
        },
        masked_error=max_error(scores(target, True, True), stepwise),
        unmasked_error=max_error(scores(target, True, False), stepwise),
    )


def claim_forcing(p: ForcingSettings, m: ForcingMeasurement) -> Claims:
    forced, not_shifted, not_masked = m.changes.values()
    yield Thesis("testing.decoder", "In training, the output of the decoder is compared with the target.").conditional(
        at_most(0.0, "shifted target and mask: change of the scores of a token when that token changes", forced),
        ("target not shifted", not_shifted),
        ("shifted, without the mask", not_masked),
        truth="Only with teacher forcing: the decoder reads the target one step late, and a mask keeps it from "
        "reading on. Otherwise it is compared with what it has read.",
        heard=True,
    )
    yield Thesis(
        "testing.one_pass", "With the mask, one pass over the target gives what decoding step by step would give."
    ).true(
        at_most(1e-5, "largest difference of the scores", m.masked_error), twin=("without the mask", m.unmasked_error)
    )


def draw_forcing(p: ForcingSettings, m: ForcingMeasurement) -> Drawing:
    change = "change of a token's scores when it changes"
    return m.changes, [bar_chart("does it read what it must say?", change, {"": m.changes})]


class ExposureSettings(NamedTuple):
    """How many scenes are captioned."""

    scenes: int = 400  # Drawn scenes that captioner-scenes hasn't seen.


class ExposureMeasurement(NamedTuple):
    counts: dict[str, int]
    shares: dict[str, float]  # right, of all captions and words
    otherwise: int  # captions that only one of the two ways says exactly right
    otherwise_last: int  # if the last word alone had to be right
    parts: dict[str, dict[str, float]]  # share of words right, of captions with a mistake


@torch.no_grad()
def measure_exposure(p: ExposureSettings) -> ExposureMeasurement:
    """The shipped captioner under teacher forcing and on its own, word by word."""
    data = load_scenes(p.scenes)
    target = data.tokens[:, 1:]
    real = target != PAD
    forced = (data.model(data.images, data.tokens[:, :-1]).argmax(-1) == target) & real
    tokens = greedy(data.model, data.model.encode(data.images), start=START, end=END, length=target.shape[1]).tokens
    tokens = nn.functional.pad(tokens[:, 0], (0, target.shape[1] - tokens.shape[2]), value=END)
    own = (tokens == target) & real
    forced_exact, own_exact = (forced | ~real).all(1), (own | ~real).all(1)
    mistaken = ~own_exact
    mistakes = (real & ~own)[mistaken].cumsum(1)  # so far, in each caption
    first = (mistakes == 1) & (real & ~own)[mistaken]
    before, after = (mistakes == 0) & real[mistaken], (mistakes > 0) & ~first & real[mistaken]
    last = forced.gather(1, real.sum(1, keepdim=True) - 2)[:, 0]  # the word before the end
    words = int(real.sum())
    return ExposureMeasurement(
        {"captions with a mistake": int(mistaken.sum()), "words after a first mistake": int(after.sum())},
        {
            "captions exactly right": own_exact.double().mean().item(),
            "words right under teacher forcing": forced.sum().item() / words,
            "words right on its own": own.sum().item() / words,
        },
        otherwise=int((forced_exact != own_exact).sum()),
        otherwise_last=int((last != own_exact).sum()),
        parts={
            name: {
                part: (right[mistaken] & chosen).sum().item() / max(1, int(chosen.sum()))
                for part, chosen in (("before the first mistake", before), ("after it", after))
            }
            for name, right in (("teacher forcing", forced), ("its own words", own))
        },
    )


def claim_exposure(p: ExposureSettings, m: ExposureMeasurement) -> Claims:
    yield Thesis(
        "testing.exact",
        "Greedy decoding says a caption exactly right when every word is right under teacher forcing, and only then.",
    ).true(
        at_most(0, f"captions of {p.scenes} for which it is otherwise", m.otherwise),
        twin=("if the last word alone had to be right", m.otherwise_last),
    )
    before, after = (m.parts["teacher forcing"][part] - own for part, own in m.parts["its own words"].items())
    yield Thesis(
        "testing.exposure", "A model that goes on from its own words is as often right as under teacher forcing."
    ).false(
        at_most(0.02, "after its first mistake: share of words right under teacher forcing, less on its own", after),
        twin=("before it", before),
        truth="Only until its first mistake, which training never showed it.",
    )


def draw_exposure(p: ExposureSettings, m: ExposureMeasurement) -> Drawing:
    return m.shares | m.counts, [bar_chart("words of captions with a mistake", "share of words right", m.parts)]


DROPOUT = Experiment(
    name="dropout",
    title="train() and eval()",
    statement="Dropout makes a model's answers random in training; in testing it is off.",
    formula="train: x·m/(1 − p), m = 0 with probability p; eval: x. E[train] = eval for linear maps alone",
    predict="Draw a thousand dropout masks and take the mean answer. Is it the answer of eval()?",
    fails="For small p and many numbers the difference is small: that is why it works.",
    functions=(measure_dropout, claim_dropout, draw_dropout),
    bounds={"p": (0, 0.95), "draws": (100, math.inf)},
)

FORCING = Experiment(
    name="forcing",
    title="Teacher forcing",
    statement="In training the decoder reads the target one step late, behind a mask; then all places learn in one "
    "pass.",
    formula="input = [start, y₁ … y_{n−1}], target = [y₁ … y_n]; place i sees input up to i, which is y up to i − 1",
    predict="The target isn't shifted, but the mask is there. Can the decoder read what it must say?",
    fails="It says nothing of how the model speaks on its own: see exposure.",
    functions=(measure_forcing, claim_forcing, draw_forcing),
    bounds={"vocabulary": (3, math.inf)},
)

EXPOSURE = Experiment(
    name="exposure",
    title="On its own",
    statement="A captioner that makes a mistake goes on from it, which it has never practised.",
    formula="teacher forcing: p(yᵢ | y up to i − 1); on its own: p(ŷᵢ | ŷ up to i − 1)",
    predict="Among captions with a mistake: how often are the words after it right, given the true words, and given "
    "its own?",
    fails="Words are compared place by place; a caption that says the same with one word more counts as wrong from "
    "there on.",
    functions=(measure_exposure, claim_exposure, draw_exposure),
)
