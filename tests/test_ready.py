"""A model that can be asked, and training from Python: what a user writes, with models and data of their own."""

import io
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from speaking import CAPTIONS, captioner, pictures
from torch import nn

import pellucid
from pellucid.data import ImageSet
from pellucid.data.augment import Normalise
from pellucid.data.reader import PictureReader
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.models import ViT, ViTConfig
from pellucid.ready import ReadyCaptioner, ReadyClassifier
from pellucid.runs import ClassifierRun, RunFolder

LABELS = ("cat", "dog", "bird")
LOOKS = ViTConfig(classes=3, image=(8, 12), width=16, depth=2, heads=2, labels=LABELS, mean=(0.5,) * 3, std=(0.3,) * 3)


@pytest.fixture(scope="module")
def sees():
    torch.manual_seed(0)
    return ReadyClassifier(ViT(LOOKS), name="sees")


@pytest.fixture(scope="module")
def tells():
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    return ReadyCaptioner(captioner(tokenizer), tokenizer, name="tells")


# Reading pictures


def ways(pixels: torch.Tensor, path) -> dict:
    """One picture in every form that is taken."""
    array = pixels.permute(1, 2, 0).numpy()
    image = Image.fromarray(array)
    image.save(path)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return {
        "path": path,
        "text": str(path),
        "bytes": stream.getvalue(),
        "PIL": image,
        "array": array,
        "array of numbers": array / 255,
        "tensor": pixels,
        "tensor of numbers": pixels / 255,
    }


def test_a_picture_is_the_same_however_it_comes(sees, tmp_path):
    pixels = torch.randint(256, (3, 8, 12), dtype=torch.uint8)
    forms = ways(pixels, tmp_path / "a.png")
    for name, form in forms.items():
        assert torch.equal(sees.read(form)[0], pixels), name
    assert len(sees.read(list(forms.values()))) == len(forms)
    assert torch.equal(sees.read(torch.stack([pixels, pixels])), torch.stack([pixels, pixels]))


def test_another_size_is_brought_to_the_models(sees, tells, tmp_path):
    """A classifier keeps the centre, a captioner all of the picture; by whatever way it comes."""
    pixels = torch.randint(256, (3, 30, 20), dtype=torch.uint8)
    for model in (sees, tells):
        first, *others = (model.read(form)[0] for form in ways(pixels, tmp_path / "a.png").values())
        assert first.shape == (3, 8, 12)
        assert all(torch.equal(first, other) for other in others)
    assert not torch.equal(sees.read(pixels), tells.read(pixels))


def test_grey_becomes_colour_and_colour_grey():
    grey = PictureReader((4, 4), 1, Normalise((0.5,), (0.5,)))
    assert grey.read(np.full((4, 4), 7, dtype=np.uint8)).tolist() == [[[7] * 4] * 4]
    assert grey.read(torch.full((3, 4, 4), 9, dtype=torch.uint8)).unique().tolist() == [9]
    colour = replace(grey, channels=3, normalise=Normalise((0.5,) * 3, (0.5,) * 3))
    assert colour.read(np.full((4, 4, 1), 7, dtype=np.uint8)).shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("picture", "sentence"),
    [
        (torch.zeros(2, 8, 12), r"the picture is \(2, 8, 12\); expected \(y x\) or \(c y x\) with 1 or 3 channels"),
        (np.zeros((1, 2, 3, 4, 5)), r"the picture is \(1, 2, 3, 4, 5\); expected \(y x\)"),
        (3, "the picture is a int; expected a Pillow image, an array or a tensor"),
        (torch.full((3, 8, 12), 2.0), "has the values 2…2; expected floats in 0…1, or bytes"),
        (torch.full((3, 8, 12), torch.nan), "expected floats in 0…1, or bytes"),
        (np.zeros((8, 12, 3), dtype=np.int64), "holds int64; expected uint8"),
        ("nowhere.png", "nowhere.png can't be read: No such file"),
        (b"no picture", "can't be read"),
    ],
)
def test_what_is_no_picture_gets_a_sentence(sees, picture, sentence):
    with pytest.raises(ValueError, match=sentence):
        sees.predict(picture)


# Asking


