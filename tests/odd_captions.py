"""Captions as people write them, as programs do, and as nobody should: the same ones for the same seed."""

# ruff: noqa: SIM905

import random
import re
import string

WORDS = """a an the man woman two three young dog cat horse giraffe elephant bird plane train bus motorcycle bike
street sign stop traffic light red blue white black grey colour wooden table plate pizza sandwich broccoli cake bat
ball player tennis racket skateboard surfboard wave beach ocean snow skis slope mountain grass field park bench
umbrella kite sky clouds kitchen sink toilet bathroom mirror bed room couch tv laptop computer keyboard mouse phone
clock tower building window vase flowers bear teddy zebra sheep cow standing sitting riding holding eating walking
next near on in of with at to and or while very no art fig pres gen mass miss del wash ill ore pa ark tex pic gif
doc java sun mon wed sat may mar dec jan oct co inc men women people's group large small top background photo
picture image some several it is are his her their this that can cannot gonna wanna gotta lemme gimme do does did
was would could should have has ain i we they you he she c'est qu'il l'homme li'l ev'ry cap'n nat'l e'er gov't ma'am
y'all s&l's R&B Σοφία""".split()
ABBREVIATIONS = """mr mrs ms miss dr drs prof profs sen sens rep reps atty attys lt col gen messrs gov govs adm rev
maj sgt cpl pvt capt st ste ave pres lieut hon brig cmdr comdr pfc spc supt supts det mt ft adj adv asst assoc ens
insp mlle mme msgr sfc inc co cos corp ltd plc bancorp dept bhd assn univ intl sys no nos prop ph jr sr bros ed esq
blvd rd mon tue tues wed thu thurs fri sat sun jan feb mar apr may jun jul aug sep sept oct nov dec ala ariz az ark
calif colo conn ct dak del fla ga ill ind kan kans ky la mass md mich minn mo mont neb nev okla ore penn tenn tex va
vt wash wis wisc wyo etc et al eg ie vs cf ca fig figs art sec ch pp p vol approx est min max hr hrs oz lb lbs in km
cm mm kg gal sq tel ext alex wm jos cie rt mfg mtg pty pte bldg tsp tbsp pkg qt pt doz elec invt natl seq treas u.s
u.k d.c p.m a.m e.g i.e ph.d b.a m.d l.a n.y r.i.p j.r.r u.s.a a b c i x""".split()
AFTER_ABBREVIATIONS = ". . . . ..  's. .'s .- ./ .) .: .! .\" ., .; .?".split(" ") + [". ,"]
SHORTENED = "s m d ll re ve t clock n em all am cause tis twas til till ye 60s n' mon er o ll've d've".split()
APOSTROPHES = ["'"] * 8 + ["’"] * 3 + ["‘", "`", "´", "&apos;", "\x92"]
LETTERS = "éèüöäñçßøåœæÉÜÑÇłžšİıσςжЖяИעאبمक猫犬の한あア"
SIGNS = "½¼¾⅓²³¹₂™®©°×÷±µ•·§¶†€£¥¢¤№…–—―−‐‑“”„‘’‚«»‹›¿¡♥★☺→✓😀👍🏽🇫🇷\xa0\u3000\u2009\u200b\u200d\ufeff\xad\u0301\ufe0f"
PUNCTUATION = ".,;:!?'\"-()[]{}/\\&%$#@*+=<>_|~^`"
FILES = (
    "bat bmp c class cpp doc docx exe gif gz h htm html jar java jpeg jpg mov mp3 pdf php png py txt wav x zip mp4 svg"
)
DOMAINS = "com net org edu gov mil uk de fr io info co.uk jp tv us".split()
UNITS = """in ft cm mm m km kg g lb lbs oz mph km/h px gb hz °c °f am pm a.m. p.m. P.M. th st nd rd s 's k x ml % ¢ hr
year-old yr. ' \" ''""".split()
ENTITIES = """&amp; &quot; &lt; &gt; &nbsp; &mdash; &ndash; &eacute; &Uuml; &#39; &#8217; &HT; &odq; &apos; &LR;
&copy; &MD; &hellip;""".split()
SMILEYS = ":) :-) ;) :( :D :-D :P :/ xD <3 ^_^ (: =) :o) ;-) :-* >:( 8-) :'( (-: ^.^ (^_^) (o_o) :3 =D :] :}".split()
QUOTES = """" " ' ' “ ” ‘ ’ `` '' « » ` ' „ “ '' '' &quot; &quot; ( ) [ ] { } < > * * _ _ \x93 \x94""".split(" ")
MARKS = """. .. ... .... …  ! !! ?! ??? - -- --- ---- – — , ,, ; : :: / // \\ & && * ** *** ~ _ __ = + | ^ % # ## @
\\* \\/ < > << -. .- '- "- ( (( ) )) ), ). .)""".split()
LINES = [". . .", ". .", ". . . ."]
ENDS = """ .|.| .|.| !|!|?|...|..| . |||||."|.'|.)|,|;| ,|-| -|.,|.;""".split("|")
BLANKS = [" "] * 40 + ["  ", "\t", "   ", " \t", "\xa0", "\u3000"]
LINE_BREAKS = re.compile("[\n\r\v\f\x85\u2028\u2029]")


