"""Power fails at any moment: what was said to be saved is there, and the run ends as if nothing had happened.

The real command runs once under a recorder; then disks are made that have forgotten whatever was not synced.
"""

import json
import os
import random
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from shims import compile_shim
from shims.disk import Disk, File, Operation, read_operations, read_promises
from trainings import TINY, WILD, Started, assert_same_run, words_for

from pellucid.runs import RunFolder
from pellucid.runs.checkpoints import check_checkpoint, read_facts
from pellucid.runs.log import Log

pytestmark = pytest.mark.slow

OPTIONS = {
    "vit_digits": [
        *TINY,
        *WILD,
        *shlex.split("--duration '12 steps' --checkpoint-every '3 steps' --keep-every '5 steps'"),
    ],
    "captioner_scenes": shlex.split(
        "--model.encoder.width 16 --model.encoder.depth 1 --model.encoder.heads 2 --model.layers 1 --model.heads 2 "
        "--model.dropout 0.1 --data.size 36 36 --data.scenes.train 32 --data.scenes.validation 2 --data.scenes.test 2 "
        "--batch 8 --optim.ema 0.9 --duration '8 steps' --evaluate-every '4 steps' --checkpoint-every '2 steps' "
        "--critical.duration '6 steps' --critical.batch 4 --critical.samples 2"
    ),
}  # fmt: skip
LOOKED_AT, ENDED = 150, 10  # power cuts of each run: whose disks are looked at, and after which it goes on to its end


@dataclass
class Recording:
    recipe: str
    root: Path
    operations: list[Operation]

    def cut(self, moment: int, target: Path, generator: random.Random, forgetful: str = "") -> Path:
        """The run's folder as power failed after so many operations."""
        disk = Disk(self.root, forgetful)  # pyright: ignore[reportArgumentType]
        for operation in self.operations[:moment]:
            disk.do(operation)
        disk.after_power_cut(target, generator)
        return target / "run"

    def broken_promises(self, moment: int, folder: Path) -> list[str]:
        """What was said to be saved by then, and isn't."""
        broken, logged = [], {}
        for number, promise in read_promises(self.operations, self.root):
            if number > moment:
                break
            where = folder / Path(promise["where"]).relative_to(self.root / "run")
            if promise["what"] in ("log", "cut_log"):
                logged[where] = promise.get("step", 0)
            elif not is_kept(promise, RunFolder(where)):
                broken.append(f"{promise['what']} of step {promise.get('step')}")
        for where, step in logged.items():
            log = Log()
            if not RunFolder(where).log_file.is_file():
                broken.append("the log")
                continue
            log.read(RunFolder(where).log_file)
            if {each.step for each in log.steps} < set(range(1, step + 1)):
                broken.append(f"the log of step {step}")
        return broken


def is_kept(promise: dict, folder: RunFolder) -> bool:
    checkpoints, step = folder.checkpoints, promise.get("step", 0)
    try:
        match promise["what"]:
            case "create":
                folder.run()
                return all((folder.path / name).read_text() for name in promise["files"])
            case "keep_plan":
                plan = folder.plan()
                return plan is not None and plan.steps == promise["steps"]
            case "save_last":
                state, problems = checkpoints.newest_whole()
                return not problems and state is not None and read_facts(state)["step"] >= step
        path = checkpoints.best if promise["what"] == "save_best" else checkpoints.kept(step)
        check_checkpoint(path)
        return read_facts(path)["step"] >= step
    except (ValueError, OSError):
        return False


