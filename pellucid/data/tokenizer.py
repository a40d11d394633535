"""Captions to numbers and back, by the `tokenizers` library: whole words for small data, pieces of words for large."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from pellucid.config import MOST_SHOWN, one_line, parse_json, read_json
from pellucid.files import write_text

PAD, START, END, UNKNOWN, BACKWARD, MASK = range(6)  # the first numbers of every vocabulary
SPECIAL_NAMES = ("<pad>", "<start>", "<end>", "<unknown>", "<backward>", "<mask>")
SPECIAL = len(SPECIAL_NAMES)
NEVER = (PAD, START, UNKNOWN, BACKWARD, MASK)  # what no caption says
TokenizerKind = Literal["words", "bpe"]
WORD_PATTERN = r"[\p{L}\p{N}]+(?:['’\-][\p{L}\p{N}]+)*"
NORMALIZER = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
SPLITTER = pre_tokenizers.Split(Regex(WORD_PATTERN), "removed", invert=True)
TRAINED = ("added_tokens", "model", "vocab", "merges", "unk_id")  # what tokenizers of one kind differ in
MIRRORED = (("left", "right"), ("leftmost", "rightmost"), ("left-hand", "right-hand"), ("lefthand", "righthand"))


class CaptionTokenizer:
    """Lower-case words without punctuation, each a number, or several numbers where they are spelled in pieces.

    >>> tokenizer = CaptionTokenizer.train(["A dog runs.", "A dog on the left"], min_count=1)
    >>> tokenizer.decode(tokenizer.encode("The dog runs, runs!"))
    'the dog runs runs'
    >>> tokenizer.batch(["a dog"], length=6).tolist() == [[START, *tokenizer.encode("a dog"), END, PAD, PAD]]
    True
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        wrong = [name for i, name in enumerate(SPECIAL_NAMES) if tokenizer.token_to_id(name) != i]
        if wrong:
            raise ValueError(f"the tokenizer has no {', '.join(wrong)} among its first {SPECIAL} tokens; train it here")
        if sorted(tokenizer.get_vocab().values()) != list(range(tokenizer.get_vocab_size())):
            raise ValueError(f"the numbers of the {len(self):,} tokens are not 0…{len(self) - 1:,}; train it here")

    @classmethod
    def train(
        cls, captions: Iterable[str], *, kind: TokenizerKind = "words", min_count: int = 5, size: int = 4000
    ) -> "CaptionTokenizer":
        """words: those that occur min_count times or more. bpe: pieces, `size` of them at most."""
        if kind not in ("words", "bpe"):
            raise ValueError(f"kind is {kind!r}; expected 'words' or 'bpe'")
        if kind == "words":
            counts = Counter(
                word for text in captions for word, _ in SPLITTER.pre_tokenize_str(NORMALIZER.normalize_str(text))
            )
            frequent = (word for word, count in counts.items() if count >= min_count)
            words = sorted(frequent, key=lambda word: (-counts[word], word))
            if not words:
                raise ValueError(f"no word occurs {min_count} times in the captions; use a smaller min_count")
            vocabulary = {name: i for i, name in enumerate((*SPECIAL_NAMES, *words))}
            tokenizer = _untrained("WordLevel", vocabulary)
        else:
            tokenizer = _untrained("BPE")
            trainer = trainers.BpeTrainer(
                vocab_size=size, min_frequency=2, special_tokens=list(SPECIAL_NAMES), end_of_word_suffix="</w>",
                show_progress=False,
            )  # fmt: skip
            tokenizer.train_from_iterator(captions, trainer)
        tokenizer.add_special_tokens(list(SPECIAL_NAMES))
        return cls(tokenizer)

    @classmethod
    def load(cls, path: str | Path) -> "CaptionTokenizer":
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"{path} is not there; a captioner needs its tokenizer beside its weights")
        data = read_json(path)
        try:
            return cls._from_data(data)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_json(cls, text: str) -> "CaptionTokenizer":
        return cls._from_data(parse_json(text, "the tokenizer"))

    @classmethod
    def _from_data(cls, data: Any) -> "CaptionTokenizer":
        model = data.get("model") if isinstance(data, dict) else None
        kind = model.get("type") if isinstance(model, dict) else None
        if not isinstance(data, dict) or not isinstance(model, dict) or kind not in ("WordLevel", "BPE"):
            raise ValueError("it is no tokenizer of whole words (WordLevel) or of pieces (BPE)")
        usual = parse_json(_untrained(kind).to_str(), "it")
        odd = [*differing(data, usual), *differing(model, usual["model"])]
        if odd:  # a pattern of somebody else's may search for ever
            raise ValueError(f"the tokenizer has another {', '.join(odd)} than those that are trained here")
        if not are_whole(model.get("vocab"), model.get("merges", [])):
            raise ValueError("it is no tokenizer (a merge joins other than two of its tokens to a third)")
        try:
            tokenizer = Tokenizer.from_str(json.dumps(data))
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"it is no tokenizer ({one_line(str(error))[:MOST_SHOWN]})") from None
        return cls(tokenizer)

    def to_json(self) -> str:
        return self.tokenizer.to_str(pretty=True)

    def save(self, path: str | Path) -> None:
        write_text(Path(path), self.to_json() + "\n")

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, caption: str) -> list[int]:
        """The numbers of its words, or of their pieces. A word nobody knows is UNKNOWN."""
        return self.tokenizer.encode(caption, add_special_tokens=False).ids

    def batch(self, captions: Sequence[str], length: int) -> Int[Tensor, "n length"]:
        """START, the words, END, then PAD. What is too long is cut, and ends all the same."""
        if length < 2:
            raise ValueError(f"length is {length}; expected 2 or more, for the start and the end")
        rows = torch.full((len(captions), length), PAD)
        encodings = self.tokenizer.encode_batch(list(captions), add_special_tokens=False)
        for row, encoding in zip(rows, encodings, strict=True):
            ids = [START, *encoding.ids[: length - 2], END]
            row[: len(ids)] = torch.tensor(ids)
        return rows

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The words up to the end, blanks between them."""
        return " ".join(word for word, _ in self.words(ids))

    def words(self, ids: Sequence[int] | Tensor) -> list[tuple[str, slice]]:
        """Each word up to the end, and which of the numbers spell it."""
        ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        ids = ids[: ids.index(END)] if END in ids else ids
        words: list[tuple[str, slice]] = []
        start, word = 0, ""
        for i, number in enumerate(ids):
            if number < SPECIAL and number != UNKNOWN:
                continue
            piece = self._pieces[number]
            start = start if word else i
            word += piece.removesuffix("</w>")
            if not self._in_pieces or piece.endswith("</w>") or number == UNKNOWN:
                words.append((word, slice(start, i + 1)))
                word = ""
        return words + ([(word, slice(start, len(ids)))] if word else [])

    @cached_property
    def _pieces(self) -> list[str]:
        vocabulary = self.tokenizer.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)

    @cached_property
    def _in_pieces(self) -> bool:
        return isinstance(self.tokenizer.model, models.BPE)

    @cached_property
    def mirrored(self) -> Int[Tensor, " v"]:
        """For every number, the one to say of the picture's mirror image: left for right, and right for left.

        A word spelled in several pieces has no such number, and stays.
        """
        table = torch.arange(len(self))
        for pair in MIRRORED:
            for word, other in (pair, pair[::-1]):
                a, b = self.encode(word), self.encode(other)
                if len(a) == len(b) == 1 and UNKNOWN not in (a[0], b[0]):
                    table[a[0]] = b[0]
        return table

    def counts(self, captions: Iterable[str]) -> Int[Tensor, " v"]:
        """How often each number occurs in the captions."""
        total = Counter(number for caption in captions for number in self.encode(caption))
        return torch.tensor([total[i] for i in range(len(self))])


def _untrained(kind: str, vocabulary: dict[str, int] | None = None) -> Tokenizer:
    """WordLevel: whole words. BPE: pieces."""
    unknown = SPECIAL_NAMES[UNKNOWN]
    if kind == "WordLevel":
        tokenizer = Tokenizer(models.WordLevel(vocabulary or {}, unk_token=unknown))
    else:
        tokenizer = Tokenizer(models.BPE(unk_token=unknown, end_of_word_suffix="</w>"))
        tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer.normalizer, tokenizer.pre_tokenizer = NORMALIZER, SPLITTER
    return tokenizer


def differing(data: dict[str, Any], usual: dict[str, Any]) -> list[str]:
    """The names of what isn't as usual; what is missing is."""
    return [name for name in usual if name not in TRAINED and data.get(name, usual[name]) != usual[name]]


def are_whole(vocabulary: Any, merges: Any) -> bool:
    """Whether all that is merged, and what becomes of it, is in the vocabulary: the library would panic."""
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        return False
    pairs = [each.split(" ") if isinstance(each, str) else each for each in merges]  # as older versions wrote them
    return all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
        and {*pair, "".join(pair)} <= vocabulary.keys()
        for pair in pairs
    )  # fmt: skip
