"""Every claim of the lab: what `pellucid lab --json` measures, with its verdict; and how long all of it takes.

Prints a report and keeps it in results/lab-cpu.json. Fails as the command does if a claim doesn't stand.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import torch
from report import Column, Table, keep

VERDICTS = {"true": "true", "false": "false", "conditional": "true under a condition"}


def main() -> None:
    begun = time.perf_counter()
    ledger = subprocess.run([sys.executable, "-m", "pellucid", "lab", "--json"], stdout=subprocess.PIPE, check=True)
    seconds = time.perf_counter() - begun
    claims: list[dict[str, Any]] = json.loads(ledger.stdout)["claims"]
    counts = Counter(claim["verdict"] for claim in claims)
    tables = {
        "verdicts": Table(
            "claims by their verdict",
            {"verdict": Column(), "claims": Column()},
            [{"verdict": called, "claims": counts[verdict]} for verdict, called in VERDICTS.items()],
        ),
        "claims": Table(
            "every claim",
            {
                "claim": Column(),
                "statement": Column(),
                "verdict": Column(),
                "measured": Column(digits=3),
                "counter_example": Column(),
            },
            [
                {
                    "claim": claim["id"],
                    "statement": claim["statement"],
                    "verdict": VERDICTS[claim["verdict"]],
                    "measured": claim["measured"],
                    "counter_example": claim["counter_example"],
                }
                for claim in claims
            ],
        ),
    }
    about = "Claims about CIFAR-10's images are made where they are on the machine."
    settings = {"claims": len(claims), "seconds": round(seconds)}
    keep("lab", tables, torch.device("cpu"), settings=settings, notes=about)


if __name__ == "__main__":
    main()
