"""What a caption set holds, before anything is trained on it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from pellucid.data.caption_files import Problems
from pellucid.data.caption_pictures import quote
from pellucid.data.caption_sources import SCENES, CaptionData, find_captions, load_captions
from pellucid.data.captions import CaptionSet
from pellucid.data.inspection import count_sizes, describe_duplicates, describe_sizes, format_numbers, read_through
from pellucid.data.lazy import LazyImageSet, Unreadable
from pellucid.data.listings import some
from pellucid.data.sentences import one_line
from pellucid.data.sources import Moments
from pellucid.data.tokenizer import CaptionTokenizer

LONG_CAPTION = 100  # words; training cuts captions far below it
FREQUENT = 5  # times that a word is said before a vocabulary keeps it
MOST_UNREADABLE = 20  # told one by one
WORDLESS, LENGTHY = "captions without a word", f"captions of more than {LONG_CAPTION} words"


@dataclass(frozen=True)
class Spread:
    """The smallest, the mean and the largest of some numbers."""

    min: int
    mean: float
    max: int

    @classmethod
    def of(cls, values: Sequence[int]) -> "Spread":
        return cls(min(values), sum(values) / len(values), max(values))

    def __str__(self) -> str:
        return f"{self.min:,}…{self.max:,}, mean {self.mean:.1f}"


@dataclass(frozen=True)
class SplitInspection:
    """How many images and captions a split has, how many captions an image and how many words a caption."""

    images: int
    captions: int
    captions_per_image: Spread
    words_per_caption: Spread


@dataclass(frozen=True)
class CaptionInspection:
    """What was found. `vocabulary`: different words of the training captions; `mean`, `std`: of its images, 0…1.

    repeated: captions that are there more than once, and images under several names; no problem, but worth knowing.
    """

    source: str
    format: str
    splits: dict[str, SplitInspection]
    vocabulary: int
    frequent: int
    sizes: dict[tuple[int, int], int]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    problems: tuple[str, ...]
    repeated: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report as text, a fact a line."""
        channels, height, width = self.shape
        images, captions = (
            sum(getattr(each, what) for each in self.splits.values()) for what in ("images", "captions")
        )
        lines = [f"{self.source}: {self.format}, {images:,} images, {captions:,} captions"]
        for split, each in self.splits.items():
            lines.append(f"{split}: {each.images:,} images, {each.captions:,} captions")
            lines.append(f"  captions an image: {each.captions_per_image}; words a caption: {each.words_per_caption}")
        vocabulary = f"{self.vocabulary:,} words in training, {self.frequent:,} of them {FREQUENT} times or more"
        lines += [
            f"vocabulary: {vocabulary}",
            f"sizes: {describe_sizes(self.sizes)}; brought to {height}×{width}, {channels} channels",
        ]
        lines += [f"mean {format_numbers(self.mean)}, std {format_numbers(self.std)} (training images, 0…1)"]
        lines += [f"repeated: {each}" for each in self.repeated]
        return lines + [f"problem: {problem}" for problem in self.problems] + ["no problems"] * (not self.problems)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def inspect_captions(config: CaptionData) -> CaptionInspection:
    """Read every caption and every image of a source and tell what is there, and what is wrong with it."""
    problems, unreadable = Problems(tolerated=1.0), Unreadable(tolerated=1.0)  # here they are what is looked for
    if config.name == SCENES:
        parts = {split: each for split, each in vars(load_captions(config)).items() if each is not None}
        form, sizes = "drawn scenes", {config.size: sum(map(len, parts.values()))}
    else:
        listing, parts = find_captions(config, problems, unreadable)
        form, sizes = listing.format, count_sizes([each.picture for each in chain(*listing.splits.values())])
    hashes, moments = {}, Moments(parts["train"].images.shape[0])
    for split, each in parts.items():
        hashes[split] = read_through(each.images, moments if split == "train" else None)
        if isinstance(each.images, LazyImageSet):
            unreadable.reasons |= each.images.unreadable.reasons
    splits, words = _count_words(parts, problems)
    more = len(unreadable.reasons) - MOST_UNREADABLE
    sentences = [*problems.lines(), *list(unreadable.reasons.values())[:MOST_UNREADABLE]]
    sentences += [f"and {more:,} more images that can't be read"] * (more > 0) + describe_duplicates(hashes)
    mean, std = moments.mean_and_std()
    frequent = sum(count >= FREQUENT for count in words.values())
    shape = parts["train"].images.shape
    repeated = (*_repeated_captions(parts), *_repeated_images(parts, hashes, unreadable))
    return CaptionInspection(
        config.name, form, splits, len(words), frequent, sizes, shape, mean, std, tuple(sentences), repeated
    )


def _repeated_captions(parts: dict[str, CaptionSet]) -> list[str]:
    """Captions that one image has more than once, and those that several images share."""
    counts = Counter(
        (split, name, caption)
        for split, part in parts.items()
        for name, captions in zip(part.ids, part.captions, strict=True)
        for caption in captions
    )
    same = [(name, caption) for (_, name, caption), count in counts.items() if count > 1]
    shared = Counter(caption for _, _, caption in counts)
    several = [count for count in shared.values() if count > 1]
    lines = []
    if same:
        name, said = same[0]
        lines.append(f"{len(same):,} captions more than once of one image: {quote(said)} of {quote(name)}")
    if several:
        caption, most = shared.most_common(1)[0]
        lines.append(f"{len(several):,} captions of several images, most often {quote(caption)}, of {most:,}")
    return [one_line(line) for line in lines]


def _repeated_images(
    parts: dict[str, CaptionSet], hashes: dict[str, list[bytes]], unreadable: Unreadable
) -> Iterator[str]:
    """Images that one split has under several names. Of two splits it is a problem."""
    for split, part in parts.items():
        names = defaultdict(list)
        for name, each in zip(part.ids, hashes[split], strict=True):
            if name not in unreadable.reasons:  # those are all white
                names[each].append(name)
        if several := [same for same in names.values() if len(same) > 1]:
            yield one_line(f"{len(several):,} {split} images under several names: {some(tuple(several[0]), 3)}")


def _count_words(parts: dict[str, CaptionSet], problems: Problems) -> tuple[dict[str, SplitInspection], Counter[int]]:
    """What each split holds, and how often each word is said in training: words as the tokenizer divides them."""
    everything = [caption for part in parts.values() for captions in part.captions for caption in captions]
    try:
        tokenizer = CaptionTokenizer.train(everything, min_count=1)
    except ValueError:  # there is no word at all
        tokenizer = None
    splits: dict[str, SplitInspection] = {}
    counts_by_word: Counter[int] = Counter()
    for split, part in parts.items():
        lengths: list[int] = []
        for name, captions in zip(part.ids, part.captions, strict=True):
            for caption in captions:
                numbers_of = tokenizer.encode(caption) if tokenizer else []
                lengths.append(len(numbers_of))
                if split == "train":
                    counts_by_word.update(numbers_of)
                if not numbers_of or len(numbers_of) > LONG_CAPTION:
                    problems.add(LENGTHY if numbers_of else WORDLESS, one_line(f"{name}: {caption}"))
        counts = [len(captions) for captions in part.captions]
        splits[split] = SplitInspection(len(part), sum(counts), Spread.of(counts), Spread.of(lengths))
    return splits, counts_by_word
