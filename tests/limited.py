"""Commands and code in a process of their own, which is ended if it takes more memory or time than it may."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

LIMIT = """
import resource
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + ({megabytes} << 20),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + {seconds} + 1,) * 2)
"""
COMMANDS = """
def run(words):
    said, printed, started, code = io.StringIO(), io.StringIO(), time.process_time(), None
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            code = main(words)
    except BaseException as error:
        code = f"{type(error).__name__}: {str(error)[:200]}"
    return code, said.getvalue(), time.process_time() - started

print(json.dumps([run(words) for words in json.loads(sys.stdin.read())]))
"""


class Answer(NamedTuple):
    """What a command came to: exit code or, if it failed otherwise, the exception; what it said; CPU seconds."""

    code: Any
    said: str
    seconds: float


def run_limited(code: str, *, imports: str = "", given: str = "", megabytes: int = 1024, seconds: int = 10) -> str:
    """What the code prints. megabytes: beyond what Python and the imports take; seconds: of the processor's time."""
    limit = LIMIT.format(megabytes=megabytes, seconds=seconds)
    program = "\n".join(["import time", textwrap.dedent(imports), limit, textwrap.dedent(code)])
    ran = subprocess.run(
        [sys.executable, "-c", program], input=given, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, f"exit code {ran.returncode}: {ran.stderr[-2000:]}"
    return ran.stdout


def run_commands(commands: list[list[str | Path]], *, megabytes: int = 1024, seconds: int = 10) -> list[Answer]:
    """What `pellucid` answers to each of these, one after the other in one process; seconds are for each."""
    imports = """
    import contextlib, io, json, sys
    import torch
    from pellucid.cli import main
    """  # PyTorch for CUDA takes more than a command may
    given = json.dumps([list(map(str, words)) for words in commands])
    total = seconds * len(commands)
    return [
        Answer(*each)
        for each in json.loads(run_limited(COMMANDS, imports=imports, given=given, megabytes=megabytes, seconds=total))
    ]
