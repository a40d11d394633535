"""The lab in a real Chromium: sliders computed in the browser against torch, and the room that the server runs."""

import json
import math
import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from browser import chromium as chromium
from browser import keep
from browser import visit as visit
from serving import serving, wait_until
from starlette.testclient import TestClient
from torch import Tensor
from torch.testing import assert_close

from pellucid.cli import main
from pellucid.lab import EXPERIMENTS, Outcome
from pellucid.lab.ledger import describe_experiment
from pellucid.lab.page import lab_page, slider_data, write_lab
from pellucid.ops import attend, attention_weights, entropy, masks
from pellucid.ops.positions import offset_rotation, sinusoidal
from pellucid.serve import experiments
from pellucid.serve.app import create_app
from pellucid.serve.limits import Limits
from pellucid.serve.service import Service
from pellucid.views.page import VIEWER_FOLDER

QUICK = ("temperature", "perturbation", "masks", "sinusoids", "shapes", "multihead", "padding", "graph")
UNLABELLED = """[...document.querySelectorAll("main :is(img, canvas, button, select, input)")].filter((e) =>
    e.checkVisibility() && !e.hasAttribute("alt") && !e.ariaLabel && !e.ariaHidden && !e.labels?.length &&
    !e.textContent.trim() && !e.closest("label, [aria-hidden=true]")).map((e) => e.outerHTML)"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {name: EXPERIMENTS[name]() for name in QUICK}


@pytest.fixture(scope="module")
def address(outcomes, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("lab") / "lab.html"
    write_lab([(EXPERIMENTS[name], outcome) for name, outcome in outcomes.items()], path)
    return path.as_uri()


@pytest.fixture
def lab(visit, address):
    """The page, opened from disk."""
    page = visit(address)
    page.get_by_role("heading", name="The lab").wait_for()
    return page


@pytest.fixture(scope="module")
def head() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of the sliders, with axes for batch and head."""
    data = slider_data()
    q, k, v = (torch.tensor(data[name], dtype=torch.float64)[None, None] for name in "qkv")
    return q, k, v


def readings(page: Any, card: str) -> dict[str, float]:
    """The numbers that a card tells, by name, with all their digits."""
    rows = page.get_by_role("region", name=card, exact=True).locator(".pl-readings > div").all()
    return {row.locator("dt").inner_text(): float(row.locator("data").get_attribute("value")) for row in rows}


def values(page: Any, within: str) -> list[float]:
    return [float(each) for each in page.locator(f"{within} data").evaluate_all("all => all.map((e) => e.value)")]


# ---- the sliders of the page, from disk


def test_beta_from_nothing_to_hard(lab, head):
    q, k, v = (x[:, :, :1] if i == 0 else x for i, x in enumerate(head))
    slider = lab.get_by_label("Inverse temperature β")
    mean, best = v.mean(2), attend(q, k, v, beta=math.inf)[:, :, 0]
    seen = []
    for key in ("Home", "ArrowRight", "PageUp", "PageUp", "PageUp", "PageUp", "PageUp", "PageUp", "ArrowLeft", "End"):
        slider.press(key)
        found = readings(lab, "β from 0 to ∞")
        beta = found["β"] if found["β"] < 1e300 else math.inf
        out = attend(q, k, v, beta=beta)[:, :, 0]
        weights = attention_weights(q, k, beta=beta)[0, 0, 0]
        spread = entropy(q, k, beta=beta).item() if math.isfinite(beta) else 0.0
        assert found["entropy (nats)"] == pytest.approx(spread, abs=1e-9)
        assert found["effective number of keys"] == pytest.approx(math.exp(spread), abs=1e-9)
        assert found["distance to the mean"] == pytest.approx((out - mean).norm().item(), abs=1e-9)
        assert found["distance to the nearest value"] == pytest.approx((out - best).norm().item(), abs=1e-9)
        card = lab.get_by_role("region", name="β from 0 to ∞", exact=True)
        card_weights = [float(each.get_attribute("value")) for each in card.locator("ol data").all()]
        assert card_weights == pytest.approx(weights.tolist(), abs=1e-9)
        seen.append(found)
    first, last = seen[0], seen[-1]
    assert (first["β"], first["effective number of keys"]) == (0, pytest.approx(8))
    assert first["distance to the mean"] == pytest.approx(0, abs=1e-12)
    assert (last["β"], last["entropy (nats)"], last["distance to the nearest value"]) == (math.inf, 0, 0)
    rising = [one["entropy (nats)"] for one in seen[:8]]
    assert rising == sorted(rising, reverse=True)  # the larger β, the fewer keys count
    assert seen[8]["entropy (nats)"] > seen[7]["entropy (nats)"]  # a step back


