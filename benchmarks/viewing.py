"""How the viewer bears long texts: how large the trace is, when the page is there, how long a row takes a hand.

Drives Chromium (make browser). Prints a report and keeps it in results/viewing-cpu.json.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from shutil import copytree
from typing import Any

import torch
from playwright.sync_api import sync_playwright
from report import Column, Table, keep
from tables import ROOT

from pellucid.explain.layers import Layer
from pellucid.explain.trace import Stream, Trace
from pellucid.views.bundle import save_trace
from pellucid.views.page import VIEWER_FOLDER, to_html

sys.path.insert(0, str(ROOT / "tests"))
from browser import QUIETLY, find_chromium, serving

SIZES = ((197, 12, 12), (1024, 12, 12), (4096, 2, 12))  # tokens, layers, heads
WIDTH = 64
MOVES = 40
HOST = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>a trace</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="viewer/viewer.css"></head><body><main></main><script type="module" src="index.js"></script>
</body></html>"""
SHOWN = """import { mount } from "./viewer/viewer.js";
mount(document.querySelector("main"), await fetch("text.pellucid"));
"""
ROWS = """() => { window.took = []; new PerformanceObserver((list) => window.took.push(...list.getEntries()
.filter((each) => each.name === "pellucid row").map((each) => each.duration))).observe({ type: "measure" }); }"""


def main() -> None:
    rows = []
    with sync_playwright() as playwright:
        path = find_chromium(playwright)
        if path is None:
            sys.exit("the viewer is measured in Chromium, and there is none: make browser brings it")
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIETLY))
        for tokens, layers, heads in SIZES:
            rows.append(measure(browser, tokens, layers, heads))
        browser.close()
    columns = {
        "tokens × layers × heads": Column(),
        "trace": Column("MB", 1),
        "first layer": Column("s", 2),
        "page from disk": Column("s", 2),
        "row, median": Column("ms", 1),
        "row, slowest": Column("ms", 1),
        "to the next frame": Column("ms", 1),
    }
    title = "the viewer of a long text, from the request to the headline, and from the pointer to the row"
    settings = {"width of a head": WIDTH, "moves of the pointer": MOVES, "window": "1400 × 900"}
    keep("viewing", {"viewing": Table(title, columns, rows)}, torch.device("cpu"), seeds=[0], settings=settings)


def measure(browser: Any, tokens: int, layers: int, heads: int) -> dict[str, Any]:
    """One size: its file, its page, its rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = random_trace(tokens, layers, heads)
        copytree(VIEWER_FOLDER, folder / "viewer")
        (folder / "index.html").write_text(HOST)
        (folder / "index.js").write_text(SHOWN)
        save_trace(trace, folder / "text.pellucid")
        to_html(trace, folder / "text.html")
        with serving(folder) as address:
            page, streamed = opened(browser, address)
            page.get_by_text("have come").wait_for(state="hidden")
            rows, frames = moved(page)
            page.close()
        page, disk = opened(browser, (folder / "text.html").as_uri())
        page.close()
        return {
            "tokens × layers × heads": f"{tokens:,} × {layers} × {heads}",
            "trace": round((folder / "text.pellucid").stat().st_size / 1e6, 1),
            "first layer": round(streamed, 2),
            "page from disk": round(disk, 2),
            "row, median": round(statistics.median(rows), 1),
            "row, slowest": round(max(rows), 1),
            "to the next frame": round(statistics.median(frames), 1),
        }


def opened(browser: Any, address: str) -> tuple[Any, float]:
    """The page and how long it took until there was something to point at."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    start = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.locator(".pl-chip").first.wait_for(timeout=120_000)
    return page, time.perf_counter() - start


def moved(page: Any) -> tuple[list[float], list[float]]:
    """Milliseconds of each row as the pointer goes from token to token: computed and written; until it is painted."""
    page.evaluate(ROWS)
    frames = page.evaluate(
        """async (moves) => {
          const frames = [];
          const chips = [...document.querySelectorAll(".pl-chip")];
          for (let i = 0; i < moves; i++) {
            await new Promise((rest) => setTimeout(rest, 400));  // the slow parts are done
            const start = performance.now();
            chips[(i * 37) % chips.length].dispatchEvent(new PointerEvent("pointerenter"));
            await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted, 0)));
            frames.push(performance.now() - start);
          }
          return frames;
        }""",
        MOVES,
    )
    return page.evaluate("took"), frames


def random_trace(tokens: int, layers: int, heads: int) -> Trace:
    """A causal language model's, of random queries and keys."""
    made = torch.Generator().manual_seed(0)
    numbers = torch.randn(layers, 2, heads, tokens, WIDTH, generator=made)
    beta, ones = WIDTH**-0.5, torch.ones(heads, tokens)
    each = [Layer(f"h.{i}.attn", "text", "text", q, k, beta, True, None, ones) for i, (q, k) in enumerate(numbers)]
    stream = Stream("text", "text", tuple(f" word{i % 997}" for i in range(tokens)))
    return Trace("random", "language", (stream,), (), tuple(each), (), (), ())


if __name__ == "__main__":
    main()
