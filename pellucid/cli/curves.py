"""pellucid curves: loss and accuracy of runs against the epoch, as a picture and in a line each."""

from pellucid.cli.verbs import CurvesOptions
from pellucid.views.curves import save_curves


def curves(options: CurvesOptions) -> None:
    for run in save_curves(options.runs, options.out, options.epochs):
        last = run.held_out[-1] if run.held_out else None
        result = f"{last.accuracy:.2%} right on held-out images" if last else "not evaluated"
        print(f"{run.name}: {round(run.steps[-1].epoch, 1):g} of {round(run.length, 1):g} epochs, {result}")
    print(f"curves: {options.out}")
