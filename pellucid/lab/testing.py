"""What differs between training and testing: dropout, teacher forcing, and what a model's own mistakes do to it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.data.tokenizer import END, PAD, START
from pellucid.decode import greedy
from pellucid.lab.frame import Case, Claim, Experiment, Result, relative, seeded, worst
from pellucid.lab.panels import Bars
from pellucid.lab.shipped import captioned
from pellucid.layers import EncoderBlock
from pellucid.models import Transformer, TransformerConfig


@dataclass(frozen=True)
class Dropout:
    """A block and how often its numbers are dropped."""

    width: int = 32
    """Of a token."""
    tokens: int = 8
    """Number of tokens."""
    p: float = 0.3
    """Probability that a number is dropped."""
    draws: int = 10_000
    """How many masks are drawn."""
    seed: int = 0
    """Of tokens, weights and masks."""


def dropout(p: Dropout) -> Result:
    """The same input many times through a linear map and through a block, with dropout before each."""
    with seeded(p.seed), torch.no_grad():
        x = torch.randn(1, p.tokens, p.width)
        models = {
            "linear map": nn.Sequential(nn.Dropout(p.p), nn.Linear(p.width, p.width)),
            "block": nn.Sequential(nn.Dropout(p.p), EncoderBlock(p.width, heads=4, norm="pre")),
        }
        twice, bias = {}, {}
        for name, model in models.items():
            twice[f"{name}, eval"] = worst(model.eval()(x), model(x))
            twice[f"{name}, train"] = worst(model.train()(x), model(x))
            mean = torch.stack([model(x.expand(100, -1, -1)).mean(0) for _ in range(p.draws // 100)]).mean(0)
            bias[name] = relative(mean, model.eval()(x)[0])
    claims = (
        Claim(
            "testing.eval",
            "In eval() a model gives the same answer twice.",
            "true",
            "≤",
            0.0,
            holds=(Case("largest difference of two answers", max(twice["linear map, eval"], twice["block, eval"])),),
            twin=Case("in train()", min(twice["linear map, train"], twice["block, train"])),
        ),
        Claim(
            "testing.dropout_mean",
            "On average, dropout changes nothing: the mean over its masks is the answer of eval().",
            "conditional",
            "≤",
            0.02,
            holds=(Case(f"linear map: relative distance of the mean of {p.draws} draws", bias["linear map"]),),
            breaks=(Case("through a block of a transformer", bias["block"]),),
            truth="True of linear maps. A norm, a softmax or a GELU of a mean isn't the mean of theirs.",
        ),
    )
    panels = (
        Bars("two answers to one input", "largest difference", tuple(twice), (("", tuple(twice.values())),)),
        Bars(
            f"mean of {p.draws} draws against eval()",
            "relative distance",
            tuple(bias),
            (("", tuple(bias.values())),),
            line=("tolerance", 0.02),
        ),
    )
    return Result(twice | {f"{name}: mean against eval()": value for name, value in bias.items()}, panels, claims)


@dataclass(frozen=True)
class Forcing:
    """A small encoder–decoder, with weights as they are drawn."""

    vocabulary: int = 12
    """Different tokens."""
    length: int = 8
    """Tokens of the target."""
    seed: int = 0
    """Of weights and tokens."""


def forcing(p: Forcing) -> Result:
    """Change one token of the target: do the scores that are compared with this very token change?"""
    with seeded(p.seed):
        model = Transformer(
            TransformerConfig(
                p.vocabulary, width=32, hidden=64, heads=4, encoder_layers=1, decoder_layers=2, dropout=0.0
            )
        ).eval()
        source, target = torch.randint(1, p.vocabulary, (2, 1, p.length))
    ways = {"shifted, mask": (True, True), "not shifted, mask": (False, True), "shifted, no mask": (True, False)}

    @torch.no_grad()
    def scores(target: Int[Tensor, "1 t"], shifted: bool, causal: bool) -> Float[Tensor, "1 t v"]:
        """Place i speaks of target i; token 0 says that the sentence begins."""
        read = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1) if shifted else target
        return model.decode(read, model.encode(source), causal=causal)

    def reads_itself(shifted: bool, causal: bool) -> float:
        before, largest = scores(target, shifted, causal), 0.0
        for i in range(p.length):
            other = target.clone()
            other[0, i] = target[0, i] % (p.vocabulary - 1) + 1
            largest = max(largest, worst(scores(other, shifted, causal)[:, i], before[:, i]))
        return largest

    found = {name: reads_itself(*way) for name, way in ways.items()}
    whole = {causal: scores(target, True, causal) for causal in (True, False)}
    stepwise = torch.stack([scores(target[:, : i + 1], True, True)[:, -1] for i in range(p.length)], 1)
    claims = (
        Claim(
            "testing.decoder",
            "In training, the output of the decoder is compared with the target.",
            "conditional",
            "≤",
            0.0,
            holds=(
                Case(
                    "shifted target and mask: change of the scores of a token when that token changes",
                    found["shifted, mask"],
                ),
            ),
            breaks=(
                Case("target not shifted", found["not shifted, mask"]),
                Case("shifted, without the mask", found["shifted, no mask"]),
            ),
            truth="Only with teacher forcing: the decoder reads the target one step late, and a mask keeps it from "
            "reading on. "
            "Otherwise it is compared with what it has read.",
            heard=True,
        ),
        Claim(
            "testing.one_pass",
            "With the mask, one pass over the target gives what decoding step by step would give.",
            "true",
            "≤",
            1e-5,
            holds=(Case("largest difference of the scores", worst(whole[True], stepwise)),),
            twin=Case("without the mask", worst(whole[False], stepwise)),
        ),
    )
    panels = (
        Bars(
            "does it read what it must say?",
            "change of a token's scores when it changes",
            tuple(found),
            (("", tuple(found.values())),),
        ),
    )
    return Result(dict(found), panels, claims)


@dataclass(frozen=True)
class Exposure:
    """How many scenes are captioned."""

    scenes: int = 400
    """Drawn scenes that captioner-scenes hasn't seen."""


