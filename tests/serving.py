"""`pellucid serve` as a process, for tests."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

SERVE = (sys.executable, "-m", "pellucid", "serve", "--port", "0")


class Serving:
    """A server that is up; `address` is where, without a slash at the end."""

    def __init__(self, *words: str, log: Path, files: int | None = None, command: Sequence[str] = SERVE):
        """files: how many it may open."""
        self.log = log
        most = None if files is None else partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files))
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [*command, *words], stdout=subprocess.PIPE, stderr=file, text=True, preexec_fn=most,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        assert self.process.stdout is not None
        giving_up = Timer(60, self.process.kill)
        giving_up.start()
        first = self.process.stdout.readline()
        giving_up.cancel()
        found = re.match(r"open (http://\S+?:(\d+))/(\S*) \(Ctrl-C stops the server\)", first)
        assert found, f"{first}{log.read_text()}"
        self.address, self.port, self.query = found[1], int(found[2]), found[3]

    def stop(self) -> int:
        """Ask it to end, and wait; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextmanager
def serving(*words: str, log: Path, **how: Any) -> Iterator[Serving]:
    server = Serving(*words, log=log, **how)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def serving_small(limits: dict[str, Any], place: Path, /, **how: Any) -> AbstractContextManager[Serving]:
    """A server with a small model of its own and these bounds."""
    script = Path(__file__).parent / "small_server.py"
    return serving(json.dumps(limits), json.dumps(how), log=place, command=[sys.executable, str(script)])


def wait_until(true, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)
