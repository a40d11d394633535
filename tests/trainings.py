"""Training processes for tests.

They are forked from a server that has everything imported, so that one starts in a fraction of a second, and they are
the command itself: `pellucid train …` with its words, its output and its exit code.
"""

import contextlib
import errno
import faulthandler
import json
import multiprocessing
import os
import random
import shlex
import signal
import socket
import sys
import time
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "pellucid.cli.train",
        "torch._dynamo",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
    ]
)
TINY = shlex.split(
    "--model.width 16 --model.depth 2 --model.heads 2 --batch 16 --data.held-out 0 --evaluate-every '8 steps'"
)
# Everything that draws random numbers, and everything with a memory; the recipe itself has crops and Muon.
WILD = shlex.split(
    "--model.drop-path 0.2 --model.drop-token 0.3 --model.dropout 0.1 --augment.cutmix 1.0 --optim.ema 0.9"
)


class Started:
    """One running `pellucid train RECIPE`; `hook` names what is done to it before it begins."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        recipe: str = "vit_digits",
        hook: str = "",
        hooked: int = 0,
        ranks: tuple[int, int, int] | None = None,
        inside: Path | None = None,
    ):
        self.said = folder.parent / f"{folder.name}.{time.monotonic_ns()}.txt"
        arguments = (["train", recipe, *words], str(self.said), hook, hooked, ranks, inside)
        self.process = SERVER.Process(target=_run, args=arguments)
        self.process.start()

    def send(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def ended(self, timeout: float = 120) -> tuple[int, str]:
        """Exit code (negative: by this signal) and all it said."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.send(signal.SIGUSR1)  # it says where it stands
            self.process.join(2)
            for each in multiprocessing.active_children():  # others may wait for it
                each.kill()
            raise AssertionError(f"still running after {timeout} s: {self.said.read_text()}")
        assert self.process.exitcode is not None
        return self.process.exitcode, self.said.read_text() if self.said.exists() else ""


def words_for(folder: Path, *options: str) -> list[str]:
    """Go on with the run in the folder, or begin it."""
    return ["--resume", str(folder)] if (folder / "config.json").exists() else ["--out", str(folder), *options]


def trained(folder: Path, *options: str, **how) -> str:
    """Begin or go on, to the end; what was said."""
    code, said = Started(folder, *words_for(folder, *options), **how).ended()
    assert code == 0, said
    return said


def together(folder: Path, *options: str, count: int = 2, **how) -> list[Started]:
    """The same command in `count` processes that find each other, as torchrun starts them."""
    words, port = words_for(folder, *options), free_port()
    return [Started(folder, *words, ranks=(rank, count, port), **how) for rank in range(count)]


def free_port() -> int:
    """One that no connection is given by chance: those are from 32768 on."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port


def tensors(folder: Path, which: str = "last") -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"{which}.safetensors")


def assert_same_run(one: Path, two: Path) -> None:
    """Bit for bit: weights, their average, optimizers' memory, the best weights, and the log but for its clocks."""
    for which in ("last", "best"):
        a, b = tensors(one, which), tensors(two, which)
        assert a.keys() == b.keys()
        assert [name for name in a if not torch.equal(a[name], b[name])] == []
    assert log(one) == log(two)