@torch.no_grad()
def exposure(p: Exposure) -> Result:
    """The shipped captioner under teacher forcing and on its own, word by word."""
    data = captioned(p.scenes)
    target = data.tokens[:, 1:]
    real = target != PAD
    forced = data.model(data.images, data.tokens[:, :-1]).argmax(-1)
    said = greedy(data.model, data.model.encode(data.images), start=START, end=END, length=target.shape[1]).tokens[:, 0]
    said = nn.functional.pad(said, (0, target.shape[1] - said.shape[1]), value=END)
    hit, own = (forced == target) & real, (said == target) & real
    exact = {"forced": (hit | ~real).all(1), "own": (own | ~real).all(1)}
    mistaken = ~exact["own"]
    wrong = (real & ~own)[mistaken]
    after = (wrong.cumsum(1) > 0) & ~(wrong & (wrong.cumsum(1) == 1)) & real[mistaken]  # words behind the first mistake
    before = (wrong.cumsum(1) == 0) & real[mistaken]
    shares = {
        part: {
            name: (x[mistaken] & chosen).sum().item() / max(1, int(chosen.sum()))
            for name, x in (("teacher forcing", hit), ("its own words", own))
        }
        for part, chosen in (("before the first mistake", before), ("after it", after))
    }
    gap = {part: found["teacher forcing"] - found["its own words"] for part, found in shares.items()}
    last = hit.gather(1, real.sum(1, keepdim=True) - 2)[:, 0]  # the word before the end
    claims = (
        Claim(
            "testing.exact",
            "Greedy decoding says a caption exactly right when every word is right under teacher forcing, and only "
            "then.",
            "true",
            "≤",
            0,
            holds=(
                Case(f"captions of {p.scenes} for which it is otherwise", int((exact["forced"] != exact["own"]).sum())),
            ),
            twin=Case("if the last word alone had to be right", int((last != exact["own"]).sum())),
        ),
        Claim(
            "testing.exposure",
            "A model that goes on from its own words is as often right as under teacher forcing.",
            "false",
            "≤",
            0.02,
            breaks=(
                Case(
                    "after its first mistake: share of words right under teacher forcing, less on its own",
                    gap["after it"],
                ),
            ),
            twin=Case("before it", gap["before the first mistake"]),
            truth="Only until its first mistake, which training never showed it.",
        ),
    )
    panels = (
        Bars(
            "words of captions with a mistake",
            "share of words right",
            tuple(shares),
            tuple(
                (name, tuple(found[name] for found in shares.values())) for name in ("teacher forcing", "its own words")
            ),
        ),
    )
    numbers = {
        "captions exactly right": exact["own"].double().mean().item(),
        "words right under teacher forcing": hit.sum().item() / int(real.sum()),
        "words right on its own": own.sum().item() / int(real.sum()),
        "captions with a mistake": int(mistaken.sum()),
        "words after a first mistake": int(after.sum()),
    }
    return Result(numbers, panels, claims)


EXPERIMENTS = (
    Experiment(
        name="dropout",
        title="train() and eval()",
        statement="Dropout makes a model's answers random in training; in testing it is off.",
        formula="train: x·m/(1 − p), m = 0 with probability p; eval: x. E[train] = eval for linear maps alone",
        predict="Draw a thousand dropout masks and take the mean answer. Is it the answer of eval()?",
        fails="For small p and many numbers the difference is small: that is why it works.",
        parameters=Dropout,
        run=dropout,
    ),
    Experiment(
        name="forcing",
        title="Teacher forcing",
        statement="In training the decoder reads the target one step late, behind a mask; then all places learn in "
        "one pass.",
        formula="input = [start, y₁ … y_{n−1}], target = [y₁ … y_n]; place i sees input up to i, which is y up to i "
        "− 1",
        predict="The target isn't shifted, but the mask is there. Can the decoder read what it must say?",
        fails="It says nothing of how the model speaks on its own: see exposure.",
        parameters=Forcing,
        run=forcing,
    ),
    Experiment(
        name="exposure",
        title="On its own",
        statement="A captioner that makes a mistake goes on from it, which it has never practised.",
        formula="teacher forcing: p(yᵢ | y up to i − 1); on its own: p(ŷᵢ | ŷ up to i − 1)",
        predict="Among captions with a mistake: how often are the words after it right, given the true words, and "
        "given its own?",
        fails="Words are compared place by place; a caption that says the same with one word more counts as wrong "
        "from there on.",
        parameters=Exposure,
        run=exposure,
    ),
)