def test_one_picture_gives_answers_and_many_give_lists(sees, tells):
    pixels = torch.randint(256, (2, 3, 8, 12), dtype=torch.uint8)
    one, many = sees.predict(pixels[0], top=2), sees.predict(list(pixels), top=2)
    assert [best.label for best in one] == [best.label for best in many[0]]
    assert [best.probability for best in one] == pytest.approx([best.probability for best in many[0]], abs=1e-6)
    assert [len(best) for best in many] == [2, 2]
    assert one[0].label in LABELS
    assert len(sees.predict(pixels[0], top=99)) == 3
    with pytest.raises(ValueError, match="top is 0; expected one or more"):
        sees.predict(pixels[0], top=0)
    images = pictures()
    assert [str(best) for best, *_ in tells.caption(images)] == list(CAPTIONS)
    assert tells.caption(images[1])[0].text == CAPTIONS[1]
    assert [len(best) for best in tells.caption(list(images), beam=3, n_best=2)] == [2] * 5


def test_probabilities_are_those_of_the_module(sees):
    pixels = torch.randint(256, (3, 3, 8, 12), dtype=torch.uint8)
    with torch.no_grad():
        logits = sees.model((pixels / 255 - 0.5) / 0.3)
    torch.testing.assert_close(sees.probabilities(pixels), logits.softmax(-1))
    assert not sees.model.training


def test_a_trace_explains_what_is_asked_for(sees, tells):
    pixels = torch.randint(256, (3, 8, 12), dtype=torch.uint8)
    for target in ("bird", 2, "2"):
        assert {each.target for each in sees.trace(pixels, target=target).maps} == {"bird"}
    assert sees.trace(pixels).model == "sees"
    assert sees.explain(pixels, "rollout", target="dog").target == "dog"
    with pytest.raises(ValueError, match="expected one of cat, dog, bird"):
        sees.explain(pixels, target="cow")
    maps = tells.explain(pictures()[1])
    assert [each.target for each in maps] == CAPTIONS[1].split()
    assert [each.word for each in tells.explain(pictures()[1], target="cats")] == [1]
    with pytest.raises(ValueError, match="target is 'dogs'; expected one of the words two, cats, sit"):
        tells.explain(pictures()[1], target="dogs")


def test_a_trace_takes_a_caption_that_was_said(tells, monkeypatch):
    best = tells.caption(pictures()[3])[0]
    expected = tells.trace(pictures()[3])
    monkeypatch.setattr(sys.modules["pellucid.explain.trace"], "write_captions", None)  # it would be searched again
    trace = tells.trace(pictures()[3], caption=best)
    assert trace.words == expected.words
    assert [word for word, _ in trace.words] == list(best.words)
    for mine, theirs in zip(trace.maps, expected.maps, strict=True):
        torch.testing.assert_close(mine.values, theirs.values)


def test_saved_and_loaded_again_it_answers_the_same(sees, tells, tmp_path):
    sees.save(tmp_path / "sees")
    tells.save(tmp_path / "tells")
    pixels = torch.randint(256, (3, 8, 12), dtype=torch.uint8)
    assert pellucid.load(tmp_path / "sees").predict(pixels) == sees.predict(pixels)
    again = pellucid.load(tmp_path / "tells")
    assert (again.kind, again.name) == ("captioner", "tells")
    assert again.caption(pictures()[0])[0].text == CAPTIONS[0]


def test_evaluating_leaves_the_model_as_it_was_when_it_fails(sees, tells):
    class Broken:
        labels, classes, shape = torch.tensor([0]), LABELS, (3, 8, 12)

        def __len__(self):
            return 1

        def read(self, indices):
            raise OSError("the disk is gone")

    for model, ask in ((sees, lambda: sees.evaluate(Broken())), (tells, lambda: tells.model.encode(None))):
        model.model.train()
        with pytest.raises((OSError, AttributeError, TypeError)):
            ask()
        assert model.model.training
        model.model.eval()
    tells.model.train()
    with torch.no_grad():
        weight = tells.model.encoder.norm.weight
        kept, weight[0] = weight[0].clone(), torch.nan
    with pytest.raises(ValueError, match="its weights are damaged"):
        tells.caption(pictures()[0])
    assert tells.model.training
    with torch.no_grad():
        weight[0] = kept
    tells.model.eval()


