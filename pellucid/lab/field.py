"""What a place of a picture depends on, layer by layer, in a trained transformer and a trained CNN."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, seeded
from pellucid.lab.learning import descend, learn_digits, load_digits, measure_accuracy
from pellucid.lab.panels import heatmap, line_chart
from pellucid.layers import EncoderBlock, LearnedPositions, PatchEmbed


class FieldSettings(NamedTuple):
    """A transformer and a CNN that learn scikit-learn's digits, cut into 4×4 patches."""

    layers: int = 4  # Of each.
    width: int = 32  # Of a token, and channels.
    steps: int = 150  # Of training.
    pictures: int = 32  # Unseen ones, in which it is measured what depends on what.
    seed: int = 0  # Of weights and batches.


class FieldMeasurement(NamedTuple):  # each by network
    reach: dict[str, list[float]]  # share of the patches that a corner depends on at all, after each layer
    effective: dict[str, list[float]]  # e^entropy of what they count, as a share of the patches
    counts: dict[str, Tensor]  # how much each patch counts after the first layer: its share of the squared gradient
    accuracy: dict[str, float]  # of unseen pictures


class Layers(nn.Module):
    """Layers of one kind between the patches and ten scores of their mean."""

    def __init__(self, p: FieldSettings, convolutions: bool):
        super().__init__()
        self.embed, self.positions = PatchEmbed(2, p.width, channels=1), LearnedPositions(16, p.width)
        self.convolutions = convolutions
        self.layers = nn.ModuleList(
            nn.Conv2d(p.width, p.width, 3, padding=1)
            if convolutions
            else EncoderBlock(p.width, heads=4, hidden=2 * p.width, norm="pre")
            for _ in range(p.layers)
        )
        self.head = nn.Linear(p.width, 10)
        nn.init.normal_(self.positions.table, std=0.1)

    def stream(self, images: Float[Tensor, "b 1 8 8"]) -> list[Float[Tensor, "b 16 d"]]:
        """The tokens after each layer."""
        x, stream = self.positions(self.embed(images)), []
        for layer in self.layers:
            x = x + F.relu(layer(x.mT.unflatten(2, (4, 4)))).flatten(2).mT if self.convolutions else layer(x)
            stream.append(x)
        return stream

    def forward(self, images: Float[Tensor, "b 1 8 8"]) -> Float[Tensor, "b 10"]:
        x = self.stream(images)[-1]
        return self.head(F.layer_norm(x, x.shape[-1:]).mean(1))


def count_patches(model: Layers, images: Float[Tensor, "b 1 8 8"]) -> Float[Tensor, "layers 16"]:
    """What each patch counts for the one in the corner: its share of the squared gradient, mean of the pictures."""
    images, shares = images.clone().requires_grad_(), []
    for tokens in model.stream(images):
        direction = torch.randn_like(tokens[:, 0])  # of what the token says: one way for each picture
        (gradient,) = torch.autograd.grad((tokens[:, 0] * direction).sum(), images, retain_graph=True)
        squares = F.avg_pool2d(gradient.double().square(), 2).flatten(1)
        shares.append((squares / squares.sum(1, keepdim=True)).mean(0))
    return torch.stack(shares)


def measure_field(p: FieldSettings) -> FieldMeasurement:
    """Train both, and ask in unseen pictures what the patch in the corner depends on."""
    _, (test, truths) = load_digits()
    m = FieldMeasurement({}, {}, {}, {})
    for name, convolutions in (("transformer", False), ("CNN", True)):
        with seeded(p.seed):
            model = Layers(p, convolutions)
            learn_digits(model, steps=p.steps, rate=2e-3)
            shares = count_patches(model, test[: p.pictures])
            m.accuracy[name] = measure_accuracy(model, test, truths)
        entropy = torch.special.entr(shares).sum(1)
        m.reach[name] = (shares > 0).double().mean(1).tolist()
        m.effective[name] = (entropy.exp() / shares.shape[1]).tolist()
        m.counts[name] = shares[0].unflatten(0, (4, 4))
    return m


def claim_field(p: FieldSettings, m: FieldMeasurement) -> Claims:
    yield Thesis(
        "field.reach",
        "After one layer a token of a transformer depends on the whole picture; a place of a CNN doesn't.",
    ).true(
        at_least(1, "share of the patches that the transformer's depends on", m.reach["transformer"][0]),
        twin=("that the CNN's depends on", m.reach["CNN"][0]),
    )
    first, *_, last = m.effective["transformer"]
    yield Thesis(
        "field.effective", "What a transformer can see from its first layer on, it uses there: half of the picture."
    ).false(
        at_least(0.5, "share of the patches that count, after the first layer", first),
        twin=(f"after layer {p.layers}", last),
        truth="It can look anywhere, and learns to look at little; what counts spreads layer by layer, as in a CNN.",
    )


def draw_field(p: FieldSettings, m: FieldMeasurement) -> Drawing:
    numbers = {}
    for name in m.reach:
        numbers |= {f"{name}: share of unseen digits right": m.accuracy[name]}
        numbers |= {f"{name}: reach after layer {i + 1}": share for i, share in enumerate(m.reach[name])}
        numbers |= {f"{name}: effective field after layer {i + 1}": each for i, each in enumerate(m.effective[name])}
    lines = {f"{name}, {what}": field[name] for what, field in (("reach", m.reach), ("effective", m.effective))
             for name in field}  # fmt: skip
    maps = [
        heatmap(f"{name}: the corner, after layer 1", counts, rows="y", columns="x", high=float(counts.max()),
                unit="share of the squared gradient")
        for name, counts in m.counts.items()
    ]  # fmt: skip
    return numbers, [
        line_chart("what a place depends on", ("layer", "share of the patches"), range(1, p.layers + 1), lines), *maps
    ]  # fmt: skip


FIELD = Experiment(
    name="field",
    title="What one place sees",
    statement="A token of a transformer can depend on every patch from the first layer on, a place of a CNN on its "
    "neighbours. What counts for it spreads layer by layer in both.",
    formula="share_j = ‖∂y/∂x_j‖² / Σ_i ‖∂y/∂x_i‖²; effective field = e^(−Σ share·ln share) / patches",
    predict="After the first of four layers, how many of 16 patches count for the one in the corner: in a "
    "transformer, in a CNN of 3×3 kernels?",
    fails="A gradient is what a small change does, and a short training of small pictures is no large model's. Pooling "
    "and strides widen a CNN's field faster.",
    functions=(measure_field, claim_field, draw_field),
    helpers=(Layers, learn_digits, descend, count_patches),
)
