"""Those who ask a server at the same time, for benchmarks/server.py: clients with pictures, and strangers beside them.

Slow ones send a picture byte by byte, curious ones ask for experiments, silent ones open a connection and say nothing.
All are coroutines of one process, on 127.0.0.1, and end when they are cancelled.
"""

import asyncio
import contextlib
import itertools
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from pellucid.serve.samples import samples

PACE = 1.0  # seconds between two bytes of a slow upload, and before who was sent away comes again
MIX = ["classify"] * 6 + ["classify a photograph"] * 2 + ["caption", "trace"]
WAYS = {
    "classify": ("/api/classify?model=vit-cifar10", "ship"),
    "classify a photograph": ("/api/classify?model=vit-cifar10", "china"),
    "caption": ("/api/caption?model=captioner-scenes", "scene-1"),
    "trace": ("/api/trace?model=vit-cifar10", "truck"),
}
# Some that take a minute, some that take a moment, each with numbers of its own: nothing is kept for two.
EXPERIMENTS = ("/api/lab/depth", "/api/lab/leaking", "/api/lab/temperature?seed={0}", "/api/lab/graph?seed={0}")


@dataclass
class Seen:
    """What all together have seen. seconds: of answers to pictures, by way."""

    statuses: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # by who asked
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)

    def add(self, who: str, status: int, answer: bytes) -> None:
        self.statuses[who][str(status)] += 1
        if status not in (200, 503):
            self.wrong.append(f"{who}: {status} {answer[:200]!r}")


class Line:
    """One connection."""

    def __init__(self, port: int):
        self.port = port

    async def __aenter__(self) -> "Line":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def send(self, method: str, path: str, body: bytes = b"", length: int | None = None) -> None:
        size = len(body) if length is None else length
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n"
        self.writer.write(head.encode() + body)

    async def answer(self) -> tuple[int, bytes, float]:
        """Status, body, and the seconds after which to come again."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        body = await self.reader.readexactly(int(re.findall(r"content-length: (\d+)", head)[0]))
        again = re.findall(r"retry-after: (\d+)", head)
        return int(head.split(" ", 2)[1]), body, float(again[0]) if again else 0.0


async def client(number: int, port: int, seen: Seen, until: float) -> None:
    """One who sends a picture, reads the answer to its end, and sends the next. Being hung up on is a failure."""
    turn = number
    while time.perf_counter() < until:
        try:
            async with Line(port) as line:
                while time.perf_counter() < until:
                    way = MIX[turn % len(MIX)]
                    path, picture = WAYS[way]
                    begun = time.perf_counter()
                    line.send("POST", path, samples()[picture].data)
                    status, answer, again = await line.answer()
                    seen.add("pictures", status, answer)
                    if status == 200:
                        seen.seconds[way].append(time.perf_counter() - begun)
                        turn += 1
                    else:
                        await asyncio.sleep(again)
        except (OSError, asyncio.IncompleteReadError) as error:
            seen.statuses["pictures"]["hung up"] += 1
            seen.wrong.append(f"pictures: {error!r}")
            await asyncio.sleep(PACE)


async def slow_upload(number: int, port: int, seen: Seen) -> None:
    """A picture whose bytes come one by one, for as long as the server takes them."""
    async with Line(port) as line:
        line.send("POST", WAYS["classify"][0], length=100_000)
        told = asyncio.ensure_future(line.answer())
        try:
            while not told.done():
                line.writer.write(b"x")
                await asyncio.wait([told], timeout=PACE)
            status, answer, _ = told.result()
        finally:
            told.cancel()
        seen.add("slow uploads", status, answer)


async def experiment(number: int, port: int, seen: Seen) -> None:
    async with Line(port) as line:
        for turn in itertools.count(number):
            line.send("GET", EXPERIMENTS[turn % len(EXPERIMENTS)].format(turn % 1000))
            status, answer, again = await line.answer()
            seen.add("experiments", status, answer)
            await asyncio.sleep(again)


async def silence(number: int, port: int, seen: Seen) -> None:
    async with Line(port) as line:
        await line.reader.read()
    seen.statuses["silent sockets"]["ended"] += 1


async def again_and_again(who: Callable[[int, int, Seen], Awaitable[None]], number: int, port: int, seen: Seen) -> None:
    """A stranger, who comes again when they are sent away."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await who(number, port, seen)
        await asyncio.sleep(PACE)


@contextlib.asynccontextmanager
async def strangers(counts: dict[str, int], port: int, seen: Seen) -> AsyncIterator[None]:
    """So many of each kind, for as long as this lasts."""
    kinds = {"slow uploads": slow_upload, "experiments": experiment, "silent sockets": silence}
    tasks = [
        asyncio.create_task(again_and_again(kinds[kind], number, port, seen))
        for kind, count in counts.items()
        for number in range(count)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ask_once(port: int) -> float:
    """Seconds of one picture's answer; infinite if it was refused."""
    begun = time.perf_counter()
    async with Line(port) as line:
        line.send("POST", WAYS["classify"][0], samples()["ship"].data)
        status, _, _ = await line.answer()
    return time.perf_counter() - begun if status == 200 else float("inf")
