"""The one loop. A task says what a batch, the loss and the score are; everything else about training is here."""

import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.processes import Processes
from pellucid.runs.checkpoints import Facts, read_facts
from pellucid.runs.config import Duration, Plan, Run
from pellucid.runs.folder import RunFolder
from pellucid.training.checkpoint import CheckpointWriter, State
from pellucid.training.distributed import exchange_gradients, own_part, parallel
from pellucid.training.lora import merged_state
from pellucid.training.memory import keep_freed_memory
from pellucid.training.optim import make_optimizers, schedule, set_rate
from pellucid.training.task import Task

DIVERGED = "begin again with a lower --optim.lr, or with --optim.clip 1"


class Observer:
    """Who wants to see a run go on; this one doesn't. A callback of one's own is a class like this.

    >>> from pellucid.training import train
    >>> class Steps(Observer):
    ...     heard = []
    ...     def logged(self, lines):
    ...         self.heard += [line["step"] for line in lines if "loss" in line]
    >>> _ = train("vit_digits", duration="2 steps", model={"depth": 1}, progress=False, callbacks=[Steps()])
    >>> Steps.heard
    [1, 2]
    """

    def began(self, step: int, steps: int) -> None:
        """Training begins, or goes on, after `step` of so many steps."""

    def logged(self, lines: list[dict[str, Any]]) -> bool | None:
        """Steps, and evaluations, as log.jsonl has them. Return True to end the run: it is saved, and is at its end."""

    def stopping(self) -> None:
        """A signal asks the run to stop; called by its handler, between any two instructions."""


class Observers(Observer):
    """Several, one after the other."""

    def __init__(self, *observers: Observer):
        self.observers = observers

    def began(self, step: int, steps: int) -> None:
        for each in self.observers:
            each.began(step, steps)

    def logged(self, lines: list[dict[str, Any]]) -> bool:
        answers = [each.logged(lines) for each in self.observers]  # every one of them is told
        return any(answers)

    def stopping(self) -> None:
        for each in self.observers:
            each.stopping()


class Stopped(Exception):
    """A signal asked the run to stop; its state is saved.

    >>> from pellucid.training import Stopped
    >>> print(Stopped(12, 2))
    stopped after step 12
    """

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped after step {step}" if step else "stopped before the first step")
        self.step, self.signal = step, number


@dataclass(frozen=True)
class Result:
    """What a run came to. seconds: of training, evaluations and checkpoints left out; warm_up: of compiling, before.

    images: how many it was trained on, each as often as it came; of a task of another unit, as "tokens", those.

    figures: of the last evaluation. score: which of them says how good it is; best: the best that it was.
    model: a `ReadyClassifier` or a `ReadyCaptioner`, with the best weights if a folder keeps them, else the last.
    kept: the figures of those weights, and their step; evaluated: on what, as "60 validation images".
    planned: how many steps there would have been without the end of patience.

    >>> import pellucid
    >>> result = pellucid.train("vit_digits", duration="2 steps", progress=False)
    >>> result.steps, result.images, result.folder
    (2, 256, None)
    """

    steps: int
    images: int
    seconds: float
    warm_up: float
    figures: dict[str, float]
    best: float | None
    score: str = ""
    model: Any = None
    folder: Path | None = None
    kept: dict[str, float] = field(default_factory=dict)
    evaluated: str = ""
    planned: int = 0
    unit: str = "images"


