"""make bench, server part: 200 clients at a time, alone and then beside strangers who want to keep them out.

`pellucid serve` runs as a process of its own. Each client sends pictures one after the other over one connection, most
to be classified, some to be captioned or traced, and comes again later when it is told that the server is full. Then
the same beside 100 slow uploads, 200 who ask for experiments and 400 silent sockets. Failures are: any answer but 200
and 503, a client that is hung up on, memory that grows, a log that does, pictures that take more than twice their time
alone, and a server that isn't quick again a second after the strangers have gone. Prints a report and keeps it in
results/server-cpu.json.
"""

import argparse
import asyncio
import itertools
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from meter import MEGABYTE
from report import Column, Table, keep
from strangers import Seen, ask_once, client, strangers

GROWTH = 1.2  # memory at the end over memory in the middle, at most
SLOWER = 2.0  # times alone that a picture may take beside strangers
RECOVERY = 1.0  # seconds
LOG = MEGABYTE


@dataclass
class Phase:
    """What was seen in one stretch of time. memory: of the server, each second. busy: of one core, by the clients."""

    seen: Seen
    seconds: float
    memory: list[float]
    busy: float

    @property
    def times(self) -> list[float]:
        return list(itertools.chain(*self.seen.seconds.values()))

    def cut(self, percent: int) -> float:
        return statistics.quantiles(self.times, n=100)[percent - 1]


@dataclass
class Measurement:
    """quiet: seconds of one picture with nobody else; recovery: after the strangers left; log: bytes of each file, of
    the access log those of the time with strangers."""

    alone: Phase
    beside: Phase
    quiet: float
    recovery: float
    log: dict[str, int]
    code: int

    def failures(self) -> list[str]:
        wrong = [*self.alone.seen.wrong, *self.beside.seen.wrong][:5]
        slower = self.beside.cut(50) / self.alone.cut(50)
        middle, end = halves(self.beside.memory)
        found = {
            f"exit code {self.code}": self.code != 0,
            f"pictures took {slower:.2f} times as long": slower > SLOWER,
            f"memory grew from {middle:.0f} to {end:.0f} MB": end > GROWTH * middle,
            f"quick again after {self.recovery:.2f} s": self.recovery > RECOVERY,
            f"logs of {self.log} bytes": sum(self.log.values()) > LOG,
        }
        return wrong + [sentence for sentence, fails in found.items() if fails]


def halves(memory: list[float]) -> tuple[float, float]:
    """In the middle, and at the end."""
    third = len(memory) // 3
    return statistics.median(memory[third : 2 * third + 1]), statistics.median(memory[-5:])


async def load(port: int, clients: int, seconds: float, process: int) -> Phase:
    """All clients for so long."""
    seen, memory = Seen(), []
    begun, computed = time.perf_counter(), time.process_time()
    asking = asyncio.gather(*(client(i, port, seen, begun + seconds) for i in range(clients)))
    while not asking.done():
        await asyncio.wait([asking], timeout=1.0)
        memory.append(resident(process))
    await asking
    passed = time.perf_counter() - begun
    return Phase(seen, passed, memory, (time.process_time() - computed) / passed)


async def recover(port: int, quiet: float) -> float:
    """Seconds until a picture is answered as if nobody else had been there, or nearly so."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < 60:
        if await ask_once(port) < 2 * quiet + 0.05:
            break
    return time.perf_counter() - begun


async def measure_phases(
    port: int, process: int, clients: int, seconds: tuple[float, float], others: dict[str, int], access: Path
) -> tuple[float, Phase, Phase, float, int]:
    """Nobody, clients alone, clients beside strangers, nobody again; and how much was logged before the strangers."""
    quiet = statistics.median([await ask_once(port) for _ in range(20)])
    alone = await load(port, clients, seconds[0], process)
    logged, seen = size_of(access), Seen()
    async with strangers(others, port, seen):
        await asyncio.sleep(1.0)
        beside = await load(port, clients, seconds[1], process)
    recovery = await recover(port, quiet)
    for who, statuses in seen.statuses.items():
        beside.seen.statuses[who] += statuses
    beside.seen.wrong += seen.wrong
    return quiet, alone, beside, recovery, logged


def size_of(access: Path) -> int:
    """Bytes of a log, with the older files beside it."""
    return sum(file.stat().st_size for file in access.parent.glob(f"{access.name}*"))


def measure(
    clients: int, seconds: tuple[float, float], others: dict[str, int], files: int | None = None
) -> Measurement:
    """files: how many the server may open."""
    most = None if files is None else partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files))
    with tempfile.TemporaryDirectory() as place:
        access, errors = Path(place) / "access.jsonl", Path(place) / "errors.txt"
        command = [sys.executable, "-m", "pellucid", "serve", "--port", "0", "--device", "cpu", "--log", str(access)]
        command += ["--models", "vit-cifar10", "captioner-scenes"]
        with (
            errors.open("w") as stream,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True, preexec_fn=most) as server,
        ):
            assert server.stdout is not None
            try:
                port = int(re.findall(r":(\d+)/", server.stdout.readline())[0])
                phases = asyncio.run(measure_phases(port, server.pid, clients, seconds, others, access))
                server.terminate()
                code = server.wait(60)
            finally:
                server.kill()
        quiet, alone, beside, recovery, logged = phases
        sizes = {"access log": size_of(access) - logged, "errors": errors.stat().st_size}
        print(errors.read_text()[-2000:], file=sys.stderr)
    return Measurement(alone, beside, quiet, recovery, sizes, code)


def resident(process: int) -> float:
    """Megabytes that a process holds (Linux)."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096 / MEGABYTE


