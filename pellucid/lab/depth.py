"""Residuals, norms and depth: what reaches the first block, what becomes of the tokens, and what is learned."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.data.named import digits
from pellucid.lab.frame import Case, Claim, Experiment, Result, seeded
from pellucid.lab.panels import Bars, Curves, line
from pellucid.layers import EncoderBlock, LearnedPositions, PatchEmbed
from pellucid.models.init import initialise

Kind = Literal["pre-norm", "post-norm", "no norm", "no residual", "neither"]
KINDS: tuple[Kind, ...] = ("pre-norm", "post-norm", "no norm", "no residual", "neither")


@dataclass(frozen=True)
class Depth:
    """A stack of blocks on scikit-learn's digits, in five forms."""

    depth: int = 12
    """Number of blocks."""
    width: int = 32
    """Width of a token."""
    steps: int = 80
    """Of training."""
    rate: float = 2e-3
    """Learning rate, with no warm-up."""
    seed: int = 0
    """Of weights and batches."""


class Stack(nn.Module):
    """Patches of 2×2, blocks, the mean of the tokens, ten scores."""

    def __init__(self, p: Depth, kind: Kind):
        super().__init__()
        self.kind: Kind = kind
        self.embed, self.positions = PatchEmbed(2, p.width, channels=1), LearnedPositions(16, p.width)
        placed: Literal["pre", "post"] = "post" if kind == "post-norm" else "pre"
        self.blocks = nn.ModuleList(
            EncoderBlock(p.width, heads=4, hidden=2 * p.width, norm=placed) for _ in range(p.depth)
        )
        self.head = nn.Linear(p.width, 10)
        initialise(self)

    def stream(self, images: Float[Tensor, "b 1 8 8"]) -> list[Float[Tensor, "b 16 d"]]:
        """The tokens after each block."""
        x, found = self.positions(self.embed(images)), []
        for block in self.blocks:
            assert isinstance(block, EncoderBlock)
            match self.kind:
                case "pre-norm" | "post-norm":
                    x = block(x)
                case "no norm":
                    x = x + block.attention(x)
                    x = x + block.feed_forward(x)
                case "no residual":
                    x = block.feed_forward(block.feed_forward_norm(block.attention(block.attention_norm(x))))
                case "neither":
                    x = block.feed_forward(block.attention(x))
            found.append(x)
        return found

    def forward(self, images: Float[Tensor, "b 1 8 8"]) -> Float[Tensor, "b 10"]:
        x = self.stream(images)[-1]
        return self.head(F.layer_norm(x, x.shape[-1:]).mean(1))


def gradients(model: Stack, images: Tensor, labels: Int[Tensor, " b"]) -> list[float]:
    """The norm of the loss's gradient with respect to the weights of each block, from the first to the last."""
    F.cross_entropy(model(images), labels).backward()
    return [
        torch.stack([w.grad.norm() for w in block.parameters() if w.grad is not None]).norm().item()
        for block in model.blocks
    ]


@torch.no_grad()
def spread(model: Stack, images: Tensor) -> list[float]:
    """How different the tokens of a picture are after each block: their distance from their mean, over their length."""
    return [((x - x.mean(1, keepdim=True)).norm() / x.norm()).item() for x in model.stream(images)]


