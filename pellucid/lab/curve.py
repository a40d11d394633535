"""A curve of accuracies, and the same drawn from a reversed list."""

from typing import NamedTuple

from pellucid.lab.depth import DepthSettings, Stack
from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most, seeded
from pellucid.lab.learning import learn_digits, load_digits, measure_accuracy
from pellucid.lab.panels import line_chart


class ReversedSettings(NamedTuple):
    """A short training on scikit-learn's digits."""

    points: int = 12  # Of the curve.
    every: int = 10  # Steps between them.
    seed: int = 0  # Of weights and batches.


class ReversedMeasurement(NamedTuple):
    accuracies: list[float]  # in the order of time
    untrained: float  # measured on its own


def accuracies(p: ReversedSettings) -> list[float]:
    """Test accuracy before training, then after every few steps."""
    _, test = load_digits()
    with seeded(p.seed):
        model = Stack(DepthSettings(depth=2), "pre-norm")
        values = [measure_accuracy(model, *test)]
        for _ in range(p.points - 1):
            learn_digits(model, steps=p.every, rate=3e-3)
            values.append(measure_accuracy(model, *test))
    return values


def measure_reversed(p: ReversedSettings) -> ReversedMeasurement:
    """A training, and the model that it began with."""
    return ReversedMeasurement(accuracies(p), accuracies(ReversedSettings(points=1, seed=p.seed))[0])


def claim_reversed(p: ReversedSettings, m: ReversedMeasurement) -> Claims:
    first, last = m.accuracies[0], m.accuracies[-1]
    yield Thesis("testing.reversed", "A curve drawn from a reversed list of accuracies shows the training.").false(
        at_most(0.05, "its first point, less the accuracy of the untrained model", abs(last - m.untrained)),
        twin=("in the order of time", abs(first - m.untrained)),
        truth="It shows a model that begins trained and unlearns: the first point must be the untrained model, near "
        "chance.",
        heard=True,
    )


def draw_reversed(p: ReversedSettings, m: ReversedMeasurement) -> Drawing:
    """One list of accuracies, drawn in its order and from its end."""
    backwards = m.accuracies[::-1]
    numbers = {
        "untrained": m.untrained, "last": m.accuracies[-1], "first point of the reversed list": backwards[0],
    }  # fmt: skip
    lines = {"in the order of time": m.accuracies, "from the reversed list": backwards, "chance": [0.1] * p.points}
    steps = [p.every * i for i in range(p.points)]
    return numbers, [line_chart("one list, drawn twice", ("step", "test accuracy"), steps, lines, dashed="chance")]


REVERSED = Experiment(
    name="reversed",
    title="A curve from a reversed list",
    statement="A curve of accuracies begins at chance. If it begins high and falls, look at the list before the model.",
    formula="accuracy(0) ≈ 1/classes",
    predict="Ten classes. Where does the curve begin, and where would it begin if the list were reversed?",
    fails="A model that was trained before doesn't begin at chance.",
    functions=(measure_reversed, claim_reversed, draw_reversed),
    helpers=(accuracies,),
)
