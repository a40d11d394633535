"""Residuals, norms and depth: what reaches the first block, what becomes of the tokens, and what is learned."""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most, seeded
from pellucid.lab.learning import descend, learn_digits, load_digits, measure_accuracy
from pellucid.lab.panels import bar_chart, line_chart
from pellucid.layers import EncoderBlock, LearnedPositions, PatchEmbed
from pellucid.models.init import initialise

BlockForm = Literal["pre-norm", "post-norm", "no norm", "no residual", "neither"]
FORMS: tuple[BlockForm, ...] = ("pre-norm", "post-norm", "no norm", "no residual", "neither")


class DepthSettings(NamedTuple):
    """A stack of blocks on scikit-learn's digits, in five forms."""

    depth: int = 12  # Number of blocks.
    width: int = 32  # Width of a token.
    steps: int = 80  # Of training.
    rate: float = 2e-3  # Learning rate, with no warm-up.
    seed: int = 0  # Of weights and batches.


class DepthMeasurement(NamedTuple):  # each by form
    gradients: dict[str, list[float]]  # norm for each block, before training
    spreads: dict[str, list[float]]  # of the tokens after each block, before training
    losses: dict[str, list[float]]
    accuracy: dict[str, float]  # on the test set, after training


class Stack(nn.Module):
    """Patches of 2×2, blocks, the mean of the tokens, ten scores."""

    def __init__(self, p: DepthSettings, form: BlockForm):
        super().__init__()
        self.form: BlockForm = form
        self.embed, self.positions = PatchEmbed(2, p.width, channels=1), LearnedPositions(16, p.width)
        placed: Literal["pre", "post"] = "post" if form == "post-norm" else "pre"
        self.blocks = nn.ModuleList(
            EncoderBlock(p.width, heads=4, hidden=2 * p.width, norm=placed) for _ in range(p.depth)
        )
        self.head = nn.Linear(p.width, 10)
        initialise(self)

    def stream(self, images: Float[Tensor, "b 1 8 8"]) -> list[Float[Tensor, "b 16 d"]]:
        """The tokens after each block."""
        x, stream = self.positions(self.embed(images)), []
        for block in self.blocks:
            assert isinstance(block, EncoderBlock)
            match self.form:
                case "pre-norm" | "post-norm":
                    x = block(x)
                case "no norm":
                    x = x + block.attention(x)
                    x = x + block.feed_forward(x)
                case "no residual":
                    x = block.feed_forward(block.feed_forward_norm(block.attention(block.attention_norm(x))))
                case "neither":
                    x = block.feed_forward(block.attention(x))
            stream.append(x)
        return stream

    def forward(self, images: Float[Tensor, "b 1 8 8"]) -> Float[Tensor, "b 10"]:
        x = self.stream(images)[-1]
        return self.head(F.layer_norm(x, x.shape[-1:]).mean(1))


def gradient_norms(model: Stack, images: Tensor, labels: Int[Tensor, " b"]) -> list[float]:
    """The norm of the loss's gradient with respect to the weights of each block, from the first to the last."""
    F.cross_entropy(model(images), labels).backward()
    return [
        torch.stack([w.grad.norm() for w in block.parameters() if w.grad is not None]).norm().item()
        for block in model.blocks
    ]


@torch.no_grad()
def token_spreads(model: Stack, images: Tensor) -> list[float]:
    """How different the tokens of a picture are after each block: their distance from their mean, over their length."""
    return [((x - x.mean(1, keepdim=True)).norm() / x.norm()).item() for x in model.stream(images)]


def measure_depth(p: DepthSettings) -> DepthMeasurement:
    """Gradients and tokens before training; then a short training of four of the forms, from the same seed."""
    (images, labels), test = load_digits()
    m = DepthMeasurement({}, {}, {}, {})
    for form in FORMS:
        with seeded(p.seed):
            model = Stack(p, form)
            m.gradients[form] = gradient_norms(model, images[:128], labels[:128])
            m.spreads[form] = token_spreads(model, images[:128])
            if form != "neither":
                m.losses[form] = learn_digits(model, steps=p.steps, rate=p.rate)
                m.accuracy[form] = measure_accuracy(model, *test)
    return m


