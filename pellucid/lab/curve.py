"""A curve of accuracies, and the same drawn from a reversed list."""

from dataclasses import dataclass

import torch

from pellucid.lab.depth import Depth, Stack, handwritten, trained
from pellucid.lab.frame import Case, Claim, Experiment, Result, seeded
from pellucid.lab.panels import Curves, line


@dataclass(frozen=True)
class Reversed:
    """A short training on scikit-learn's digits."""

    points: int = 12
    """Of the curve."""
    every: int = 10
    """Steps between them."""
    seed: int = 0
    """Of weights and batches."""


def accuracies(p: Reversed) -> list[float]:
    """Test accuracy before training, then after every few steps."""
    (images, labels), (test, test_labels) = handwritten()
    config = Depth(depth=2, steps=p.every, rate=3e-3)
    found = []
    with seeded(p.seed):
        model = Stack(config, "pre-norm")
        for i in range(p.points):
            if i:
                trained(model, config, images, labels)
            with torch.no_grad():
                found.append((model(test).argmax(-1) == test_labels).double().mean().item())
    return found


def reversing(p: Reversed) -> Result:
    """One list of accuracies, drawn in its order and from its end."""
    found = accuracies(p)
    backwards = found[::-1]
    untrained = accuracies(Reversed(points=1, seed=p.seed))[0]  # measured on its own
    claims = (
        Claim(
            "testing.reversed",
            "A curve drawn from a reversed list of accuracies shows the training.",
            "false",
            "≤",
            0.05,
            breaks=(Case("its first point, less the accuracy of the untrained model", abs(backwards[0] - untrained)),),
            twin=Case("in the order of time", abs(found[0] - untrained)),
            truth="It shows a model that begins trained and unlearns: the first point must be the untrained model, "
            "near chance.",
            heard=True,
        ),
    )
    steps = [p.every * i for i in range(p.points)]
    panels = (
        Curves(
            "one list, drawn twice",
            "step",
            "test accuracy",
            (
                line("in the order of time", steps, found),
                line("from the reversed list", steps, backwards),
                line("chance", steps, [0.1] * len(steps), dashed=True),
            ),
        ),
    )
    return Result(
        {"untrained": untrained, "last": found[-1], "first point of the reversed list": backwards[0]}, panels, claims
    )


EXPERIMENTS = (
    Experiment(
        name="reversed",
        title="A curve from a reversed list",
        statement="A curve of accuracies begins at chance. If it begins high and falls, look at the list before the "
        "model.",
        formula="accuracy(0) ≈ 1/classes",
        predict="Ten classes. Where does the curve begin, and where would it begin if the list were reversed?",
        fails="A model that was trained before doesn't begin at chance.",
        parameters=Reversed,
        run=reversing,
        shown=(accuracies,),
    ),
)