def answers(phase: Phase) -> Table:
    rows = []
    for way, times in [*sorted(phase.seen.seconds.items()), ("all", phase.times)]:
        cuts = statistics.quantiles(times, n=100)
        rows.append(
            {"what": way, "answers": len(times) / phase.seconds, "p50": 1000 * cuts[49], "p99": 1000 * cuts[98]}
        )
    columns = {"what": Column(), "answers": Column("/s", 1), "p50": Column("ms"), "p99": Column("ms")}
    return Table("answers a second, and how long they took", columns, rows)


def statuses(phase: Phase) -> Table:
    rows = [
        {"who": who, "status": status, "times": times}
        for who, counts in sorted(phase.seen.statuses.items())
        for status, times in sorted(counts.items())
    ]
    return Table("answers by status", {"who": Column(), "status": Column(), "times": Column()}, rows)


def tables(m: Measurement) -> dict[str, Table]:
    memory = dict(zip(("in the middle", "at the end"), halves(m.beside.memory), strict=True))
    held = {"alone, at the end": statistics.median(m.alone.memory[-5:])} | {
        f"beside strangers, {when}": megabytes for when, megabytes in memory.items()
    }
    beside = {
        "p50 over alone": m.beside.cut(50) / m.alone.cut(50),
        "p99 over alone": m.beside.cut(99) / m.alone.cut(99),
        "answers a second over alone": (len(m.beside.times) / m.beside.seconds)
        / (len(m.alone.times) / m.alone.seconds),
        "seconds of one picture, nobody else there": m.quiet,
        "seconds until it is quick again": m.recovery,
        "clients' share of a core": m.beside.busy,
    } | {f"MB of the {name}": size / MEGABYTE for name, size in m.log.items()}
    return {
        "answers": answers(m.alone),
        "statuses": statuses(m.alone),
        "memory": Table(
            "memory of the server",
            {"when": Column(), "memory": Column("MB")},
            [{"when": when, "memory": megabytes} for when, megabytes in held.items()],
        ),
        "answers_beside": answers(m.beside),
        "statuses_beside": statuses(m.beside),
        "beside": Table(
            "beside strangers",
            {"what": Column(), "value": Column("", 2)},
            [{"what": what, "value": value} for what, value in beside.items()],
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0, help="alone")
    parser.add_argument("--beside", type=float, default=60.0, help="seconds beside strangers")
    parser.add_argument("--slow", type=int, default=100, help="uploads of a byte a second")
    parser.add_argument("--lab", type=int, default=200, help="who ask for experiments")
    parser.add_argument("--silent", type=int, default=400, help="sockets that say nothing")
    parser.add_argument("--files", type=int, help="that the server may open: ulimit -n")
    parser.add_argument("--name", default="server", help="of the file in results/")
    options = parser.parse_args()
    others = {"slow uploads": options.slow, "experiments": options.lab, "silent sockets": options.silent}
    measured = measure(options.clients, (options.seconds, options.beside), others, options.files)
    notes = (
        "The clients run on the machine that serves. Latency is from the first byte sent to the last byte read, of "
        "those that were answered."
    )
    settings = {"clients": options.clients, "seconds": options.seconds, "seconds beside": options.beside} | others
    settings |= {} if options.files is None else {"files": options.files}
    keep(options.name, tables(measured), torch.device("cpu"), settings=settings, notes=notes)
    if failures := measured.failures():
        sys.exit("; ".join(failures))


if __name__ == "__main__":
    main()