def test_pellucid_evaluate_takes_a_model_or_its_name(sees, tmp_path):
    images = ImageSet(torch.randint(256, (6, 3, 8, 12), dtype=torch.uint8), torch.arange(6) % 3, LABELS)
    sees.save(tmp_path / "sees")
    by_model, by_name = pellucid.evaluate(sees, images), pellucid.evaluate(tmp_path / "sees", images)
    assert by_model.top1 == by_name.top1
    assert by_model.figures["images"] == 6
    assert list(by_model.figures["per_class"]) == list(LABELS)


# The front of the house


def test_a_dozen_names_each_with_a_docstring_that_runs():
    names = [name for name in dir(pellucid) if not name.startswith("_")]
    assert 10 <= len(names) <= 14
    for name in names:
        described = getattr(pellucid, name).__doc__
        assert described, name
        assert ">>>" in described or name in ("Stopped", "show"), name  # an exception, and what needs a notebook
    assert set(names) == set(pellucid.__all__)


# Training from Python


def test_changes_are_fields_of_the_run(tmp_path):
    changes = {"duration": "4 steps", "model": {"depth": 1, "width": 16}, "optim.lr": 1e-4, "batch": 32}
    result = pellucid.train("vit_digits", tmp_path / "run", progress=False, **changes)
    run = RunFolder(tmp_path / "run").run()
    assert (result.steps, result.folder) == (4, tmp_path / "run")
    assert (run.model.depth, run.model.width, run.model.heads, run.optim.lr, run.batch) == (1, 16, 4, 1e-4, 32)
    assert result.model.predict(torch.zeros(1, 8, 8)) == pellucid.load(tmp_path / "run").predict(torch.zeros(1, 8, 8))
    with pytest.raises(ValueError, match="unknown field in the config: speed"):
        pellucid.train("vit_digits", speed=3)
    with pytest.raises(ValueError, match=r"config optim\.lr is 'fast'; expected float"):
        pellucid.train("vit_digits", optim={"lr": "fast"})
    with pytest.raises(ValueError, match="there is no recipe 'vit_nothing'"):
        pellucid.train("vit_nothing")
    with pytest.raises(ValueError, match="already holds a run"):
        pellucid.train("vit_digits", tmp_path / "run", duration="4 steps", progress=False)
    with pytest.raises(ValueError, match="was begun otherwise"):
        pellucid.train("vit_digits", tmp_path / "run", resume=True, duration="5 steps")


TINY = {"model": {"depth": 1, "width": 16, "heads": 2}, "batch": 16, "evaluate_every": "0 steps"}


