"""make bench, server part: 200 clients at a time for 30 s, and what they were answered.

`pellucid serve` runs as a process of its own. Each client sends pictures one after the other over one connection, most
to be classified, some to be captioned or traced, and comes again later when it is told that the server is full. Any
answer but 200 and 503 is a failure, and so is memory that grows. Prints a report and keeps it in
results/server-cpu.json.
"""

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch
from meter import MEGABYTE
from report import Column, Table, keep

from pellucid.serve.samples import samples

WAYS = {
    "classify": ("/api/classify?model=vit-cifar10", "ship"),
    "classify a photograph": ("/api/classify?model=vit-cifar10", "china"),
    "caption": ("/api/caption?model=captioner-scenes", "scene-1"),
    "trace": ("/api/trace?model=vit-cifar10", "truck"),
}
MIX = ["classify"] * 6 + ["classify a photograph"] * 2 + ["caption", "trace"]
GROWTH = 1.2  # memory at the end over memory in the middle, at most


@dataclass
class Seen:
    """What all clients together have seen."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)


async def client(number: int, port: int, until: float, seen: Seen) -> None:
    """One who asks, reads the answer to its end, and asks again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    turn = number
    while time.perf_counter() < until:
        way = MIX[turn % len(MIX)]
        path, picture = WAYS[way]
        body, begun = samples()[picture].data, time.perf_counter()
        writer.write(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        answer = await reader.readexactly(int(re.findall(r"content-length: (\d+)", head)[0]))
        status = int(head.split(" ", 2)[1])
        seen.statuses[status] += 1
        if status == 200:
            seen.seconds[way].append(time.perf_counter() - begun)
            turn += 1
        elif status == 503:
            await asyncio.sleep(float(re.findall(r"retry-after: (\d+)", head)[0]))
        else:
            seen.wrong.append(f"{way}: {status} {answer[:200]!r}")
    writer.close()


async def load(port: int, clients: int, seconds: float, process: int) -> tuple[Seen, list[float]]:
    """All clients for so long; the server's memory a second after they began, then about each second."""
    seen, memory = Seen(), []
    until = time.perf_counter() + seconds
    asking = asyncio.gather(*(client(i, port, until, seen) for i in range(clients)))
    while not asking.done():
        await asyncio.wait([asking], timeout=1.0)
        memory.append(resident(process))
    await asking
    return seen, memory


def resident(process: int) -> float:
    """Megabytes that a process holds (Linux)."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096 / MEGABYTE


def answers(seen: Seen, seconds: float) -> Table:
    rows = []
    every = [each for times in seen.seconds.values() for each in times]
    for way, times in [*sorted(seen.seconds.items()), ("all", every)]:
        cuts = statistics.quantiles(times, n=100)
        rows.append({"what": way, "answers": len(times) / seconds, "p50": 1000 * cuts[49], "p99": 1000 * cuts[98]})
    columns = {"what": Column(), "answers": Column("/s", 1), "p50": Column("ms"), "p99": Column("ms")}
    return Table("answers a second, and how long they took", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    command = [sys.executable, "-m", "pellucid", "serve", "--port", "0", "--device", "cpu"]
    command += ["--models", "vit-cifar10", "captioner-scenes"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(re.findall(r":(\d+)/", server.stdout.readline())[0])
        before = resident(server.pid)
        seen, memory = asyncio.run(load(port, options.clients, options.seconds, server.pid))
        server.terminate()
        code = server.wait(60)
    middle, end = statistics.median(memory[len(memory) // 3 : 2 * len(memory) // 3 + 1]), statistics.median(memory[-5:])
    statuses = [{"status": str(status), "answers": times} for status, times in sorted(seen.statuses.items())]
    held = {"before": before, "in the middle": middle, "at the end": end}
    tables = {
        "answers": answers(seen, options.seconds),
        "statuses": Table("answers by status", {"status": Column(), "answers": Column()}, statuses),
        "memory": Table(
            "memory of the server",
            {"when": Column(), "memory": Column("MB")},
            [{"when": when, "memory": megabytes} for when, megabytes in held.items()],
        ),
    }
    notes = (
        "The clients run on the machine that serves. Latency is from the first byte sent to the last byte read, of "
        "those that were answered."
    )
    settings = {"clients": options.clients, "seconds": options.seconds}
    keep("server", tables, torch.device("cpu"), settings=settings, notes=notes)
    if seen.wrong or code or end > GROWTH * middle:
        sys.exit("; ".join([*seen.wrong[:5], f"exit code {code}", f"memory {middle:.0f} to {end:.0f} MB"]))


if __name__ == "__main__":
    main()
