"""Draws docs/scaling.svg: what a summary of attention costs against the number of tokens, from results/.

A row for each device that was measured: time and memory of one sequence. `tables.py` writes it, as it writes tables.
"""

import math
from collections.abc import Callable, Iterable
from html import escape
from typing import NamedTuple

from tables import Results, Row, show

INK, QUIET, FAINT = "#1a1c20", "#565b66", "#dfe2e8"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
LEFT, TOP, WIDE, HIGH, APART, BELOW = 78, 76, 330, 220, 92, 86
Point = tuple[float, float]


class Curve(NamedTuple):
    """A row of the benchmark over the tokens. dash: so that curves are told apart without colours."""

    label: str
    colour: str
    dash: str
    mark: str


CURVES = {  # by what the benchmark calls it; "entropy" is a kernel where blocks were measured beside it
    "eager attention with maps": Curve("eager: the map is built", "#b3261e", "", "square"),
    "blocks": Curve("entropy of every row, exact blocks", "#8a5a00", "7 4", "diamond"),
    "kernel": Curve("entropy of every row, kernel", "#1f5fa8", "", "circle"),
    "attend (no map)": Curve("attention alone, fused", "#565b66", "2 4", "none"),
}


def curves(result: Row) -> dict[str, list[Row]]:
    """The rows of each curve, of one sequence of one device."""
    rows = result["tables"]["summaries"]["rows"]
    has_kernel = any(row["what"] == "entropy, impl='blocks'" for row in rows)
    names = {"entropy": "kernel" if has_kernel else "blocks", "entropy, impl='blocks'": "blocks"}
    found: dict[str, list[Row]] = {}
    for row in rows:
        name = names.get(row["what"], row["what"])
        if name in CURVES and row["time"] is not None:
            alone = {part: row[part] / row["batch"] for part in ("time", "extra memory")}
            found.setdefault(name, []).append({"tokens": row["tokens"]} | alone)
    return found


def ticks(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def panel(left: float, top: float, title: str, unit: str, lines: dict[str, list[Point]]) -> Iterable[str]:
    """Axes, and a line for each curve, both logarithmic."""
    points = [point for line in lines.values() for point in line]
    tokens, marks = sorted({x for x, _ in points}), ticks(min(y for _, y in points), max(y for _, y in points))

    def scale(low: float, high: float, start: float, length: float) -> Callable[[float], float]:
        return lambda value: start + length * math.log(value / low) / math.log(high / low)

    x = scale(tokens[0] / 1.25, tokens[-1] * 1.25, left, WIDE)
    y = scale(marks[0], marks[-1], top + HIGH, -HIGH)
    yield text(left, top - 12, title, at="start", size=13, weight=600)
    for mark in marks:
        yield f'<path d="M{left} {y(mark):.1f}h{WIDE}" stroke="{FAINT}"/>'
        yield text(left - 8, y(mark) + 4, f"{mark:,g} {unit}", at="end", colour=QUIET, size=12)
    for count in tokens:
        yield f'<path d="M{x(count):.1f} {top}v{HIGH}" stroke="{FAINT}"/>'
        yield text(x(count), top + HIGH + 18, f"{count:,}", colour=QUIET, size=12)
    yield text(left + WIDE / 2, top + HIGH + 38, "tokens", colour=QUIET, size=12)
    for name, line in lines.items():
        curve = CURVES[name]
        path = " L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in line)
        dash = f' stroke-dasharray="{curve.dash}"' if curve.dash else ""
        yield f'<path d="M{path}" fill="none" stroke="{curve.colour}" stroke-width="2.2"{dash}/>'
        yield from (marked(x(a), y(b), curve) for a, b in line)


def marked(x: float, y: float, curve: Curve) -> str:
    shapes = {"square": f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z", "diamond": f"M{x - 5:.1f} {y:.1f}l5 -5l5 5l-5 5z"}
    if curve.mark == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2" fill="{curve.colour}"/>'
    return f'<path d="{shapes[curve.mark]}" fill="{curve.colour}"/>' if curve.mark in shapes else ""


def text(
    x: float, y: float, words: str, *, at: str = "middle", colour: str = INK, size: int = 14, weight: int = 400
) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="{at}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def draw(results: Results) -> str:
    measured = [result for device in ("cuda", "cpu") if (result := results.get(f"attention-{device}"))]
    width, height = 2 * (LEFT + WIDE) + 40, TOP + len(measured) * (HIGH + APART) + 8
    parts = [f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>']
    for i, curve in enumerate(CURVES.values()):
        at, down = LEFT + (i % 2) * (LEFT + WIDE), 22 + 20 * (i // 2)
        dash = f' stroke-dasharray="{curve.dash}"' if curve.dash else ""
        parts.append(f'<path d="M{at - 40} {down - 5}h34" stroke="{curve.colour}" stroke-width="2.2"{dash}/>')
        parts += [marked(at - 23, down - 5, curve), text(at + 2, down, curve.label, at="start", size=13)]
    for i, result in enumerate(measured):
        top, found = TOP + 10 + i * (HIGH + APART), curves(result)
        for j, (part, unit) in enumerate((("time", "ms"), ("extra memory", "MB"))):
            lines = {name: [(row["tokens"], max(row[part], 1e-3)) for row in rows] for name, rows in found.items()}
            what, precision = part.removeprefix("extra "), show(result["settings"]["precision"])
            where = f"{what}, one sequence: {result['hardware']}, {precision}"
            parts += panel(LEFT + j * (LEFT + WIDE), top, where, unit, lines)
    title = "Time and memory of attention and of its entropy against the number of tokens, both logarithmic"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-family="{FONT}">'
    return "\n".join([head, f"<title>{title}</title>", *filter(None, parts), "</svg>"]) + "\n"
