"""The three JSON files that captions come in: Karpathy's splits, COCO's annotations, BLIP's list."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from pellucid.config import parse_json
from pellucid.data.caption_files import MAX_TEXT, Annotation, Problems, read_text
from pellucid.data.caption_pictures import quote
from pellucid.data.listings import SPLIT_NAMES
from pellucid.data.sentences import one_line

KARPATHY = SPLIT_NAMES | {"restval": "train"}  # images of COCO's validation set that he trains with
MOST_VALUES = 1 << 24  # Karpathy's COCO, with every word of its 616,767 captions for itself, has some 11 million
CAPTION_KEYS = ("captions", "caption", "text")


def json_records(path: Path, split: str | None, problems: Problems) -> tuple[str, list[Annotation]]:
    """Which of the three a file is, and what it says; `split` is what its name says, if it does."""
    text = read_text(path)
    try:
        content = parse_json(text, path, most_bytes=MAX_TEXT, most_values=MOST_VALUES, allow_nan=True)
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None
    try:
        if isinstance(content, dict) and isinstance(images := content.get("images"), list) and images:
            if isinstance(annotations := content.get("annotations"), list):
                return "COCO captions", _coco(images, annotations, split, path, problems)
            if isinstance(images[0], dict) and "sentences" in images[0]:
                return "Karpathy's splits", [_karpathy(entry, i) for i, entry in enumerate(images)]
        if isinstance(content, list) and content and isinstance(content[0], dict) and "image" in content[0]:
            return "list of images and captions", [_blip(entry, i, split) for i, entry in enumerate(content)]
    except ValueError as error:
        raise ValueError(one_line(f"{path}: {error}")) from error
    raise ValueError(
        one_line(
            f"{path} holds no captions; expected {{images: [{{filename, split, sentences}}]}} (Karpathy), "
            "{images: [{id, file_name}], annotations: [{image_id, caption}]} (COCO) or [{image, caption}]"
        )
    )


def object_captions(entry: Any) -> list[object]:
    """The captions of a JSON object: one or a list, under any of the usual keys."""
    if not isinstance(entry, dict):
        return [None]
    captions = next((entry[key] for key in CAPTION_KEYS if entry.get(key) is not None), [])
    return list(captions) if isinstance(captions, list) else [captions]


def _karpathy(entry: Any, i: int) -> Annotation:
    name, sentences = _field(entry, "filename", i), entry.get("sentences")
    split = KARPATHY.get(str(entry.get("split")).lower())
    if split is None:
        raise ValueError(
            f"the split of {quote(name)} is {quote(str(entry.get('split')))}; expected train, restval, val or test"
        )
    folder, number = entry.get("filepath"), entry.get("cocoid")
    sentences = sentences if isinstance(sentences, list) else []
    captions = [each.get("raw") if isinstance(each, dict) else None for each in sentences]
    path = f"{folder}/{name}" if isinstance(folder, str) and folder else name
    return Annotation(split, str(number) if type(number) is int else path, path, captions)


def _coco(
    images: list[Any], annotations: list[Any], split: str | None, path: Path, problems: Problems
) -> list[Annotation]:
    names = {_number(entry, "id", i): _field(entry, "file_name", i) for i, entry in enumerate(images)}
    captions: dict[str, list[object]] = defaultdict(list)
    kind = f"captions in {path} of images that it doesn't list"
    for i, each in enumerate(annotations):
        number = _number(each, "image_id", i)
        if "caption" not in each:
            raise ValueError("its annotations are no captions; expected {image_id, caption}, as in captions_*.json")
        if number in names:
            captions[number].append(each["caption"])
        else:
            problems.add(kind, number)
    problems.check(kind, len(annotations), str(path))
    hint = path.stem.rpartition("_")[2]  # captions_train2017 are of the images in train2017
    return [Annotation(split, number, name, captions[number], hint) for number, name in names.items()]


def _blip(entry: Any, i: int, split: str | None) -> Annotation:
    name = _field(entry, "image", i)
    return Annotation(split, name, name, object_captions(entry))


def _field(entry: Any, key: str, i: int) -> str:
    name = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"entry {i} is {quote(str(entry))}; expected an object with {key!r}, the name of a file")
    return name


def _number(entry: Any, key: str, i: int) -> str:
    number = entry.get(key) if isinstance(entry, dict) else None
    if type(number) not in (int, str):
        raise ValueError(f"entry {i} is {quote(str(entry))}; expected an object with {key!r}, a number")
    return str(number)
