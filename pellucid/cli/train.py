"""pellucid train: a recipe with changes, or a run that goes on."""

import logging
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
import tyro

from pellucid.cli import parsed
from pellucid.cli.curves import history
from pellucid.cli.progress import Watcher
from pellucid.cli.verbs import Train
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.hub.loading import SECOND_STAGE, TOKENIZER, fill_from_run
from pellucid.recipes import recipe
from pellucid.training import ClassifierRun, Engine, Result, Run, RunFolder, Stopped, caption
from pellucid.training.classify import Classification, resolved
from pellucid.training.config import CaptionerRun
from pellucid.training.distributed import Processes, joined, pick_device
from pellucid.training.folder import CONFIG
from pellucid.training.task import Task
from pellucid.views.figures import save_figure
from pellucid.views.training import curves_figure


def train(asked: Train, changes: list[str]) -> None:
    """Train a recipe with changes, or go on with a run."""
    run = _kept(asked, changes) if asked.resume else _changed(asked, changes)
    logging.basicConfig(format="pellucid: %(message)s")
    device = pick_device(run.device)
    with joined(device) as processes:
        path = asked.resume or asked.out or Path(processes.told(str(free(Path("runs") / asked.recipe))))
        try:
            resume = asked.resume is not None
            result = train_run(run, path, device, processes, resume=resume, tensorboard=asked.tensorboard)
        except Stopped as stop:
            if processes.first:
                print(f"pellucid: {stop}; go on with: {_again(run, path, processes)}", file=sys.stderr)
            sys.exit(128 + stop.signal)
        except OSError as error:
            if isinstance(error, BrokenPipeError) or not _is_saved(path):
                raise
            said = (
                f"{error.strerror or error}; what was saved before is whole, go on with: {_again(run, path, processes)}"
            )
            raise ValueError(said) from None
        if processes.first:
            _summed_up(result, path)


def train_run(
    run: ClassifierRun | CaptionerRun,
    path: Path | None,
    device: torch.device,
    processes: Processes | None = None,
    *,
    resume: bool = False,
    tensorboard: bool = False,
) -> Result:
    """Load the data, train, and keep everything in the run's folder; without a path, nothing is kept."""
    processes = processes or Processes()
    folder = None if path is None else RunFolder(path)
    try:
        if isinstance(run, CaptionerRun):
            return _captioner(run, folder, device, processes, resume, tensorboard)
        found, splits = resolved(run)
        _check_same(run, found, resume)
        task = Classification(found, splits, device, processes)
        return _fitted(task, found, folder, device, processes, begins=not resume, tensorboard=tensorboard)
    except (MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        raise ValueError(
            f"there is not enough memory for a batch of {run.batch}; use a smaller --batch, or --accumulate "
            f"{2 * run.accumulate}"
        ) from None


def _captioner(
    run: CaptionerRun,
    folder: RunFolder | None,
    device: torch.device,
    processes: Processes,
    resume: bool,
    tensorboard: bool,
) -> Result:
    """Both stages. The second is a run in the first one's folder, and goes on from its best weights."""
    kept = CaptionTokenizer.load(folder.path / TOKENIZER) if folder and resume else None
    found, splits, tokenizer = caption.resolved(run, kept)
    _check_same(run, found, resume)
    task = caption.Captioning(found, splits, tokenizer, device, processes)
    how: dict[str, Any] = {"tensorboard": tensorboard, "files": {TOKENIZER: tokenizer.to_json() + "\n"}}
    first = _fitted(task, found, folder, device, processes, begins=not resume, **how)
    if found.second_stage is None:
        return first
    second = caption.SelfCritical(found.second_stage, splits, tokenizer, device, processes)
    inner = None if folder is None else RunFolder(folder.path / SECOND_STAGE)
    if folder is None:
        second.model.load_state_dict(task.model.state_dict())
    else:
        fill_from_run(second.model, folder.path)
    begins = inner is not None and not (inner.path / CONFIG).exists()
    processes.wait()
    last = _fitted(second, found.second_stage, inner, device, processes, begins=begins, **how)
    both = {name: getattr(first, name) + getattr(last, name) for name in ("steps", "images", "seconds", "warm_up")}
    return replace(last, **both)


def _fitted(
    task: Task,
    run: ClassifierRun | CaptionerRun,
    folder: RunFolder | None,
    device: torch.device,
    processes: Processes,
    *,
    begins: bool,
    tensorboard: bool,
    files: dict[str, str] | None = None,
) -> Result:
    with ExitStack() as meanwhile:
        watcher = None
        if processes.first:
            if folder and begins:  # now that nothing is wrong with what was asked for
                folder.create(run, files)
            if folder:
                meanwhile.enter_context(folder.alone())
            watcher = meanwhile.enter_context(Watcher(run.recipe, tensorboard=folder if tensorboard else None))
        processes.wait()
        return Engine(task, run, device, folder=folder, processes=processes, observer=watcher).fit()


def _check_same(run: ClassifierRun | CaptionerRun, found: ClassifierRun | CaptionerRun, resume: bool) -> None:
    if resume and found != run:
        raise ValueError(f"{run.data.name} is not what the run began with: its images or classes have changed")


def _changed(asked: Train, changes: list[str]) -> ClassifierRun | CaptionerRun:
    """The recipe's run, with what the command line says of it."""
    base = recipe(asked.recipe)
    run = parsed(lambda: tyro.cli(type(base), prog=f"pellucid train {asked.recipe}", default=base, args=changes))
    return replace(run, recipe=asked.recipe)


def _kept(asked: Train, changes: list[str]) -> ClassifierRun | CaptionerRun:
    """The run in a folder, as it was begun."""
    assert asked.resume is not None
    if changes or asked.out:
        raise ValueError("--resume goes on with a run as it is; leave out the other options")
    run = RunFolder(asked.resume).config()
    whole = asked.resume.parent
    if asked.resume.name == SECOND_STAGE and (whole / CONFIG).is_file():
        raise ValueError(f"{asked.resume} is the second stage of a run; go on with both by --resume {whole}")
    if run.recipe != asked.recipe:
        raise ValueError(f"{asked.resume} is a run of {run.recipe}, not of {asked.recipe}")
    return run


def free(path: Path) -> Path:
    """The path, or the first of path-2, path-3, … that isn't there."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(each for each in chain([path], numbered) if not each.exists())


def _summed_up(result: Result, path: Path) -> None:
    figures = "".join(f", {name} {value:.4f}" for name, value in result.figures.items())
    rate = f" ({result.images / result.seconds:,.0f} images/s)" if result.seconds else ""
    warm_up = f" after {result.warm_up:.1f} s of warming up" if result.warm_up else ""
    print(f"{result.steps} steps in {result.seconds:.1f} s{rate}{warm_up}{figures}")
    show_run(path)


def show_run(path: Path) -> None:
    """Draw the run's curves into its folder, and say where everything lies."""
    picture = path / "curves.png"
    save_figure(curves_figure([("", [history(path, path.name)])]), picture)
    print(f"the run: {path}, its curves: {picture}")


def _again(run: Run, path: Path, processes: Processes) -> str:
    """The command that goes on with a run."""
    command = "pellucid" if processes.world == 1 else f"torchrun --nproc-per-node={processes.world} -m pellucid"
    return f"{command} train {run.recipe} --resume {shlex.quote(str(path))}"


def _is_saved(path: Path) -> bool:
    return any((path / "checkpoints").glob("last*"))


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)