class Engine:
    """Trains one task as one run says. Without a folder nothing is written and nothing can be resumed.

    >>> from pellucid.training.reverse import reverse
    >>> reverse(steps=2, seed=0, observer=None).tested  # two steps of the engine, then sequences that it has not seen
    2000
    """

    def __init__(
        self,
        task: Task,
        run: Run,
        device: torch.device,
        *,
        folder: RunFolder | None = None,
        processes: Processes | None = None,
        observer: Observer | None = None,
    ):
        self.task, self.run, self.device, self.folder = task, run, device, folder
        self.processes = processes or Processes()
        self.observer = observer or Observer()
        self.network = parallel(task.model, self.processes, run.parallel, device)
        self.optimizers = make_optimizers(task.model, run.optim, run.tune)
        parameters = dict(task.model.named_parameters())
        self.average = {name: p.detach().clone() for name, p in parameters.items()} if run.optim.ema else {}
        self.parameters = list(parameters.values())
        self.keep = torch.zeros((), device=device)  # share of the average that a step keeps
        self.state = State(task.model, self.average, self.optimizers)
        self.checkpoints = CheckpointWriter(folder.checkpoints, self.processes) if folder else None
        # What is captured is compiled for each shape by itself: code for all of them is slower.
        self.loss = torch.compile(task.loss, dynamic=False if run.graphs else None) if run.compile else task.loss
        self.graphs: dict[Any, _Graph] = {}  # by the shapes of a step
        self.captures = run.graphs and device.type == "cuda"
        self.capturing = 0.0  # seconds of it since the last flush: no part of training
        self.best: float | None = None
        self.stale = 0  # evaluations since the best one
        self.is_enough = False  # an observer said so
        self.figures: dict[str, float] = {}
        self.kept: dict[str, float] = {}  # the same of the best evaluation, with its step
        self.seconds = self.warm_up = 0.0

    def fit(self) -> Result:
        """Train to the end, from the last checkpoint if the folder holds one."""
        with _signals(self.observer) if self.folder else nullcontext(_Signals()) as signals:
            facts = self.checkpoints.restore_last(self.state) if self.checkpoints else None
            start = facts.step if facts else 0
            if facts:
                self.best, self.figures, self.seconds = facts.best, facts.figures, facts.seconds
                self.stale = facts.stale
                self.kept = self._read_kept()
            with signals.interrupting(start):  # nothing has been learned that could be lost
                self.warm_up = self._warm_up(start)
                plan = self._plan()
            if self.folder and self.processes.first:
                self.folder.cut_log(start)
            self.observer.began(start, plan.steps)
            steps = start if self.has_lost_patience else self._loop(start, plan, signals)
        return Result(
            steps,
            steps * self.task.batch,
            self.seconds,
            self.warm_up,
            self.figures,
            self.best,
            self.task.score,
            kept=self.kept if self.folder and self.kept else {"step": steps} | self.figures,
            planned=plan.steps,
            unit=self.task.unit,
        )

    @property
    def has_lost_patience(self) -> bool:
        """Whether as many evaluations in a row brought nothing better as the run has patience for."""
        return 0 < self.run.patience <= self.stale

    def _loop(self, start: int, plan: Plan, signals: "_Signals") -> int:
        """Train from one step to the end, and say after which step that was."""
        pending, begun = _Pending(), time.perf_counter()
        for step, parts in enumerate(self.task.batches(start, plan.steps), start):
            pending.add(step, self._step(step, plan.steps, parts), schedule(self.run.optim, step, plan.steps))
            done, last = step + 1, step + 1 == plan.steps
            evaluate = last or _is_due(done, plan.evaluate_every)
            save = last or _is_due(done, plan.checkpoint_every)
            keep = _is_due(done, plan.keep_every)
            if not (evaluate or save or keep or self._flush_is_due(done, begun, signals)):
                continue
            self._flush(pending, begun)
            if evaluate:
                self._evaluate(done)
            if keep:
                self._keep(done)
            stop = self.processes.agree(bool(signals), self.device)
            ends = last or self.has_lost_patience or self.processes.agree(self.is_enough, self.device)
            if save or stop or ends:
                self._save(done)
            if ends:
                return done
            if stop:
                raise Stopped(done, signals[0] if signals else signal.SIGTERM)
            begun = time.perf_counter()
        return plan.steps

    # One step

    def _step(self, step: int, steps: int, parts: list[tuple[Any, ...]]) -> Tensor:
        """Move the weights once; the loss and the metrics of the batch, still on the device."""
        graph = self._graph(parts) if self.captures else None
        torch.manual_seed(_mixed(self.run.seed, step, self.processes.rank))  # dropout too is a function of the step
        set_rate(self.optimizers, schedule(self.run.optim, step, steps), step / steps)
        if self.average:  # the average of the first steps forgets faster, or it would remember the initial weights
            self.keep.fill_(min(self.run.optim.ema, (1 + step) / (10 + step)))
        return graph.replay(parts) if graph else self._update(parts)

    def _graph(self, parts: list[tuple[Any, ...]]) -> "_Graph":
        """The step as a graph; a step of a new shape is captured, and every value put back."""
        shapes = tuple(tensor.shape for batch in parts for tensor in batch)
        if shapes not in self.graphs:
            begun = time.perf_counter()
            with self.state.untouched():
                if self.run.compile:
                    self._update(parts)
                self.graphs[shapes] = _Graph(self, parts)
            self._synchronise()
            self.capturing += time.perf_counter() - begun
        return self.graphs[shapes]

    def _update(self, parts: list[tuple[Any, ...]]) -> Tensor:
        self.network.train()
        figures = []
        for i, batch in enumerate(parts):
            exchange_gradients(self.network, i == len(parts) - 1)
            loss, metrics = self.loss(self.network, *batch)
            (loss / len(parts)).backward()
            figures.append(torch.stack([loss.detach(), *metrics.values()]))
            self.metrics = list(metrics)
        if self.run.optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.run.optim.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.average:
            self._average()
        return torch.stack(figures).mean(0)

    @torch.no_grad()
    def _average(self) -> None:
        averages = list(self.average.values())
        new = torch._foreach_mul(self.parameters, 1 - self.keep)  # pyright: ignore
        torch._foreach_mul_(averages, self.keep)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(averages, new)  # pyright: ignore[reportPrivateImportUsage]

    # Before the first step

    def _warm_up(self, start: int) -> float:
        """Compile and capture on real batches, then put every value back. Returns the seconds it took."""
        if self.device.type == "cpu":
            keep_freed_memory()
        if not (self.run.compile or self.captures):
            return 0.0
        begun = time.perf_counter()
        with self.state.untouched():
            parts = next(iter(self.task.batches(start, start + 1)))
            self._step(start, start + 100, parts)
            self._synchronise()
        self.capturing = 0.0
        return time.perf_counter() - begun

    def _plan(self) -> Plan:
        """Durations in steps: converted when the run begins, and found in its folder ever after."""
        kept = self.folder.plan() if self.folder else None
        self.processes.wait()  # all have looked before the first one writes
        if kept is not None:
            if kept.epoch_size != self.task.epoch_size:
                raise ValueError(
                    f"the run began with {kept.epoch_size} {self.task.unit} to train on, and now there are "
                    f"{self.task.epoch_size}; bring back the data it began with"
                )
            return kept
        plan = Plan(
            steps=self._length(self.run.duration),
            evaluate_every=self._length(self.run.evaluate_every),
            checkpoint_every=self._length(self.run.checkpoint_every),
            epoch_size=self.task.epoch_size,
            keep_every=self._length(self.run.keep_every),
            batch=self.task.batch,
        )
        if self.folder and self.processes.first:
            self.folder.keep_plan(plan)
        return plan

    def _length(self, text: str) -> int:
        duration = Duration.parse(text)
        per_epoch = self.task.epoch_size / self.task.batch
        pace = self.pace if duration.unit == "minutes" and duration.amount else 0.0
        return duration.steps(steps_per_epoch=per_epoch, seconds_per_step=pace)

    @cached_property
    def pace(self) -> float:
        """Seconds of a step, measured on a few that are then undone; the same number in every process."""
        warm, timed = 3, 10
        with self.state.untouched():
            self._steps(warm)
            begun = time.perf_counter()
            self._steps(timed)
            pace = torch.tensor((time.perf_counter() - begun) / timed, device=self.device)
        return self.processes.mean(pace).item()

    def _steps(self, count: int) -> None:
        for step, parts in enumerate(self.task.batches(0, count)):
            self._step(step, count, parts)
        self._synchronise()

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    # Between steps

    def _flush_is_due(self, done: int, begun: float, signals: list[int]) -> bool:
        """Reading a loss waits for the device: every 50 steps there, twice a second on the CPU.

        Many processes have to do it after the same steps, and only one that is alone can look for a signal each time.
        """
        if self.processes.world > 1:
            return done % (50 if self.device.type == "cuda" else 5) == 0
        if signals:
            return True
        return done % 50 == 0 if self.device.type == "cuda" else time.perf_counter() - begun > 0.5

    def _flush(self, pending: "_Pending", begun: float) -> None:
        """Write what the steps since the last flush were like. A loss that is no number ends the run."""
        figures = self.processes.mean(torch.stack(pending.figures)).tolist()
        spent = time.perf_counter() - begun - self.capturing
        self.warm_up, self.capturing = self.warm_up + self.capturing, 0.0
        self.seconds += spent
        rate = round(len(figures) * self.task.batch / spent, 1)
        lines = [
            {"step": step + 1, "epoch": self._epoch(step + 1), "loss": loss}
            | dict(zip(self.metrics, metrics, strict=True))
            | {"lr": share * self.run.optim.lr, f"{self.task.unit}_per_second": rate}
            for step, share, (loss, *metrics) in zip(pending.steps, pending.rates, figures, strict=True)
        ]
        pending.clear()
        good = list(takewhile(lambda line: math.isfinite(line["loss"]), lines))
        self._log(good)
        if len(good) < len(lines):
            wrong = lines[len(good)]
            raise ValueError(f"the loss is {wrong['loss']} at step {wrong['step']}; {DIVERGED}")

    def _check_weights(self, done: int) -> None:
        """What is no number reaches no checkpoint: the loss shows it only a step later."""
        fine = torch.stack([own_part(p.detach()).isfinite().all() for p in self.parameters]).all()
        if self.processes.agree(not fine, self.device):
            raise ValueError(f"the weights are no longer finite after step {done}; {DIVERGED}")

    def _evaluate(self, done: int) -> None:
        self._check_weights(done)
        with self._averaged():
            self.figures = self.task.evaluate(self.network)
            score = self.figures.get(self.task.score)
            self.stale += score is not None
            if score is not None and (self.best is None or score > self.best):
                self.stale = 0
                self.best, self.kept = score, {"step": done} | self.figures
                if self.checkpoints:
                    self.checkpoints.save_best(self._weights(), self.kept)
        line = {"step": done, "epoch": self._epoch(done), "evaluation": self.figures, "seconds": round(self.seconds, 3)}
        self._log([line])

    def _read_kept(self) -> dict[str, float]:
        """What the best weights say of themselves; runs of 0.1 say their step and score."""
        best = self.folder.checkpoints.best if self.folder else None
        return {} if best is None or not best.is_file() else read_facts(best)

    def _keep(self, done: int) -> None:
        self._check_weights(done)
        if self.checkpoints:
            with self._averaged():
                self.checkpoints.save_kept(self._weights(), {"step": done})

    def _weights(self) -> dict[str, Tensor]:
        return {f"model.{name}": tensor for name, tensor in merged_state(self.task.model).items()}

    def keep_average(self) -> None:
        """Leave the averaged weights in the model, if there is an average: after the end, when none is trained on."""
        if self.average:
            _copy(self.average.values(), self.parameters)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The averaged weights in the model's place, if there is an average."""
        if not self.average:
            yield
            return
        mine = [p.detach().clone() for p in self.parameters]
        _copy(self.average.values(), self.parameters)
        try:
            yield
        finally:
            _copy(mine, self.parameters)

    def _save(self, done: int) -> None:
        self._check_weights(done)
        if self.checkpoints:
            facts = Facts(done, self.seconds, self.best, self.figures, stale=self.stale)
            self.checkpoints.save_last(self.state.tensors(), facts)

    def _epoch(self, done: int) -> float:
        return round(done * self.task.batch / self.task.epoch_size, 4)

    def _log(self, lines: list[dict[str, Any]]) -> None:
        if self.folder and self.processes.first:
            self.folder.log(lines)
        self.is_enough = bool(self.observer.logged(lines)) or self.is_enough


