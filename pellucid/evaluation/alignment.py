"""Whether attention is alignment: maps of a sentence pair beside links between words that are known by rule.

The rule: an entry of a dictionary pairs a word of one language with one of the other, in all their forms, where
neither is usually anything else. If one word of a sentence and one word of its translation belong to an entry, and no
second one on either side, they are linked. All other words stay unmarked, and nothing is asked of them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.config import read_json

Link = tuple[int, int]  # the place of a source word, and that of the word that translates it
Dictionary = Mapping[str, Sequence[str]]  # a word's forms, in small letters; those of what it is, as written
EN_DE = Path(__file__).parent / "en-de.json"


def load_dictionary(path: Path = EN_DE) -> Dictionary:
    """Unambiguous words of describing pictures, English and German.

    >>> load_dictionary()["dog"]
    ['Hund']
    """
    return read_json(path)


def split_words(sentence: str) -> list[str]:
    """Words and marks, as a tokenizer of pieces parts them.

    >>> split_words("A dog's T-shirt.")
    ['A', 'dog', "'", 's', 'T', '-', 'shirt', '.']
    """
    return re.findall(r"\w+|[^\w\s]+", sentence)


def mark_links(source: Sequence[str], target: Sequence[str], dictionary: Dictionary) -> list[Link]:
    """The links that the rule knows of, in the order of the target.

    >>> mark_links("Dog sees ball".split(), "Hund sieht Ball".split(), {"dog": ["Hund"], "ball": ["Ball"]})
    [(0, 0), (2, 2)]
    >>> mark_links("Dog sees dog".split(), "Hund sieht Hund".split(), {"dog": ["Hund"]})
    []
    """
    read, links = [word.lower() for word in source], []
    for forms, translations in dictionary.items():
        ours, theirs = set(forms.split()), set(translations)
        here = [i for i, word in enumerate(read) if word in ours]
        there = [j for j, word in enumerate(target) if word in theirs]
        if len(here) == len(there) == 1:
            links.append((here[0], there[0]))
    return sorted(links, key=lambda link: link[1])


def count_errors(weights: Float[Tensor, "words source_words"], links: Iterable[Link]) -> int:
    """How many of the linked words have another source word as their largest weight.

    Each linked word gets one link by its map, so that of all links |A ∩ S| / |A| = |A ∩ S| / |S|: the alignment error
    rate 1 − 2·|A ∩ S| / (|A| + |S|) of Och and Ney (2003) is the share of these errors.
    """
    largest = weights.argmax(-1).tolist()
    return sum(largest[there] != here for here, there in links)


def diagonal(words: int, source_words: int) -> Float[Tensor, "words source_words"]:
    """A map that knows nothing but places: word j of m reads word j·n/m of n.

    >>> diagonal(2, 4).argmax(-1).tolist()
    [0, 2]
    """
    places = (torch.arange(words) * source_words) // max(1, words)
    return torch.nn.functional.one_hot(places, source_words).float()
