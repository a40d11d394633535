"""Words as the official caption scorer sees them: the Penn Treebank's tokens, lower case, punctuation dropped.

Written from what Stanford's tokenizer 3.4.1 answers when the scorer calls it; tests/compare_ptb.py asks both about
a million captions. They agree but for a capital sigma beside digits, hyphens or another script. And where the official
words of a caption hang on the next one (it ends in one letter and a full stop, or has line breaks other than \\n),
here it is read alone.
"""

import re
from collections.abc import Callable
from string import ascii_letters, digits
from typing import NamedTuple

from pellucid.evaluation.ptb_characters import kinds_of

DROPPED = frozenset(
    ("", "''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";")
)

# Abbreviations keep their full stop. Of some the tokenizer wants the capital, because small they are words.
ENDING = """al ala apr ariz assn aug bancorp bhd bldg blvd bros calif co colo conn corp cos ct dak dec esq est etc
ext feb fla fri ga inc ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon mont neb nev nov oct okla
penn ph\\.d plc rd rt sep sept seq sq sr sys tel tenn thu thurs tue tues univ va vt wed wis wisc wyo"""
LEADING = """adj adm adv alex assoc asst atty attys ave brig capt cf cie cmdr col comdr cpl dept det dr drs elec ens
ft gen gov govs hon insp invt jos lieut lt maj messrs mlle mme mr mrs ms msgr mt natl pfc ph pres prof profs
pvt rep reps rev sen sens sfc sgt spc st ste supt supts treas vs wm [a-z]"""
CAPITAL = "Ark Az Del Ill La Mass Miss Ore Pa Tex Wash"
NUMBERED = "no nos prop ph ca figs? art op pp?"  # before a number
STARTS = """A About According Additionally After An As At But Earlier He Her Here However If In It Last Many More
Mr\\. Ms\\. Now Once One Other Our She Since So Some Such That The Their Then There These They This We What When
While Yet You"""
FILES = """bat bmp class cgi cpp c dll docx? exe gif gz html? h java jar jpe?g mov mp3 pdf php pl png ppt ps py sql
tar txt wav xml x zip"""


def _any_case(words: str) -> str:
    return f"(?i:{'|'.join(sorted(words.split(), key=len, reverse=True))})"  # the longest that fits


def _capital(words: str) -> str:
    return "|".join(f"{word[0]}(?i:{word[1:]})" for word in words.split())


# What the rules are made of. They read kinds of characters: ж is any letter beyond ASCII, ٣ any digit.
BLANK = r"[ \t\xa0\u3000\n]"
DIGIT = "[0-9٣]"
ENTITY = "&[aeiouAEIOU](?i:acute|grave|uml);"
LETTER = rf"(?:[A-Za-zж\u0301\xad]|{ENTITY})"
INNER = rf"(?:[A-Za-zж\u0301\xad0-9٣]|{ENTITY})"
WORD = rf"{LETTER}{INNER}*(?:[.!?]{LETTER}{INNER}*)*"
ALNUM = "[A-Za-zж0-9٣]"
QUOTE = "(?:['’]|&apos;)"
EITHER = "(?:['’‘`]|&apos;)"
ELIDED = f"(?:[dDoOlL]{EITHER}{ALNUM})?"
COMPOUND = f"{ELIDED}{ALNUM}+(?:[-_‐]{ELIDED}{ALNUM}+)*"
AND = "(?:&amp;|&)"
FIRM = rf"[A-Z]+(?:(?:\+|{AND})[A-Z]+)+"
SLASHED = r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}(?:\\?/[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}){1,2}"
ACRONYM = r"[A-Za-z](?:\.[A-Za-z])+\."
HYPHENED = rf"[A-Za-z0-9][A-Za-z0-9.,\xad]*(?:-(?:{ACRONYM}|[A-Za-z0-9\xad]+))+"
NUMBER = rf"(?:{DIGIT}*(?:[.:,\xad٫]{DIGIT}+)+|{DIGIT}+)"
REDUCED = f"{QUOTE}(?i:[msd]|re|ve|ll)"  # 's, 'll
NAME = r"[A-Za-z][A-Za-z0-9_:.-]*"
ATTRIBUTE = rf" +{NAME}(?: *= *(?:'[^']*'|\"[^\"]*\"))?"
TAG = f"<(?:{NAME}(?:{ATTRIBUTE})* */?|/{NAME}|[!?][A-Za-z-][^>\n]*) *>"
PATH = r"""/[^ \t\n"<>|()]+[^ \t\n"<>|.!?(){},-]"""
HOST = r"""(?i:www)\.(?:[^ \t\n"<>|.!?(){},]+\.)+[a-zA-Z]{2,4}"""
DOMAIN = r"""(?:[^ \t\n"'`<>|!?(){}$,-_]+\.)+(?i:com|net|org|edu)"""  # ,-_: nor what ASCII has from comma to underscore
EMAIL = (
    r"""(?:<|&lt;)?[a-zA-Z0-9][^ \t\n\xa0"<>|(){}]*@(?:[^ \t\n\xa0"<>|(){}.]+\.)*[^ \t\n\xa0"<>|(){}.]+(?:>|&gt;)?"""
)
LAST = "[0-9]{3,4}[- \xa0]?[0-9]{3,5}"
PHONE = rf"""\([0-9]{{2,3}}\)[ \xa0]?{LAST}|(?:\+\+?)?(?:[0-9]{{2,4}}[- \xa0])?[0-9]{{2,4}}[- \xa0]{LAST}
|(?:(?:\+\+?)?[0-9]{{2,4}}\.)?[0-9]{{2,4}}\.[0-9]{{3,4}}\.[0-9]{{3,5}}""".replace("\n", "")
ENDED = rf"{_any_case(ENDING)}|{_capital(CAPITAL)}|(?i:p?pt)[ye](?i:s?)"


