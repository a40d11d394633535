"""A report on a classifier as one page that works from disk: class by class, how sure it is, and its worst mistakes."""

import base64
import html
import io
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from pellucid.data.aspect import cut_out
from pellucid.evaluation import ClassificationReport
from pellucid.files import write_text

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1b1f}
table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}figure{display:inline-block;width:11rem;margin:0 1rem 1.2rem 0;
vertical-align:top}img{width:100%;image-rendering:pixelated;background:#eee}figcaption{overflow-wrap:anywhere}
small{color:#666}.bar{display:block;height:100%;background:#356ac3}.track{display:inline-block;vertical-align:middle;
width:8rem;text-align:left;background:#eee;height:.7rem}"""
BINS = 10


def write_report(report: ClassificationReport, title: str, path: Path, count: int = 24) -> None:
    """Write the page. Its mistakes are those that the model was surest of, the surest first."""
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{len(report.labels):,} pictures, top-1 {report.top1:.2%}, top-5 {report.top5:.2%}, "
        f"calibration error (ECE) {report.ece():.2%}.</p>",
        "<h2>Class by class</h2>",
        tabulate(("class", "right", "", "pictures", "right when it says so", "mostly taken for"), class_rows(report)),
        "<h2>How sure it is, and how often it is right then</h2>",
        tabulate(("probability", "pictures", "mean probability", "right", ""), bin_rows(report)),
        "<h2>The mistakes it was surest of</h2>",
        *(draw_mistake(report, place) for place in report.mistakes(count)),
    ]
    if not len(report.mistakes(1)):
        parts.append("<p>There are none.</p>")
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    policy += "style-src 'unsafe-inline'\">"
    body = "\n".join(parts)
    write_text(path, f"<!doctype html>\n<html><head>{policy}{head}</head><body>\n{body}\n</body></html>\n")


def class_rows(report: ClassificationReport) -> list[tuple[str, ...]]:
    """The classes, those that are recognised least often first."""
    table = report.confusion
    said = table.sum(0).tolist()
    order = sorted(range(len(report.classes)), key=lambda i: (math.isnan(report.per_class[i]), report.per_class[i]))
    rows = []
    for i in order:
        share, others = report.per_class[i], table[i].clone()
        others[i] = 0
        most = int(others.argmax())
        mistaken = f"{html.escape(report.classes[most])} ({int(others[most]):,})" if others[most] else ""
        precise = f"{int(table[i, i]) / said[i]:.1%}" if said[i] else "–"
        count = f"{int(table[i].sum()):,}"
        shown = ("–", "") if math.isnan(share) else (f"{share:.1%}", draw_bar(share))
        rows.append((html.escape(report.classes[i]), *shown, count, precise, mistaken))
    return rows


def bin_rows(report: ClassificationReport) -> list[tuple[str, ...]]:
    sure, right = report.probabilities.max(1).values.double(), report.right.double()
    place = (sure * BINS).long().clamp(0, BINS - 1)
    rows = []
    for i in range(BINS):
        inside = place == i
        if inside.any():
            share = right[inside].mean().item()
            mean = sure[inside].mean().item()
            span = f"{i / BINS:.0%}–{(i + 1) / BINS:.0%}"
            rows.append((span, f"{int(inside.sum()):,}", f"{mean:.1%}", f"{share:.1%}", draw_bar(share)))
    return rows


def draw_mistake(report: ClassificationReport, place: int) -> str:
    """A picture with what it is, and what it was taken for."""
    said = report.probabilities[place]
    best, label = int(said.argmax()), int(report.labels[place])
    name = report.name_of(place)
    picture = ""
    if report.images is not None:
        stream = io.BytesIO()
        read = report.images.read(torch.tensor([place]))[0]
        pixels = (cut_out(read) if report.images.area is not None else read).permute(1, 2, 0).squeeze(-1).numpy()
        Image.fromarray(pixels).save(stream, "PNG")
        data = base64.b64encode(stream.getvalue()).decode()
        picture = f'<img alt="{html.escape(name)}" src="data:image/png;base64,{data}">'
    taken = f"{html.escape(report.classes[best])} ({said[best]:.1%})"
    return (
        f"<figure>{picture}<figcaption><b>{html.escape(report.classes[label])}</b> ({said[label]:.1%})<br>taken for "
        f"{taken}<br><small>{html.escape(name)}</small></figcaption></figure>"
    )


def tabulate(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in header)
    lines = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def draw_bar(share: float) -> str:
    return f'<span class="track"><span class="bar" style="width:{100 * share:.0f}%"></span></span>'