def claim_depth(p: DepthSettings, m: DepthMeasurement) -> Claims:
    *_, normed, neither = (norms[0] / norms[-1] for norms in m.gradients.values())
    yield Thesis(
        "depth.vanishing", "Without residuals the gradient vanishes on its way to the first block."
    ).conditional(
        at_most(0.05, "neither residuals nor norms: gradient norm of the first block over the last's", neither),
        ("norms, no residuals: the same", normed),
        truth="Without norms it does. With norms it stays, and what is lost is the difference between tokens.",
    )
    yield Thesis(
        "depth.collapse", f"Without residuals {p.depth} blocks of attention make all tokens of a picture alike."
    ).true(
        at_most(1e-3, "their distance from their mean, over their length", m.spreads["no residual"][-1]),
        twin=("with residuals (pre-norm)", m.spreads["pre-norm"][-1]),
    )
    pre_norm, post_norm, no_norm, no_residual = m.accuracy.values()
    yield Thesis(
        "depth.residuals", f"With residuals and norms {p.depth} blocks learn to read digits in {p.steps} steps."
    ).true(at_least(0.3, "pre-norm: test accuracy", pre_norm), twin=("without residuals", no_residual))
    yield Thesis(
        "depth.norms", f"Without norms {p.depth} blocks with residuals don't learn at the same learning rate."
    ).true(at_most(0.3, "no norm: test accuracy", no_norm), twin=("pre-norm", pre_norm))
    yield Thesis(
        "depth.post_norm", "Post-norm, deep and with no warm-up, has hardly begun to learn when pre-norm reads."
    ).true(at_most(0.3, "post-norm: test accuracy", post_norm), twin=("pre-norm", pre_norm))


def draw_depth(p: DepthSettings, m: DepthMeasurement) -> Drawing:
    ratios = {form: norms[0] / norms[-1] for form, norms in m.gradients.items()}
    numbers = {f"{form}: gradient norm of the first block over the last's": value for form, value in ratios.items()}
    numbers |= {f"{form}: distance of tokens from their mean": values[-1] for form, values in m.spreads.items()}
    numbers |= {f"{form}: test accuracy after {p.steps} steps": value for form, value in m.accuracy.items()}
    blocks, spread = range(1, p.depth + 1), "spread of the tokens, over their length"
    losses = {form: [min(x, 10.0) if x == x else 10.0 for x in values[::5]] for form, values in m.losses.items()}
    return numbers, [
        line_chart("before training", ("block", "gradient norm of its weights"), blocks, m.gradients, log="y"),
        line_chart("before training", ("after block", spread), blocks, m.spreads, log="y"),
        line_chart("training", ("step", "cross-entropy, cut at 10"), range(0, p.steps, 5), losses),
        bar_chart("after training", "test accuracy", {"": m.accuracy}, line=("chance", 0.1)),
    ]


DEPTH = Experiment(
    name="depth",
    title="Residuals, norms and depth",
    statement="Residuals keep tokens apart and norms keep gradients even; deep stacks need both.",
    formula="pre: x + f(norm(x)); post: norm(x + f(x)); no norm: x + f(x); no residual: f(norm(x)); neither: f(x)",
    predict="Take the residuals away but keep the norms. Does the gradient vanish? Does the stack learn?",
    fails="It speaks of the start of training, of one learning rate and of no warm-up. Post-norm with a warm-up "
    "trains: the first transformer was built so.",
    functions=(measure_depth, claim_depth, draw_depth),
    helpers=(Stack, gradient_norms, token_spreads, learn_digits, descend, measure_accuracy),
)
