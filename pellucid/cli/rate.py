"""pellucid rate: a learning rate by trial, as a picture and a number."""

from collections.abc import Sequence

from pellucid.cli.train import change_recipe, name_choices
from pellucid.cli.verbs import RateOptions, TrainOptions
from pellucid.training.rates import find_rate
from pellucid.views.figures import check_path, save_figure
from pellucid.views.training import rates_figure


def rate(options: RateOptions, changes: Sequence[str] = ()) -> None:
    check_path(options.figure)
    run = change_recipe(TrainOptions(options.recipe), changes)
    rates = find_rate(run, steps=options.steps, choices=name_choices(changes))
    optim = rates.run.optim
    save_figure(rates_figure([share * run.optim.lr for share in rates.shares], rates.losses, optim.lr), options.figure)
    muon = f" --optim.muon-lr {optim.muon_lr:.2g}" if optim.name == "muon" else ""
    print(f"{rates.best:.2g} times the recipe's rates: --optim.lr {optim.lr:.2g}{muon}; the curve: {options.figure}")
