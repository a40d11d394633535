"""pellucid train: a recipe with changes, or a run that goes on."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tyro

from pellucid.cli import parse_words
from pellucid.cli.verbs import TrainOptions
from pellucid.devices import pick_device
from pellucid.processes import Processes, joined
from pellucid.recipes import RECIPES, recipe
from pellucid.runs import AnyRun, Run, RunFolder
from pellucid.training import Result, Stopped, train_run
from pellucid.training.train import free_path
from pellucid.views.curves import save_curves


def train(options: TrainOptions, changes: Sequence[str] = ()) -> None:
    """Train a recipe with changes, or go on with a run."""
    longer = read_duration(changes) if options.resume else None
    run = resume_run(options, changes if longer is None else ()) if options.resume else change_recipe(options, changes)
    device = pick_device(run.device)
    with joined(device) as processes:
        path = options.resume or options.out or Path(processes.share(str(free_path(Path("runs") / options.recipe))))
        folder, resume = RunFolder(path), options.resume is not None
        try:
            choices = None if resume else name_choices(changes)
            how = {"resume": resume, "tensorboard": options.tensorboard, "choices": choices, "longer": longer}
            result = train_run(run, folder, device, processes, **how)
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
    name, base = options.recipe, recipe(options.recipe)
    about = (RECIPES[name].__doc__ or "").partition("\n")[0].removeprefix(f"pellucid train {name}: ")
    how = {"prog": f"pellucid train {name}", "description": about, "default": base, "args": changes}
    return replace(parse_words(lambda: tyro.cli(type(base), **how)), recipe=name)


def name_choices(changes: Sequence[str]) -> set[str]:
    """The fields of the run that the words speak of.

    >>> sorted(name_choices(["--data.size", "8", "8", "--no-compile", "--optim.muon-lr=0.1"]))
    ['compile', 'data.size', 'optim.muon_lr']
    """
    options = (word[2:].split("=")[0].replace("-", "_") for word in changes if word.startswith("--"))
    return {re.sub(r"(^|\.)no_", r"\1", name) for name in options}


def read_duration(changes: Sequence[str]) -> str | None:
    """The one thing that a run may have changed as it goes on."""
    words = [part for word in changes for part in word.split("=", 1)]
    return words[1] if len(words) == 2 and words[0] == "--duration" else None


def resume_run(options: TrainOptions, changes: Sequence[str]) -> AnyRun:
    """The run in a folder, as it was begun."""
    assert options.resume is not None
    if changes or options.out:
        raise ValueError("--resume goes on with a run as it is; leave out the other options but --duration")
    folder = RunFolder(options.resume)
    run = folder.run()
    if folder.is_second_stage:
        whole = folder.path.parent
        raise ValueError(f"{options.resume} is the second stage of a run; go on with both by --resume {whole}")
    if run.recipe != options.recipe:
        raise ValueError(f"{options.resume} is a run of {run.recipe}, not of {options.recipe}")
    return run


def sum_up(result: Result) -> None:
    """What it took, and how good the weights are that will answer: what `pellucid evaluate` says of them there."""
    rate = f" ({result.images / result.seconds:,.0f} {result.unit}/s)" if result.seconds else ""
    warm_up = f" after {result.warm_up:.1f} s of warming up" if result.warm_up else ""
    if result.steps < result.planned:
        print(f"ended before step {result.planned}: {result.score} had not improved for as long as --patience allows")
    print(f"{result.steps} steps in {result.seconds:.1f} s{rate}{warm_up}")
    figures = {name: value for name, value in result.kept.items() if name != "step"}
    if figures:
        where = f" on {result.evaluated}" if result.evaluated else ""
        said = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        last = result.figures.get(result.score)
        later = f"; the last ones, {result.score} {last:.4f}, are not those that will answer"
        is_last = result.kept.get("step") == result.steps or last is None
        print(f"the weights after step {result.kept.get('step')} are kept: {said}{where}{'' if is_last else later}")


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
