"""Is a captioner right when it is sure? Held-out captions by how sure it was, fitted on half, tested on the rest.

    python benchmarks/doubt.py captioner-flickr8k --data flickr8k/dataset_flickr8k.json --images 400
    python benchmarks/doubt.py runs/mine --data captions.json --keep FOLDER    # all, and what a model's folder keeps

Images are validation images. What is right is the share of a caption's words that name something which one of the
people who captioned the image says, too (`pellucid.evaluation.doubt`). Other signs of doubt stand beside the score:
rank correlation with that share. Keeps results/doubt-DEVICE.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import Column, Table, keep

import pellucid
from pellucid.data.captions import CaptionSet
from pellucid.data.tokenizer import END, START
from pellucid.devices import pick_device
from pellucid.evaluation.captions import References, tokenise_captions
from pellucid.evaluation.doubt import Doubt, name_things, share_said
from pellucid.ready import ReadyCaptioner

GROUPS = 5
COLUMNS = {
    "how sure": Column(),
    "captions": Column(),
    "score": Column(digits=2),
    "expected": Column("share", 0),
    "said by people": Column("share", 0),
    "every word": Column("share", 0),
    "CIDEr-D": Column(digits=2),
}


@torch.no_grad()
def measure(model: ReadyCaptioner, images: CaptionSet, beam: int) -> list[dict[str, Any]]:
    """Of each image its caption, what people say of it, and all signs of doubt; the larger, the surer."""
    rows = []
    blank = model.model.encode(model.reader.prepare(model.reader.blank()[None], model.model))
    for part in torch.arange(len(images)).split(20):
        pixels = model.read(list(images.images.read(part)))
        for i, best in zip(part.tolist(), model.caption(list(pixels), beam, beam, attention=True), strict=True):
            first = best[0]
            references = images.captions[i]
            things = name_things(first.text)
            others = [name_things(each.text) for each in best[1:]]
            alike = [len(things & each) / max(1, len(things | each)) for each in others]
            maps = first.attention.mean((0, 1)).flatten(1)
            maps = maps / maps.sum(-1, keepdim=True)
            rows.append(
                {
                    "text": first.text,
                    "references": references,
                    "said": share_said(first.text, references),
                    "probability of a token": first.score,
                    "probability of the sentence": first.log_prob,
                    "least sure word": min(first.probabilities),
                    "gain over a blank picture": (first.log_prob - read_blindly(model, first.tokens, blank))
                    / (len(first.tokens) + 1),
                    "narrow attention": float((maps * maps.clamp(min=1e-12).log()).sum(-1).mean()),
                    "next captions agree": float(np.mean(alike)) if alike else 1.0,
                }
            )
    return rows


def read_blindly(model: ReadyCaptioner, tokens: torch.Tensor, context: torch.Tensor) -> float:
    """The log-probability of a sentence for somebody who sees a blank picture."""
    said = torch.cat([tokens, tokens.new_tensor([END])]).to(context.device)
    read = torch.cat([said.new_tensor([START]), said[:-1]])
    return float(model.model.decode(read[None], context)[0].log_softmax(-1).gather(1, said[:, None]).sum())


def tabulate(rows: list[dict[str, Any]]) -> tuple[Table, Table]:
    """Every second caption fits what is expected; the others are grouped by it."""
    fitted, tested = rows[::2], rows[1::2]
    doubt = Doubt.fit([row["probability of a token"] for row in fitted], [row["said"] for row in fitted])
    ids = [str(i) for i in range(len(rows))]
    said, meant = tokenise_captions(
        {i: row["text"] for i, row in zip(ids, rows, strict=True)},
        {i: row["references"] for i, row in zip(ids, rows, strict=True)},
    )
    for row, figure in zip(rows, References(meant).cider_d(said), strict=True):
        row["cider_d"] = float(figure)
        row["expected"] = doubt.expect(row["probability of a token"])
    tested = sorted(tested, key=lambda row: row["probability of a token"])
    parts = [
        (f"{place} of {GROUPS}", [tested[i] for i in part])
        for place, part in enumerate(np.array_split(np.arange(len(tested)), GROUPS), 1)
    ]
    parts += [("said to be unsure", [row for row in tested if row["expected"] < 0.5])]
    parts += [("not", [row for row in tested if row["expected"] >= 0.5])]
    groups = [
        {
            "how sure": name,
            "captions": len(part),
            "score": mean(part, "probability of a token"),
            "expected": mean(part, "expected"),
            "said by people": mean(part, "said"),
            "every word": float(np.mean([row["said"] == 1 for row in part])),
            "CIDEr-D": mean(part, "cider_d"),
        }
        for name, part in parts
        if part
    ]
    signs = [name for name, value in rows[0].items() if isinstance(value, float) and name not in NO_SIGNS]
    correlations = [
        {"sign": name} | {of: correlate([r[name] for r in rows], [r[key] for r in rows]) for of, key in TRUTHS.items()}
        for name in signs
    ]
    columns = {"sign": Column(), **{name: Column(digits=2, signed=True) for name in TRUTHS}}
    return (
        Table("held-out captions by how sure the model was of them", COLUMNS, groups),
        Table("rank correlation of signs of doubt with what people say", columns, correlations),
    )


NO_SIGNS = {"said", "expected", "cider_d"}
TRUTHS = {"said by people": "said", "CIDEr-D": "cider_d"}


def mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def correlate(a: list[float], b: list[float]) -> float:
    """Spearman's; ties share their rank, and what is always the same tells nothing."""
    if len(set(a)) == 1 or len(set(b)) == 1:
        return 0.0
    return round(float(np.corrcoef(rank(a), rank(b))[0, 1]), 2)


def rank(values: list[float]) -> np.ndarray:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a shipped name, the folder of a run or of a saved model")
    parser.add_argument("--data", required=True, help="path of captions")
    parser.add_argument("--images", type=int, help="how many validation images; all unless given")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder for doubt.json, what captions of all these images tell")
    parser.add_argument("--notes", default="")
    options = parser.parse_args()
    device = pick_device("auto")
    model = pellucid.load(options.model, device=device)
    model.doubt = None
    images = model.load_split(options.data, "validation")
    if options.images is not None:
        images = images.subset(torch.arange(min(options.images, len(images))))
    rows = measure(model, images, options.beam)
    groups, signs = tabulate(rows)
    settings = {"model": Path(options.model).name, "images": len(rows), "beam": options.beam}
    keep("doubt", {"groups": groups, "signs": signs}, device, settings=settings, notes=options.notes)
    doubt = Doubt.fit([row["probability of a token"] for row in rows], [row["said"] for row in rows])
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        doubt.save(options.keep)
    print(json.dumps({"scores": doubt.scores, "said": doubt.said}))


if __name__ == "__main__":
    main()