class Spelling(NamedTuple):
    """What a word begins with (a: a letter, 0: a digit, .: another), a pattern with it as first group, its spelling."""

    first: str
    pattern: re.Pattern[str]
    spell: Callable[[str, str], str]


def _rule(first: str, pattern: str, spell: Callable[[str, str], str] | None = None) -> Spelling:
    return Spelling(first, re.compile(pattern), spell or _plain)


def _plain(text: str, kinds: str) -> str:
    """Without soft hyphens, brackets by name."""
    text = text.replace("\xad", "").replace("&amp;", "&")
    return BRACKETS.get(text) or text.replace("(", "-lrb-").replace(")", "-rrb-")


def _exact(text: str, kinds: str) -> str:
    return text


def _nothing(text: str, kinds: str) -> str:
    return ""


def _short(text: str, kinds: str) -> str:
    return kinds.replace("&apos;", "'").replace("’", "'").replace("‘", "`")


def _quote(text: str, kinds: str) -> str:
    return "".join(QUOTES.get(kind, character) for character, kind in zip(text, kinds, strict=True))


def _sign(text: str, kinds: str) -> str:
    return SIGNS.get(text) or SIGNS.get(kinds) or text


BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
QUOTES = {"’": "'", "›": "'", "‘": "`", "‹": "`", "“": "``", "”": "''"}
SIGNS = {"¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "€": "$", "¢": "cents", "£": "#"}
SIGNS |= {"&lt;": "<", "&gt;": ">"}

# Of the rules that match at a place the one that reads furthest wins, with what follows its word; of equals the first.
RULES = (
    _rule("a", "((?i:can))(?i:not)"),
    _rule("a", "((?i:gon|wan))(?i:na)"),
    _rule("a", "((?i:got))(?i:ta)"),
    _rule("a", "((?i:lem|gim))(?i:me)"),
    _rule(".", f"({TAG})", _exact),
    _rule(".", "(—|&(?i:md|mdash|ndash|nbsp|quot);)", _nothing),
    _rule(".", "(&(?i:amp|ht|tl|ur|lr|qc|ql|qr|odq|cdq|#[0-9]+);)"),
    _rule(".", "(½|€|¢|£|&(?i:lt|gt);)", _sign),
    _rule("a.", f"({WORD}){REDUCED}"),
    _rule("a.", rf"([A-Za-z\xad]*[A-MO-Za-mo-z\xad])[nN]{EITHER}[tT]"),  # do|n't
    _rule("a.", f"({WORD})"),
    _rule("a", f"([A-HJ-XZn]{EITHER}[A-Za-zж]{{2,}})"),  # O'Neil
    _rule("a", f"([A-Za-zж]+[aeiouyAEIOUY]{EITHER}[aeiouA-Z][A-Za-zж]*)"),
    _rule("a", f"([lLdDjJ]{QUOTE}|(?i:dunkin|somethin|ol){QUOTE}|[dD]{QUOTE}[yY][eE]|[cC]'(?i:mon)|[oO]{EITHER}[oO])"),
    _rule("a", f"((?i:c{QUOTE}est|cap{QUOTE}n|ev'ry|li'l|nat'l|e'er))"),
    _rule("a", rf"([yY]{QUOTE})[A-Za-zж]"),  # y'|all
    _rule("a", r"([cCfF]#|[cC]\+\+)"),
    _rule(".", f"({QUOTE}(?:[nN]{QUOTE}?|(?i:em|cause|till?)|[2-9]0[sS]))"),  # 'n', '60s
    _rule(".", "('[tT])(?i:is|was)"),
    _rule("a", f"([nN]{EITHER}[tT])", _short),
    _rule(".", f"({REDUCED})[^A-Za-z]", _short),
    _rule(".", r"(')[A-Za-z][^ \t\n\xa0]", _nothing),  # opens a quotation
    _rule(".", f"({REDUCED})", _short),
    _rule("a", r"""((?i:https?)://[^ \t\n"<>|(){}]+[^ \t\n"<>|.!?(){},-])""", _exact),
    _rule("a", f"({HOST})", _exact),
    _rule("a", f"({HOST}{PATH})", _exact),
    _rule("a.", f"({DOMAIN})", _exact),
    _rule("a.", f"({DOMAIN}{PATH})", _exact),
    _rule("a0.", f"({EMAIL})", _exact),
    _rule(".", f"(@[A-Za-z_][A-Za-z0-9_]*|#{LETTER}+)", _exact),
    _rule("0", f"({DIGIT}{{1,2}}[-/]{DIGIT}{{1,2}}[-/]{DIGIT}{{2,4}})"),  # a date
    _rule("0.", rf"([-+]?{NUMBER})"),
    _rule("0", rf"((?:{DIGIT}{{1,4}}[- \xa0])?{DIGIT}{{1,4}}(?:\\?/|⁄){DIGIT}{{1,4}})"),  # 1 1/2
    _rule(".", "(⁺?(?:²+|₂+))"),
    _rule("a.", r"([A-Z]*\$)"),  # US$
    _rule("a", rf"([A-Za-z])\.{BLANK}+(?:{_capital(STARTS)}|{TAG}){BLANK}"),  # the stop ends the sentence
    _rule("a", f"({ACRONYM})"),
    _rule("a", rf"((?:{_any_case(LEADING)})\.)"),
    _rule("a", r"([mM][tf][gG]\.)"),
    _rule("a", rf"((?:{ENDED})\.)(?s:..)"),
    _rule("a", rf"({_any_case(NUMBERED)}\.){BLANK}?{DIGIT}"),
    _rule("a.", rf"({WORD}\.)[,;:]"),
    _rule(".", rf"({QUOTE}[0-9][0-9]){BLANK}"),  # '05
    _rule("a0.", rf"({INNER}+(?:\.{INNER}+)*\.{_any_case(FILES)})(?:{BLANK}|[.?!,])", _exact),
    _rule("0.", rf"({PHONE})"),
    _rule(".", r"([<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]])[^A-Za-z0-9]"),  # :-)
    _rule("a.", r"([-^x=~<>']_[-^x=~<>']|\([-^x=~<>'][_.]?[-^x=~<>']\))"),  # ^_^
    _rule(".", "(''|[‘’“”‹›‚`]{1,2})", _quote),
    _rule(".", r"(\"|'|&apos;|…|-{2,4}|\.{3,}|(?:\.[ \xa0]){2,4}\.|[?!]|[.,:;-])", _nothing),
    _rule(".", r"([?!]{2,}|-{5,}|@+|_+|#+|\*+|(?:\\\*){1,3}|<<|>>|[()\[\]{}\\/=+%&|~^<>¶⁺⁄])"),
    _rule("a0", f"({HYPHENED})"),
    _rule("a0", rf"({HYPHENED}\.)[,;:]"),
    _rule("a0", f"({COMPOUND})"),
    _rule("a", f"({FIRM})"),
    _rule("a0", rf"((?:{COMPOUND}|{FIRM})\.)[,;:]"),
    _rule("a0", f"({SLASHED})"),
    _rule("a", f"((?i:pro-|anti-|c\\.d\\.s|s{AND}p-500|s{AND}ls))"),
)
BY_FIRST = {first: [(rule.pattern.match, rule.spell) for rule in RULES if first in rule.first] for first in "a0."}
FIRST = dict.fromkeys("ж" + ascii_letters, "a") | dict.fromkeys("٣" + digits, "0")
BLANKS = re.compile("[ \t]*")
COMMON = re.compile(
    "(?!(?i:cannot|gonna|wanna|gotta|lemme|gimme))[A-Za-z]+(?=[,!?]?[ \n])"
)  # no rule reads it otherwise


def tokenise(caption: str) -> list[str]:
    """The words of a caption.

    >>> tokenise("A man's dog doesn't like the (old) t-shirt.")
    ['a', 'man', "'s", 'dog', 'does', "n't", 'like', 'the', '-lrb-', 'old', '-rrb-', 't-shirt']
    """
    kinds, place = kinds_of(caption) + "\n\n", 0
    words: list[str] = []
    while (place := _skip(kinds, place)) < len(caption):
        if common := COMMON.match(kinds, place):
            end, word = common.end(), common[0]
        else:
            end, word = _read(caption, kinds, place)
        if (word := word.lower()) not in DROPPED:
            words.append(word)
        place = end
    return " ".join(words).split()  # as the scorer does, a number with a blank in it becomes two words


def _skip(kinds: str, place: int) -> int:
    blanks = BLANKS.match(kinds, place)
    assert blanks is not None  # it matches nothing too
    return blanks.end()


def _read(caption: str, kinds: str, place: int) -> tuple[int, str]:
    """Where the word at a place ends, and how it is spelt."""
    furthest, chosen, spell = place, None, _nothing
    for match, its_spelling in BY_FIRST[FIRST.get(kinds[place], ".")]:
        if (matched := match(kinds, place)) and matched.end() > furthest:
            furthest, chosen, spell = matched.end(), matched, its_spelling
    if chosen is None:  # another blank, or a separator
        return place + 1, ""
    end = chosen.end(1)
    return end, spell(caption[place:end], kinds[place:end])
