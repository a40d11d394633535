"""Sentences to pieces of words and back, to the last character: one vocabulary for the languages on both sides.

Pieces are made of bytes, so that there is nothing they can't spell, and a blank stands before each sentence, so that
its first word is spelt like any other. Nothing is lower-cased, nothing left out: what is decoded is what was encoded.
"""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from pellucid.config import MOST_SHOWN, parse_json, read_json
from pellucid.data.tokenizer import END, SPECIAL, SPECIAL_NAMES, START, UNKNOWN, are_whole, differing
from pellucid.files import write_text

SubwordKind = Literal["bpe", "unigram"]
BYTES = pre_tokenizers.ByteLevel.alphabet()
LEAST = SPECIAL + len(BYTES)
BLANK = "Ġ"  # how the library writes the byte of a blank


class SubwordTokenizer:
    """Pieces of words, each a number, and a number for each language that is asked for.

    >>> tokenizer = SubwordTokenizer.train(["ein Hund", "a dog", "the dog"], size=300, languages=["de", "en"])
    >>> tokenizer.decode(tokenizer.encode("Ein  Hund, œ!"))
    'Ein  Hund, œ!'
    >>> tokenizer.source("a dog", "de")[0] == tokenizer.languages["de"]
    True
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # "<end>" in a sentence is text like any other
        wrong = [name for i, name in enumerate(SPECIAL_NAMES) if tokenizer.token_to_id(name) != i]
        if wrong:
            raise ValueError(f"the tokenizer has no {', '.join(wrong)} among its first {SPECIAL} tokens; train it here")
        if sorted(tokenizer.get_vocab().values()) != list(range(len(self))):
            raise ValueError(f"the numbers of the {len(self):,} tokens are not 0…{len(self) - 1:,}; train it here")

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        *,
        kind: SubwordKind = "bpe",
        size: int = 8000,
        languages: Sequence[str] = (),
    ) -> "SubwordTokenizer":
        """By byte-pair encoding, or as a unigram model. languages: those that a sentence can be asked for in."""
        if kind not in ("bpe", "unigram"):
            raise ValueError(f"kind is {kind!r}; expected 'bpe' or 'unigram'")
        if size < LEAST + len(languages):
            raise ValueError(f"size is {size}; expected {LEAST + len(languages)} or more: one for each byte, and a few")
        special = [*SPECIAL_NAMES, *(f"<2{language}>" for language in languages)]
        tokenizer = _untrained("BPE" if kind == "bpe" else "Unigram")
        how: dict[str, Any] = {
            "vocab_size": size, "special_tokens": special, "initial_alphabet": BYTES, "show_progress": False,
        }  # fmt: skip
        if kind == "bpe":
            trainer = trainers.BpeTrainer(min_frequency=2, **how)
        else:
            trainer = trainers.UnigramTrainer(unk_token=SPECIAL_NAMES[UNKNOWN], **how)
        tokenizer.train_from_iterator((" " + sentence for sentence in sentences), trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: str | Path) -> "SubwordTokenizer":
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"{path} is not there; a translator needs its tokenizer beside its weights")
        data = read_json(path)
        try:
            return cls._from_data(data)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_json(cls, text: str) -> "SubwordTokenizer":
        return cls._from_data(parse_json(text, "the tokenizer"))

    @classmethod
    def _from_data(cls, data: Any) -> "SubwordTokenizer":
        model = data.get("model") if isinstance(data, dict) else None
        kind = model.get("type") if isinstance(model, dict) else None
        if not isinstance(data, dict) or not isinstance(model, dict) or kind not in ("BPE", "Unigram"):
            raise ValueError("it is no tokenizer of pieces (BPE or Unigram)")
        usual = parse_json(_untrained(kind).to_str(), "it")
        odd = [*differing(data, usual), *differing(model, usual["model"])]
        if odd:  # a pattern of somebody else's may search for ever
            raise ValueError(f"the tokenizer has another {', '.join(odd)} than those that are trained here")
        if kind == "BPE" and not are_whole(model.get("vocab"), model.get("merges", [])):
            raise ValueError("it is no tokenizer (a merge joins other than two of its tokens to a third)")
        try:
            tokenizer = Tokenizer.from_str(json.dumps(data))
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"it is no tokenizer ({str(error)[:MOST_SHOWN]})") from None
        return cls(tokenizer)

    def to_json(self) -> str:
        return self.tokenizer.to_str()

    def save(self, path: str | Path) -> None:
        write_text(Path(path), self.to_json() + "\n")

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    @cached_property
    def languages(self) -> dict[str, int]:
        """The number that asks for each language; none if it speaks one alone."""
        names = takewhile(lambda name: name.startswith("<2"), self._pieces[SPECIAL:])
        return {name[2:-1]: number for number, name in enumerate(names, SPECIAL)}

    def encode(self, sentence: str) -> list[int]:
        return self.tokenizer.encode(" " + sentence, add_special_tokens=False).ids

    def encode_all(self, sentences: Sequence[str]) -> list[list[int]]:
        texts = [" " + sentence for sentence in sentences]
        return [each.ids for each in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def source(self, sentence: str, language: str | None = None) -> list[int]:
        """What an encoder reads: which language is wanted, if there is a choice, the pieces, END."""
        return [*self.ask(language), *self.encode(sentence), END]

    def framed(self, source: list[int], target: list[int], language: list[int]) -> tuple[list[int], list[int]]:
        """The pieces of a pair, as the encoder reads the one and the decoder says the other after START."""
        return [*language, *source, END], [START, *target, END]

    def ask(self, language: str | None) -> list[int]:
        """What stands before a sentence to ask for a language: nothing if there is only one."""
        if not self.languages:
            return []
        if language not in self.languages:
            raise ValueError(f"the language {language!r} can't be asked for; expected {', '.join(self.languages)}")
        return [self.languages[language]]

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The sentence up to the end."""
        return self.tokenizer.decode(self._said(ids), skip_special_tokens=True).removeprefix(" ")

    def label(self, number: int) -> str:
        """A piece as it is read, a blank before it if a word begins there; special tokens by their names."""
        return self.tokenizer.decode([number]) if self._is_piece[number] else self._pieces[number]

    def is_strange(self, sentence: str) -> bool:
        """Whether most of its pieces are parts of a letter: in an alphabet that was hardly there to learn from.

        >>> tokenizer = SubwordTokenizer.train(["ein Hund", "a dog", "the dog"], size=300)
        >>> tokenizer.is_strange("a dog"), tokenizer.is_strange("собака")
        (False, True)
        """
        pieces = self.encode(sentence)
        return 2 * sum("\ufffd" in self.label(piece) for piece in pieces) > len(pieces)

    def words(self, ids: Sequence[int] | Tensor) -> list[tuple[str, slice]]:
        """Each word up to the end, as blanks and punctuation part them, and which of the numbers spell it."""
        ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        starts: list[int] = []
        places = [i for i, number in enumerate(ids[: len(self._until_end(ids))]) if self._is_piece[number]]
        for before, i in zip([None, *places], places, strict=False):
            piece = self._pieces[ids[i]]
            if before is None or piece.startswith(BLANK) or _is_mark(piece) != _is_mark(self._pieces[ids[before]]):
                starts.append(i)
        ends = [*starts[1:], *(place + 1 for place in places[-1:])]
        words = [(slice(a, b), self.tokenizer.decode(ids[a:b]).strip()) for a, b in zip(starts, ends, strict=True)]
        return [(text, where) for where, text in words if text]

    def _said(self, ids: Sequence[int] | Tensor) -> list[int]:
        ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        return [number for number in self._until_end(ids) if self._is_piece[number]]

    def _until_end(self, ids: list[int]) -> list[int]:
        return ids[: ids.index(END)] if END in ids else ids

    @cached_property
    def _pieces(self) -> list[str]:
        vocabulary = self.tokenizer.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)

    @cached_property
    def _is_piece(self) -> list[bool]:
        languages = set(self.languages.values())
        return [number >= SPECIAL and number not in languages for number in range(len(self))]


def _is_mark(piece: str) -> bool:
    """Whether a piece is punctuation. Letters beyond ASCII are spelt by characters that are letters too."""
    text = piece.removeprefix(BLANK)
    return bool(text) and not any(letter.isalnum() for letter in text) and text.isascii()


def _untrained(kind: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE() if kind == "BPE" else models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
