"""The viewer for text, in a real Chromium, and every part of an attention that a trace has, against float64."""

import http.server
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import axe_violations, keep, serving
from browser import chromium as chromium
from browser import visit as visit
from torch import Tensor
from torch.testing import assert_close

from pellucid.explain.layers import Layer, Windows
from pellucid.explain.trace import Likely, Map, Stream, Trace
from pellucid.views.bundle import from_bytes, save_trace, to_bytes
from pellucid.views.page import VIEWER_FOLDER, to_html

TEXT = "<s> The cat sat on the mat because it was tired and the cat slept"
WORDS = tuple(TEXT.split())
N = len(WORDS)
HOST = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>a trace</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<link rel="stylesheet" href="viewer/viewer.css"></head><body><header><h1>A trace</h1></header><main></main>
<script type="module" src="index.js"></script></body></html>"""
SHOWN = """import { mount } from "./viewer/viewer.js";
const name = new URLSearchParams(location.search).get("show");
window.viewer = mount(document.querySelector("main"), await fetch(`${name}.pellucid`));
"""


def text_trace() -> Trace:
    """A language model of three layers, six heads on three key heads. Head 4 of layer 1 looks at the token before."""
    made = torch.Generator().manual_seed(3)
    layers = [attention(f"h.{i}.attn", made) for i in range(3)]
    before = torch.eye(N)
    q, k = layers[1].q.clone(), layers[1].k.clone()
    q[4, 1:, :N], k[2, :, :N] = 12 * before[: N - 1], 12 * before
    layers[1] = replaced(layers[1], q=q, k=k)
    stream = Stream("text", "text", tuple(f" {word}" if i else word for i, word in enumerate(WORDS)), special=(0,))
    likely = tuple(Likely("text", i, ((" mat", 0.5), ("\n", 0.25))) for i in range(4, N))
    stored = Map("gradient", "slept", None, torch.linspace(0, 2 / N, N), "text")
    return Trace("small", "language", (stream,), (), tuple(layers), (), (), (stored,), likely)


def attention(name: str, made: torch.Generator, queries: str = "text", keys: str = "text") -> Layer:
    q, k = torch.randn(6, N, 16, generator=made), torch.randn(3, N, 16, generator=made)
    return Layer(name, queries, keys, q, k, 0.25, True, None, torch.rand(6, N, generator=made))


def sentences() -> Trace:
    """A translator's: its own words read in its source."""
    made = torch.Generator().manual_seed(5)
    source = Stream("source", "text", WORDS, special=(0,))
    target = Stream("target", "text", ("<pad>", *["die", "Katze", "saß"]), special=(0,), prompt=1)
    cross = attention("decoder.cross", made, "target", "source")
    cross = replaced(cross, q=cross.q[:, :4], causal=False)
    said = tuple((word, -0.5) for word in ("die", "Katze", "saß", "</s>"))
    streams = (source, target)
    return Trace(
        "small", "translator", streams, (), (attention("encoder", made, "source", "source"), cross), (), said, ()
    )


def long_trace() -> Trace:
    """4,096 tokens of one small head."""
    made = torch.Generator().manual_seed(7)
    q, k = torch.randn(2, 1, 4096, 4, generator=made)
    stream = Stream("text", "text", tuple(f" w{i}" for i in range(4096)))
    layer = Layer("only", "text", "text", q, k, 0.5, True, None, torch.ones(1, 4096))
    return Trace("long", "language", (stream,), (), (layer,), (), (), ())


def every_part() -> dict[str, Layer]:
    """Masks and biases of one for all and of each head, caps, sinks; six heads on three key heads."""
    made = torch.Generator().manual_seed(1)
    plain = attention("plain", made)
    mask = torch.rand(6, N, N, generator=made) > 0.4
    mask[:, 2] = False
    bias = torch.randn(6, N, N, generator=made).half().float()
    return {
        "grouped": plain,
        "masked": replaced(plain, mask=mask[:1]),
        "masks": replaced(plain, mask=mask, causal=False),
        "biased": replaced(plain, bias=bias[:1]),
        "biases": replaced(plain, bias=bias, mask=mask),
        "capped": replaced(plain, softcap=1.5, bias=bias),
        "sinks": replaced(plain, sinks=torch.linspace(-1, 2, 6)),
        "windows": within_windows(plain, made),
    }