def test_a_longer_key_is_loved_or_shunned(lab, head):
    q, k, v = head
    card = "A key, moved and made longer"
    scores = (q @ k.mT)[0, 0, 0] / 4
    for key, grows in ((int(scores.argmax()), True), (int(scores.argmin()), False)):
        lab.get_by_label("Key", exact=True).fill(str(key))
        slider = lab.get_by_label("Elongation α")
        slider.fill("1")
        still = readings(lab, card)
        assert still["change of the weight, measured"] == still["change of the output, first order"] == 0
        before, missed = still["weight after"], 0.0
        for step in range(1, 5):
            slider.press("ArrowRight")
            found = readings(lab, card)
            longer = k.clone()
            longer[:, :, key] *= 1 + step / 20
            expected = compared(q[:, :, :1], k, longer, v, key)
            assert found == pytest.approx(expected, abs=1e-9)
            assert (found["weight after"] > before) == grows
            assert found["missed by the first order"] > missed  # what the first order can't know grows
            before, missed = found["weight after"], found["missed by the first order"]
        assert missed < 0.2 * found["change of the output, measured"]
    assert "negative: longer, it draws less" in lab.get_by_role("region", name=card).inner_text()


def test_a_key_moved_by_noise(lab, head):
    """The noise is the browser's own; what it does is what torch says it does."""
    q, k, v = head
    lab.get_by_label("Noise σ").fill("0.3")
    lab.get_by_label("Elongation α").fill("1.5")
    moved = lab.evaluate("""() => {
      const data = JSON.parse(document.querySelector('script[type="application/json"]').textContent);
      const edits = new Map([[2, { length: 1.5, noise: 0.3, deleted: false }]]);
      return [...attention_js.changedKeys(sums_js.headOf(data.live).layer, edits).vectors.get(2)];
    }""")
    noisy = k.clone()
    noisy[0, 0, 2] = torch.tensor(moved, dtype=torch.float64)
    size = k[0, 0, 2].square().mean().sqrt()
    assert 0.1 < ((noisy[0, 0, 2] / 1.5 - k[0, 0, 2]) / size).std() < 0.6  # σ is 0.3
    expected = compared(q[:, :, :1], k, noisy, v, 2)
    assert readings(lab, "A key, moved and made longer") == pytest.approx(expected, abs=1e-9)


def compared(q: Tensor, k: Tensor, changed: Tensor, v: Tensor, key: int) -> dict[str, float]:
    """What the card of a key should say; the first order by automatic differentiation, not by its formula."""

    def output(keys: Tensor) -> Tensor:
        return torch.cat(
            [attend(q, keys, v, impl="reference")[0, 0, 0], attention_weights(q, keys)[0, 0, 0, key : key + 1]]
        )

    before, after = output(k), output(changed)
    _, first = torch.autograd.functional.jvp(output, k, changed - k)
    change = after - before
    return {
        "score β·q·k before": (q @ k.mT)[0, 0, 0, key].item() / 4,
        "score after": (q @ changed.mT)[0, 0, 0, key].item() / 4,
        "weight before": before[-1].item(),
        "weight after": after[-1].item(),
        "change of the weight, measured": change[-1].item(),
        "change of the weight, first order": first[-1].item(),
        "change of the output, measured": change[:-1].norm().item(),
        "change of the output, first order": first[:-1].norm().item(),
        "missed by the first order": (change - first)[:-1].norm().item(),
    }


