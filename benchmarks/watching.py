"""What watching costs: models watched beside the same ones unwatched, in turns.

    python benchmarks/watching.py               # results/watching-DEVICE.json, some minutes
    python benchmarks/watching.py --budget 2    # so many seconds for each model

On CUDA a model that is small for the GPU waits for the processor, where watching runs: so each stands there at sizes
that do and at sizes that don't. asked: every record is asked for, too; of our own models it is made then.
"""

import argparse

import torch
from meter import duel
from report import Column, Table, keep
from torch import nn
from zoo.stubs import load

from pellucid.layers import EncoderBlock
from pellucid.watching import watch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
OURS = ((65, 1), (65, 192), (197, 64), (1024, 8), (197, 512)) if DEVICE == "cuda" else ((65, 1), (65, 32), (197, 8))
BERT = ((128, 1), (128, 32), (512, 8), (128, 256), (512, 32)) if DEVICE == "cuda" else ((128, 1), (128, 8))


def watching(budget: float) -> Table:
    ours = nn.Sequential(*(EncoderBlock(256, 8, norm="pre") for _ in range(12)))
    transformers = load("transformers")
    bert = transformers.BertModel(transformers.BertConfig())
    cases = [("ours, 12 × 256", ours, torch.randn(b, n, 256, dtype=DTYPE)) for n, b in OURS]
    cases += [("Hugging Face's BERT, 12 × 768", bert, torch.randint(1000, (b, n))) for n, b in BERT]
    rows = []
    for name, model, x in cases:
        model, x = model.to(DEVICE, DTYPE).eval(), x.to(DEVICE)

        def watched(model: nn.Module = model, x: torch.Tensor = x) -> None:
            with watch(model):
                model(x)

        def asked(model: nn.Module = model, x: torch.Tensor = x) -> None:
            with watch(model) as seen:
                model(x)
            len(seen)

        def plain(model: nn.Module = model, x: torch.Tensor = x) -> None:
            model(x)

        with torch.no_grad():
            slow, fast, ratio = duel(watched, plain, budget=budget / 2)
            ratio_asked = duel(asked, plain, budget=budget / 2)[2]
        row = {"model": name, "tokens": x.shape[1], "batch": x.shape[0], "watched": 1e3 * slow, "unwatched": 1e3 * fast}
        rows.append(row | {"ratio": ratio, "asked": ratio_asked})
        print(rows[-1], flush=True)
    columns = {"model": Column(), "tokens": Column(), "batch": Column(), "watched": Column("ms", 1)}
    columns |= {"unwatched": Column("ms", 1), "ratio": Column("×", 3), "asked": Column("×", 3)}
    return Table("models watched beside unwatched (bar: at most 1.10×)", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=45.0, help="seconds for each model and size")
    options = parser.parse_args()
    torch.manual_seed(0)
    settings = {"precision": str(DTYPE).removeprefix("torch.")}
    keep("watching", {"watching": watching(options.budget)}, torch.device(DEVICE), seeds=[0], settings=settings)


if __name__ == "__main__":
    main()