def within_windows(plain: Layer, made: torch.Generator) -> Layer:
    """Windows of four of the fifteen words, in any order, one place of padding; one of two kinds bars a corner."""
    places = torch.randperm(16, generator=made).view(4, 4)
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    mask[1, :, :2, 2:] = False
    bias = torch.randn(2, 6, 4, 4, generator=made).half().float()
    k = torch.cat([plain.k, torch.randn(3, 16 - N, 16, generator=made)], dim=1)
    windows = Windows(places, torch.tensor([0, 1, 1, 0]), mask, bias)
    return replaced(plain, k=k, values=torch.ones(6, 16), causal=False, windows=windows)


def replaced(layer: Layer, **changes: Any) -> Layer:
    return Layer(**{**{name: getattr(layer, name) for name in layer.__dataclass_fields__}, **changes})


def formula(layer: Layer) -> Tensor:
    """The map in float64 (h q k), by the equation of docs/trace.md."""
    if layer.windows is not None:
        return formula_of_windows(layer)
    q, k = layer.q.double(), layer.k.double().repeat_interleave(len(layer.q) // len(layer.k), 0)
    scores = layer.beta * q @ k.mT
    if layer.softcap:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if layer.bias is not None:
        scores = scores + layer.bias.double()
    n, m = scores.shape[1:]
    allowed = torch.ones(n, m, dtype=torch.bool).tril(m - n) if layer.causal else torch.ones(n, m, dtype=torch.bool)
    allowed = (allowed if layer.mask is None else allowed & layer.mask).expand_as(scores)
    e = scores.exp() * allowed
    sink = 0 if layer.sinks is None else layer.sinks.double().exp()[:, None, None]
    total = e.sum(-1, keepdim=True) + sink
    return torch.where(total > 0, e / total, 0.0)


def formula_of_windows(layer: Layer) -> Tensor:
    """One window after the other."""
    found = torch.zeros(len(layer.q), N, N, dtype=torch.float64)
    for places, kind in zip(layer.windows.places.tolist(), layer.windows.kinds.tolist(), strict=True):
        inside = [place for place, key in enumerate(places) if key < N]
        tokens = [places[place] for place in inside]
        for head in range(len(layer.q)):
            q, k = layer.q[head, tokens].double(), layer.k[head // 2, places].double()
            scores = layer.beta * q @ k.mT + layer.windows.bias[kind, head, inside].double()
            e = scores.exp() * layer.windows.mask[kind, 0, inside]
            e = e / e.sum(-1, keepdim=True)
            for row, query in enumerate(tokens):
                found[head, query, tokens] = e[row, inside]
    return found


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    """As the viewer gets them: in half precision."""
    parts = {name: Trace("", "", text_trace().streams, (), (each,), (), (), ()) for name, each in every_part().items()}
    made = {"text": text_trace(), "sentences": sentences(), "long": long_trace(), **parts}
    return {name: from_bytes(to_bytes(each)) for name, each in made.items()}


@pytest.fixture(scope="module")
def folder(traces: dict[str, Trace], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(VIEWER_FOLDER, folder / "viewer")
    (folder / "index.html").write_text(HOST)
    (folder / "index.js").write_text(SHOWN)
    for name, each in traces.items():
        save_trace(each, folder / f"{name}.pellucid")
    shutil.copy(Path(__file__).parent / "traces-1" / "everything.pellucid", folder / "first.pellucid")
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    with serving(folder) as address:
        yield address


@pytest.fixture
def served(visit, site: str):
    """served("text#layer=1", …): that trace, shown while it comes."""

    def opened(show: str, **how: Any) -> Any:
        view = visit(f"{site}?show={show}", **how)
        view.locator(".pl-headline").wait_for()
        return view

    return opened


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_every_part_of_an_attention_equals_the_formula(served, traces):
    view = served("text")
    found = view.evaluate(
        """async (names) => {
          const { parse } = await import("./viewer/bundle.js");
          const { attentionRows } = await import("./viewer/attention.js");
          return Promise.all(names.map(async (name) => {
            const [layer] = parse(await (await fetch(`${name}.pellucid`)).arrayBuffer()).layers;
            const queries = Array.from({ length: layer.nQueries }, (_, i) => i);
            return queries.map((query) => attentionRows(layer, query, layer.beta).map((row) => [...row]));
          }));
        }""",
        list(every_part()),
    )
    plain = formula(traces["grouped"].layers[0])
    for name, rows in zip(every_part(), found, strict=True):
        expected = formula(traces[name].layers[0])
        assert_close(torch.tensor(rows, dtype=torch.float64).transpose(0, 1), expected, rtol=0, atol=1e-9)
        assert name == "grouped" or (expected - plain).abs().max() > 0.05  # the part does something


def test_what_stands_outside_of_a_window_is_told(served, traces):
    """Every step from q and k to a weight, of a key inside, of one outside, and of one that was deleted."""
    layer = traces["windows"].layers[0]
    query = 5
    window = next(row for row in layer.windows.places.tolist() if query in row)
    outside = next(key for key in range(N) if key not in window)
    told = served("text").evaluate(
        """async ([query, inside, outside]) => {
          const { parse } = await import("./viewer/bundle.js");
          const { attentionRow, changedKeys, openKeys, stepsOf } = await import("./viewer/attention.js");
          const [layer] = parse(await (await fetch("windows.pellucid")).arrayBuffer()).layers;
          const gone = changedKeys(layer, new Map([[inside, { length: 1, noise: 0, deleted: true }]]));
          const steps = [inside, outside].map((key) => stepsOf(layer, 2, query, key, layer.beta));
          return { steps, open: openKeys(layer, query), without: [...attentionRow(layer, 2, query, layer.beta, gone)] };
        }""",
        [query, query, outside],
    )
    row = formula(layer)[2, query]
    (inside, beyond), padding = told["steps"], sum(key >= N for key in window)
    assert (inside["weight"], inside["open"]) == (pytest.approx(float(row[query]), abs=1e-9), True)
    assert (beyond["weight"], beyond["open"], beyond["exp"]) == (0, False, 0)
    assert inside["count"] == told["open"] <= 4
    assert inside["padding"] <= padding
    kept = row.clone()
    kept[query] = 0
    assert_close(torch.tensor(told["without"]).double(), kept / (1 - row[query]), rtol=0, atol=1e-9)


def test_what_a_sink_takes_is_said_where_there_is_one(served):
    """The first word of a causal line, whose only key is deleted, gives nothing to anybody."""
    said = served("text").evaluate(
        """async () => {
          const { parse } = await import("./viewer/bundle.js");
          const { beginning, withEdit } = await import("./viewer/state.js");
          const { look } = await import("./viewer/look.js");
          const { spoken } = await import("./viewer/numbers.js");
          const found = {};
          for (const name of ["grouped", "sinks", "windows"]) {
            const trace = parse(await (await fetch(`${name}.pellucid`)).arrayBuffer());
            let state = { ...beginning([trace]), token: 0, head: 2 };
            const before = spoken({ trace, state, look: look(trace, state) });
            state = { ...state, ...withEdit(state, 0, { deleted: true }), token: 0 };
            found[name] = [before, spoken({ trace, state, look: look(trace, state) })];
          }
          return found;
        }"""
    )
    assert not [each for each in said["grouped"] if "on the sink" in each]
    assert all("on the sink" in each for each in said["sinks"])
    assert not [each for each in said["windows"] if "on the sink" in each]


def test_a_line_of_text(served, traces, tmp_path):
    view = served("text#layer=2&head=1")
    row = formula(traces["text"].layers[2])[1]
    assert view.locator(".pl-headline").inner_text() == "What “slept” attends to"  # the last token, as it is causal
    tokens = view.get_by_role("group", name="Read").get_by_role("button")
    assert tokens.count() == N
    assert "pl-special" in tokens.first.get_attribute("class")
    tokens.nth(5).hover()
    assert view.locator(".pl-headline").inner_text() == "What “the” attends to"
    tokens.nth(5).click()
    weight = re.search(r"weight ([\d.e−]+)", tokens.nth(3).get_attribute("aria-label"))
    assert weight is not None
    assert number(weight[1]) == pytest.approx(float(row[5, 3]), rel=5e-3)
    assert "weight 0" in tokens.nth(6).get_attribute("aria-label")  # the future
    view.keyboard.press("ArrowRight")
    assert view.evaluate("document.activeElement.dataset.token") == "6"
    likely = view.get_by_role("region", name="Answers")
    assert likely.inner_text().split("\n")[:3] == ["LIKELY AT “THE”", "mat", "50.0 %"]
    assert "⏎" in likely.inner_text()
    view.get_by_label("Method", exact=True).select_option("gradient")
    assert "weight 0.133" in tokens.last.get_attribute("aria-label")  # a stored map lies on the text
    assert axe_violations(view) == []
    keep(view, "viewer-text", tmp_path, full_page=True)


def test_two_columns(served, traces, tmp_path):
    view = served("text#layer=1&head=4&view=columns")
    canvas = view.get_by_role("application", name="Who asks and who is asked")
    row = formula(traces["text"].layers[1])[4, 8]
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 0.2, "y": box["height"] * 8.5 / N})
    assert view.locator(".pl-headline").inner_text() == "What “it” attends to"
    assert view.locator(".pl-told").inner_text() == f"“it”: the thickest line is head 4's, to because, {row[7]:#.3g}."
    assert int(row.argmax()) == 7  # the token before
    blank = "(canvas) => new Set(canvas.getContext('2d').getImageData(canvas.width / 2, 0, 1, canvas.height).data).size"
    assert canvas.evaluate(blank) > 1  # lines cross the middle
    canvas.focus()
    view.keyboard.press("ArrowDown")
    assert view.locator(".pl-headline").inner_text() == "What “was” attends to"
    canvas.click(position={"x": box["width"] * 0.8, "y": box["height"] * 2.5 / N})
    assert view.evaluate("[viewer.state().token, viewer.state().key]") == [9, 2]
    keep(view, "viewer-columns", tmp_path)


def test_heads_are_switched_off(served, traces):
    view = served("text#layer=0&token=6")
    rows = formula(traces["text"].layers[0])[:, 6]
    token = view.get_by_role("group", name="Read").get_by_role("button").nth(2)

    def said():
        return number(re.search(r"weight ([\d.e−]+)", token.get_attribute("aria-label"))[1])

    assert said() == pytest.approx(float(rows[:, 2].mean()), rel=5e-3)
    for head in (0, 3):
        view.get_by_role("radio", name=f"Head {head}", exact=True).click()
        view.get_by_role("button", name=f"Switch head {head} off").click()
    view.get_by_role("radio", name="mean over heads").click()
    assert said() == pytest.approx(float(rows[[1, 2, 4, 5], 2].mean()), rel=5e-3)
    view.wait_for_timeout(400)
    assert "off=0-0_0-3" in view.url
    view.get_by_role("button", name="All heads on").click()
    assert said() == pytest.approx(float(rows[:, 2].mean()), rel=5e-3)


def test_from_q_and_k_to_a_weight(served, traces):
    view = served("text#layer=0&head=5&token=7&key=3&pin=1")
    layer = traces["text"].layers[0]
    chain = view.get_by_role("region", name="From q and k to a weight")
    numbers = [number(x.split(" ")[-1]) for x in chain.locator(".pl-flow b").all_inner_texts()]
    q, k = layer.q[5, 7].double(), layer.k[2, 3].double()
    scores = layer.beta * layer.q[5, 7].double() @ layer.k[2, :8].double().mT
    e = (scores - scores.max()).exp()
    value = float(layer.values[5, 3])
    weight = float(formula(layer)[5, 7, 3])
    wanted = [q.norm(), k.norm(), q @ k, layer.beta * q @ k, e[3], e.sum(), weight, value, weight * value]
    assert numbers == pytest.approx([float(x) for x in wanted], rel=6e-3)
    assert chain.get_by_role("img", name=re.compile("^q: 16 features")).count() == 1
    chain.get_by_role("button", name=re.compile(r"^<s> \(0\)|^\w+ \(\d\)")).last.click()
    assert view.evaluate("viewer.state().key") != 3


def test_heads_are_found_by_what_they_do(served, traces, tmp_path):
    view = served("text")
    view.get_by_label("Find heads that look at").select_option("previous")
    first = view.get_by_role("list", name="Heads found").get_by_role("button").first
    view.get_by_text("18 of 18 heads").wait_for()
    maps = torch.stack([formula(layer) for layer in traces["text"].layers])
    share = maps.diagonal(-1, 2, 3).sum(-1) / N
    assert first.inner_text().split("\n")[0] == "h.1.attn, head 4"
    assert int(share.argmax()) == 1 * 6 + 4
    assert number(first.inner_text().split("\n")[-1]) == pytest.approx(float(share.max()), rel=5e-3)
    first.click()
    assert view.evaluate("[viewer.state().layer, viewer.state().head]") == [1, 4]
    view.get_by_label("Only layers whose name has").fill("h.2")
    view.get_by_text("6 of 18 heads").wait_for()
    view.get_by_role("button", name="whole maps").click()
    glance = view.get_by_role("application", name="The maps of 18 heads")
    glance.focus()
    view.keyboard.press("ArrowUp")
    assert view.evaluate("viewer.state().layer") == 0
    keep(view, "viewer-heads", tmp_path, full_page=True)


def test_a_translators_words_ask_its_source(served, traces):
    view = served("sentences")
    row = formula(traces["sentences"].layers[1]).mean(0)
    view.get_by_role("group", name="Said, with log-probabilities").get_by_role("button").nth(1).hover()
    assert view.locator(".pl-headline").inner_text() == "What it attends to, saying “Katze”"
    token = view.get_by_role("group", name="Read").get_by_role("button").nth(2)
    assert f"weight {float(row[1, 2]):.3g}"[:11] in token.get_attribute("aria-label")


def test_four_thousand_tokens_open_and_are_zoomed_into(served, traces):
    view = served("long")
    matrix = view.get_by_role("application", name="Attention map of only, 4096 queries by 4096 keys")
    view.get_by_text("Where a pixel stands for several weights it shows the largest.").wait_for()
    matrix.focus()
    for _ in range(10):
        view.keyboard.press("+")
    assert re.search(r"queries 408\d–4095, keys 408\d–4095", matrix.get_attribute("aria-label"))
    view.keyboard.press("ArrowUp")
    view.keyboard.press("ArrowLeft")
    state = view.evaluate("viewer.state()")
    weight = formula(traces["long"].layers[0])[0, state["token"], state["key"]]
    said = view.locator(".pl-matrix .pl-readout").inner_text()
    assert said.startswith(f"“w{state['token']}” → w{state['key']}: ")
    assert number(said.split(": ")[1]) == pytest.approx(float(weight), rel=5e-3)


def test_a_guided_look_predicts_and_shows(served, traces):
    view = served("text#layer=0&head=2&beta=0")
    start = view.evaluate("viewer.state()")
    begin = view.get_by_role("button", name="Guided look")
    begin.focus()
    view.keyboard.press("Enter")
    guide = view.get_by_role("region", name="Guided look")
    options = guide.get_by_role("group", name="Your prediction").get_by_role("button")
    strongest = int(formula(traces["text"].layers[0])[:, N - 1].mean(0).argmax())
    names = options.all_inner_texts()
    assert f"{WORDS[strongest]} ({strongest})" in names
    assert view.evaluate("viewer.state().beta") == 0
    options.nth(names.index(f"{WORDS[strongest]} ({strongest})")).click()
    assert guide.get_by_role("status").inner_text().startswith("Yes.")
    assert view.evaluate("viewer.state().beta") == 1  # and is shown
    guide.get_by_role("button", name="Next question").click()
    options.get_by_text("more").click()
    assert guide.get_by_role("status").inner_text().startswith("No: fewer.")
    guide.get_by_role("button", name="Next question").click()
    options.nth(2).click()
    assert guide.get_by_role("status").inner_text().startswith("Yes.")
    assert next(iter(view.evaluate("viewer.state().edits").values()))["deleted"] is True
    view.mouse.move(0, 0)
    guide.get_by_role("button", name="Done").press("Enter")
    assert view.evaluate("viewer.state()") == start


def test_the_first_layer_is_shown_before_the_second_has_come(visit, folder, traces):
    """A server that sends half of the file and waits."""
    data = (folder / "text.pellucid").read_bytes()
    go = threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".js": "text/javascript"}  # noqa: RUF012

        def __init__(self, *args: Any, **more: Any):
            super().__init__(*args, directory=str(folder), **more)

        def do_GET(self) -> None:
            if not self.path.endswith(".pellucid"):
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            go.wait(30)
            self.wfile.write(data[len(data) // 2 :])
            return None

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        view = visit(f"http://127.0.0.1:{server.server_port}/?show=text#layer=2&head=1&token=5")
        view.get_by_text("1 of 3 attentions have come …").wait_for()
        assert view.evaluate("viewer.state().layer") == 0
        assert view.locator(".pl-circumstances").inner_text().startswith("h.0.attn · head 1 of 6")
        go.set()
        view.get_by_text("h.2.attn · head 1 of 6").first.wait_for()
        assert view.evaluate("viewer.whole.then((bytes) => bytes.length)") == len(data)
        weight = float(formula(traces["text"].layers[2])[1, 5, 3])
        said = view.get_by_role("group", name="Read").get_by_role("button").nth(3).get_attribute("aria-label")
        assert number(said.split("weight ")[1]) == pytest.approx(weight, rel=5e-3)
    finally:
        go.set()
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_first_version_still_opens(served):
    view = served("first")
    assert view.locator(".pl-picture").is_visible()


def test_text_in_a_page_from_disk(visit, traces, tmp_path):
    to_html(traces["text"], tmp_path / "text.html")
    view = visit((tmp_path / "text.html").as_uri(), width=390, height=800, dark=True)
    view.get_by_role("group", name="Read").get_by_role("button").nth(4).click()
    assert view.locator(".pl-headline").inner_text() == "What “on” attends to"
    assert view.evaluate("document.documentElement.scrollWidth") <= 390
    assert axe_violations(view) == []
    keep(view, "viewer-text-390-dark", tmp_path, full_page=True)
