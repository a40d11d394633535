"""A process that reads hostile files for the tests, each of them within 1 GB and 10 s of the processor.

It imports the readers once, and forks for every batch that it is told on its standard input, a JSON line each. What
comes of each file is a JSON line on its standard output. `Reader` is the way to talk to it.
"""

import contextlib
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GIGABYTE, SECONDS = 1 << 30, 10.0
SLEEPS = 120  # seconds after which a reader that waits, without using the processor, is ended


class Reader:
    """Somebody to give hostile files to.

    >>> with Reader() as reader:
    ...     [said] = reader.outcomes(paths=[("picture", "/dev/null")])
    >>> said["said"]
    "/dev/null can't be read: it is a folder, a pipe or a device; expected a file"
    """

    def __enter__(self) -> "Reader":
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | one_thread,
        )  # fmt: skip
        return self

    def __exit__(self, *_: Any) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def outcomes(self, **job: Any) -> Iterator[dict[str, Any]]:
        """What came of each file: `said` (None if it was read) or `failed`, with `seconds` and `megabytes`.

        paths: pairs of a format and what is to be read; files: the same, put where the format's own file would lie; or
        format, seed, first and count: inputs made from the format's own files.
        After one that ends the process, another goes on with the next.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        while True:
            print(json.dumps(job), file=self.process.stdin, flush=True)
            at = -1
            for line in self.process.stdout:
                outcome = json.loads(line)
                if "at" in outcome:
                    at = outcome["at"]
                elif "ended" in outcome:
                    break
                else:
                    yield outcome
            else:
                raise RuntimeError("the reading process is gone")
            if outcome["ended"] == 0:
                return
            yield {"index": at, "said": None, "failed": f"it was ended by {describe(outcome['ended'])}"}
            if "format" not in job:
                job |= {key: job[key][at + 1 :] for key in ("paths", "files") if key in job}
            else:
                job["count"] -= at + 1 - job["first"]
                job["first"] = at + 1


def describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return {signal.SIGPROF: "the limit of its time", signal.SIGALRM: "sleeping"}.get(
            number, signal.Signals(number).name
        )
    return f"the exit code {os.waitstatus_to_exitcode(status)}"


# In the child


def main() -> None:
    import fuzz_formats  # the readers, imported once

    logging.getLogger("pellucid").addHandler(logging.NullHandler())
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                run(json.loads(line), fuzz_formats)
                status = 0
            os._exit(status)
        _, status = os.waitpid(pid, 0)
        tell({"ended": status})


def run(job: dict[str, Any], formats: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + GIGABYTE, -1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # C libraries say on their own what they think of a file
    with tempfile.TemporaryDirectory(prefix="pellucid-fuzz-") as folder:
        os.chdir(folder)
        tempfile.tempdir = folder
        for i, (name, path) in enumerate(job.get("paths", ())):
            tell(
                read(
                    i, lambda name=name, path=path: formats.FORMATS[name].read(Path(path)), job.get("seconds", SECONDS)
                )
            )
        for i, (name, path) in enumerate(job.get("files", ())):
            place = formats.FORMATS[name].prepare(Path(tempfile.mkdtemp()))
            place.write_bytes(Path(path).read_bytes())
            tell(read(i, lambda name=name, place=place: formats.FORMATS[name].read(place)))
        if "format" not in job:
            return
        chosen = formats.FORMATS[job["format"]]
        place = chosen.prepare(Path(folder))
        kept = {path for path in place.parent.rglob("*") if path.is_file()}
        for index in range(job["first"], job["first"] + job["count"]):
            place.write_bytes(formats.make_input(job["format"], job["seed"], index))
            outcome = read(index, lambda: chosen.read(place))
            outcome["strays"] = remove_strays(place.parent, kept)
            tell(outcome)


def read(index: int, attempt: Callable[[], Any], seconds: float = SECONDS) -> dict[str, Any]:
    """What comes of one file."""
    tell({"at": index})
    signal.setitimer(signal.ITIMER_PROF, seconds)  # ends the process
    signal.alarm(SLEEPS)
    before, peak_before, started = memory("VmRSS"), memory("VmHWM"), cpu()
    said = failed = None
    try:
        attempt()
    except (ValueError, OSError) as error:
        said = str(error)
        if not said.strip() or "\n" in said or "enough memory" in said or len(said) > 2000:
            failed = f"it said {said[:300]!r}"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        failed = f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"
    signal.setitimer(signal.ITIMER_PROF, 0)
    peak = memory("VmHWM")
    grown = peak - before if peak > peak_before else 0
    return {"index": index, "said": said, "failed": failed, "seconds": cpu() - started, "megabytes": grown / 1e6}


def remove_strays(folder: Path, kept: set[Path]) -> list[str]:
    """The names of files that weren't there before; afterwards they aren't again."""
    strays = [path for path in folder.rglob("*") if path.is_file() and path not in kept]
    for path in strays:
        path.unlink()
    return [str(path) for path in strays]


def memory(what: str) -> int:
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(what))


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def tell(outcome: dict[str, Any]) -> None:
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
