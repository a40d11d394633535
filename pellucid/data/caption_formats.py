"""Which format of captions lies at a path, and the listing that it makes."""

import re
from pathlib import Path

from pellucid.data.caption_files import EXPECTED, Annotation, Annotations, CaptionListing, Problems, assemble
from pellucid.data.caption_json import json_records
from pellucid.data.caption_pairs import folder_records, has_captions, has_texts, read_shards
from pellucid.data.caption_pictures import PictureFiles
from pellucid.data.caption_text import jsonl_records, read_lined
from pellucid.data.listings import SPLIT_NAMES, some
from pellucid.data.sentences import one_line
from pellucid.data.shards import Member, find_shards

CAPTION_JSON = re.compile(r"(dataset(_(?!info|dict)\w+)?|.*caption.*|.*karpathy.*)\.json", re.IGNORECASE)
PATTERN = re.compile(r"[*?\[{]")  # of shards
TEXT = (".txt", ".csv", ".tsv", ".token")
TABLES = re.compile(r"captions\.txt|(\w*captions?\w*|metadata|results)\.[ct]sv", re.IGNORECASE)


def list_captions(name: str, images: str | None, problems: Problems, trains: bool = True) -> CaptionListing:
    """The captioned images at a path, whichever format they are in. trains: there have to be some to train on."""
    path = Path(name).expanduser()
    try:
        annotations = _in_folder(path, problems) if path.is_dir() else _in_file(path, name, problems)
        if annotations is None:
            raise ValueError(f"{name!r} holds no captions that are known here; {EXPECTED}")
        if annotations.folder is None:
            if images is not None:
                raise ValueError(f"{name!r} holds its images itself ({annotations.format}); leave out images")
            splits, is_split = assemble(annotations.records, _own, problems, name)
        else:
            pictures = PictureFiles(annotations.folder, Path(images).expanduser() if images is not None else None)
            splits, is_split = assemble(
                annotations.records, lambda record: pictures.find(str(record.image), record.hint), problems, name
            )
    except (OSError, RecursionError) as error:
        raise ValueError(one_line(f"{name!r} can't be read: {error}")) from error
    for split in (*(["train"] if trains or not splits else []), *splits):
        if not splits.get(split):
            first = f"; {'; '.join(problems.lines())}" if problems.by_kind else ""
            source = f"{name!r} ({annotations.format})"
            raise ValueError(one_line(f"{source} has no captioned images for {split}; expected one or more{first}"))
    return CaptionListing(annotations.format, splits, is_split)


def holds_captions(path: Path) -> bool:
    """Whether what lies at a path is taken for captions, rather than for labelled images."""
    if path.is_file():
        suffix = path.suffix.lower()
        return has_captions(path) if suffix == ".tar" else suffix in (".json", ".jsonl", *TEXT)
    if not path.exists() and PATTERN.search(str(path)):
        return has_captions(find_shards(str(path))[0])
    return path.is_dir() and _in_folder(path, Problems(tolerated=1.0)) is not None


def _own(record: Annotation) -> Path | Member:
    assert not isinstance(record.image, str)
    return record.image


def _in_file(path: Path, name: str, problems: Problems) -> Annotations | None:
    if path.suffix.lower() == ".tar" or not path.exists():
        if path.suffix.lower() == ".tar" or PATTERN.search(name):
            return read_shards(find_shards(name))
        raise ValueError(f"{name!r} doesn't exist; give scenes, or the path of captions: a file, a folder or shards")
    if not path.is_file():
        raise ValueError(f"{name!r} is neither a file nor a folder; give the path of captions")
    if path.suffix.lower() == ".jsonl":
        return Annotations("metadata.jsonl", jsonl_records({None: path}, problems), path.parent)
    if path.suffix.lower() == ".json":
        return _json(path, problems)
    return read_lined(path, problems)