def test_offsets_are_rotations(lab):
    card = "Offsets are rotations"
    table = sinusoidal(300, 64, dtype=torch.float64)
    offset, position, pair = (lab.get_by_label(name) for name in ("Offset k", "Position t", "Pair of features i"))
    offset.press("Home")
    dots = []
    for k in range(4):
        found = readings(lab, card)
        dots.append(found["dot product PE(t)·PE(t + k)"])
        assert dots[-1] == pytest.approx((table[10] @ table[10 + k]).item(), abs=1e-9)
        assert found["by the formula, Σ cos ωᵢk"] == pytest.approx(dots[-1], abs=1e-12)
        turning = offset_rotation(k, 64)
        error = (table[: 128 - k] @ turning.T - table[k:128]).abs().max().item()
        assert found["largest error, all pairs and positions"] == pytest.approx(error, abs=1e-13)
        assert found["error of this rotation"] <= 1e-14
        assert values(lab, ".pl-matrix") == pytest.approx(turning[4:6, 4:6].flatten().tolist(), abs=1e-12)
        offset.press("ArrowRight")
    assert dots == sorted(dots, reverse=True)  # near offset 0 it falls
    before = readings(lab, card)["dot product PE(t)·PE(t + k)"]
    position.press("End")
    assert readings(lab, card)["dot product PE(t)·PE(t + k)"] == pytest.approx(before, abs=1e-12)
    wave = readings(lab, card)["wavelength 2π/ωᵢ"]
    pair.press("ArrowRight")
    assert readings(lab, card)["wavelength 2π/ωᵢ"] == pytest.approx(wave * 10_000 ** (2 / 64), rel=1e-12)
    wrong = lab.evaluate("""() => {
      const positions = { count: 128, width: 64, base: 10000 };
      const there = sums_js.encoding(9, positions).slice(0, 2);
      return sums_js.distance(sums_js.turned(sums_js.rotation(4, 0, positions), sums_js.encoding(4, positions)), there);
    }""")
    assert wrong > 0.1  # another offset's rotation is no rotation to it


def test_masks_that_leak_and_masks_that_break(lab, head):
    q, k, _ = head
    causal = masks.causal(8)

    def weights() -> Tensor:
        return torch.tensor(values(lab, ".pl-grid button"), dtype=torch.float64).view(8, 8)

    def row(i: int) -> list[float]:
        return values(lab, f".pl-grid tr:nth-child({i + 2}) td:not(:has(button))")

    assert torch.allclose(weights(), attention_weights(q, k, causal)[0, 0], atol=1e-9)
    assert readings(lab, "Masks")["rows that sum to one"] == 8
    lab.get_by_role("button", name="query 3, key 5").click()
    opened = causal.clone()
    opened[3, 5] = True
    assert torch.allclose(weights(), attention_weights(q, k, opened)[0, 0], atol=1e-9)
    assert weights()[3, 5] > 0
    assert row(3) == pytest.approx([1, 0])
    lab.get_by_role("button", name="query 0, key 0").click()  # now it sees nothing
    assert readings(lab, "Masks") == {
        "rows that sum to one": 7, "rows that may see nothing": 1, "largest weight on shut cells": 0,
        "weights that are NaN": 0,
    }  # fmt: skip
    assert row(0) == [0, 0]
    lab.get_by_role("button", name="−∞ added", exact=True).click()
    assert readings(lab, "Masks")["weights that are NaN"] == 8
    assert lab.get_by_role("button", name="query 0, key 0").inner_text() == "NaN"
    lab.get_by_role("button", name="−10⁴ added", exact=True).click()
    assert row(0) == pytest.approx([1, 1])  # it sees what it may not
    lab.get_by_role("button", name="causal", exact=True).click()
    assert readings(lab, "Masks")["largest weight on shut cells"] == 0
    lab.get_by_label("Scores multiplied by").press("End")
    biased = 1e5 * (q @ k.mT)[0, 0] / 4 + masks.additive(causal).double()
    leak = (biased.softmax(-1) * ~causal).sum(-1).max().item()
    assert readings(lab, "Masks")["largest weight on shut cells"] == pytest.approx(leak, abs=1e-6)
    assert leak > 0.5
    lab.get_by_role("button", name="boolean", exact=True).click()
    assert readings(lab, "Masks")["largest weight on shut cells"] == 0


# ---- the ledger and the experiments of the page


