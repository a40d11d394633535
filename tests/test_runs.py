"""The run folder: its layout, its kind, its checkpoints, and folders of earlier versions."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pellucid.models import ViT, ViTConfig
from pellucid.ready import ReadyCaptioner, ReadyClassifier, load, load_checkpoint
from pellucid.runs import CaptionerRun, ClassifierRun, RunFolder
from pellucid.runs.folder import is_run, kind_of_run
from pellucid.serve.runs import Runs
from pellucid.training import train
from pellucid.training.checkpoint import save_checkpoint

OLD = Path(__file__).parent / "runs-0.1"  # as pellucid 0.1 left them at commit b4f5393, without their curves
LOOKS = ViTConfig(classes=2, image=(8, 8), width=8, depth=1, heads=1, mean=(0.5,) * 3, std=(0.3,) * 3)


@pytest.fixture
def old(tmp_path):
    shutil.copytree(OLD, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("name", "run", "ready"),
    [("classifier", ClassifierRun, ReadyClassifier), ("captioner", CaptionerRun, ReadyCaptioner)],
)
def test_a_folder_of_0_1_opens(old, name, run, ready):
    config = json.loads((old / name / "config.json").read_text())
    assert "kind" not in config
    assert type(RunFolder(old / name).run()) is run
    assert kind_of_run(config) == name
    model = load(old / name)
    assert type(model) is ready
    stage = old / name / "critical" if name == "captioner" else old / name
    kept = load_file(stage / "checkpoints" / "best.safetensors")
    state = model.model.state_dict()
    assert {f"model.{key}" for key in state} == set(kept)
    assert all(torch.equal(kept[f"model.{key}"], value) for key, value in state.items())
    assert {each["name"]: each["kind"] for each in Runs(old).summaries()}[name] == name


def test_a_folder_of_0_1_answers(old):
    best = load(old / "classifier").predict(torch.zeros(1, 8, 8), top=2)
    assert best[0].probability >= best[1].probability
    assert load(old / "captioner").caption(torch.zeros(3, 48, 48))[0].score < 0
    listing = RunFolder(old / "classifier").checkpoints.listing()
    assert [(each.step, each.path.stem) for each in listing if each.path.stem.startswith("step")] == [
        (3, "step-3"),
        (6, "step-6"),
    ]
    three, six = (
        load_checkpoint(old / "classifier", RunFolder(old / "classifier").checkpoints.kept(n)) for n in (3, 6)
    )
    x = torch.rand(1, 1, 8, 8)
    assert not torch.equal(three.model(x), six.model(x))


def test_a_run_of_0_1_goes_on(old, tmp_path):
    """From its last checkpoint, longer than it was planned: the plan is what it keeps to."""
    folder = RunFolder(old / "classifier")
    lines = folder.log_file.read_bytes()
    for name in ("best", "step-6"):
        (folder.checkpoints.folder / f"{name}.safetensors").unlink()
    result = train(old / "classifier", progress=False)
    assert (result.steps, result.folder) == (6, old / "classifier")
    assert folder.log_file.read_bytes() == lines
    assert result.model.kind == "classifier"


def test_a_new_run_says_what_it_is(tmp_path):
    for run in (ClassifierRun(recipe="x"), CaptionerRun(recipe="x")):
        folder = RunFolder(tmp_path / run.kind)
        folder.create(run)
        assert json.loads(folder.config_file.read_text())["kind"] == run.kind
        assert folder.run() == run
        assert is_run(json.loads(folder.config_file.read_text()))
    assert ClassifierRun.kind != CaptionerRun.kind


def test_a_kind_that_nobody_knows_gets_a_sentence(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(ClassifierRun(recipe="x"))
    config = json.loads(folder.config_file.read_text()) | {"kind": "painter"}
    folder.config_file.write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match=r"config kind is 'painter'; expected one of 'classifier', 'captioner', 'translator'"
    ):
        folder.run()


def test_a_saved_model_is_no_run(tmp_path):
    ViT(LOOKS).save_pretrained(tmp_path / "saved")
    assert not is_run(json.loads((tmp_path / "saved" / "config.json").read_text()))


def test_checkpoints_in_parts_are_seen_by_everybody(tmp_path):
    """A folder last-STEP counts as last.safetensors does: to go on from, to load, to list and to serve."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    folder = RunFolder(tmp_path / "runs" / "spread")
    folder.create(ClassifierRun(recipe="vit_digits", model=LOOKS))
    model, older = ViT(LOOKS), ViT(LOOKS)
    parts = folder.checkpoints.last_in_parts(8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        writer = HuggingFaceStorageWriter(str(parts), save_distributed=True)
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        save(tensors, storage_writer=writer, no_dist=True)
    assert folder.checkpoints.newest() is None  # without its facts it isn't whole
    files = {part.name: part.stat().st_size for part in parts.iterdir()}
    (parts / "facts.json").write_text(json.dumps({"step": 8, "seconds": 1.0, "files": files}))
    assert folder.checkpoints.newest() == folder.checkpoints.weights() == parts
    state = {f"model.{name}": tensor for name, tensor in older.state_dict().items()}
    save_checkpoint(folder.checkpoints.last, state, {"step": 5, "seconds": 1.0})
    assert folder.checkpoints.newest() == parts  # the newer of the two
    assert [each.step for each in folder.checkpoints.listing()] == [5, 8]
    loaded = load(folder.path).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())
    runs = Runs(tmp_path / "runs")
    assert [each.step for each in runs.checkpoints(folder.path)] == [5, 8]
    assert runs.weights_written(folder.path.resolve()) is not None
