"""The models that come with the package, on the test images of what they were trained on.

    python benchmarks/shipped.py --flickr8k flickr8k/dataset_flickr8k.json --tiny-imagenet tiny-imagenet \\
        --official meteor spice

CIFAR-10 is found where `pellucid data fetch` puts it. Prints a report and keeps it in results/shipped-DEVICE.json.
"""

import argparse
from typing import Any

import torch
from report import Column, Table, keep

import pellucid

COLUMNS = {
    "model": Column(),
    "data": Column(),
    "images": Column(),
    "top1": Column("share", 2),
    "exact_seen": Column("share", 1),
    "exact_unseen": Column("share", 1),
    "pointing": Column("share", 1),
    "cider_d": Column(digits=3),
    "bleu4": Column(digits=3),
    "shuffled": Column(digits=3),
    "meteor": Column(digits=3),
    "spice": Column(digits=3),
}


def classify(name: str, data: str, device: torch.device, split: str = "test") -> dict[str, Any]:
    report = pellucid.load(name, device=device).evaluate(data, split)
    return {"images": len(report.labels), "top1": report.top1}


def caption(name: str, data: str, device: torch.device, official: list[str]) -> dict[str, Any]:
    report = pellucid.load(name, device=device).evaluate(data, beam=5)
    figures = report.figures | {"shuffled": report.figures["shuffled"]["cider_d"]}
    for metric in official:
        figures |= report.official(metric)
    return {column: figures[column] for column in COLUMNS if column in figures and column != "data"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flickr8k", required=True, help="path of its captions")
    parser.add_argument("--tiny-imagenet", help="a folder with its Parquet files; left out unless given")
    parser.add_argument("--official", nargs="*", default=[], choices=["meteor", "spice"], help="by their own programs")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = [
        {"model": "vit-cifar10", "data": "CIFAR-10"} | classify("vit-cifar10", "cifar10", device),
        {"model": "captioner-scenes", "data": "scenes"} | caption("captioner-scenes", "scenes", device, []),
        {"model": "captioner-flickr8k", "data": "Flickr8k"}
        | caption("captioner-flickr8k", options.flickr8k, device, options.official),
    ]
    if options.tiny_imagenet:  # its own validation images are its test
        figures = classify("vit-tiny-imagenet", f"hf:{options.tiny_imagenet}", device, "validation")
        rows.insert(1, {"model": "vit-tiny-imagenet", "data": "Tiny ImageNet"} | figures)
    rows = [{column: row.get(column) for column in COLUMNS} for row in rows]
    settings = {"split": "test", "beam": 5, "precision": "float32, weights kept in half precision"}
    keep(
        "shipped", {"models": Table("the models that come with the package", COLUMNS, rows)}, device, settings=settings
    )


if __name__ == "__main__":
    main()