@pytest.mark.parametrize("off", [None, "norms", "residuals", "attention"])
def test_a_block_number_by_number(lab, off):
    """Every intermediate is torch's; what is switched off changes the block."""
    how = {"times": 2.5} | {name: name != off for name in ("norms", "residuals", "attention")}
    weights, steps = lab.evaluate(
        "(how) => { const made = block_js.exampleBlock(); return [made, block_js.runBlock(made, how)]; }", how
    )
    w = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in weights.items()}
    norm = partial(F.layer_norm, normalized_shape=(8,)) if how["norms"] else lambda x: x
    q, k, v = ((norm(w["x"]) @ w[name]).view(1, 5, 2, 4).transpose(1, 2) for name in "qkv")
    mixed = F.scaled_dot_product_attention(q, k, v, scale=2.5 / 2).transpose(1, 2).reshape(5, 8)
    middle = how["attention"] * mixed @ w["out"] + how["residuals"] * w["x"]
    out = F.relu(norm(middle) @ w["inner"]) @ w["outer"] + how["residuals"] * middle
    found = {step["name"]: torch.tensor(step["rows"], dtype=torch.float64) for step in steps}
    assert len(found) == 14
    for name, expected in {"mixed heads": mixed, "after attention": middle, "after the block": out}.items():
        assert_close(found[name], expected, rtol=0, atol=1e-12)
    assert_close(found["attention"].view(5, 2, 5).sum(-1), torch.ones(5, 2, dtype=torch.float64))


def test_a_block_is_moved(lab):
    card = lab.get_by_role("region", name="A block, number by number")
    assert card.get_by_role("listitem").count() == 14
    last = card.get_by_role("listitem").last
    before = last.inner_text()
    card.get_by_role("group", name="residuals").get_by_role("button", name="off").click()
    assert "X″ = F" in last.inner_text()
    assert last.inner_text().split("\n")[-1] != before.split("\n")[-1]
    assert readings(lab, "A block, number by number")["cosine of X and X″"] < 0.9


def test_the_ledger_is_filtered_by_verdict(lab, outcomes):
    claims = [claim for outcome in outcomes.values() for claim in outcome.claims]
    rows = lab.locator(".pl-ledger tbody tr")
    assert rows.count() == len(claims)
    for verdict, name in {"true": "true", "false": "false", "conditional": "true when …"}.items():
        count = sum(claim.verdict == verdict for claim in claims)
        lab.get_by_role("group", name="Verdict").get_by_role("button", name=f"{name} {count}", exact=True).click()
        assert lab.locator(".pl-ledger tbody tr:visible").count() == count
        assert set(lab.locator(".pl-ledger tr:visible .pl-verdict").all_inner_texts()) == {name}
    for claim in claims:
        row = lab.locator(f"[id='claim-{claim.id}']")
        assert row.locator("th").text_content() == claim.statement
        assert values(lab, f"[id='claim-{claim.id}']") == [claim.measured, claim.tolerance]
        assert row.locator("td").last.text_content() == (claim.counter_example or "")


def test_an_answer_is_hidden_until_it_is_asked_for(lab, outcomes):
    statement = outcomes["sinusoids"].claims[0].statement
    lab.get_by_role("button", name=statement).click()  # from the ledger to its experiment
    experiment = lab.locator("#experiment-sinusoids")
    assert experiment.get_attribute("open") is not None
    assert EXPERIMENTS["sinusoids"].predict in experiment.inner_text()
    assert experiment.locator("canvas").count() == 0
    assert EXPERIMENTS["sinusoids"].fails not in experiment.inner_text()
    experiment.get_by_role("button", name="Show what came out").click()
    assert EXPERIMENTS["sinusoids"].fails in experiment.inner_text()
    expected = [value for value in outcomes["sinusoids"].numbers.values() if not isinstance(value, str)]
    assert values(lab, "#experiment-sinusoids .pl-readings") == pytest.approx(expected, rel=1e-15)


def test_every_panel_is_drawn_and_has_its_numbers(lab, outcomes):
    for name, outcome in outcomes.items():
        lab.locator(f"#experiment-{name} > summary").click()
        lab.locator(f"#experiment-{name} .pl-reveal").click()
        assert lab.locator(f"#experiment-{name} pre").last.text_content() == EXPERIMENTS[name].code
        panels = describe_experiment(EXPERIMENTS[name], EXPERIMENTS[name].parameters(), outcome)["panels"]
        for figure, panel in zip(lab.locator(f"#experiment-{name} figure").all(), panels, strict=True):
            assert figure.locator("figcaption").inner_text() == panel["title"]
            assert figure.locator("canvas").evaluate(COLOURS) > 10
            numbers = figure.locator("td data").evaluate_all("all => all.map((e) => Number(e.value))")
            assert sorted(numbers) == pytest.approx(sorted(numbers_of(panel)), rel=1e-15)


COLOURS = """e => new Set(new Uint32Array(e.getContext("2d").getImageData(0, 0, e.width, e.height).data.buffer)).size"""


