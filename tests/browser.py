"""A real browser for tests: Chromium, driven as a person would. No request may leave the page's own origin.

As a script (`make browser`) it brings one where it can: Playwright's own download, else the distribution's package.
"""

import functools
import http.server
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pages import AXE

NAMES = ("chromium", "chromium-browser", "google-chrome")  # what distributions call it
QUIETLY = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
# What the served page is to live under; nothing inline, nothing from elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
NOBODY = "data:", "blob:", "about:"  # schemes that ask nobody


def find_chromium(playwright: Any) -> str | None:
    """Playwright's own if it was downloaded, else one on the PATH; one that lacks a library doesn't count."""
    paths = [playwright.chromium.executable_path, *map(shutil.which, NAMES)]
    return next((path for path in paths if path and Path(path).exists() and run_quietly(path, "--version")), None)


def fetch_chromium() -> None:
    """Bring Chromium unless there is one, and say in a line what came of it."""
    from playwright.sync_api import sync_playwright

    ways = [(sys.executable, "-m", "playwright", "install", "chromium")]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        quietly = "DEBIAN_FRONTEND=noninteractive apt-get"
        ways += [("sh", "-c", f"{quietly} update && {quietly} install --yes --no-install-recommends chromium")]
    with sync_playwright() as playwright:
        while not (path := find_chromium(playwright)) and ways:
            run_quietly(*ways.pop(0))
    print(f"tests in a browser run in {path}" if path else "Chromium can't be had: the tests in a browser are skipped")


def run_quietly(*command: str, seconds: float = 120) -> bool:
    """Whether the command succeeded in time; with what it started it is ended otherwise."""
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True) as process:
        try:
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return False


@pytest.fixture(scope="module")  # playwright holds the thread's event loop, and there can be one at a time
def chromium() -> Iterator[Any]:
    """The browser; tests that need it are skipped, with the reason, where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        path = find_chromium(playwright)
        if path is None:
            pytest.skip("no chromium on this machine (make browser fetches one)")
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIETLY))
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open an address as a person would: visit(url, width=…, height=…, dark=…, touch=…).

    When the test ends, no page has had an error, and none has asked anybody but its own origin. What others put into
    a page may try: `others` are the beginnings of those addresses; they get no answer. home: the folder of a page from
    disk that consists of several files.
    """
    wrong: list[str] = []
    contexts = []

    def opened(url: str, *, width=1280, height=900, dark=False, touch=False, others=(), home="") -> Any:
        size: Any = {"width": width, "height": height}
        context = chromium.new_context(viewport=size, color_scheme="dark" if dark else "light", has_touch=touch)
        contexts.append(context)
        origin = home or (url if url.startswith("file:") else "/".join(url.split("/")[:3]) + "/")

        def asked(route: Any) -> None:
            if route.request.url.startswith((origin, *NOBODY)):
                route.continue_()
                return
            if not route.request.url.startswith(others or ("nobody",)):
                wrong.append(f"asked {route.request.url[:200]}")
            route.abort()

        context.route("**/*", asked)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: wrong.append(f"error {error}") if not others else None)
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" and not others else None)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == [], wrong


@contextmanager
def serving(folder: Path, policy: str = POLICY) -> Iterator[str]:
    """The folder as a site on this machine, under the policy; its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".js": "text/javascript"}  # noqa: RUF012

        def end_headers(self) -> None:
            self.send_header("Content-Security-Policy", policy)
            super().end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def axe_violations(page: Any) -> list[str]:
    """What axe finds on the page, a line each: the rule, how many, the first of them."""
    if not AXE.exists():
        pytest.skip("axe is not here (make setup brings it)")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run().then((result) => result.violations)")
    return [f"{each['id']} ×{len(each['nodes'])}: {each['nodes'][0]['html'][:200]}" for each in found]


def keep(page: Any, name: str, tmp_path: Path, **how: Any) -> Path:
    """A screenshot, kept in the folder that PELLUCID_ARTEFACTS names, or with the test's files."""
    folder = Path(os.environ.get("PELLUCID_ARTEFACTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(folder / f"{name}.png"), **how)
    return folder / f"{name}.png"


if __name__ == "__main__":
    fetch_chromium()