def log(folder: Path) -> list[dict]:
    """The log without what a clock says."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("images_per_second", "seconds")} for line in lines]


def losses(folder: Path) -> list[float]:
    lines = [line for line in log(folder) if "loss" in line]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def steps_logged(folder: Path) -> int:
    path = folder / "log.jsonl"
    return path.read_bytes().count(b'"lr"') if path.exists() else 0


def wait_for_steps(folder: Path, count: int, timeout: float = 60) -> None:
    end = time.monotonic() + timeout
    while steps_logged(folder) < count:
        assert time.monotonic() < end, f"{steps_logged(folder)} of {count} steps after {timeout} s"
        time.sleep(0.002)


# In the process


def _run(
    words: list[str], said: str, hook: str, hooked: int, ranks: tuple[int, int, int] | None, inside: Path | None
) -> None:
    output = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what is compared to the last bit is the CPU's, and two need two GPUs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background were told to ignore Ctrl-C
    if inside:
        os.chdir(inside)
    if ranks:
        rank, world, port = map(str, ranks)
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    from pellucid.cli import main

    if hook:
        HOOKS[hook](hooked)
    sys.exit(main(words))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _counted(count: int, act):
    """A function that calls `act` the count-th time, instead of what it stands for."""
    calls = [0]

    def wrap(function):
        def called(*arguments, **options):
            calls[0] += 1
            return act(function, *arguments, **options) if calls[0] == count else function(*arguments, **options)

        return called

    return wrap


def _die_in_half_a_checkpoint(count: int) -> None:
    import pellucid.training.checkpoint as room

    def act(write, path, *what):
        """Under the name that safetensors gives it until it is whole, and under ours."""
        for unfinished in (path, path.with_name(".tmpCjUiP5")):
            write(unfinished, *what)
            os.truncate(unfinished, unfinished.stat().st_size // 2)
        _die()

    room.write_weights = _counted(count, act)(room.write_weights)


def _die_before_replacing(count: int) -> None:
    os.replace = _counted(count, lambda *_: _die())(os.replace)


def _die_after_replacing(count: int) -> None:
    def act(replace, *paths):
        replace(*paths)
        _die()

    os.replace = _counted(count, act)(os.replace)


def _die_in_half_a_line(count: int) -> None:
    from pellucid.runs.folder import LOG, RunFolder

    def act(_, folder, lines):
        with (folder.path / LOG).open("a") as file:
            file.write(json.dumps(lines[0])[:40])
        _die()

    RunFolder.log = _counted(count, act)(RunFolder.log)


def _die_in_half_an_answer(count: int) -> None:
    """SIGKILL while the count-th batch of answers is written."""
    from pellucid.cli.answers import AnswersFile

    def act(write, file, rows):
        write(file, rows[:-1])
        file.file.write(str(rows[-1])[:20])
        file.file.flush()
        _die()

    AnswersFile.write = _counted(count, act)(AnswersFile.write)


def _end_after_saving(step: int) -> None:
    from pellucid.training.checkpoint import CheckpointWriter

    save = CheckpointWriter.save_last

    def called(self, values, facts):
        save(self, values, facts)
        if facts.step == step:
            os._exit(0)

    CheckpointWriter.save_last = called


def _hang_at(step: int) -> None:
    _before_step(step, lambda: time.sleep(3600))


def _hang_while_compiling(_: int) -> None:
    from pellucid.training.engine import Engine

    Engine._warm_up = lambda self, start: time.sleep(3600)  # type: ignore[method-assign]


def _before_step(step: int, act) -> None:
    from pellucid.training.engine import Engine

    take = Engine._step

    def called(self, at, *rest):
        if at == step:
            act()
        return take(self, at, *rest)

    Engine._step = called


def _raising(error: BaseException):
    def act(*_, **__):
        raise error

    return act


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def _no_space_to_replace(count: int) -> None:
    os.replace = _counted(count, _raising(NO_SPACE))(os.replace)


def _no_space_to_log(count: int) -> None:
    from pellucid.runs.folder import RunFolder

    RunFolder.log = _counted(count, _raising(NO_SPACE))(RunFolder.log)


def _no_space_to_save(count: int) -> None:
    """As safetensors says it."""
    import pellucid.training.checkpoint as room

    error = SafetensorError("I/O error: No space left on device (os error 28)")
    room.write_weights = _counted(count, _raising(error))(room.write_weights)


def _nan(step: int) -> None:
    from pellucid.training.classify import Classification

    loss = Classification.loss

    def called(self, model, *batch):
        value, metrics = loss(self, model, *batch)
        return value * (float("nan") if int(batch[3]) == step else 1.0), metrics

    Classification.loss = called


def _broken_weights(step: int) -> None:
    """The step's own loss is still fine."""
    from pellucid.training.engine import Engine

    take = Engine._step

    def called(self, at, *rest):
        figures = take(self, at, *rest)
        if at == step:
            self.parameters[0].data[0] = float("inf")
        return figures

    Engine._step = called


OUT_OF_MEMORY = {
    "no memory (CUDA)": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "no memory (CPU)": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    "no memory (Python)": MemoryError(),
}


def _ignore_ctrl_c(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


HOOKS = {
    "ignore Ctrl-C": _ignore_ctrl_c,
    "half a checkpoint": _die_in_half_a_checkpoint,
    "before replacing": _die_before_replacing,
    "after replacing": _die_after_replacing,
    "half a line": _die_in_half_a_line,
    "half an answer": _die_in_half_an_answer,
    "end after saving": _end_after_saving,
    "hang": _hang_at,
    "hang while compiling": _hang_while_compiling,
    "no space to replace": _no_space_to_replace,
    "no space to log": _no_space_to_log,
    "no space to save": _no_space_to_save,
    "nan": _nan,
    "broken weights": _broken_weights,
    "a mistake of ours": lambda step: _before_step(step, _raising(RuntimeError("a mistake of ours"))),
    **{name: lambda step, error=error: _before_step(step, _raising(error)) for name, error in OUT_OF_MEMORY.items()},
}