def _in_folder(folder: Path, problems: Problems) -> Annotations | None:
    metadata = _by_split({each: each / "metadata.jsonl" for each in sorted(folder.iterdir()) if each.is_dir()})
    if (folder / "metadata.jsonl").is_file():
        return Annotations("metadata.jsonl", jsonl_records({None: folder / "metadata.jsonl"}, problems), folder)
    if "train" in metadata:
        return Annotations("metadata.jsonl of each split", jsonl_records(metadata, problems), folder)
    files = sorted(each for part in (folder, folder / "annotations") if part.is_dir() for each in part.iterdir())
    files = [each for each in files if each.is_file()]
    if file := _one_set(folder, [each for each in files if CAPTION_JSON.fullmatch(each.name)]):
        return _json(file, problems)
    tokens = [each for each in files if re.fullmatch(r".*\.token(\.txt)?", each.name) and "lemma" not in each.name]
    tables = [each for each in files if TABLES.fullmatch(each.name)]
    if len(tables) > 1 and not tokens:
        names = some(tuple(map(str, tables)))
        raise ValueError(f"{str(folder)!r} holds several tables of captions, {names}; name one file")
    for each in tokens or tables:
        return read_lined(each, problems)
    others = [each for each in files if each.suffix == ".json" and each.stat().st_size < 1 << 28]
    if file := _one_set(folder, [each for each in others if _is_captions(each)]):
        return _json(file, problems)
    tars = sorted(folder.glob("*.tar"))
    if tars and has_captions(tars[0]):
        return read_shards(tars)
    return Annotations("images with .txt beside them", folder_records(folder)) if has_texts(folder) else None


def _by_split(files: dict[Path, Path]) -> dict[str | None, Path]:
    """The files that are there, by the split that their folder is called."""
    kept: dict[str | None, Path] = {}
    for folder, file in files.items():
        split = SPLIT_NAMES.get(folder.name.lower())
        if split is not None and file.is_file():
            if split in kept:
                raise ValueError(f"{str(kept[split])!r} and {str(file)!r} are both {split} captions; keep one of them")
            kept[split] = file
    return kept


def _one_set(folder: Path, files: list[Path]) -> Path | None:
    """One of the files of the only caption set among these; a sentence if there are several sets."""
    sets = {(each.parent, _pattern(each.name)[0]): each for each in files}
    if len(sets) > 1:
        raise ValueError(f"{str(folder)!r} holds several caption sets, {some(tuple(map(str, files)))}; name one file")
    return files[0] if files else None


def _pattern(name: str) -> tuple[str, str | None]:
    """A file's name with the split that it speaks of struck out, and that split.

    >>> _pattern("captions_val2017.json"), _pattern("dataset_coco.json")
    (('captions_*2017.json', 'validation'), ('dataset_coco.json', None))
    """
    for word in re.finditer("[A-Za-z]+", name):
        if word[0].lower() in SPLIT_NAMES:
            return f"{name[: word.start()]}*{name[word.end() :]}", SPLIT_NAMES[word[0].lower()]
    return name, None


def _json(path: Path, problems: Problems) -> Annotations:
    """A JSON of any of three kinds, with those beside it that are its other splits."""
    pattern, split = _pattern(path.name)
    others: dict[str | None, Path] = {}
    if split is not None:
        for each in sorted(path.parent.glob("*.json")):
            other, its = _pattern(each.name)
            if other == pattern:
                others[its] = each
    files: dict[str | None, Path] = others if "train" in others else {None: path}
    folder = path.parent.parent if path.parent.name == "annotations" else path.parent
    kinds: set[str] = set()
    records: list[Annotation] = []
    for split, file in files.items():
        kind, entries = json_records(file, split, problems)
        kinds.add(kind)
        records += entries
    if len(kinds) > 1:
        raise ValueError(f"{path} and those beside it are of different formats: {', '.join(sorted(kinds))}")
    return Annotations(kinds.pop(), records, folder)


def _is_captions(path: Path) -> bool:
    try:
        json_records(path, None, Problems(tolerated=1.0))
    except ValueError:
        return False
    return True
