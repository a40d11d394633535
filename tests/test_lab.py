"""The ledger is a test; here it is tested that it could fail."""

import dataclasses
import json
import math
import subprocess
import sys

import pytest
import torch
from matplotlib.figure import Figure

from pellucid.cli import main
from pellucid.lab import EXPERIMENTS, Case, Claim, draw, experiment
from pellucid.lab.frame import exponent
from pellucid.lab.ledger import entry, failures, page, run

QUICK = [name for name in EXPERIMENTS if name not in ("leaking", "depth", "heads", "interpolation", "reversed", "cost")]
# The eleven sentences that are taught and aren't so, and which claims put them to the test.
HEARD = {
    1: ("shapes.columns",),
    2: ("shapes.single_head",),
    3: ("packed.row",),
    4: ("built.equal_weights",),
    5: ("convolution.band", "convolution.band_is_one_map"),
    6: ("norms.layer_norm",),
    7: ("itself.word",),
    8: ("masks.vit",),
    9: ("testing.reversed",),
    10: ("testing.decoder",),
    11: ("choices.hard", "choices.soft"),
}
FALSE = {1, 2, 3, 4, 5, 6, 7, 9, 11}  # the others are true under a condition


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """Every experiment, run once, with no photographs in the cache; in this process, so that axes are checked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELLUCID_CACHE", str(tmp_path_factory.mktemp("cache")))
        return {name: one() for name, one in EXPERIMENTS.items()}


@pytest.fixture(scope="session")
def claims(results):
    return {claim.id: claim for result in results.values() for claim in result.claims}


def test_every_claim_stands(results, claims):
    assert failures(claims.values()) == []
    assert len(claims) == sum(len(result.claims) for result in results.values())  # no two share a name
    assert len(claims) >= 30


def test_the_eleven_sentences_are_judged(claims):
    judged = {number: [claims[name] for name in names] for number, names in HEARD.items()}
    for number, found in judged.items():
        assert {claim.verdict for claim in found} == {"false" if number in FALSE else "conditional"}
        assert all(claim.heard and claim.truth and claim.counter_example for claim in found)
    assert {name for name, claim in claims.items() if claim.heard} == {
        name for names in HEARD.values() for name in names
    }


def test_every_claim_has_its_number_and_what_speaks_against_it(claims):
    for claim in claims.values():
        assert math.isfinite(claim.measured)
        assert (claim.counter_example is None) == (claim.verdict == "true")
        assert claim.truth or claim.verdict == "true"


def altered(claim: Claim) -> dict[str, Claim]:
    """The claim, made wrong in every way there is."""
    others = [verdict for verdict in ("true", "false", "conditional") if verdict != claim.verdict]
    turned = {"≤": "≥", "≥": "≤"}[claim.relation]
    ways = {f"called {verdict}": dataclasses.replace(claim, verdict=verdict) for verdict in others}
    ways["relation turned"] = dataclasses.replace(claim, relation=turned)
    if claim.twin is not None:
        swapped = {"holds": (claim.twin,)} if claim.holds else {"breaks": (claim.twin,)}
        ways["its twin put in its place"] = dataclasses.replace(claim, **swapped)
        ways["without its twin"] = dataclasses.replace(claim, twin=None)
        first = (claim.holds or claim.breaks)[0]
        ways["a twin that says the same"] = dataclasses.replace(claim, twin=first)
    else:
        ways["cases exchanged"] = dataclasses.replace(claim, holds=claim.breaks, breaks=claim.holds)
    nothing = tuple(Case(case.what, math.nan) for case in claim.holds or claim.breaks)
    ways["not measured"] = dataclasses.replace(claim, **{"holds" if claim.holds else "breaks": nothing})
    return ways


def test_an_altered_claim_fails(claims):
    """Every claim of the ledger, altered in every way: none passes."""
    passed = [
        f"{name}, {way}"
        for name, claim in claims.items()
        for way, wrong in altered(claim).items()
        if not wrong.failures()
    ]
    assert passed == []
    assert sum(len(altered(claim)) for claim in claims.values()) >= 10 * 30


ALTERED = {  # an experiment, parameters that take away what its claim rests on, and the claims that then fall
    "built": ({"beta": 3.0}, {"built.identity", "built.permutation", "built.pointwise", "built.equal_weights"}),
    "convolution": ({"sharpness": 2.0}, {"convolution.heads"}),
    "scaling": ({"widths": (4, 8)}, {"scaling.saturation"}),
    "precision": ({"largest": 2.0}, {"precision.float16", "precision.qk_norm", "precision.fused"}),
    "dropout": ({"p": 0.0}, {"testing.eval", "testing.dropout_mean"}),
    "perturbation": ({"alpha": 1.0}, {"perturbation.elongated"}),
    "leaking": ({"steps": 1}, {"leaking.accuracy", "leaking.alone"}),
    "reversed": ({"points": 1}, {"testing.reversed"}),
}


@pytest.mark.parametrize("name", ALTERED)
def test_a_claim_falls_with_what_it_rests_on(name):
    changes, fallen = ALTERED[name]
    one = EXPERIMENTS[name]
    result = one(dataclasses.replace(one.parameters(), **changes))
    assert {claim.id for claim in result.claims if claim.failures()} == fallen


@pytest.mark.parametrize("name", ["shapes", "temperature", "preserve", "perturbation", "order", "sinusoids", "built",
                                  "convolution", "multihead", "packed", "norms", "forcing", "graph", "masks",
                                  "padding", "choices", "precision", "scaling"])  # fmt: skip
def test_verdicts_dont_hang_on_the_seed(name):
    one = EXPERIMENTS[name]
    for seed in (1, 2):
        assert failures(one(dataclasses.replace(one.parameters(), seed=seed)).claims) == []


@pytest.mark.parametrize("name", QUICK)
def test_an_experiment_is_a_pure_function(name, results):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    again = EXPERIMENTS[name]()
    assert torch.equal(torch.rand(3), expected)  # the caller's random numbers are untouched
    assert [claim.measured for claim in again.claims] == pytest.approx(
        [claim.measured for claim in results[name].claims], rel=1e-3, abs=1e-12
    ) or name == "itself"


def test_pages_are_json_and_hold_the_code_that_ran(results):
    for name, one in EXPERIMENTS.items():
        told = json.loads(json.dumps(page(one, one.parameters(), results[name]), allow_nan=False))
        assert f"def {one.run.__name__}(" in told["code"]
        assert told["claims"] == [entry(claim) for claim in results[name].claims]
        assert all(told[part] for part in ("panels", "statement", "formula", "predict", "fails"))


def test_figures_have_axes_with_names(results):
    for name, one in EXPERIMENTS.items():
        figure = draw(results[name].panels, one.title)
        assert isinstance(figure, Figure)
        shown = [ax for ax in figure.axes if ax.get_visible()]
        assert all(ax.get_ylabel() for ax in shown), name


def test_the_fitted_exponent():
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert exponent([1, 2, 4], [5, 5, 5]) == pytest.approx(0)


def test_a_claim_needs_a_measurement():
    with pytest.raises(ValueError, match="has no case"):
        Claim("a.b", "Nothing.", "true", "≤", 0)


def test_processes_give_what_one_process_gives(results):
    names = ("graph", "norms", "choices")
    found = list(run([EXPERIMENTS[name] for name in names], workers=2))
    assert [one.name for one, _ in found] == list(names)
    for one, result in found:  # they have one thread, and this process may have more: sums are rounded in another order
        for mine, theirs in zip(result.claims, results[one.name].claims, strict=True):
            assert (mine.id, mine.verdict, mine.failures()) == (theirs.id, theirs.verdict, theirs.failures())
            assert mine.measured == pytest.approx(theirs.measured, rel=1e-3, abs=1e-9)


def test_an_experiment_by_its_name():
    assert experiment("graph").name == "graph"
    with pytest.raises(ValueError, match="no experiment 'grahp'; expected one of shapes, "):
        experiment("grahp")


# ---- the command


def test_one_experiment_prints_its_page(capsys, tmp_path):
    path = tmp_path / "graph.png"
    assert main(["lab", "graph", "--nodes", "6", "--figure", str(path)]) == 0
    said = capsys.readouterr().out
    for part in ("Formula: ", "Predict first: ", "def graph(p: Graph)", "Numbers:", "Verdicts:", "Where it fails: "):
        assert part in said
    assert "edges of the complete graph                      36" in said
    assert path.read_bytes().startswith(b"\x89PNG")


def test_json_has_these_keys(capsys):
    assert main(["lab", "norms", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["claims"]
    keys = ["id", "statement", "verdict", "measured", "tolerance", "counter_example"]
    assert all(list(claim) == keys for claim in told["claims"])
    assert {claim["verdict"] for claim in told["claims"]} == {"true", "false"}


def test_a_claim_that_falls_is_exit_code_1_and_a_sentence(capsys):
    assert main(["lab", "built", "--beta", "3"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "pellucid: built.identity: largest error: 0.88, expected ≤ 1e-06"
    assert said[-1] == "pellucid: 4 of 5 claims don't stand"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "there is no experiment 'nothing'; expected one of shapes, "),
        (["graph", "--nonsense", "3"], "Unrecognized options: --nonsense"),
        (["graph", "--nodes", "0"], "nodes is 0; expected 1 or more"),
        (["perturbation", "--moved", "99"], "perturbation can't run with these parameters: "),
        (["convolution", "--kernel", "2"], "kernel is 2; expected an odd number"),
        (["graph", "--figure", "graph.gif"], "a picture is .png, .svg, .pdf; got 'graph.gif'"),
        (["--figure", "all.png"], "--figure is of one experiment; name it"),
    ],
)
def test_what_cant_be_done_is_a_sentence_and_exit_code_2(words, sentence, capsys):
    assert main(["lab", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_the_whole_ledger(capsys, monkeypatch, results):
    """The command over all experiments; they have run already, and their results are taken."""
    import pellucid.cli.lab as command

    monkeypatch.setattr(command, "run", lambda ones, workers: [(one, results[one.name]) for one in ones])
    assert main(["lab"]) == 0
    said = capsys.readouterr().out
    total = sum(len(result.claims) for result in results.values())
    assert f"{total} claims: " in said
    assert said.count("measured ") >= total
    assert main(["lab", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["claims"]) == total

    name = "graph"
    fallen = dataclasses.replace(results[name].claims[0], verdict="false")
    wrong = dataclasses.replace(results[name], claims=(fallen,))
    monkeypatch.setattr(
        command, "run", lambda ones, workers: [(one, wrong if one.name == name else results[one.name]) for one in ones]
    )
    assert main(["lab"]) == 1
    said = capsys.readouterr()
    assert "graph.complete is called false, but what was measured makes it true" in said.err
    assert "this does not stand" in said.out


def test_help_needs_no_torch():
    probe = "import sys, pellucid.cli as c\ntry:\n    c.main(['lab', '--help'])\nexcept SystemExit: pass\n"
    subprocess.run([sys.executable, "-c", f"{probe}assert 'torch' not in sys.modules"], check=True, capture_output=True)
