"""A language of our own to translate: every English word has one other word, and adjectives stand behind their noun."""

import itertools
import random
from pathlib import Path

WORDS = {
    "a": "ein", "the": "der", "two": "zwei", "red": "roter", "old": "alter", "small": "kleiner", "dog": "Hund",
    "man": "Mann", "tree": "Baum", "runs": "läuft", "stands": "steht", "sleeps": "schläft", "here": "hier",
    "there": "dort",
}  # fmt: skip
PARTS = (
    ("a", "the", "two"),
    ("red", "old", "small"),
    ("dog", "man", "tree"),
    ("runs", "stands", "sleeps"),
    ("here", "there"),
)


def translated(sentence: str) -> str:
    first, adjective, noun, *rest = (WORDS[word] for word in sentence.removesuffix(".").split())
    return " ".join([first, noun, adjective, *rest]) + "."


def all_pairs() -> list[tuple[str, str]]:
    sentences = [" ".join(words) + "." for words in itertools.product(*PARTS)]
    random.Random(0).shuffle(sentences)
    return [(sentence, translated(sentence)) for sentence in sentences]


def write_folder(folder: Path, train: int = 120, validation: int = 20) -> Path:
    """Files as Multi30k's: train, val and test_new in en and de."""
    pairs = all_pairs()
    parts = {"train": pairs[:train], "val": pairs[train : train + validation], "test_new": pairs[train + validation :]}
    folder.mkdir(exist_ok=True)
    for split, chosen in parts.items():
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in chosen)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder
