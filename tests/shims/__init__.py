"""Small libraries in C that stand between a program and the system (LD_PRELOAD), and the tests that need them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def compile_shim(name: str, folder: Path) -> Path:
    """The library of NAME.c; the test skips where there is no Linux or no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("no C compiler on Linux")
    library = folder / f"{name}.so"
    source = Path(__file__).parent / f"{name}.c"
    command = [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library
