"""Tables of captions, however they are divided: which column names the image, and which ones speak of it."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pellucid.data.caption_files import EXPECTED, Annotation, Annotations, Problems, lines_of
from pellucid.data.caption_json import KARPATHY
from pellucid.data.caption_pictures import quote, shorten
from pellucid.data.listings import some
from pellucid.data.opener import SUFFIXES
from pellucid.data.sentences import one_line

DELIMITERS = {"\t": "tabs", "|": "bars", ";": "semicolons", ",": "commas"}


def words(text: str) -> tuple[str, ...]:
    """Names of columns, as they are listed here."""
    return tuple(text.split())


# Names of columns in small letters, without what stands between them. A file name is taken even beside the others.
IMAGES = words("""filename image images imagename imagefile imagefilename imagepath imagefilepath filepath file files
path img imgname imgfile imgfilename imgpath fname relpath relativepath picture pictures picturename photo photos
photoname jpg""")
IDS = words("imageid imgid photoid pictureid name id key uid imageurl imgurl url")
CAPTIONS = words("caption captions")
SENTENCES = words("""text texts sentence sentences description descriptions comment comments captiontext rawcaption raw
imagecaption imagedescription annotation""")
LABELS = words("title titles alt alttext prompt label labels")
SPLITS = words("split splits subset partition set")
NUMBERED = re.compile(rf"({'|'.join((*CAPTIONS, *SENTENCES, *LABELS))})\d+")
LOOKED_AT = 1000  # rows, to see whether a column holds names of files
URL = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """Where in a row the image, its captions and its split stand; their names, if the table has a header."""

    image: int
    captions: tuple[int, ...]
    split: int | None = None
    names: tuple[str, ...] = ()

    def describe(self, delimiter: str) -> str:
        if not self.names:
            return "lines of image,caption" if delimiter == "," else f"lines of image and caption, {_parted(delimiter)}"
        captions = some(tuple(self.names[place] for place in self.captions), 5)
        split = "" if self.split is None else f", its split from {self.names[self.split]!r}"
        image = repr(self.names[self.image])
        return f"a table {_parted(delimiter)}, the image from column {image}, its captions from {captions}{split}"


def read_table(path: Path, text: str, problems: Problems) -> Annotations:
    """The captions of a table, by the columns of its header, or of lines that begin with an image's file."""
    lines = lines_of(text)
    if re.fullmatch("sep=.", lines[0]):  # spreadsheets write it, and strike it out when they read
        text = text.partition("\n")[2]
        lines = lines[1:] or [""]
    delimiter = choose_delimiter(lines[0])
    rows = _rows(path, text, delimiter) if delimiter else [lines]
    if not delimiter or len(rows[0]) < 2:
        raise ValueError(one_line(f"{path} begins with {quote(lines[0])}, which is no caption; {EXPECTED}"))
    columns = find_columns(path, rows)
    records = _records(path, rows[1:] if columns.names else rows, columns, delimiter, problems)
    return Annotations(columns.describe(delimiter), records, path.parent)


def choose_delimiter(line: str) -> str | None:
    """What divides the columns: what makes names of columns, or the file of an image, of the first line.

    >>> choose_delimiter("image_name| comment_number| comment"), choose_delimiter("a.jpg;a dog, a cat")
    ('|', ';')
    """
    fields = {each: [part.strip(' "') for part in line.split(each)] for each in DELIMITERS if each in line}
    known = {*IMAGES, *IDS, *CAPTIONS, *SENTENCES, *LABELS}
    for delimiter, parts in fields.items():
        if len(parts) > 1 and (known.intersection(map(plain_name, parts)) or any(map(_is_file, parts))):
            return delimiter
    return max(fields, key=lambda each: len(fields[each])) if fields else None


def find_columns(path: Path, rows: Sequence[Sequence[str]]) -> Columns:
    """Which columns are meant; a sentence that says what to rename if that is not clear."""
    header = [field.strip() for field in rows[0]]
    files = [place for place, field in enumerate(header) if _is_file(field)]
    if files:  # there is no header
        numbered = files[0] == 0 and len(header) > 2 and all(row[1].strip().isdecimal() for row in rows if len(row) > 2)
        return Columns(files[0], (2 if numbered else 1 if files[0] == 0 else 0,))
    image = _image_column(path, header, rows[1 : LOOKED_AT + 1])
    captions = _caption_columns(path, header, image)
    if image is None and captions:
        others = [place for place in range(len(header)) if place not in captions]
        image = others[0] if len(others) == 1 else None
    if image is None:
        raise ValueError(one_line(f"{path} {_has(header)}, and none is known to name the image; rename it 'file_name'"))
    if not captions:
        others = [place for place in range(len(header)) if place != image]
        if len(others) != 1:
            raise ValueError(one_line(f"{path} {_has(header)}, and none is known as the caption; rename it 'caption'"))
        captions = (others[0],)
    return Columns(image, captions, _split_column(header, rows[1:]), tuple(header))