class _Graph:
    """A whole step (forward, backward, optimizers, average) as one CUDA graph; inputs are copied in before a replay."""

    def __init__(self, engine: Engine, parts: list[tuple[Any, ...]]):
        self.inputs = [tuple(tensor.clone() for tensor in batch) for batch in parts]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                engine._update(self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        others = next(iter(engine.graphs.values()), None)  # they run one after the other, and share their memory
        with torch.cuda.graph(self.graph, pool=None if others is None else others.graph.pool()):
            self.figures = engine._update(self.inputs)

    def replay(self, parts: list[tuple[Any, ...]]) -> Tensor:
        for mine, batch in zip(self.inputs, parts, strict=True):
            for static, tensor in zip(mine, batch, strict=True):
                static.copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.figures.clone()


class _Pending:
    """Steps whose figures are still on the device."""

    def __init__(self) -> None:
        self.clear()

    def add(self, step: int, figures: Tensor, rate: float) -> None:
        self.steps.append(step)
        self.figures.append(figures)
        self.rates.append(rate)

    def clear(self) -> None:
        self.steps: list[int] = []
        self.figures: list[Tensor] = []
        self.rates: list[float] = []


class _Signals(list[int]):
    """The signals that came."""

    interrupts = False  # whether the next one ends what is done at once

    @contextmanager
    def interrupting(self, step: int) -> Iterator[None]:
        """A signal doesn't wait for the end of what is done inside."""
        self.interrupts = True
        try:
            yield
        except KeyboardInterrupt:
            raise Stopped(step, self[0] if self else signal.SIGINT) from None
        finally:
            self.interrupts = False


@contextmanager
def _signals(observer: Observer | None = None) -> Iterator[_Signals]:
    """SIGINT and SIGTERM are kept for the end of a step, which is said at once. A second one ends the process at once.

    One that the process was told to ignore, as Ctrl-C is with nohup, stays ignored.
    """
    signals = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {}

    def note(number: int, _frame: Any) -> None:
        signals.append(number)
        for known, handler in before.items():
            signal.signal(known, handler)
        if signals.interrupts:
            raise KeyboardInterrupt
        if observer is not None:
            observer.stopping()

    heard = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    before.update({number: signal.signal(number, note) for number in heard})
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@torch.no_grad()
def _copy(values: Iterable[Tensor], into: Iterable[Tensor]) -> None:
    for value, target in zip(values, into, strict=True):
        target.copy_(value)


def _is_due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0


def _mixed(seed: int, step: int, rank: int) -> int:
    return (seed * 1_000_003 + step * 10_007 + rank) % (1 << 63)
