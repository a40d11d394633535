"""Draws the pictures of docs/ideas.md, as vector graphics that stand on light and on dark pages.

Run it as: python docs/draw_ideas.py
"""

from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
INK, QUIET, LINE = "#1a1c20", "#565b66", "#9aa1ae"
BLUE, YELLOW, GREEN, RED = "#d8e8f6", "#fdeec0", "#d9f0df", "#fbdcd8"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"


class Drawing:
    """Boxes, words and arrows on white."""

    def __init__(self, width: int, height: int, title: str):
        self.size, self.title, self.parts = (width, height), title, []

    def words(self, x: float, y: float, text: str, *, size: int = 15, colour: str = INK, at: str = "middle") -> None:
        style = f'font-size="{size}" fill="{colour}" text-anchor="{at}"'
        self.parts.append(f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>')

    def box(self, x: float, y: float, w: float, h: float, *lines: str, fill: str = BLUE, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        shape = f'x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6"'
        self.parts.append(f'<rect {shape} fill="{fill}" stroke="{LINE}"{dash}/>')
        for i, line in enumerate(lines):
            self.words(x + w / 2, y + h / 2 + 5 + 19 * (i - (len(lines) - 1) / 2), line)

    def arrow(self, *points: tuple[float, float], colour: str = QUIET, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        style = f'stroke="{colour}" stroke-width="1.8" marker-end="url(#head)"{dash}'
        self.parts.append(f'<path d="M{path}" fill="none" {style}/>')

    def save(self, name: str) -> None:
        width, height = self.size
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{QUIET}"/></marker>'
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-family="{FONT}">',
            f"<title>{escape(self.title)}</title><defs>{head}</defs>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
            *self.parts,
            "</svg>",
        ]
        (FOLDER / f"{name}.svg").write_text("\n".join(lines) + "\n", encoding="utf-8")


def seam() -> Drawing:
    d = Drawing(760, 270, "Every model reaches attention through one function, which chooses how to compute it")
    for i, name in enumerate(("vision transformer", "captioner", "translator", "yours")):
        d.box(20, 20 + 60 * i, 165, 44, name)
        d.arrow((185, 42 + 60 * i), (285, 135))
    d.box(290, 95, 180, 80, "ops.attend", "q, k, v, mask, β", fill=YELLOW)
    for i, name in enumerate(("the formula", "PyTorch's kernel", "a list of keys", "Triton, short rows")):
        d.box(575, 20 + 60 * i, 165, 44, name, fill=GREEN)
        d.arrow((470, 135), (572, 42 + 60 * i))
    return d


def record() -> Drawing:
    d = Drawing(760, 285, "A record keeps what went into a kernel and what came out, and compares the formula with it")
    d.box(20, 60, 210, 150, fill="#f6f6f3")
    d.words(125, 48, "the model, as it runs", colour=QUIET)
    d.box(45, 80, 160, 40, "q, k, v, mask, β")
    d.arrow((125, 120), (125, 150))
    d.box(45, 152, 160, 40, "the fused kernel", fill=GREEN)
    d.arrow((125, 192), (125, 250))
    d.words(125, 270, "output, unchanged")
    d.box(310, 60, 180, 150, fill="#f6f6f3", dashed=True)
    d.words(400, 48, "the record", colour=QUIET)
    d.box(330, 80, 140, 40, "q, k, v, mask, β")
    d.box(330, 152, 140, 40, "output")
    d.arrow((205, 100), (326, 100), dashed=True)
    d.arrow((205, 172), (326, 172), dashed=True)
    d.box(560, 70, 180, 60, "softmax(β·q·kᵀ)·v", "in float32 or better", fill=YELLOW)
    d.arrow((470, 100), (556, 100))
    d.box(590, 160, 120, 44, "equal?", fill=RED)
    d.arrow((650, 130), (650, 157))
    d.arrow((470, 172), (586, 182))
    d.words(650, 232, "if not, check() raises", colour=QUIET)
    return d


def walk() -> Drawing:
    d = Drawing(760, 300, "One row is carried back from the answer through each map, which is never built as a whole")
    d.words(75, 30, "the answer", colour=QUIET)
    d.words(685, 30, "the patches", colour=QUIET)
    shades = ((0, 0, 0, 1, 0, 0), (0.1, 0.5, 0.1, 0.2, 0.1, 0), (0.2, 0.3, 0.1, 0.1, 0.2, 0.1))
    shades = (*shades, (0.15, 0.25, 0.05, 0.2, 0.25, 0.1))
    for i, row in enumerate(shades):
        x = 30 + 190 * i
        for j, share in enumerate(row):
            blue = f"rgb({240 - 190 * share**0.5:.0f},{244 - 130 * share**0.5:.0f},{250 - 70 * share**0.5:.0f})"
            d.parts.append(f'<rect x="{x + 15 * j}" y="50" width="14" height="24" fill="{blue}" stroke="{LINE}"/>')
        if i < 3:
            d.arrow((x + 96, 62), (x + 184, 62))
            d.words(x + 140, 50, f"× map {3 - i}", size=13)
            d.box(x + 88, 110, 104, 104, fill="#ffffff", dashed=True)
            d.parts.append(f'<rect x="{x + 88}" y="146" width="104" height="14" fill="#fdeec0" stroke="{LINE}"/>')
            d.words(x + 140, 236, "N × N, a few rows", size=13, colour=QUIET)
            d.words(x + 140, 253, "of it at a time", size=13, colour=QUIET)
    d.words(380, 288, "memory for N numbers, instead of N² for each layer and head")
    return d


def beams() -> Drawing:
    d = Drawing(760, 300, "Beams are one growing sequence; a table says which earlier tokens each beam follows")
    said = (("a", "the", "one"), ("red", "blue", "dog"), ("dog", "ball", "cat"), ("runs", "rolls", "on"))
    parents = ((0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 1, 1))
    alive = {(3, 0), (2, 0), (1, 1), (0, 0)}
    for step, words in enumerate(said):
        d.words(110 + 180 * step, 28, f"step {step + 1}", colour=QUIET)
        for slot, word in enumerate(words):
            fill = YELLOW if (step, slot) in alive else "#f6f6f3"
            d.box(60 + 180 * step, 45 + 58 * slot, 100, 40, word, fill=fill)
            if step:
                parent = parents[step][slot]
                kept = (step, slot) in alive and (step - 1, parent) in alive
                start, end = (160 + 180 * (step - 1), 65 + 58 * parent), (57 + 180 * step, 65 + 58 * slot)
                d.arrow(start, end, colour=INK if kept else "#c9cdd5")
    d.words(380, 245, "written once, in the order in which they were said; nothing is copied")
    d.words(380, 275, "the table says: beam 1 of step 4 reads “a”, “blue”, “dog”, “runs”", colour=QUIET)
    return d


def steps() -> Drawing:
    d = Drawing(
        760,
        250,
        "What is random follows from seed and step alone, so a run that was killed goes on as if it hadn't been",
    )
    for row, name in enumerate(("never stopped", "killed in step 6")):
        y = 40 + 95 * row
        d.words(20, y + 25, name, at="start", colour=QUIET)
        for step in range(1, 9):
            lost = row == 1 and step in (5, 6)
            d.box(150 + 72 * (step - 1), y, 62, 40, f"h(s, {step})", fill=RED if lost else BLUE if step % 4 else GREEN)
        if row:
            d.words(150 + 72 * 5 + 31, y - 8, "✗ killed", size=13)
            d.arrow(
                (150 + 72 * 5 + 31, y + 42),
                (150 + 72 * 5 + 31, y + 62),
                (150 + 72 * 3 + 40, y + 62),
                (150 + 72 * 3 + 31, y + 44),
            )
            d.words(150 + 72 * 2, y + 66, "back to the checkpoint", size=13, at="end", colour=QUIET)
    d.words(380, 230, "steps 5 and 6 are taken again, with the same numbers: the weights are equal to the last bit")
    return d


if __name__ == "__main__":
    for name, drawing in (("seam", seam), ("record", record), ("walk", walk), ("beams", beams), ("steps", steps)):
        drawing().save(f"idea-{name}")
