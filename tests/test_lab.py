"""The ledger is a test; here it is tested that it could fail."""

import dataclasses
import inspect
import json
import math
import subprocess
import sys

import pytest
import torch
from matplotlib.figure import Figure

from pellucid.cli import main
from pellucid.lab import EXPERIMENTS, Case, Claim, draw_panels, experiment
from pellucid.lab.frame import exponent
from pellucid.lab.ledger import describe_claim, describe_experiment, failures, run_all

SLOW = ("leaking", "depth", "heads", "interpolation", "reversed", "cost", "embedding", "warmup", "field", "rotation",
        "alignment", "searching")  # fmt: skip
QUICK = [name for name in EXPERIMENTS if name not in SLOW]
# The fourteen sentences that are taught and aren't so, and which claims put them to the test.
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
    12: ("sequential.convolution",),
    13: ("sizes.cnn",),
    14: ("rotation.crops",),
}
FALSE = {1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14}  # the others are true under a condition


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    """Every experiment, run once, with no photographs in the cache; in this process, so that axes are checked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELLUCID_CACHE", str(tmp_path_factory.mktemp("cache")))
        return {name: one() for name, one in EXPERIMENTS.items()}


@pytest.fixture(scope="session")
def claims(outcomes):
    return {claim.id: claim for outcome in outcomes.values() for claim in outcome.claims}


def test_every_claim_stands(outcomes, claims):
    assert failures(claims.values()) == []
    assert len(claims) == sum(len(outcome.claims) for outcome in outcomes.values())  # no two share a name
    assert len(claims) >= 30


def test_the_fourteen_sentences_are_judged(claims):
    judged = {number: [claims[name] for name in names] for number, names in HEARD.items()}
    for number, sentences in judged.items():
        assert {claim.verdict for claim in sentences} == {"false" if number in FALSE else "conditional"}
        assert all(claim.heard and claim.truth and claim.counter_example for claim in sentences)
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
    "sequential": ({"words": (2, 4), "kernel": 3}, {"sequential.path"}),
    "warmup": ({"rate": 1e-4, "steps": 10}, {"warmup.needed"}),
    "embedding": ({"steps": 5}, {"embedding.scale"}),
    "rotation": ({"steps": 1}, {"rotation.crops"}),
}


@pytest.mark.parametrize("name", ALTERED)
def test_a_claim_falls_with_what_it_rests_on(name):
    changes, fallen = ALTERED[name]
    one = EXPERIMENTS[name]
    outcome = one(one.parameters(**changes))
    assert {claim.id for claim in outcome.claims if claim.failures()} == fallen


@pytest.mark.parametrize("name", ["shapes", "temperature", "preserve", "perturbation", "order", "sinusoids", "built",
                                  "convolution", "multihead", "packed", "norms", "forcing", "graph", "masks",
                                  "padding", "choices", "precision", "scaling", "sequential", "sizes"])  # fmt: skip
def test_verdicts_dont_hang_on_the_seed(name):
    one = EXPERIMENTS[name]
    for seed in (1, 2):
        assert failures(one(one.parameters(seed=seed)).claims) == []


@pytest.mark.parametrize("name", QUICK)
def test_an_experiment_is_a_pure_function(name, outcomes):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    again = EXPERIMENTS[name]()
    assert torch.equal(torch.rand(3), expected)  # the caller's random numbers are untouched
    assert [claim.measured for claim in again.claims] == pytest.approx(
        [claim.measured for claim in outcomes[name].claims], rel=1e-3, abs=1e-12
    ) or name == "itself"


def test_pages_are_json_and_hold_the_code_that_ran(outcomes):
    for name, one in EXPERIMENTS.items():
        page = json.loads(json.dumps(describe_experiment(one, one.parameters(), outcomes[name]), allow_nan=False))
        assert all(f"def {verb}_" in page["code"] for verb in ("measure", "claim", "draw"))
        assert all(f"def {part.__name__}(" in page["code"] for part in one.functions)
        assert page["claims"] == [describe_claim(claim) for claim in outcomes[name].claims]
        assert all(page[part] for part in ("panels", "statement", "formula", "predict", "fails"))


def test_every_experiment_is_measured_claimed_and_drawn_in_functions_that_can_be_read():
    for one in EXPERIMENTS.values():
        for part in one.functions:
            assert len(inspect.getsource(inspect.unwrap(part)).splitlines()) <= 60, part.__name__


def test_figures_have_axes_with_names(outcomes):
    for name, one in EXPERIMENTS.items():
        figure = draw_panels(outcomes[name].panels, one.title)
        assert isinstance(figure, Figure)
        visible = [ax for ax in figure.axes if ax.get_visible()]
        assert all(ax.get_ylabel() for ax in visible), name


def test_the_fitted_exponent():
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert exponent([1, 2, 4], [5, 5, 5]) == pytest.approx(0)


def test_a_claim_needs_a_measurement():
    with pytest.raises(ValueError, match="has no case"):
        Claim("a.b", "Nothing.", "true", "≤", 0)


def test_processes_give_what_one_process_gives(outcomes):
    names = ("graph", "norms", "choices")
    ran = list(run_all([EXPERIMENTS[name] for name in names], workers=2))
    assert [one.name for one, _ in ran] == list(names)
    for one, outcome in ran:  # they have one thread, and this process may have more: sums are rounded in another order
        for mine, theirs in zip(outcome.claims, outcomes[one.name].claims, strict=True):
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
    printed = capsys.readouterr().out
    parts = ("def measure_graph(p: GraphSettings)", "def claim_graph(", "def draw_graph(", "class GraphMeasurement(")
    for part in ("Formula: ", "Predict first: ", *parts, "Numbers:", "Verdicts:", "Where it fails: "):
        assert part in printed
    assert "edges of the complete graph                      36" in printed
    assert path.read_bytes().startswith(b"\x89PNG")


def test_json_has_these_keys(capsys):
    assert main(["lab", "norms", "--json"]) == 0
    ledger = json.loads(capsys.readouterr().out)
    assert list(ledger) == ["claims"]
    keys = ["id", "statement", "verdict", "measured", "tolerance", "counter_example"]
    assert all(list(claim) == keys for claim in ledger["claims"])
    assert {claim["verdict"] for claim in ledger["claims"]} == {"true", "false"}


def test_a_claim_that_falls_is_exit_code_1_and_a_sentence(capsys):
    assert main(["lab", "built", "--beta", "3"]) == 1
    sentences = capsys.readouterr().err.splitlines()
    assert sentences[0] == "pellucid: built.identity: largest error: 0.88, expected ≤ 1e-06"
    assert sentences[-1] == "pellucid: 4 of 5 claims don't stand"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "there is no experiment 'nothing'; expected one of shapes, "),
        (["graph", "--nonsense", "3"], "Unrecognized options: --nonsense"),
        (["graph", "--nodes", "0"], "nodes is 0; expected 1 or more"),
        (["perturbation", "--moved", "99"], "moved is 99; expected 0…7, one of 8 keys"),
        (["convolution", "--kernel", "2"], "kernel is 2; expected an odd number"),
        (["graph", "--figure", "graph.gif"], "a picture is .png, .svg, .pdf; got 'graph.gif'"),
        (["--figure", "all.png"], "--figure is of one experiment; name it"),
    ],
)
def test_what_cant_be_done_is_a_sentence_and_exit_code_2(words, sentence, capsys):
    assert main(["lab", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert printed.err.count("\n") == 1


def test_the_whole_ledger(capsys, monkeypatch, outcomes):
    """The command over all experiments; they have run already, and their outcomes are taken."""
    import pellucid.cli.lab as command

    monkeypatch.setattr(command, "run_all", lambda ones, workers: [(one, outcomes[one.name]) for one in ones])
    assert main(["lab"]) == 0
    printed = capsys.readouterr().out
    total = sum(len(outcome.claims) for outcome in outcomes.values())
    assert f"{total} claims: " in printed
    assert printed.count("measured ") >= total
    assert main(["lab", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["claims"]) == total

    name = "graph"
    fallen = dataclasses.replace(outcomes[name].claims[0], verdict="false")
    wrong = dataclasses.replace(outcomes[name], claims=(fallen,))
    monkeypatch.setattr(
        command,
        "run_all",
        lambda ones, workers: [(one, wrong if one.name == name else outcomes[one.name]) for one in ones],
    )
    assert main(["lab"]) == 1
    printed = capsys.readouterr()
    assert "graph.complete is called false, but what was measured makes it true" in printed.err
    assert "this does not stand" in printed.out


def test_help_needs_no_torch():
    probe = "import sys, pellucid.cli as c\ntry:\n    c.main(['lab', '--help'])\nexcept SystemExit: pass\n"
    subprocess.run([sys.executable, "-c", f"{probe}assert 'torch' not in sys.modules"], check=True, capture_output=True)