def numbers_of(panel: dict[str, Any]) -> list[float]:
    match panel["kind"]:
        case "curves":
            return [y for line in panel["lines"] for y in line["y"]]
        case "bars":
            return [y for _, heights in panel["series"] for y in heights]
        case _:
            return [y for row in panel["values"] for y in row]


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_readable_everywhere(visit, address, tmp_path, width, dark):
    page = visit(address, width=width, dark=dark)
    for name in ("temperature", "multihead", "shapes"):
        page.locator(f"#experiment-{name} > summary").click()
        page.locator(f"#experiment-{name} .pl-reveal").click()
    page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(UNLABELLED) == []
    keep(page, f"lab-{width}-{'dark' if dark else 'light'}", tmp_path, full_page=True)


def test_the_page_carries_its_own_policy_and_no_address(outcomes):
    text = lab_page([(EXPERIMENTS["graph"], outcomes["graph"])])
    assert text == lab_page([(EXPERIMENTS["graph"], outcomes["graph"])])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "unsafe" not in policy[1]
    assert not re.search(r"https?://", text)
    with pytest.raises(ValueError, match="one experiment or more"):
        lab_page([])


# ---- the command


def test_the_command_writes_the_page(monkeypatch, capsys, outcomes, tmp_path):
    import pellucid.cli.lab as command

    monkeypatch.setattr(
        command, "run_all", lambda ones, **how: [(EXPERIMENTS[n], each) for n, each in outcomes.items()]
    )
    path = tmp_path / "lab.html"
    assert main(["lab", "--out", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"page: {path}"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(["lab", "--json", "--out", str(path)]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["claims"]
    for words, sentence in {
        ("--out", "lab.png"): "a page is .html; got 'lab.png'",
        ("graph", "--out", "lab.html"): "--out is a page of all experiments; leave the name out",
    }.items():
        assert main(["lab", *words]) == 2
        assert sentence in capsys.readouterr().err


# ---- the server


@pytest.fixture(scope="module")
def client():
    with TestClient(create_app({}), base_url="http://127.0.0.1:8000") as found:
        yield found


def direct(name: str, **changes: Any) -> dict[str, Any]:
    one = EXPERIMENTS[name]
    parameters = one.parameters(**changes)
    page = json.loads(json.dumps(describe_experiment(one, parameters, one(parameters))))
    for claim in page["claims"]:
        del claim["twin"], claim["stands"]  # which the terminal tells, and the server doesn't
    return page


def test_the_server_runs_an_experiment_with_other_parameters(client):
    assert client.get("/api/lab/graph").json() == direct("graph")
    changed = client.get("/api/lab/graph", params={"nodes": 6, "radius": 1}).json()
    assert changed == direct("graph", nodes=6, radius=1)
    assert changed != direct("graph")
    assert changed["parameters"] == {"nodes": 6, "width": 8, "radius": 1, "seed": 0}


def test_what_can_be_changed_is_listed_with_its_bounds(client):
    listed = {each["name"]: each for each in client.get("/api/lab").json()}
    assert list(listed) == list(EXPERIMENTS)
    assert listed.keys() >= experiments.LONG
    assert {name for name, each in listed.items() if not each["parameters"]} == experiments.LONG
    keys = listed["temperature"]["parameters"][0]
    assert keys == {
        "name": "keys", "about": "Number of keys, and of queries.", "whole": True, "default": 64, "low": 1, "high": 128,
        "step": 1,
    }  # fmt: skip
    for name in listed.keys() - experiments.LONG:
        for each in listed[name]["parameters"]:
            assert each["about"]
            assert each["low"] <= each["default"] <= each["high"] <= max(999, 4 * each["default"])


@pytest.mark.parametrize(
    ("asked", "status", "sentence"),
    [
        ("nothing", 404, "no experiment is called 'nothing'; /api/lab lists them"),
        ("graph?nodes=0", 422, "nodes is '0'; input should be greater than or equal to 1"),
        ("graph?nodes=25", 422, "nodes is '25'; input should be less than or equal to 24"),
        ("graph?nodes=many", 422, "nodes is 'many'; input should be a valid integer"),
        ("graph?edges=3", 422, "there is no parameter edges"),
        ("perturbation?alpha=nan", 422, "alpha is 'nan'; input should be"),
        ("perturbation?alpha=1e999", 422, "alpha is '1e999'; input should be"),
        ("heads?photographs=1000000", 422, "there is no parameter photographs"),
        ("scaling?widths=1000000", 422, "there is no parameter widths"),
        (
            "convolution?kernel=2",
            422,
            "convolution can't run with these parameters: kernel is 2; expected an odd number",
        ),
        ("packed?heads=5", 422, "packed can't run with these parameters: "),
        ("perturbation?keys=1", 422, "perturbation can't run with these parameters: "),
    ],
)
def test_what_cant_be_run_is_one_sentence(client, asked, status, sentence):
    response = client.get(f"/api/lab/{asked}")
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert sentence in response.json()["error"]


def counted(service: Service, monkeypatch) -> list[tuple]:
    """What the process beside the server is asked for."""
    asked, run = [], service.killable.run

    async def spy(function, *arguments):
        asked.append(arguments)
        return await run(function, *arguments)

    monkeypatch.setattr(service.killable, "run", spy)
    return asked


def test_an_answer_is_kept(client, monkeypatch):
    asked = counted(client.app.state.service, monkeypatch)
    answers = [client.get("/api/lab/norms", params={"seed": seed}).json() for seed in (7, 7, 8, 7)]
    assert [changes["seed"] for _, changes in asked] == [7, 8]
    assert answers[0] == answers[1] == answers[3] != answers[2]


def test_who_asks_again_gets_what_took_too_long(monkeypatch):
    app = create_app({}, limits=Limits(seconds=0.05, linger=30.0))
    service = app.state.service
    asked = counted(service, monkeypatch)
    with TestClient(app, base_url="http://127.0.0.1:8000") as impatient:
        first = impatient.get("/api/lab/norms")
        assert (first.status_code, first.headers["retry-after"]) == (503, "1")
        wait_until(lambda: service.pages.kept, seconds=60)
        assert impatient.get("/api/lab/norms").json() == direct("norms")
    assert len(asked) == 1


def test_the_modules_of_the_lab_are_served_and_nothing_beside_them(client):
    for path in (VIEWER_FOLDER / "lab").iterdir():
        assert client.get(f"/viewer/lab/{path.name}").content == path.read_bytes()
    for wrong in ("lab", "lab/", "lab/nothing.js", "%2e%2e/page.py", "lab/%2e%2e/%2e%2e/page.py", "/etc/passwd"):
        assert client.get(f"/viewer/{wrong}").status_code == 404


def test_sliders_of_the_served_room(visit, tmp_path):
    with serving("--models", "vit-cifar10", "--runs", str(tmp_path), log=tmp_path / "log.txt") as server:
        page = visit(f"{server.address}/?room=lab")
        page.wait_for_selector("#experiment-perturbation")
        assert page.locator(".pl-experiment").count() == len(EXPERIMENTS)
        page.locator("#experiment-perturbation > summary").click()
        page.wait_for_function("() => location.search.includes('experiment=perturbation')")
        assert page.locator("#experiment-perturbation figure").count() == 0
        page.locator("#experiment-perturbation").get_by_role("button", name="Run it").click()
        page.wait_for_selector("#experiment-perturbation figure")
        gain = "#experiment-perturbation .pl-readings div:has(dt:text-is('largest gain of attention'))"
        assert values(page, gain) == pytest.approx([direct("perturbation")["numbers"]["largest gain of attention"]])

        slider, seen = page.locator("#experiment-perturbation").get_by_label("alpha"), []
        for _ in range(3):
            for _ in range(4):  # faster than the server is asked
                slider.press("ArrowRight")
            numbers = direct("perturbation", alpha=float(slider.input_value()))["numbers"]
            seen.append(numbers["largest gain of attention"])
            page.wait_for_function(
                "value => [...document.querySelectorAll('#experiment-perturbation .pl-readings data')]"
                ".some((data) => Math.abs(data.value - value) < 1e-9)",
                arg=seen[-1],
            )
        assert seen == sorted(set(seen))  # the longer the key, the more it gains

        page.reload()
        page.wait_for_selector("#experiment-perturbation[open]")
        for width, dark in ((1280, False), (1280, True), (360, False)):
            page = visit(f"{server.address}/?room=lab&experiment=graph", width=width, dark=dark)
            page.locator("#experiment-graph").get_by_role("button", name="Run it").click()
            page.wait_for_selector("#experiment-graph figure")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(UNLABELLED) == []
            keep(page, f"page-lab-{width}-{'dark' if dark else 'light'}", tmp_path, full_page=True)
