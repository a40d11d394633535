"""From a recipe or a run to a trained model: the data is loaded, the task made, the engine run, everything kept."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pellucid.config import override
from pellucid.data.subwords import SubwordTokenizer
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.devices import pick_device
from pellucid.models import Captioner, Transformer, ViT
from pellucid.models.sizes import TRAINED, check_memory, outline
from pellucid.processes import Processes, joined
from pellucid.ready import load
from pellucid.ready.translator import ReadyTranslator
from pellucid.recipes import RECIPES, recipe
from pellucid.runs import AnyRun, CaptionerRun, ClassifierRun, Run, RunFolder, TranslatorRun
from pellucid.runs.checkpoints import fill_module
from pellucid.runs.folder import HELD_OUT, TOKENIZER
from pellucid.training import caption, classify, translate
from pellucid.training.distil import find_teacher, name_teacher
from pellucid.training.engine import Engine, Observer, Observers, Result
from pellucid.training.fitting import Choices, check_tokens, fit_held_out, fit_run, settle_task
from pellucid.training.lora import merge
from pellucid.training.pictures import evaluation_split
from pellucid.training.progress import RunDisplay
from pellucid.training.start import Source, begin, begin_with
from pellucid.training.summary import show, summarise
from pellucid.training.task import Task
from pellucid.training.tuning import prepare

OWN = "own"  # what a run says its data is called if it was given in Python


def train(
    source: str | Path | Run,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    module: nn.Module | None = None,
    dataset: Any = None,
    progress: bool = True,
    tensorboard: bool = False,
    callbacks: Sequence[Observer] = (),
    teacher: nn.Module | None = None,
    **changes: Any,
) -> Result:
    """Train a recipe by its name, or a run; what `pellucid train` does.

    source: a recipe's name, a run, or the folder of a run to go on with, longer if there is a duration.
    out: folder of the run; nothing is kept unless given. resume: go on with the run that is there, if there is one.
    module: one's own, that makes logits (b classes) of normalised images (b c y x); trained instead of the recipe's.
    dataset: one's own instead of the recipe's: any dataset of (image, label) with `__getitem__`, or several by split,
        {"train": …, "validation": …, "test": …}.
    teacher: one's own, that makes logits (b classes) of the same normalised images; a run on classes learns from it as
        `distil` says.
    callbacks: are told of every step and evaluation, and may end the run; see `Observer`.
    changes: fields of the run, as duration="5 epochs" or optim={"lr": 1e-3}. Of a recipe, batch, precision and
        compiling are fitted to the data and the machine unless they are among them; a run is trained as it is.

    >>> result = train("vit_digits", duration="2 steps", model={"depth": 1}, progress=False)
    >>> result.steps, result.model.labels[:3]
    (2, ('0', '1', '2'))
    """
    run, folder, resume, longer = _settle(source, None if out is None else RunFolder(out), resume, changes)
    choices = None if resume or isinstance(source, Run) else set(name_fields(changes))
    how = {
        "choices": choices,
        "longer": longer,
        "module": module,
        "dataset": dataset,
        "progress": progress,
        "tensorboard": tensorboard,
        "callbacks": callbacks,
        "teacher": teacher,
    }
    device = pick_device(run.device)
    with joined(device) as processes:
        return train_run(run, folder, device, processes, resume=resume, **how)


def train_run(
    run: Run,
    folder: RunFolder | None,
    device: torch.device,
    processes: Processes | None = None,
    *,
    resume: bool = False,
    module: nn.Module | None = None,
    dataset: Any = None,
    progress: bool = True,
    tensorboard: bool = False,
    choices: Choices = None,
    longer: str | None = None,
    callbacks: Sequence[Observer] = (),
    teacher: nn.Module | None = None,
) -> Result:
    """Load the data, train, and keep everything in the run's folder; without one, nothing is kept.

    choices: the fields that were asked for, where the others may be fitted to the data and the machine.
    longer: of a run that goes on, its new duration.

    >>> from dataclasses import replace
    >>> import pellucid, torch
    >>> run = replace(pellucid.recipe("vit_digits"), duration="2 steps")
    >>> train_run(run, None, torch.device("cpu"), progress=False).steps
    2
    """
    if folder is not None and longer is not None:
        run = prolong(folder, longer, processes or Processes())
    if folder is not None:
        check_place(folder, resume)
        if not resume and (processes is None or processes.first):  # the first one makes it, which others may see
            folder.check_free()
    run, source = begin(run, folder, module, choices)
    shown = (progress, tensorboard, tuple(callbacks))
    trainer = Trainer(folder, device, processes or Processes(), resume, *shown, choices, source, teacher)
    if module is None:
        check_room(run, device, trainer.processes)
    try:
        if teacher is not None and not isinstance(run, ClassifierRun):
            raise ValueError(f"a teacher is for classifiers; this is the run of a {run.kind}")
        if isinstance(run, CaptionerRun):
            if module is not None:
                raise ValueError("a module of one's own is trained to classify; a captioner is made by its recipe")
            return trainer.train_captioner(run, dataset)
        if isinstance(run, TranslatorRun):
            if module is not None or dataset is not None:
                raise ValueError("a translator is made by its recipe, from text in files; leave out module and dataset")
            return trainer.train_translator(run)
        assert isinstance(run, ClassifierRun)
        return trainer.train_classifier(run, dataset, module)
    except (MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        raise ValueError(
            f"there is not enough memory for a batch of {run.batch}; use a smaller --batch, or --accumulate "
            f"{2 * run.accumulate}"
        ) from None


def check_place(folder: RunFolder, resume: bool) -> None:
    """Refuse a folder that can't be made, or damaged checkpoints, before data is read."""
    if resume:
        folder.checkpoints.newest_whole()
    there = next(each for each in (folder.path, *folder.path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise ValueError(f"{folder.path} can't be made: {there} is a file; choose another folder (out)")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{folder.path} can't be made: nothing may be written in {there}; choose another (out)")


def check_room(run: Run, device: torch.device, processes: Processes) -> None:
    """Refuse a model that the device can't hold, before data is read for it. Words and positions aren't known yet."""
    module: nn.Module
    if isinstance(run, CaptionerRun):
        encoder = replace(run.model.encoder, image=run.model.encoder.patch)
        module = outline(Captioner, replace(run.model, encoder=encoder))
    elif isinstance(run, TranslatorRun):
        module = outline(Transformer, run.model)
    else:
        assert isinstance(run, ClassifierRun)
        module = outline(ViT, replace(run.model, image=run.model.patch))
    check_memory(module, device, copies=TRAINED / (processes.world if run.parallel == "fsdp" else 1))


@dataclass(frozen=True)
class Trainer:
    """Where and how a run is trained, whatever it trains."""

    folder: RunFolder | None
    device: torch.device
    processes: Processes
    resume: bool
    progress: bool
    tensorboard: bool
    callbacks: tuple[Observer, ...] = ()
    choices: Choices = None
    source: Source | None = None  # what the model begins as
    teacher: nn.Module | None = None  # one's own

    def train_classifier(self, run: ClassifierRun, dataset: Any, module: nn.Module | None) -> Result:
        if run.module is not None and module is None:
            raise ValueError(f"the run trains a module of one's own, a {run.module}; give one: train(…, module=…)")
        named = run if module is None else replace(run, module=type(module).__qualname__)
        named = name_teacher(named, self.teacher)
        named = named if dataset is not None else fit_held_out(named, self.choices)
        kept = self.folder.held_out() if self.folder and self.resume else None
        check = partial(check_tokens, named, self.choices) if module is None else None
        resolved, splits = classify.resolve(self._name_data(named, dataset), dataset, kept, check)
        self._check_same(run, resolved)
        guide = find_teacher(resolved, self.teacher, self.device)
        resolved, task = self._settle(
            resolved,
            splits,
            lambda run: classify.Classification(run, splits, self.device, self.processes, module, guide),
        )
        files = {HELD_OUT: json.dumps(splits.held_out) + "\n"} if splits.held_out else {}
        first = self._fit(task, resolved, self.folder, begins=not self.resume, files=files)
        return self._make_ready(first, task, splits, module)

    def train_captioner(self, run: CaptionerRun, dataset: Any) -> Result:
        """Both stages. The second is a run in the first one's folder, and goes on from its best weights."""
        folder = self.folder
        tokenizer = CaptionTokenizer.load(folder.tokenizer_file) if folder and self.resume else None
        resolved, splits, tokenizer = caption.resolve(self._name_data(run, dataset), tokenizer, dataset)
        self._check_same(run, resolved)
        resolved, task = self._settle(
            resolved, splits, lambda run: caption.Captioning(run, splits, tokenizer, self.device, self.processes)
        )
        files = {TOKENIZER: tokenizer.to_json() + "\n"}
        first = self._fit(task, resolved, folder, begins=not self.resume, files=files)
        if resolved.second_stage is None:
            return self._make_ready(first, task, splits)
        second = caption.SelfCritical(resolved.second_stage, splits, tokenizer, self.device, self.processes)
        inner = None if folder is None else folder.second_stage
        if folder is None or inner is None:
            second.model.load_state_dict(task.model.state_dict())
        elif not any(inner.checkpoints.states()):  # else it goes on from its own
            checkpoint = folder.checkpoints.weights()
            assert checkpoint is not None, "the first stage has just ended"
            fill_module(second.model, checkpoint)
        prepare(second.model, resolved.second_stage)
        begins = inner is not None and not inner.config_file.exists()
        self.processes.wait()
        last = self._fit(second, resolved.second_stage, inner, begins=begins, files=files)
        both = {name: getattr(first, name) + getattr(last, name) for name in ("steps", "images", "seconds", "warm_up")}
        return self._make_ready(replace(last, **both), second, splits)

    def train_translator(self, run: TranslatorRun) -> Result:
        tokenizer = SubwordTokenizer.load(self.folder.tokenizer_file) if self.folder and self.resume else None
        if isinstance(self.source, ReadyTranslator):
            tokenizer = self.source.tokenizer
        resolved, sentences, tokenizer = translate.resolve(run, tokenizer)
        self._check_same(run, resolved)
        resolved, task = self._settle(
            resolved,
            sentences,
            lambda run: translate.Translating(run, sentences, tokenizer, self.device, self.processes),
        )
        files = {TOKENIZER: tokenizer.to_json() + "\n"}
        fitted = self._fit(task, resolved, self.folder, begins=not self.resume, files=files)
        return self._make_ready(fitted, task)

    def _settle(self, run: Any, splits: Any, make: Callable[[Any], Any]) -> tuple[Any, Any]:
        """The run fitted to data and machine, and its task as it begins; what it will do is said."""

        def begun(run: Any) -> Any:
            task = make(run)
            if self.source is not None:
                begin_with(task.model, self.source)
            prepare(task.model, run)
            return task

        if self.choices is None and not self.progress:
            return run, begun(run)
        fitted = fit_run(run, self.choices, len(splits.train), self.device, self.processes.world)
        settled, task, outlook = settle_task(fitted, self.choices, self.device, self.processes, begun)
        if self.progress and self.processes.first:
            show(summarise(settled, run, task, splits, outlook, self.device, self.processes))
        return settled, task

    def _fit(
        self, task: Task, run: Run, folder: RunFolder | None, *, begins: bool, files: dict[str, str] | None = None
    ) -> Result:
        with ExitStack() as meanwhile:
            observers = list(self.callbacks)
            if self.processes.first:
                if folder and begins:  # now that nothing is wrong with what was asked for
                    folder.create(run, files)
                if folder:
                    meanwhile.enter_context(folder.alone())
                if self.progress:
                    board = folder if self.tensorboard else None
                    observers.append(meanwhile.enter_context(RunDisplay(run.recipe, tensorboard=board)))
            self.processes.wait()
            engine = Engine(
                task, run, self.device, folder=folder, processes=self.processes, observer=Observers(*observers)
            )
            result = engine.fit()
            if folder is None:
                engine.keep_average()
                merge(task.model)
            return result

    def _make_ready(self, result: Result, task: Any, splits: Any = None, module: nn.Module | None = None) -> Result:
        """The result with its model: what `load` finds in the folder or, if nothing is kept, what was trained."""
        split = None if splits is None else evaluation_split(task.run, splits)
        if split is not None:
            result = replace(result, evaluated=f"{len(getattr(splits, split)):,} {split} images")
        if self.folder is None:
            return replace(result, model=task.ready(task.run.recipe) if self.processes.world == 1 else None)
        self.processes.wait()
        path = self.folder.path
        return replace(result, model=load(path, module=module, device=self.device), folder=path)

    def _name_data(self, run: Any, dataset: Any) -> Any:
        """The run with what its data is called: a dataset that is given has no name to load it by."""
        if dataset is not None:
            return replace(run, data=replace(run.data, name=OWN))
        if run.data.name == OWN:
            raise ValueError("the run trains on a dataset that was given in Python; give it again: train(…, dataset=…)")
        return run

    def _check_same(self, run: Run, resolved: Run) -> None:
        if self.resume and resolved != run:
            name = run.data.name  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError(f"{name} is not what the run began with: its images or classes have changed")


def name_fields(changes: Mapping[str, Any]) -> Iterator[str]:
    """The fields that changes are of, by their paths.

    >>> list(name_fields({"batch": 8, "data": {"size": (8, 8)}, "optim.lr": 0.1}))
    ['batch', 'data.size', 'optim.lr']
    """
    for name, value in changes.items():
        inner = name_fields(value) if isinstance(value, Mapping) else [""]
        yield from (f"{name}.{each}".rstrip(".") for each in inner)


def free_path(path: Path) -> Path:
    """The path, or the first of path-2, path-3, … that isn't there."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(each for each in chain([path], numbered) if not each.exists())


def prolong(folder: RunFolder, duration: str, processes: Processes) -> AnyRun:
    """The run in a folder with a longer duration, for good. Its schedule is from now on that of the longer run."""
    problem = ""
    if processes.first:
        try:
            with folder.alone():
                folder.prolong(duration)
        except ValueError as error:
            problem = str(error)
    if problem := processes.share(problem):
        raise ValueError(problem)
    return folder.run()


def _settle(
    source: str | Path | Run, folder: RunFolder | None, resume: bool, changes: dict[str, Any]
) -> tuple[Run, RunFolder | None, bool, str | None]:
    """Which run, in which folder, whether it goes on there, and its new duration if it is to be longer."""
    if not isinstance(source, Run) and str(source) not in RECIPES and RunFolder(source).config_file.is_file():
        if folder is not None or changes.keys() - {"duration"}:
            raise ValueError(f"{source} is a run, which goes on as it is; leave out the other options but duration")
        return RunFolder(source).run(), RunFolder(source), True, changes.get("duration")
    run = override(source if isinstance(source, Run) else recipe(str(source)), changes)
    if not resume or folder is None or not folder.config_file.is_file():
        return run, folder, False, None
    kept = folder.run()
    if kept.recipe != run.recipe or override(kept, changes) != kept:
        raise ValueError(f"{folder.path} was begun otherwise; go on with it as it is, or choose another folder")
    return kept, folder, True, None


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)
