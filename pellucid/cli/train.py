"""pellucid train: a recipe with changes, or a run that goes on."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tyro

from pellucid.cli import parse_words
from pellucid.cli.verbs import TrainOptions
from pellucid.devices import pick_device
from pellucid.recipes import recipe
from pellucid.runs import AnyRun, Run, RunFolder
from pellucid.training import Result, Stopped, train_run
from pellucid.training.distributed import Processes, joined
from pellucid.training.train import free_path
from pellucid.views.curves import save_curves


def train(options: TrainOptions, changes: Sequence[str] = ()) -> None:
    """Train a recipe with changes, or go on with a run."""
    run = resume_run(options, changes) if options.resume else change_recipe(options, changes)
    device = pick_device(run.device)
    with joined(device) as processes:
        path = options.resume or options.out or Path(processes.share(str(free_path(Path("runs") / options.recipe))))
        folder, resume = RunFolder(path), options.resume is not None
        try:
            result = train_run(run, folder, device, processes, resume=resume, tensorboard=options.tensorboard)
        except Stopped as stop:
            if processes.first:
                print(f"pellucid: {stop}; go on with: {name_command(run, path, processes)}", file=sys.stderr)
            sys.exit(128 + stop.signal)
        except OSError as error:
            if isinstance(error, BrokenPipeError) or not any(folder.checkpoints.states()):
                raise
            again = name_command(run, path, processes)
            raise ValueError(
                f"{error.strerror or error}; what was saved before is whole, go on with: {again}"
            ) from None
        if processes.first:
            sum_up(result)
            show_run(result)


def change_recipe(options: TrainOptions, changes: Sequence[str]) -> AnyRun:
    """The recipe's run, with what the command line says of it."""
    base = recipe(options.recipe)
    run = parse_words(lambda: tyro.cli(type(base), prog=f"pellucid train {options.recipe}", default=base, args=changes))
    return replace(run, recipe=options.recipe)


def resume_run(options: TrainOptions, changes: Sequence[str]) -> AnyRun:
    """The run in a folder, as it was begun."""
    assert options.resume is not None
    if changes or options.out:
        raise ValueError("--resume goes on with a run as it is; leave out the other options")
    folder = RunFolder(options.resume)
    run = folder.run()
    if folder.is_second_stage:
        whole = folder.path.parent
        raise ValueError(f"{options.resume} is the second stage of a run; go on with both by --resume {whole}")
    if run.recipe != options.recipe:
        raise ValueError(f"{options.resume} is a run of {run.recipe}, not of {options.recipe}")
    return run


def sum_up(result: Result) -> None:
    figures = "".join(f", {name} {value:.4f}" for name, value in result.figures.items())
    rate = f" ({result.images / result.seconds:,.0f} images/s)" if result.seconds else ""
    warm_up = f" after {result.warm_up:.1f} s of warming up" if result.warm_up else ""
    print(f"{result.steps} steps in {result.seconds:.1f} s{rate}{warm_up}{figures}")
    if result.best is not None and result.folder is not None and result.best != result.figures.get(result.score):
        print(f"kept are the weights of the best evaluation, {result.score} {result.best:.4f}: these will answer")


def show_run(result: Result) -> Path:
    """Draw the run's curves into its folder, and say where everything lies."""
    assert result.folder is not None
    picture = result.folder / "curves.png"
    save_curves([result.folder], picture)
    print(f"the run: {result.folder}, its curves: {picture}")
    return picture


def name_command(run: Run, path: Path, processes: Processes) -> str:
    """The command that goes on with a run."""
    command = "pellucid" if processes.world == 1 else f"torchrun --nproc-per-node={processes.world} -m pellucid"
    return f"{command} train {run.recipe} --resume {shlex.quote(str(path))}"
