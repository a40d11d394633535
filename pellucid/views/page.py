"""Traces as one HTML file that carries all it needs: it works from disk, asks the network for nothing, and stays so."""

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pellucid.explain.trace import Trace
from pellucid.views.bundle import to_bytes

VIEWER_FOLDER = Path(__file__).parent / "viewer"

# The viewer's modules are written so that these two patterns find every import and every export.
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "(\.[./\w]*)/(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:(?:async )?function\*?|const) (\w+))", re.MULTILINE)

_STYLE = """body { margin: 0; }
.unseen { position: absolute; width: 1px; height: 1px; margin: 0; overflow: hidden; clip-path: inset(50%); }
main > .pellucid { min-height: 100vh; }
.pellucid.introduction { padding: 1em max(1em, (100vw - 60em) / 2); }
.pellucid.introduction h1 { font-size: 1.6em; margin: 0.5em 0 0; }
.pellucid.introduction h2 { font-size: 1.2em; margin: 1.6em 0 0.4em; }
.pellucid.introduction p { margin: 0.3em 0; max-width: 46em; overflow-wrap: anywhere; }
.pellucid.introduction img { display: block; max-width: 100%; margin: 0.8em 0; border-radius: 6px; }
"""


@dataclass(frozen=True)
class Section:
    """What a page tells above the viewer: sentences and pictures (.png), each picture under the sentence it shows."""

    heading: str
    parts: tuple[str | Path, ...] = ()


def to_html(
    traces: Trace | Sequence[Trace], path: Path | str, *, title: str | None = None, sections: Sequence[Section] = ()
) -> None:
    """Write the traces and the viewer to one HTML file. The same traces and sections, the same bytes.

    >>> import tempfile, torch, pellucid
    >>> trace = pellucid.load("vit-cifar10").trace(torch.zeros(3, 32, 32))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     to_html(trace, f"{folder}/report.html")
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"a page is .html; got {str(path)!r}")
    path.write_text(render_page(traces, title=title, sections=sections), encoding="utf-8", newline="\n")


def render_page(traces: Trace | Sequence[Trace], *, title: str | None = None, sections: Sequence[Section] = ()) -> str:
    """The HTML file as text."""
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    if not traces:
        raise ValueError("a page needs one trace or more; got none")
    title = title or f"{traces[0].model or traces[0].kind}: what it attends to"
    style, code = _STYLE + viewer_css(), f"{viewer_code('page')}\npage_js.showPage(document);\n"
    blocks = "\n".join(
        f'<script type="application/x-pellucid">{base64.b64encode(to_bytes(each)).decode()}</script>' for each in traces
    )
    waiting = "This page draws attention as you point at it: it needs JavaScript, and nothing from the network."
    body = f"{_introduction(title, sections)}\n<main><p>{waiting}</p></main>\n{blocks}"
    return self_contained(title, style, code, body)


def self_contained(title: str, style: str, code: str, body: str) -> str:
    """An HTML file whose policy allows this script and this style, by their digests, and no request at all."""
    policy = f"default-src 'none'; script-src '{_digest(code)}'; style-src '{_digest(style)}'; img-src data: blob:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{code}</script>
</body>
</html>
"""


def _introduction(title: str, sections: Sequence[Section]) -> str:
    """What stands above the viewer, in its colours; without sections the title alone, for ears."""
    if not sections:
        return f'<header class="unseen"><h1>{html.escape(title)}</h1></header>'
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for section in sections:
        parts.append(f"<h2>{html.escape(section.heading)}</h2>")
        shown = section.heading
        for part in section.parts:
            if isinstance(part, str):
                shown = part
                parts.append(f"<p>{html.escape(part)}</p>")
            else:
                data = base64.b64encode(part.read_bytes()).decode()
                parts.append(f'<img src="data:image/png;base64,{data}" alt="{html.escape(shown)}">')
    return "\n".join(['<header class="pellucid introduction">', *parts, "</header>"])


@cache
def viewer_css() -> str:
    """The viewer's style."""
    return (VIEWER_FOLDER / "viewer.css").read_text(encoding="utf-8")


@cache
def viewer_code(entry: str) -> str:
    """A module of the viewer and all that it imports as one script: each a function that returns what it exports."""
    done: dict[Path, str] = {}
    _collect((VIEWER_FOLDER / f"{entry}.js").resolve(), done)
    return '"use strict";\n' + "\n".join(done.values())


def _collect(path: Path, done: dict[Path, str]) -> None:
    source = path.read_text(encoding="utf-8")
    for _, folder, name in _IMPORT.findall(source):
        needed = (path.parent / folder / f"{name}.js").resolve()
        if needed not in done:
            _collect(needed, done)
    exported = ", ".join(_EXPORT.findall(source))
    body = _EXPORT.sub("", _IMPORT.sub(r"const \1 = \3_js;", source))
    done[path] = f"const {path.stem}_js = (() => {{\n{body}return {{ {exported} }};\n}})();"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
