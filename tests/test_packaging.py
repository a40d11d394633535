"""The core runs without any extra, each extra without the others, and what is missing is told in one sentence.

Nothing is installed for it: a process whose importer refuses whatever the extra doesn't bring stands for a fresh
environment. What it brings is read off pyproject.toml and the metadata of what is installed.
"""

import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pellucid
from pellucid.extras import EXTRAS

ROOT = Path(pellucid.__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL = PROJECT["optional-dependencies"]
UNASKED = {"jpeg"}  # without it the same is done, slower: nobody is asked to install it
USES = [extra for extra in OPTIONAL if extra not in ("all", "dev", "docs")]

# It stands before the code of a test, which has `main`, `ship` (a picture) and the current folder to itself.
REFUSING = """
import json, sys
from importlib.machinery import PathFinder
refused = set(json.loads(sys.argv[1]))
class Refusing(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in refused else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Refusing
import contextlib, io
import pellucid
from pathlib import Path
from pellucid.cli import main
ship = str(Path(pellucid.__file__).parent / "cli" / "samples" / "ship.png")
train = ["train", "vit_digits", "--duration", "2 steps", "--model.depth", "1", "--device", "cpu"]
"""


def needed(requirements: list[str]) -> set[str]:
    """The distributions that these requirements bring, with all that those need in turn."""
    todo, done = [Requirement(each) for each in requirements], set()
    names: set[str] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in done:
                continue
            done.add((name, extra))
            try:
                more = (OPTIONAL[extra] if extra else []) if name == "pellucid" else metadata.requires(name) or []
            except metadata.PackageNotFoundError:  # not for this platform
                continue
            names.add(name)
            more = [Requirement(each) for each in more]
            todo += [each for each in more if each.marker is None or each.marker.evaluate({"extra": extra})]
    return names


def without(*requirements: str) -> list[str]:
    """The top-level modules of all that is installed and that neither the core nor these requirements bring."""
    there = needed([*PROJECT["dependencies"], *requirements]) | {"pellucid"}
    distributions = metadata.packages_distributions().items()
    return [name for name, owners in distributions if there.isdisjoint(map(canonicalize_name, owners))]


def run_without(refused: list[str], code: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", REFUSING + code, json.dumps(refused)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CORE = """
import torch
q, k, v = torch.randn(3, 1, 2, 4, 8)
assert pellucid.ops.attend(q, k, v).shape == (1, 2, 4, 8)
from pellucid.layers import MultiHeadAttention
model = MultiHeadAttention(8, heads=2)
with pellucid.watch(model) as seen:
    model(torch.randn(1, 4, 8))
assert len(seen) == 1
for words in (["predict", "vit-cifar10", ship], [*train, "--out", "run"], ["data", "look", "digits"],
              ["caption", "captioner-scenes", ship], ["attend", "vit-cifar10", ship, "--figure", "heads.png"]):
    assert main(words) == 0, words
"""
USE = {
    "serve": """
import asyncio
from pellucid.serve.app import create_app
from pellucid.serve.server import run
app, sent = create_app({}), []
async def receive(): return {"type": "http.request", "body": b"", "more_body": False}
async def send(message): sent.append(message)
scope = {"type": "http", "method": "GET", "path": "/api/samples", "raw_path": b"/api/samples", "query_string": b"",
         "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
         "scheme": "http", "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0"}}
asyncio.run(app(scope, receive, send))
assert sent[0]["status"] == 200 and b"flower" in sent[1]["body"], sent
""",
    "notebook": """
assert main(["attend", "vit-cifar10", ship, "--trace", "ship.pellucid"]) == 0
from pellucid.views.bundle import load_trace
assert "iframe" in pellucid.show(load_trace("ship.pellucid")).fallback()
""",
    "captions": """
import shutil
from pellucid.evaluation import jars
shutil.which = lambda name: "/usr/bin/java"
assert jars.find_jar("meteor").name == "meteor-1.5.jar"
""",
    "hf": """
import datasets
from PIL import Image
names = datasets.ClassLabel(names=["cat", "dog"])
features = datasets.Features({"image": datasets.Image(), "label": names})
table = {"image": [Image.new("RGB", (8, 8))] * 4, "label": [0, 1, 0, 1]}
datasets.Dataset.from_dict(table, features=features).save_to_disk("table")
from pellucid.data import DataConfig, load_images
assert load_images(DataConfig("hf:table")).train.classes == ("cat", "dog")
""",
    "jpeg": """
import numpy as np
from PIL import Image
from pellucid.data import jpeg
flower = Path(pellucid.__file__).parent / "cli" / "samples" / "flower.jpg"
with Image.open(flower) as image:
    assert (jpeg.decode_plain(image, 3) == np.array(image)).all()
""",
    "translation": """
from pellucid.evaluation.translation import bleu
assert bleu(["a man rides a horse"], ["a man rides a horse"]) > 99
""",
    "look": """
try:
    import torchvision  # beside a build of PyTorch that lacks its operators it can't be imported
except RuntimeError:
    refused.add("torchvision")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
import torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=9))
model.save_pretrained("tiny")
found = pellucid.load("hf:tiny").trace(arguments={"input_ids": torch.tensor([[1, 2, 3]])})
assert [layer.name for layer in found.layers] == ["transformer.h.0.attn"]
""",
    "flow": 'assert main(["attend", "vit-cifar10", ship, "--method", "flow"]) == 0',
    "tensorboard": """
