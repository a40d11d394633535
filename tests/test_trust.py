"""Answers as sure as they are right, of several views, and a page with the worst mistakes."""

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import pellucid
from pellucid.cli import main
from pellucid.data.augment import Normalise, normalised
from pellucid.evaluation.accuracy import ClassificationReport
from pellucid.evaluation.asking import ask, fit_temperature, log_odds, see
from pellucid.runs import RunFolder
from pellucid.views.mistakes import write_report

NORMALISE = Normalise((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on 60 small pictures, overfitted so that it is surer than it is right."""
    place = tmp_path_factory.mktemp("trust")
    noise = np.random.default_rng(0)
    for which, name in enumerate(("ant", "bee <b>")):
        (place / "ext" / name).mkdir(parents=True)
        for i in range(40):
            pixels = noise.integers(0, 200, (8, 8, 3), dtype=np.uint8)
            pixels[..., which] += 6
            Image.fromarray(pixels).save(place / "ext" / name / f"{i:03}.png")
    small = {"model": {"width": 32, "depth": 1, "heads": 2, "patch": [4, 4]}, "batch": 16, "device": "cpu"}
    small |= {
        "data.name": f"folder:{place / 'ext'}",
        "data.held_out": 30,
        "augment": {"crop": 0},
        "label_smoothing": 0.0,
    }
    pellucid.train("vit_digits", out=place / "run", progress=False, duration="60 steps", **small)
    return place


def test_the_temperature_is_where_the_likelihood_is_largest():
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(300, 5, generator=generator, dtype=torch.float64)
    labels = torch.where(torch.rand(300, generator=generator) < 0.6, logits.argmax(1), torch.randint(5, (300,)))
    found = fit_temperature(logits, labels)
    losses = {t: F.cross_entropy(logits / (found * t), labels).item() for t in (0.98, 1.0, 1.02)}
    assert losses[1.0] < min(losses[0.98], losses[1.02])
    assert F.cross_entropy(logits / found, labels) < F.cross_entropy(logits, labels) - 0.1
    again = fit_temperature(log_odds((logits / found).softmax(-1), several=False), labels)
    assert again == pytest.approx(1.0, abs=1e-6)
    true = torch.rand(300, 5, generator=generator) < (logits / 3).sigmoid()
    assert fit_temperature(logits, true) == pytest.approx(3.0, rel=0.2)


def test_a_run_that_is_calibrated_says_so_ever_after(trained, capsys):
    data = f"folder:{trained / 'ext'}"
    words = ["evaluate", str(trained / "run"), "--data", data, "--split", "validation", "--json"]
    assert main(words) == 0
    before = json.loads(capsys.readouterr().out)
    assert main([*words, "--calibrate"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["top1"] == before["top1"]
    assert after["ece"] < before["ece"] - 0.05
    model = pellucid.load(trained / "run")
    assert model.temperature > 1.2
    picture = trained / "ext" / "ant" / "001.png"
    logits = model.model(model.reader.prepare(model.read(picture), model.model)).detach()
    assert model.predict(picture, top=1)[0].probability == pytest.approx(
        (logits / model.temperature).softmax(-1).max().item(), abs=1e-6
    )
    model.save(trained / "saved")
    saved = pellucid.load(trained / "saved")
    assert saved.predict(picture, top=1)[0].probability == pytest.approx(
        model.predict(picture, top=1)[0].probability, abs=1e-6
    )
    assert main([*words[:-2], "test", "--calibrate"]) == 2
    assert "calibrate on validation images" in capsys.readouterr().err
    kept = json.loads((trained / "run" / "calibration.json").read_text())
    (trained / "run" / "calibration.json").write_text(json.dumps(kept | {"step": 10_000}))
    assert RunFolder(trained / "run").temperature() == 1.0  # of other weights
    (trained / "run" / "calibration.json").write_text('{"temperature": -1}')
    with pytest.raises(ValueError, match="no temperature above zero"):
        pellucid.load(trained / "run")
    (trained / "run" / "calibration.json").unlink()


def test_several_views_are_the_mean_of_their_answers():
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 20 * 24, 4))
    pixels = torch.randint(0, 256, (5, 3, 20, 24), dtype=torch.uint8)
    views = see(pixels, 10)
    assert len({view.numpy().tobytes() for view in views}) == 10
    assert torch.equal(views[1], pixels.flip(-1))
    assert torch.equal(views[2][..., 1:, 2:], pixels[..., :-1, :-2])  # a 16th of the sides, rounded
    for several, activate in ((False, lambda z: z.softmax(-1)), (True, torch.sigmoid)):
        answers = [activate(module(normalised(view, NORMALISE)) / 2) for view in views[:2]]
        found = activate(ask(module, pixels, NORMALISE, several=several, temperature=2.0, views=2))
        torch.testing.assert_close(found, torch.stack(answers).mean(0), atol=1e-6, rtol=0)
        assert not torch.allclose(found, answers[0], atol=1e-3)
    with pytest.raises(ValueError, match="views is 3"):
        ask(module, pixels, NORMALISE, views=3)


def test_the_command_line_takes_views(trained, capsys):
    with contextlib.chdir(trained):
        plain, both = (
            [*words, *more]
            for words in [["predict", "run", "ext/ant/001.png", "--json"]]
            for more in ([], ["--views", "2"])
        )
        assert main(plain) == main(both) == 0
        one, two = (json.loads(line)[0]["predictions"] for line in capsys.readouterr().out.splitlines())
        assert one != two
        model = pellucid.load("run")
        seen = model.read("ext/ant/001.png")
        mean = (model.probabilities(seen) + model.probabilities(seen.flip(-1)))[0] / 2
        assert two[0]["probability"] == pytest.approx(mean.max().item(), abs=1e-6)


def test_the_worst_mistakes_are_on_the_page(trained, capsys):
    with contextlib.chdir(trained):
        words = ["evaluate", "run", "--data", "folder:ext", "--split", "validation", "--report", "report.html"]
        assert main(words) == 0
        page = Path("report.html").read_text()
        report = pellucid.load("run").evaluate("folder:ext", "validation")
    wrong = [i for i in range(len(report.labels)) if report.probabilities[i].argmax() != report.labels[i]]
    worst = max(wrong, key=lambda i: report.probabilities[i].max())
    assert report.mistakes(1) == [worst]
    assert sorted(report.mistakes(100)) == wrong
    shown = re.findall(r"<small>([^<]+)</small>", page)
    assert shown == [report.images.name_of(i).replace("<", "&lt;").replace(">", "&gt;") for i in report.mistakes(24)]
    assert page.count("data:image/png;base64,") == len(shown) == min(24, len(wrong))
    assert "bee &lt;b&gt;" in page
    assert "<b>.png" not in page
    none = replace(report, probabilities=F.one_hot(report.labels, 2).float())
    write_report(none, "perfect", trained / "perfect.html")
    assert "There are none." in (trained / "perfect.html").read_text()
    assert main(["evaluate", "run", "--data", "digits", "--report", "report.png"]) == 2
    assert "expected a page" in capsys.readouterr().err


def test_a_report_without_pictures_names_numbers(tmp_path):
    report = ClassificationReport(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([1, 0]), 0.0, 1.0, ("a", "b"))
    write_report(report, "bare", tmp_path / "bare.html")
    assert "number 0" in (tmp_path / "bare.html").read_text()
