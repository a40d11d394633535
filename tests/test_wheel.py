"""What is released: the wheel and the archive of sources, built, read, and the wheel at work in a fresh environment.

It has the packages of this one (so nothing is fetched), but not pellucid: that comes from the wheel.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import pellucid

ROOT = Path(pellucid.__file__).parents[1]
STEM = f"pellucid-{pellucid.__version__}"
MEGABYTES = 64  # of the wheel at most: the weights of the shipped models, and a little code
AT_WORK = """
import contextlib, io, json, sys, time
begun = time.perf_counter()
import pellucid
light = {"seconds": time.perf_counter() - begun, "torch": "torch" in sys.modules, "modules": len(sys.modules)}
from pathlib import Path
from pellucid.cli import main
home = Path(pellucid.__file__).parent
ship = str(home / "cli" / "samples" / "ship.png")
for words in (["predict", "vit-cifar10", ship, "--json"], ["caption", "captioner-scenes", ship],
              ["attend", "vit-cifar10", ship, "--out", "ship.html"],
              ["train", "vit_digits", "--duration", "3 steps", "--device", "cpu", "--out", "run"]):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(words) == 0, words
    if "--json" in words:
        light["answer"] = json.loads(said.getvalue())[0]
print(json.dumps(light | {"home": str(home)}))
"""
OWN_MODEL = """
import torch
from torch import nn
model, x = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 2), torch.randn(1, 5, 16)
import pellucid
seen = pellucid.look(model, given=x)
viewer, weights = seen.show(), seen.record("layers.1.self_attn").weights()
print(list(weights.shape), round(float(weights[0, 0, 0].sum()), 4), *viewer._repr_mimebundle_()[0])
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """Both, built from the tree."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_the_index_would_take_both(dist):
    files = [str(dist / f"{STEM}-py3-none-any.whl"), str(dist / f"{STEM}.tar.gz")]
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_has_the_package_and_nothing_else(dist):
    wheel = dist / f"{STEM}-py3-none-any.whl"
    assert wheel.stat().st_size < MEGABYTES * 2**20
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    assert {name.partition("/")[0] for name in inside} == {"pellucid", f"{STEM}.dist-info"}
    assert f"{STEM}.dist-info/licenses/LICENSE" in inside
    there = {
        f"pellucid/{path.relative_to(ROOT / 'pellucid').as_posix()}"
        for path in (ROOT / "pellucid").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in inside if name.startswith("pellucid/")} == there
    assert "pellucid/py.typed" in inside


def test_the_sources_have_what_it_takes_to_test_and_to_build_them(dist):
    with tarfile.open(dist / f"{STEM}.tar.gz") as archive:
        inside = {name.removeprefix(f"{STEM}/") for name in archive.getnames()}
    for needed in ("pyproject.toml", "Makefile", "README.md", "LICENSE", "tests/conftest.py", "docs/site/build.py"):
        assert needed in inside
    assert not [name for name in inside if name.startswith((".", "runs/", "demo/", "dist/")) and name != ".gitignore"]


@pytest.fixture(scope="module")
def fresh(dist, tmp_path_factory) -> Path:
    """The interpreter of an environment into which the wheel was installed."""
    fresh = tmp_path_factory.mktemp("fresh") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True)
    python = fresh / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(dist / f"{STEM}-py3-none-any.whl")], check=True)
    (site,) = fresh.glob("lib/python*/site-packages")
    # A path in a .pth file brings its packages; its own .pth files, one of which is our checkout's, aren't read.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run_fresh(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_it_works_in_a_fresh_environment(fresh, tmp_path):
    """A command tells its version; then it predicts, captions, draws attention and trains for some steps."""
    told = run_fresh(tmp_path, fresh.with_name("pellucid"), "--version")
    assert told.stdout == f"pellucid {pellucid.__version__}\n", told.stderr
    done = run_fresh(tmp_path, fresh, "-c", AT_WORK)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert Path(said["home"]).is_relative_to(fresh.parents[1])
    assert "ship" in json.dumps(said["answer"])
    assert (tmp_path / "ship.html").stat().st_size > 100_000
    assert (tmp_path / "run" / "checkpoints" / "last.safetensors").is_file()
    # The light core: nothing heavy is imported before it is asked for.
    assert not said["torch"]
    assert said["modules"] < 300
    assert said["seconds"] < 0.5


def test_a_map_of_ones_own_model_is_three_commands_away(fresh, tmp_path):
    """pip install, import, look: what a notebook shows of it is the viewer, and nothing is said beside it."""
    done = run_fresh(tmp_path, fresh, "-c", OWN_MODEL)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    shape, _, kinds = done.stdout.rpartition(" 1.0 ")
    assert shape == "[1, 2, 5, 5]"
    assert "application/vnd.jupyter.widget-view+json" in kinds
