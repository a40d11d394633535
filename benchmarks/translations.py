"""The translator that comes with the package on Multi30k's test sentences, beside what not reading them scores.

    python benchmarks/translations.py --data multi30k

What `pellucid evaluate translator-en-de --data multi30k --split SPLIT --json` says.
Keeps results/translations-cpu.json.
"""

import argparse

import torch
from report import Column, Table, keep

import pellucid

SPLITS = ("test_2016_flickr", "test_2017_flickr")
SCORE = Column(digits=2)
COLUMNS = {"split": Column(), "sentences": Column()} | dict.fromkeys(
    ("bleu", "low", "high", "chrf", "ter", "length_ratio", "shuffled", "empty", "fixed", "copy"), SCORE
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="Multi30k's folder")
    parser.add_argument("--model", default="translator-en-de")
    options = parser.parse_args()
    model = pellucid.load(options.model)
    figures = {split: model.evaluate(options.data, split).figures for split in SPLITS}
    rows = []
    for split, each in figures.items():
        named = each | {"split": split} | dict(zip(("low", "high"), each["interval"], strict=True))
        rows.append({name: named[name] for name in COLUMNS})
    first = figures[SPLITS[0]]
    settings = {"model": options.model, "direction": first["direction"], "beam": first["beam"]}
    settings |= {"signature": first["signature"]}
    title = "sacreBLEU's scores of its translations, and of what was made without reading the source"
    keep("translations", {"scores": Table(title, COLUMNS, rows)}, torch.device("cpu"), settings=settings,
         libraries=("sacrebleu",))  # fmt: skip


if __name__ == "__main__":
    main()