assert main([*train, "--tensorboard", "--out", "run"]) == 0
assert list(Path("run/tensorboard").iterdir())
""",
}
# How each extra is asked for where it is missing, and who needs it then.
MISSING = """
import shutil
from pellucid.evaluation import jars
from pellucid.evaluation.translation import bleu
from pellucid.extras import MissingExtra
shutil.which = lambda name: "/usr/bin/java"
def said(words):
    with contextlib.redirect_stderr(io.StringIO()) as stream:
        assert main(words) == 2, words
    return stream.getvalue().removeprefix("pellucid: ").strip()
def raised(use):
    try:
        use()
    except ImportError as error:
        assert isinstance(error, ValueError)
        return str(error)
print(json.dumps({
    "serve": said(["serve"]),
    "notebook": raised(lambda: pellucid.show),
    "captions": raised(lambda: jars.find_jar("meteor")),
    "hf": said(["data", "inspect", "hf:table"]),
    "translation": raised(lambda: bleu(["a"], ["a"])),
    "flow": said(["attend", "vit-cifar10", ship, "--method", "flow"]),
    "look": said(["attend", "hf:tiny", "--text", "a"]),
    "tensorboard": said([*train, "--tensorboard", "--out", "board"]),
}))
"""
SENTENCES = {
    "serve": "pellucid serve needs FastAPI: pip install 'pellucid[serve]'",
    "notebook": "pellucid.show needs anywidget: pip install 'pellucid[notebook]'",
    "captions": "METEOR needs pycocoevalcap: pip install 'pellucid[captions]'",
    "hf": "hf: needs Hugging Face's datasets: pip install 'pellucid[hf]'",
    "translation": "measuring translations needs sacreBLEU: pip install 'pellucid[translation]'",
    "flow": "the method flow needs SciPy: pip install 'pellucid[flow]'",
    "look": "hf:tiny needs Hugging Face's transformers: pip install 'pellucid[look]'",
    "tensorboard": "--tensorboard needs TensorBoard: pip install 'pellucid[tensorboard]'",
}


def test_the_core_needs_no_extra_and_tells_which_one_is_missing(tmp_path):
    refused = without()
    assert {"fastapi", "anywidget", "sklearn", "scipy", "datasets", "tensorboard", "pytest"} <= set(refused)
    assert json.loads(run_without(refused, CORE + MISSING, tmp_path).splitlines()[-1]) == SENTENCES


@pytest.mark.parametrize("extra", USES)
def test_each_extra_is_enough_for_its_use(extra, tmp_path):
    refused = without(f"pellucid[{extra}]")
    others = {name for name, (_, other) in EXTRAS.items() if other != extra}
    assert others & set(refused)
    run_without(refused, USE[extra], tmp_path)


def test_what_is_told_is_what_pyproject_says():
    core = needed(PROJECT["dependencies"])
    owners = metadata.packages_distributions()
    for module, (_, extra) in EXTRAS.items():
        brought = set(map(canonicalize_name, owners[module]))
        assert brought <= needed(OPTIONAL[extra]), module
        assert brought.isdisjoint(core), module
    assert set(USES) - UNASKED == {extra for _, extra in EXTRAS.values()} == set(USE) - UNASKED == set(SENTENCES)
    assert needed(OPTIONAL["all"]) == set().union(*(needed(OPTIONAL[extra]) for extra in USES)) | {"pellucid"}
    assert "pellucid[all,docs]" in OPTIONAL["dev"]


def test_the_constraints_name_all_that_is_needed():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if not line.startswith("#")}
    missing = needed([*PROJECT["dependencies"], *OPTIONAL["dev"]]) - pinned - {"pellucid"}
    assert missing <= {"setuptools", "pip"}
