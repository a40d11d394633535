"""Fonts for what a figure writes: its own where that has the letter, else one of the machine's that does."""

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text

log = logging.getLogger(__name__)
USUAL = "DejaVu Sans"  # matplotlib brings it
PREFERRED = ("Noto Sans", "WenQuanYi", "IPA", "Source Han Sans", "Noto", "Unifont")  # where several have a letter
PLACEHOLDERS = ("lastresort", "last resort")  # fonts that have a box for everything
PACKAGES = {  # of Debian, by the first and last letter of what they are for
    "fonts-noto-cjk": ("\u2e80", "\uffef"),
    "fonts-noto-core": ("\u0590", "\u2dff"),
}
MOST_NAMED = 12
INVISIBLE = frozenset("\u200d\ufe0f")  # what joins emoji
FONT_LOG = logging.getLogger("matplotlib.font_manager")


@contextmanager
def fonts_for(figure: Figure) -> Iterator[None]:
    """Give each text of a figure the fonts that it needs; a sentence names the letters that no font here has."""
    texts = [text for text in _texts(figure) if not text.get_text().isascii()]
    letters = {letter for text in texts for letter in text.get_text() if letter.isprintable()} - INVISIBLE
    families, lacking = choose_fonts(letters)
    for text in texts if families else ():
        font = text.get_fontproperties()
        font.set_family([*font.get_family(), *families])
        text.set_fontproperties(font)
    if lacking:
        _say(describe_lacking(lacking))
    level = FONT_LOG.level
    FONT_LOG.setLevel(logging.ERROR)  # it tells of weights that a font hasn't
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from")  # which the sentence has said
            warnings.filterwarnings("ignore", "Matplotlib currently does not support .* natively")
            yield
    finally:
        FONT_LOG.setLevel(level)


def choose_fonts(letters: Iterable[str]) -> tuple[list[str], list[str]]:
    """(Families of fonts that have what the usual one lacks, the letters that none has).

    >>> choose_fonts("a dog, ein süßer Hund, 7 × 8")
    ([], [])
    """
    left = frozenset(letter for letter in letters if not letter.isascii())
    left -= _covered(font_manager.findfont(USUAL), left)
    families: list[str] = []
    for find_fonts in (lambda: font_manager.fontManager.ttflist, _new_fonts):
        covered = {font: _covered(font.fname, left) for font in sorted(find_fonts(), key=_rank)} if left else {}
        while left and covered:
            best = max(covered, key=lambda font: len(covered[font] & left))  # of equals the first
            if not covered[best] & left:
                break
            families.append(best.name)
            left -= covered[best]
    return families, sorted(left)


def describe_lacking(letters: list[str]) -> str:
    """Which letters are drawn as boxes, and what to do about it.

    >>> describe_lacking(["犬", "猫"])
    'no font here has 犬 猫, which the figure shows as boxes; install one that has (Debian: fonts-noto-cjk)'
    """
    shown = " ".join(letters[:MOST_NAMED]) + (f" and {len(letters) - MOST_NAMED} more" * (len(letters) > MOST_NAMED))
    packages = [name for name, (first, last) in PACKAGES.items() if any(first <= letter <= last for letter in letters)]
    where = f" (Debian: {', '.join(packages or ['unifont'])})"
    return f"no font here has {shown}, which the figure shows as boxes; install one that has{where}"


def _texts(figure: Figure) -> list[Text]:
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            axis.get_ticklabels()  # which have no text until they are asked for
    return [text for text in figure.findobj(Text) if isinstance(text, Text)]


def _rank(entry: FontEntry) -> tuple[int, bool, str]:
    """Plain fonts before slanted ones and serifs, the preferred before the others."""
    name = entry.name
    preferred = next((place for place, start in enumerate(PREFERRED) if name.startswith(start)), len(PREFERRED))
    return preferred, entry.style != "normal" or "Serif" in name or "Mono" in name, name


def _new_fonts() -> list[FontEntry]:
    """Those that were installed since matplotlib last looked."""
    manager = font_manager.fontManager
    known = {entry.fname for entry in manager.ttflist}
    count = len(manager.ttflist)
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        try:
            manager.addfont(path)
        except (RuntimeError, OSError, ValueError):  # no font that matplotlib reads
            continue
    return manager.ttflist[count:]


@cache
def _covered(path: str, letters: frozenset[str]) -> frozenset[str]:
    """Those of these letters that the font in a file has."""
    if any(word in path.lower() for word in PLACEHOLDERS):
        return frozenset()
    try:
        font = FT2Font(path)
    except (RuntimeError, OSError, ValueError):  # emoji in bitmaps, damaged files
        return frozenset()
    return frozenset(letter for letter in letters if font.get_char_index(ord(letter)))


@cache
def _say(sentence: str) -> None:
    """Once, however many figures it is true of."""
    log.warning("%s", sentence)
