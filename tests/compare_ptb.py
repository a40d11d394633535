"""Asks the official tokenizer and ours for the words of many odd captions, and shows where they differ.

    python tests/compare_ptb.py --count 1000000

Needs Java and pycocoevalcap, which brings Stanford's jar. `--keep FILE` writes captions with the official words, for
where there is no Java.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from odd_captions import captions

from pellucid.evaluation.ptb import DROPPED, tokenise
from pellucid.extras import require

BATCH = 100_000  # captions to one Java process
SHOWN = 20  # differences told
BETWEEN = (
    "x"  # a line of its own between captions: what the next one begins with decides over a single letter's full stop
)


def find_jar() -> Path:
    return Path(require("pycocoevalcap", "tokenizer").__path__[0]) / "tokenizer" / "stanford-corenlp-3.4.1.jar"


def ask_java(lines: Sequence[str]) -> list[list[str]]:
    """The words of each caption as the official scorer reads them."""
    with tempfile.TemporaryDirectory() as folder:
        text = "".join(f"{line}\n{BETWEEN}\n" for line in lines)
        (Path(folder) / "captions.txt").write_bytes(text.encode())
        command = [
            "nice",
            "java",
            "-Dfile.encoding=UTF-8",
            "-cp",
            str(find_jar()),
            "edu.stanford.nlp.process.PTBTokenizer",
        ]
        ran = subprocess.run(
            [*command, "-preserveLines", "-lowerCase", "captions.txt"], cwd=folder, capture_output=True, check=True
        )
    answers = ran.stdout.decode().split("\n")[: 2 * len(lines)]
    if answers[1::2] != [BETWEEN] * len(lines):
        raise ValueError("the tokenizer's lines are not the captions': one of them holds a line break")
    return [count_words(answer) for answer in answers[::2]]


def count_words(answer: str) -> list[str]:
    """What its scorer does with an answer: drops punctuation, and splits the rest at any blank."""
    return " ".join(token for token in answer.rstrip().split(" ") if token not in DROPPED).split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="captions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", metavar="FILE", help="write each caption with its official words, a JSON a line")
    arguments = parser.parse_args()
    words = different = done = 0
    for first in range(0, arguments.count, BATCH):
        lines = captions(min(BATCH, arguments.count - first), arguments.seed + first // BATCH)
        wanted = ask_java(lines)
        if arguments.keep:
            with Path(arguments.keep).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair in zip(lines, wanted, strict=True))
        for line, official in zip(lines, wanted, strict=True):
            words += len(official)
            if (ours := tokenise(line)) != official:
                different += 1
                if different <= SHOWN:
                    print(f"{line!r}\n  official {official}\n  ours     {ours}")
        done += len(lines)
        print(f"{done:,} captions, {words:,} words: {different:,} captions differ", flush=True)
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