def test_a_run_goes_on_to_the_same_end(tmp_path, monkeypatch):
    """Broken off after its checkpoint at step 4, then resumed both ways: the weights are those of one go."""
    from pellucid.training.engine import Engine

    how = {"duration": "8 steps", "checkpoint_every": "4 steps", "progress": False, **TINY}
    whole = pellucid.train("vit_digits", tmp_path / "whole", **how).model.model.state_dict()
    for name in ("by out", "by folder"):
        folder, step = tmp_path / name, Engine._step

        def broken(self, number, *rest, step=step):
            if number == 6:
                raise OSError("the power is gone")
            return step(self, number, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(Engine, "_step", broken)
            with pytest.raises(OSError, match="the power is gone"):
                pellucid.train("vit_digits", folder, **how)
        if name == "by out":
            result = pellucid.train("vit_digits", folder, resume=True, progress=False)
        else:
            result = pellucid.train(folder, progress=False)
        state = result.model.model.state_dict()
        assert all(torch.equal(state[key], value) for key, value in whole.items())


class Own(nn.Module):
    """A module that isn't ours."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, images):
        return self.body(images)


def test_a_module_of_ones_own_is_trained_kept_and_loaded(tmp_path):
    how = {"duration": "120 steps", "batch": 64, "optim": {"name": "adamw", "lr": 5e-3}, "progress": False}
    result = pellucid.train("vit_digits", tmp_path / "own", module=Own(), **how)
    assert isinstance(result.model.model, Own)
    report = result.model.evaluate("digits")
    assert report.top1 > 0.6  # by chance 0.1
    assert RunFolder(tmp_path / "own").run().module == "Own"
    with pytest.raises(ValueError, match=r"trained a module of one's own, a Own; give one: load\(…, module=…\)"):
        pellucid.load(tmp_path / "own")
    again = pellucid.load(tmp_path / "own", module=Own())
    assert again.evaluate("digits").top1 == report.top1
    with pytest.raises(ValueError, match=r"a Own can't be traced so; watch it with pellucid\.watch"):
        again.trace(torch.zeros(1, 8, 8))
    with pytest.raises(ValueError, match="give one: train"):
        pellucid.train(tmp_path / "own", progress=False)
    assert pellucid.train(tmp_path / "own", module=Own(), progress=False).steps == 120


class Pairs:
    """A dataset as PyTorch has them: an image and its class."""

    classes = ("dark", "light")

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i >= self.count:
            raise IndexError
        level = (40 if i % 2 == 0 else 200) + i % 7
        return Image.new("RGB", (10, 10), (level, level, level)), i % 2


def test_a_dataset_of_ones_own_is_trained_on(tmp_path):
    how = {"duration": "30 steps", "batch": 16, "progress": False, "model": {"depth": 1, "width": 16, "heads": 2}}
    splits = {"train": Pairs(64), "test": Pairs(20)}
    result = pellucid.train("vit_digits", tmp_path / "own", dataset=splits, **how)
    assert result.model.labels == ("dark", "light")
    assert result.figures["top1"] == 1.0
    assert result.model.predict(Image.new("RGB", (30, 20), "white"))[0].label == "light"
    held = pellucid.train("vit_digits", dataset=Pairs(64), data={"held_out": 10}, **how)
    assert held.figures["top1"] == 1.0
    with pytest.raises(ValueError, match=r"give it again: train\(…, dataset=…\)"):
        pellucid.train(tmp_path / "own", progress=False)
    with pytest.raises(ValueError, match="the run began with 64 images to train on, and now there are 50"):
        pellucid.train(tmp_path / "own", dataset={"train": Pairs(50)}, progress=False)
    with pytest.raises(ValueError, match="data has test; expected train, validation and test"):
        pellucid.train("vit_digits", dataset={"test": Pairs(3)}, progress=False)


def test_captions_of_ones_own_are_trained_on(tells):
    images = ImageSet(pictures(), torch.zeros(5, dtype=torch.int64), ("picture",))
    mine = pellucid.CaptionSet(images, tuple((caption,) for caption in CAPTIONS), tuple("abcde"))
    how = {"duration": "2 steps", "batch": 4, "progress": False, "model.encoder.patch": [4, 4]}
    result = pellucid.train("captioner_scenes", dataset={"train": mine, "validation": mine}, **how)
    assert result.model.reader.size == (8, 12)
    assert set(result.model.tokenizer.decode([6, 7]).split()) <= set(" ".join(CAPTIONS).split())
    assert pellucid.train("captioner_scenes", dataset=mine, **how).steps == 2
    assert tells.evaluate(mine).figures["cider_d"] > 5
    with pytest.raises(ValueError, match="are a CaptionSet, or several by split"):
        pellucid.train("captioner_scenes", dataset=[1, 2], **how)


def test_any_dataset_is_evaluated_on(sees):
    level = {"cat": 10, "dog": 100, "bird": 200}
    pairs = [(np.full((8, 12, 3), level[name], dtype=np.uint8), name) for name in ("dog", "cat", "bird", "cat")]
    report = sees.evaluate(pairs)
    answers = [best.label for best, *_ in sees.predict([image for image, _ in pairs])]
    assert report.top1 == sum(a == b for a, (_, b) in zip(answers, pairs, strict=True)) / 4
    assert report.figures["images"] == 4


def test_a_captioner_takes_no_module_of_ones_own():
    with pytest.raises(ValueError, match="a captioner is made by its recipe"):
        pellucid.train("captioner_scenes", module=Own())


def test_nothing_is_kept_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = pellucid.train(
        ClassifierRun(recipe="mine", duration="2 steps", model=ViTConfig(patch=(2, 2), width=16, depth=1, heads=2)),
        progress=False,
    )
    assert result.folder is None
    assert result.model.name == "mine"
    assert list(tmp_path.iterdir()) == []