@pytest.fixture(scope="module", params=OPTIONS)
def recording(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    root, log = (folder / "root").resolve(), folder / "operations"
    root.mkdir()
    shim = compile_shim("recorder", folder)
    script = Path(__file__).parent / "shims" / "recorded.py"
    words = ["train", request.param, "--out", str(root / "run"), *OPTIONS[request.param]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": str(shim)}
    environment |= {"RECORDED_ROOT": str(root), "RECORDED_LOG": str(log)}
    subprocess.run(
        [sys.executable, str(script), *words], env=environment, check=True, timeout=300, stdout=subprocess.DEVNULL
    )
    return Recording(request.param, root, list(read_operations(log)))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_record_is_all_that_happened(recording, tmp_path):
    """Done again it leaves every file to the byte; so nothing goes past the recorder."""
    disk = Disk(recording.root)
    for operation in recording.operations:
        disk.do(operation)
    disk.now(tmp_path / "now")
    assert contents(tmp_path / "now") == contents(recording.root)
    assert recording.broken_promises(len(recording.operations), recording.root / "run") == []
    kinds = {promise["what"] for _, promise in read_promises(recording.operations, recording.root)}
    assert {"create", "keep_plan", "log", "cut_log", "save_last", "save_best"} <= kinds


def test_what_was_said_to_be_saved_is_there_after_a_power_cut(recording, tmp_path):
    seed = random.randrange(1 << 32)
    print(f"the moments' seed is {seed}")
    generator, outcomes = random.Random(seed), set()
    for cut in range(LOOKED_AT):
        moment = generator.randrange(len(recording.operations) + 1)
        folder = recording.cut(moment, tmp_path / str(cut), generator)
        assert recording.broken_promises(moment, folder) == []
        for place in (folder, folder / "critical"):
            assert RunFolder(place).checkpoints.newest_whole()[1] == []  # a state is whole, or it isn't there
        outcomes.add(tuple(sorted((name, len(content)) for name, content in contents(folder).items())))
    assert len(outcomes) > LOOKED_AT / 4  # they are not all the same disk


def test_the_run_ends_the_same_after_a_power_cut(recording, tmp_path):
    seed = random.randrange(1 << 32)
    print(f"the moments' seed is {seed}")
    generator = random.Random(seed)
    last = next(i for i, op in enumerate(recording.operations) if "curves.png" in op.path)
    for cut in range(ENDED):
        moment = generator.randrange(last * cut // ENDED, last * (cut + 1) // ENDED)
        folder = recording.cut(moment, tmp_path / str(cut), generator)
        words = words_for(folder, *OPTIONS[recording.recipe])
        code, said = Started(folder, *words, recipe=recording.recipe).ended()
        assert code == 0, said
        assert_same_run(folder, recording.root / "run")
        if recording.recipe == "captioner_scenes":
            assert_same_run(folder / "critical", recording.root / "run" / "critical")


@pytest.mark.parametrize("forgetful", ["folders", "files"])
def test_without_syncing_both_something_is_lost(forgetful, recording, tmp_path):
    """So that the tests above can fail: the same run on a disk that is not told of folders, or not of files."""
    generator, lost = random.Random(0), set()
    for cut in range(LOOKED_AT):
        moment = generator.randrange(len(recording.operations) + 1)
        folder = recording.cut(moment, tmp_path / str(cut), generator, forgetful)
        lost |= {what.partition(" of ")[0] for what in recording.broken_promises(moment, folder)}
    assert {"create", "keep_plan", "save_last", "save_best"} <= lost


def test_a_file_after_a_power_cut():
    """Sectors of any age, sizes of any age; what was synced stays."""
    file = File(b"a" * 1024)
    file.since += [(0, b"b" * 1024), (512, b"c" * 1024)]
    assert file.content() == b"b" * 512 + b"c" * 1024
    seen = {file.content(random.Random(seed)) for seed in range(300)}
    assert {content[:512] for content in seen} == {b"a" * 512, b"b" * 512}
    assert {content[512:1024] for content in seen} >= {b"a" * 512, b"b" * 512, b"c" * 512}
    assert {len(content) for content in seen} == {1024, 1536}
    assert any(content[1024:] == bytes(512) for content in seen)  # longer, and not yet filled
    file.since.append(100)
    assert file.content() == b"b" * 100
    file.sync()
    assert {file.content(random.Random(seed)) for seed in range(20)} == {b"b" * 100}


def test_names_after_a_power_cut(tmp_path):
    """One rename is there or not, and what was synced before stays whatever became of it."""
    root, operations = Path("/root"), []

    def do(letter: str, path: str, data: str = "", number: int = 0) -> None:
        operations.append(Operation(letter, f"/root/{path}", data.encode(), number, 0))

    do("C", "old")
    do("W", "old", "old")
    do("S", "old")
    do("C", "new")
    do("W", "new", "new")
    do("S", "new")
    operations.append(Operation("S", "/root", b"", 0, 0))
    do("R", "new", "/root/old")
    seen = []
    for seed in range(30):
        disk = Disk(root)
        for operation in operations:
            disk.do(operation)
        disk.after_power_cut(tmp_path / str(seed), random.Random(seed))
        seen.append(contents(tmp_path / str(seed)))
    assert {
        json.dumps({name: content.decode() for name, content in each.items()}, sort_keys=True) for each in seen
    } == {
        '{"new": "new", "old": "old"}',
        '{"old": "new"}',
    }