def captions(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [caption(draw) for _ in range(count)]


def caption(draw: random.Random) -> str:
    """Some words of COCO's, from none to most of them odd."""
    count, share = draw.randint(1, 12), draw.choice((0, 0.1, 0.1, 0.3, 0.6))
    parts = [
        draw.choice(ODD)(draw) if draw.random() < share else draw.choice((word, plain))(draw) for _ in range(count)
    ]
    if share == 0:
        parts[draw.randrange(count)] = draw.choice(ODD)(draw)
    text = draw.choice(("", "", "", " ", "  "))
    for part in parts:
        joint = (
            draw.choice(BLANKS) if draw.random() < 0.97 else draw.choice((",", ", ", "; ", ": ", ". ", ".", "-", ""))
        )
        text += part + joint
    return LINE_BREAKS.sub(" ", text.rstrip(" ") + draw.choice(ENDS))


def plain(draw: random.Random) -> str:
    return draw.choice(WORDS)


def word(draw: random.Random) -> str:
    return cased(draw, plain(draw))


def cased(draw: random.Random, text: str) -> str:
    if text == "Σοφία":  # in capitals or cut, its sigma is the exception that ptb.py names
        return text
    share = draw.random()
    if share < 0.8:
        return text if share < 0.6 else text.capitalize()
    return text.upper() if share < 0.92 else "".join(draw.choice((each, each.upper())) for each in text)


def number(draw: random.Random) -> str:
    """Whole, decimal, a fraction, a time, money, a telephone's, a date, with a unit…"""

    def digits(fewest: int = 0, most: int = 0) -> str:
        count = draw.randint(fewest, most or fewest) if fewest else draw.choice((1, 1, 2, 2, 3, 4, 4, 5, 7, 10))
        return "".join(draw.choice(string.digits) for _ in range(count))

    unit, money, sign, joint = draw.choice(UNITS), draw.choice("$£€¥¢#"), draw.choice("+-"), draw.choice("-/.")
    country, times = draw.choice(("US", "C", "A", "HK", "us", "$")), draw.choice("xX×-*")
    forms = (
        f"{digits()}", f"{digits()}.{digits()}", f"{digits(1)},{digits(3)}", f"{digits()},{digits()}",
        f"{digits()}/{digits()}", f"{digits(1)} {digits(1)}/{digits(1)}", f"{digits()}-{digits(1)}/{digits(1)}",
        f"{digits(1, 2)}:{digits(2)}", f"{digits()}{unit}", f"{money}{digits()}", f"{country}${digits()}.{digits(2)}",
        f"{sign}{digits()}", f".{digits()}", f"{digits()}.", f"{digits()}%", f"({digits(3)}) {digits(3)}-{digits(4)}",
        f"{digits(3)}-{digits(3)}-{digits(4)}", f"{digits(1, 4)}{joint}{digits(1, 2)}{joint}{digits(1, 4)}",
        f"{digits()}{times}{digits()}", f"({digits()})", f"{draw.choice(APOSTROPHES)}{digits(2)}{draw.choice('s S')}",
        f"+{digits(1)} {digits(3)} {digits(3)} {digits(4)}",
    )  # fmt: skip
    return draw.choice(forms).rstrip()


def abbreviation(draw: random.Random) -> str:
    return cased(draw, draw.choice(ABBREVIATIONS)) + draw.choice(AFTER_ABBREVIATIONS)


def acronym(draw: random.Random) -> str:
    return "".join(
        draw.choice(string.ascii_letters) + draw.choice("....-& ").rstrip() for _ in range(draw.randint(1, 5))
    )


def contraction(draw: random.Random) -> str:
    stems = ("", word(draw), word(draw), word(draw), number(draw), draw.choice(LETTERS) + "a")
    stem = draw.choice((*stems, *"do does ca wo is AREN o y d l c rock ma who he I it".split()))
    apostrophe = draw.choice(APOSTROPHES)
    nt = draw.choice("nN") + apostrophe + draw.choice("tT")
    tail = nt if draw.random() < 0.35 else apostrophe + cased(draw, draw.choice(SHORTENED))
    return stem + tail + draw.choice(("", "", "", "ve", "'ve", "s", "."))


def compound(draw: random.Random) -> str:
    text = draw.choice((word, number, acronym))(draw)
    for _ in range(draw.randint(1, 4)):
        joint = draw.choice("----/_.&+@~'\xad–‐*\\|=:,") * draw.choice((1, 1, 1, 1, 1, 2, 3))
        text += joint + draw.choice((word, word, number, acronym))(draw)
    return text + draw.choice(("", "", "", "-", "/", ".", "'s", "n't"))


def address(draw: random.Random) -> str:
    """Of a page, of a person, of a file; tags."""

    def name() -> str:
        return "".join(draw.choice(f"{string.ascii_lowercase}{string.digits}-_.") for _ in range(draw.randint(1, 9)))

    domain, path = draw.choice(DOMAINS), draw.choice(("", "/", f"/{name()}", "/a/b.html?x=1&y=2#z", "/(x)", ":8080/"))
    scheme = draw.choice(("http://", "https://", "https://www.", "HTTP://", "ftp://", "Www.", "mailto:", "<", ""))
    forms = (
        f"{name()}@{name()}.{domain}", f"{scheme}{name()}.{domain}{path}", f"www.{name()}.{domain}",
        f"{name()}.{draw.choice(FILES.split())}", f"{draw.choice('@#')}{name()}", f"<{name()}.{domain}>",
    )  # fmt: skip
    return draw.choice(forms) + draw.choice(("", "", "", ".", ",", ")", "'s", "?"))


def quoted(draw: random.Random) -> str:
    place = 2 * draw.randrange(len(QUOTES) // 2)
    inner = " ".join(
        draw.choice((word, word, contraction, number, abbreviation))(draw) for _ in range(draw.randint(1, 3))
    )
    return QUOTES[place] + inner + draw.choice(("", ".", ",", "!", "?")) + QUOTES[place + 1]


def mark(draw: random.Random) -> str:
    return draw.choice(MARKS + LINES)


def tag(draw: random.Random) -> str:
    inner = draw.choice(("", " ", "/", " /", " x=1", ' href="a b"', " a b", "="))
    return f"<{draw.choice(('', '/', '!', '?'))}{word(draw)}{inner}{draw.choice(('>', '>', '>', ''))}"


def soup(draw: random.Random) -> str:
    pots = (string.ascii_lowercase, string.ascii_uppercase, string.digits, PUNCTUATION, PUNCTUATION, SIGNS, LETTERS)
    return "".join(draw.choice(draw.choice(pots)) for _ in range(draw.randint(1, 8)))


def scripts(draw: random.Random) -> str:
    """Characters of anywhere in Unicode among letters and digits."""
    codes = (draw.randrange(0xA0, 0xD800), draw.randrange(0xA0, 0x3000), draw.randrange(0xE000, 0x1FFFF))
    anything = "".join(chr(code) for code in codes if code != ord("Σ"))
    return "".join(draw.choice(anything + "ab1-'.") for _ in range(draw.randint(1, 6)))


def stew(draw: random.Random) -> str:
    bits = (word, word, lambda draw: draw.choice(PUNCTUATION), lambda draw: draw.choice(f".'-{string.digits}"))
    return "".join(draw.choice(bits)(draw) for _ in range(draw.randint(2, 6)))


def foreign(draw: random.Random) -> str:
    if draw.random() < 0.1:
        return " ΟΔΟΣ "
    return "".join(draw.choice(LETTERS + string.ascii_lowercase) for _ in range(draw.randint(1, 6)))


def between(draw: random.Random) -> str:
    """A sign, an entity or a smiley, beside words or alone."""
    middle = draw.choice((SIGNS, ENTITIES, SMILEYS))
    return draw.choice(("", word(draw))) + draw.choice(middle) + draw.choice(("", "", word(draw), number(draw), "."))


ODD = (
    abbreviation, abbreviation, acronym, contraction, contraction, number, number, compound, compound, address, quoted,
    quoted, mark, tag, soup, stew, foreign, scripts, between, between, between,
)  # fmt: skip