def trained(model: Stack, p: Depth, images: Tensor, labels: Int[Tensor, " b"]) -> list[float]:
    """The losses of a short training, in place."""
    optimizer, losses = torch.optim.Adam(model.parameters(), p.rate, fused=True), []
    for _ in range(p.steps):
        chosen = torch.randint(len(images), (32,))
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def depth(p: Depth) -> Result:
    """Gradients and tokens before training; then a short training of four of the forms, from the same seed."""
    (images, labels), (test, test_labels) = handwritten()
    gradient, spreads, losses, accuracy = {}, {}, {}, {}
    for kind in KINDS:
        with seeded(p.seed):
            model = Stack(p, kind)
            gradient[kind], spreads[kind] = gradients(model, images[:128], labels[:128]), spread(model, images[:128])
            if kind != "neither":
                losses[kind] = trained(model, p, images, labels)
                with torch.no_grad():
                    accuracy[kind] = (model(test).argmax(-1) == test_labels).double().mean().item()
    ratio = {kind: gradient[kind][0] / gradient[kind][-1] for kind in KINDS}
    claims = (
        Claim(
            "depth.vanishing",
            "Without residuals the gradient vanishes on its way to the first block.",
            "conditional",
            "≤",
            0.05,
            holds=(
                Case("neither residuals nor norms: gradient norm of the first block over the last's", ratio["neither"]),
            ),
            breaks=(Case("norms, no residuals: the same", ratio["no residual"]),),
            truth="Without norms it does. With norms it stays, and what is lost is the difference between tokens.",
        ),
        Claim(
            "depth.collapse",
            f"Without residuals {p.depth} blocks of attention make all tokens of a picture alike.",
            "true",
            "≤",
            1e-3,
            holds=(Case("their distance from their mean, over their length", spreads["no residual"][-1]),),
            twin=Case("with residuals (pre-norm)", spreads["pre-norm"][-1]),
        ),
        Claim(
            "depth.residuals",
            f"With residuals and norms {p.depth} blocks learn to read digits in {p.steps} steps.",
            "true",
            "≥",
            0.3,
            holds=(Case("pre-norm: test accuracy", accuracy["pre-norm"]),),
            twin=Case("without residuals", accuracy["no residual"]),
        ),
        Claim(
            "depth.norms",
            f"Without norms {p.depth} blocks with residuals don't learn at the same learning rate.",
            "true",
            "≤",
            0.3,
            holds=(Case("no norm: test accuracy", accuracy["no norm"]),),
            twin=Case("pre-norm", accuracy["pre-norm"]),
        ),
        Claim(
            "depth.post_norm",
            "Post-norm, deep and with no warm-up, has hardly begun to learn when pre-norm reads.",
            "true",
            "≤",
            0.3,
            holds=(Case("post-norm: test accuracy", accuracy["post-norm"]),),
            twin=Case("pre-norm", accuracy["pre-norm"]),
        ),
    )
    blocks, steps = list(range(1, p.depth + 1)), list(range(0, p.steps, 5))
    finite = {kind: [min(loss, 10.0) if loss == loss else 10.0 for loss in losses[kind][::5]] for kind in losses}
    panels = (
        Curves(
            "before training",
            "block",
            "gradient norm of its weights",
            tuple(line(k, blocks, gradient[k]) for k in KINDS),
            log="y",
        ),
        Curves(
            "before training",
            "after block",
            "spread of the tokens, over their length",
            tuple(line(k, blocks, spreads[k]) for k in KINDS),
            log="y",
        ),
        Curves("training", "step", "cross-entropy, cut at 10", tuple(line(k, steps, finite[k]) for k in losses)),
        Bars(
            "after training", "test accuracy", tuple(accuracy), (("", tuple(accuracy.values())),), line=("chance", 0.1)
        ),
    )
    numbers = {f"{kind}: gradient norm of the first block over the last's": value for kind, value in ratio.items()}
    numbers |= {f"{kind}: distance of tokens from their mean": values[-1] for kind, values in spreads.items()}
    numbers |= {f"{kind}: test accuracy after {p.steps} steps": value for kind, value in accuracy.items()}
    return Result(numbers, panels, claims)


def handwritten() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """scikit-learn's digits to train and to test with: pictures from −1 to 1, and what they show."""
    parts = digits()
    train, test = (
        (torch.from_numpy(pixels.copy()).float() / 127.5 - 1, torch.from_numpy(labels.copy()).long())
        for pixels, labels in (parts["train"], parts["test"])
    )
    return train, test


EXPERIMENTS = (
    Experiment(
        name="depth",
        title="Residuals, norms and depth",
        statement="Residuals keep tokens apart and norms keep gradients even; deep stacks need both.",
        formula="pre: x + f(norm(x)); post: norm(x + f(x)); no norm: x + f(x); no residual: f(norm(x)); neither: f(x)",
        predict="Take the residuals away but keep the norms. Does the gradient vanish? Does the stack learn?",
        fails="It speaks of the start of training, of one learning rate and of no warm-up. Post-norm with a warm-up "
        "trains: "
        "the first transformer was built so.",
        parameters=Depth,
        run=depth,
        shown=(Stack, gradients, spread, trained),
    ),
)