def plain_name(field: str) -> str:
    """A column's name in small letters, and nothing else.

    >>> plain_name(" Image_Path"), plain_name("imagePath")
    ('imagepath', 'imagepath')
    """
    return re.sub(r"[\W_]+", "", field).lower()


def _image_column(path: Path, header: list[str], rows: Sequence[Sequence[str]]) -> int | None:
    named = [place for place, field in enumerate(header) if plain_name(field) in IMAGES]
    named = named or [place for place, field in enumerate(header) if plain_name(field) in IDS]
    holding = [place for place in range(len(header)) if _holds_files(rows, place)]
    places = [place for place in named if place in holding] or holding or named
    preferred = [place for place in places if plain_name(header[place]) == IMAGES[0]]
    if len(preferred or places) > 1:
        names = some(tuple(header[place] for place in preferred or places), 5)
        message = f"{path} has several columns that could name the image, {names}; rename the right one 'file_name'"
        raise ValueError(one_line(message + " and the others otherwise" * bool(preferred)))
    return next(iter(preferred or places), None)


def _caption_columns(path: Path, header: list[str], image: int | None) -> tuple[int, ...]:
    """The best names win: caption before text before title; numbered ones (caption_0, caption_1, …) are one name."""
    for names in (CAPTIONS, SENTENCES, LABELS):
        stems = {
            place: (match[1] if (match := NUMBERED.fullmatch(plain_name(field))) else plain_name(field))
            for place, field in enumerate(header)
            if place != image
        }
        places = [place for place, stem in stems.items() if stem in names]
        if len({stems[place].removesuffix("s") for place in places}) > 1 or len(
            {plain_name(header[place]) for place in places}
        ) < len(places):
            which = some(tuple(header[place] for place in places), 5)
            raise ValueError(
                one_line(
                    f"{path} has several columns that could be the caption, {which}; rename the right one 'caption'"
                )
            )
        if places:
            return tuple(places)
    return ()


def _split_column(header: list[str], rows: Sequence[Sequence[str]]) -> int | None:
    """The column that says train, val or test in every row, if there is one."""
    for place, field in enumerate(header):
        values = {row[place].strip().lower() for row in rows if len(row) > place}
        if plain_name(field) in SPLITS and values and values <= KARPATHY.keys():
            return place
    return None


def _records(
    path: Path, rows: Sequence[Sequence[str]], columns: Columns, delimiter: str, problems: Problems
) -> Iterator[Annotation]:
    kind = f"lines of {path} that are no image,caption"
    first = columns.captions[0]
    width = len(columns.names) or first + 1
    for row in rows:
        if len(row) <= max(columns.image, first):
            problems.add(kind, delimiter.join(row))
            continue
        name = row[columns.image].strip()
        if URL.match(name):
            raise ValueError(
                one_line(f"{path} names images by their address, {quote(name)}; fetch them, and name their files")
            )
        split = KARPATHY[row[columns.split].strip().lower()] if columns.split is not None else None
        if len(columns.captions) > 1:
            captions = [row[place] for place in columns.captions if place < len(row) and row[place].strip()]
        elif first == width - 1:  # a delimiter that nobody quoted belongs to the caption, which comes last
            captions = [delimiter.join(row[first:])]
        else:
            captions = [row[first]]
        yield Annotation(split, name, name, captions)
    problems.check(kind, len(rows), str(path))


def _rows(path: Path, text: str, delimiter: str) -> list[list[str]]:
    limit = csv.field_size_limit(1 << 24)
    try:
        rows = [
            row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if any(map(str.strip, row))
        ]
        if any("\n" in field and delimiter in field.split("\n", 1)[1] for row in rows for field in row):
            # A quotation that is never closed swallows the lines below it: then each line is taken for itself.
            rows = [row for line in lines_of(text) for row in csv.reader([line], delimiter=delimiter)]
    except csv.Error as error:
        raise ValueError(one_line(f"{path} can't be read: {error}")) from error
    finally:
        csv.field_size_limit(limit)
    return rows


def _is_file(field: str) -> bool:
    return field.strip().lower().endswith(SUFFIXES)


def _holds_files(rows: Sequence[Sequence[str]], place: int) -> bool:
    values = [row[place] for row in rows if len(row) > place]
    return bool(values) and sum(map(_is_file, values)) >= 0.5 * len(values)


def _has(header: list[str]) -> str:
    return f"has the columns {some(tuple(map(shorten, header)), 8)}"


def _parted(delimiter: str) -> str:
    return f"parted by {DELIMITERS[delimiter]}"
