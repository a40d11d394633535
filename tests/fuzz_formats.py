"""Every format that is opened: how sound files of it are made, and what the program does with them."""

import gzip
import io
import json
import os
import pickle
import random
import shutil
import tarfile
import tempfile
import wave
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import fuzz_mutations
import numpy as np
import torch
from PIL import Image, features

import pellucid
from pellucid.cli.attend_any import read_wave
from pellucid.data import CaptionData, DataConfig, decode, inspect_images, load_captions, named
from pellucid.data.archives import unpack_archive
from pellucid.data.formats import (
    read_cifar10_binary,
    read_cifar10_mosaics,
    read_cifar10_python,
    read_cifar100_python,
    read_idx,
)
from pellucid.data.images import probe
from pellucid.data.parallel import ParallelData, load_training
from pellucid.data.subwords import SubwordTokenizer
from pellucid.data.text_inspection import inspect_text
from pellucid.explain.trace import Layer, Map, SeenPicture, Stream, Trace
from pellucid.hub.folders import read_folder
from pellucid.hub.pickled import read_pickled
from pellucid.models import ViT, ViTConfig
from pellucid.runs import RunFolder
from pellucid.views.bundle import load_trace, to_bytes
from pellucid.views.curves import read_history

RUN = Path(__file__).parent / "runs-0.1"
CONFIG = ViTConfig(
    classes=2, image=(8, 8), width=8, depth=1, heads=1, labels=("cat", "dog"), mean=(0.5,) * 3, std=(0.3,) * 3
)


@dataclass(frozen=True)
class Format:
    """write: makes sound files in a folder, and gives the one that is to be changed. read: what is done with that one.
    kind: which structure `fuzz_mutations` finds in it. weight: how often its turn comes."""

    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    kind: str = "bytes"
    weight: int = 4

    def prepare(self, folder: Path) -> Path:
        place = folder / "place"
        place.mkdir()
        return self.write(place)


def make_input(name: str, seed: int, index: int) -> bytes:
    """The hostile file that a seed and an index stand for."""
    return fuzz_mutations.mutate(sound(name), random.Random(f"{name} {seed} {index}"), FORMATS[name].kind)


@cache
def sound(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return FORMATS[name].prepare(Path(folder)).read_bytes()


def schedule() -> list[str]:
    """The formats, each as often as its weight says."""
    return [name for name, each in FORMATS.items() for _ in range(each.weight)]


# Pictures


def picture(mode: str = "RGB", side: int = 24) -> Image.Image:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (side // 3, side // 3, 3), dtype=np.uint8)).resize((side, side))
    return image.convert(mode)


def encoded(kind: str, image: Image.Image, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def read_picture(path: Path) -> None:
    """Both ways to read one, as they are used."""
    said = None
    try:
        probe(path)
    except ValueError as error:
        said = error
    decode(path, size=(8, 8), fit="stretch")
    if said is not None:
        raise said


def write_file(name: str, make: Callable[[], bytes], folder: Path) -> Path:
    path = folder / name
    path.write_bytes(make())
    return path


def pictures() -> dict[str, Format]:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a picture"
    small = picture(side=12)
    kinds: dict[str, tuple[str, Image.Image, dict[str, Any]]] = {
        "png": ("PNG", picture("RGBA"), {"exif": exif.tobytes()}),
        "png palette": ("PNG", picture("P"), {"transparency": b"\xff\0"}),
        "png 16": ("PNG", Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20) * 150), {}),
        "apng": ("PNG", small, {"save_all": True, "append_images": [small.rotate(90)], "duration": 9}),
        "jpeg": ("JPEG", picture(), {"exif": exif.tobytes()}),
        "jpeg progressive": ("JPEG", picture("L"), {"progressive": True}),
        "webp": ("WEBP", picture(), {"exif": exif.tobytes()}),
        "webp lossless": ("WEBP", picture("RGBA"), {"lossless": True}),
        "webp moving": ("WEBP", small, {"save_all": True, "append_images": [small.rotate(90)]}),
        "gif": ("GIF", small, {"save_all": True, "append_images": [small.rotate(90)], "disposal": 2, "comment": b"hi"}),
        "bmp": ("BMP", picture(), {}),
        "bmp palette": ("BMP", picture("P"), {}),
        "tiff": ("TIFF", picture(), {}),
        "tiff lzw": ("TIFF", picture("L"), {"compression": "tiff_lzw"}),
        "tiff jpeg": ("TIFF", picture(), {"compression": "jpeg"}),
        "tiff tiles": ("TIFF", picture(), {"compression": "tiff_adobe_deflate", "tiffinfo": {322: 16, 323: 16}}),
        "ppm": ("PPM", picture(), {}),
        "mpo": ("MPO", small, {"save_all": True, "append_images": [small.rotate(90)]}),
    }
    if features.check("avif"):
        kinds["avif"] = ("AVIF", picture(), {})
    formats = {}
    for name, (kind, image, options) in kinds.items():
        write = partial(write_file, f"a.{kind.lower()}", partial(encoded, kind, image, **options))
        formats[name] = Format(write, read_picture, "png" if kind == "PNG" else "bytes", 16 if kind == "PNG" else 10)
    return formats


# Sets, archives, tables


def arrays(n: int) -> tuple[np.ndarray, np.ndarray]:
    images = np.random.default_rng(0).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    return images, (np.arange(n) % 10).astype(np.uint8)


def write_batches(suffix: str, make: Callable[[np.ndarray, np.ndarray], bytes], folder: Path) -> Path:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for name in names:
        (folder / f"{name}{suffix}").write_bytes(make(*arrays(2)))
    return folder / f"{names[0]}{suffix}"


def cifar_binary(images: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels[:, None], images.reshape(-1, 3072)], 1).tobytes()


def cifar_pickle(protocol: int, images: np.ndarray, labels: np.ndarray) -> bytes:
    content = {"batch_label": "one", "labels": labels.tolist(), "data": images.reshape(-1, 3072), "filenames": ["a"]}
    return pickle.dumps(content, protocol)


def write_cifar100(folder: Path) -> Path:
    for split in ("train", "test"):
        images, labels = arrays(2)
        content = {b"fine_labels": labels.tolist(), b"data": images.reshape(-1, 3072)}
        (folder / split).write_bytes(pickle.dumps(content, 4))
    return folder / "train"


def mosaic(images: np.ndarray, _: np.ndarray) -> bytes:
    return encoded("PNG", Image.fromarray(images.transpose(0, 2, 3, 1).reshape(-1, 1024, 3)))


def write_mosaics(changed: str, folder: Path) -> Path:
    write_batches(".png", mosaic, folder)
    for split, count in (("train", 10), ("test", 2)):
        (folder / f"{split}_lables.json").write_text(json.dumps([1] * count))
    return folder / changed


def idx() -> bytes:
    return bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (4, 8, 8)) + bytes(range(256))


def tar(members: dict[str, bytes], mode: Any = "w", form: int = tarfile.GNU_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode, format=form) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


MEMBERS = {"folder/one.txt": b"one" * 300, "folder/" + "long" * 40 + ".txt": b"two", "three.bin": bytes(600)}


def packed(pack: str, form: int = tarfile.GNU_FORMAT) -> bytes:
    whole = tar(MEMBERS, form=form)
    if pack == "tar.gz":
        return fuzz_mutations.gzipped(whole)
    if pack == "tar.bz2":
        return fuzz_mutations.bz2.compress(whole)
    if pack == "tar.xz":
        return fuzz_mutations.lzma.compress(whole)
    if pack == "deb":
        return b"!<arch>\n" + entry("debian-binary", b"2.0\n") + entry("data.tar.gz", fuzz_mutations.gzipped(whole))
    return whole


def entry(name: str, content: bytes) -> bytes:
    """A member of a Debian package."""
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content


def unpack(path: Path) -> None:
    target = Path("unpacked").absolute()
    try:
        unpack_archive(path, target)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def shard() -> bytes:
    image = encoded("PNG", picture(side=8))
    return tar({"0.png": image, "0.cls": b"0", "1.png": image, "1.json": b'{"label": 1}'})


def inspect(path: Path) -> None:
    inspect_images(DataConfig(f"wds:{path}"))


def write_table(folder: Path) -> Path:
    """Parquet, as Hugging Face's sets are stored."""
    import datasets

    image = {"bytes": encoded("PNG", picture(side=8)), "path": None}
    table = datasets.Dataset.from_dict(
        {"image": [image] * 2, "label": [0, 1]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}),
    )
    table.to_parquet(folder / "train.parquet")
    return folder / "train.parquet"


def read_table(path: Path) -> None:
    from pellucid.data.shards import list_table

    for item, _ in list_table(str(path.parent)).splits["train"]:
        item.decode((8, 8), 3)


def write_cache(folder: Path) -> Path:
    images, labels = arrays(2)
    named.write_cache(folder / "cifar100.safetensors", {"train": (images, labels), "test": (images, labels)})
    return folder / "cifar100.safetensors"


# Captions


def caption_set(name: str, content: str, folder: Path) -> Path:
    for i in range(6):
        (folder / f"{i}.png").write_bytes(encoded("PNG", picture(side=8)))
        if name == "0.txt":
            (folder / f"{i}.txt").write_text(content)
    (folder / name).write_text(content)
    return folder / name


def captions() -> dict[str, Format]:
    said = [(f"{i}.png", f"a dog number {i} runs", "test" if i == 5 else "train") for i in range(6)]
    karpathy = [{"filename": n, "split": s, "sentences": [{"raw": c}], "cocoid": i} for i, (n, c, s) in enumerate(said)]
    coco = {
        "images": [{"id": i, "file_name": n} for i, (n, _, _) in enumerate(said)],
        "annotations": [{"image_id": i, "caption": c} for i, (_, c, _) in enumerate(said)],
    }
    kinds = {
        "karpathy": ("dataset_a.json", json.dumps({"images": karpathy}), "json"),
        "coco": ("captions_a.json", json.dumps(coco), "json"),
        "blip": ("captions_b.json", json.dumps([{"image": n, "caption": c} for n, c, _ in said]), "json"),
        "tokens": ("a.token.txt", "".join(f"{n}#0\t{c}\n" for n, c, _ in said), "bytes"),
        "csv": ("captions.csv", "image,caption\n" + "".join(f"{n},{c}\n" for n, c, _ in said), "bytes"),
        "jsonl": (
            "metadata.jsonl",
            "".join(json.dumps({"file_name": n, "text": c}) + "\n" for n, c, _ in said),
            "lines",
        ),
        "txt": ("0.txt", "a dog runs\n", "bytes"),
    }
    return {
        f"captions {name}": Format(partial(caption_set, file, content), partial(read_captions, name == "txt"), kind)
        for name, (file, content, kind) in kinds.items()
    }


def read_captions(whole_folder: bool, path: Path) -> None:
    load_captions(CaptionData(str(path.parent if whole_folder or path.suffix == ".jsonl" else path), size=(8, 8)))


# Sentences in two languages, sounds


SENTENCES = [("A man rides a horse.", "Ein Mann reitet auf einem Pferd."), ("Two dogs run.", "Zwei Hunde laufen.")]


def texts() -> dict[str, Format]:
    kinds = {
        "tsv": ("a.tsv", "".join(f"{en}\t{de}\n" for en, de in SENTENCES), "bytes"),
        "csv": ("a.csv", "en,de\n" + "".join(f'"{en}","{de}"\n' for en, de in SENTENCES), "bytes"),
        "jsonl": ("a.jsonl", "".join(json.dumps({"en": en, "de": de}) + "\n" for en, de in SENTENCES), "lines"),
    }
    formats = {
        f"text {name}": Format(partial(write_file, file, content.encode), read_text_pairs, kind, 3)
        for name, (file, content, kind) in kinds.items()
    }
    formats["text gz"] = Format(write_aligned, read_text_pairs, "gz", 3)
    formats["pieces"] = Format(write_pieces, SubwordTokenizer.load, "json", 3)
    formats["wave"] = Format(partial(write_file, "a.wav", sound_wave), read_wave, weight=3)
    return formats


def write_aligned(folder: Path) -> Path:
    for language, lines in zip(("en", "de"), zip(*SENTENCES, strict=True), strict=True):
        (folder / f"train.{language}.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return folder / "train.en.gz"


def read_text_pairs(path: Path) -> None:
    """As it is trained on, and as it is inspected."""
    name = str(path.parent if path.suffix == ".gz" else path)
    inspect_text(ParallelData(name))
    load_training(ParallelData(name))


def write_pieces(folder: Path) -> Path:
    SubwordTokenizer.train([text for pair in SENTENCES for text in pair], size=300).save(folder / "tokenizer.json")
    return folder / "tokenizer.json"


def sound_wave() -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(range(200)))
    return stream.getvalue()


# Models, runs, traces


def write_model(changed: str, folder: Path) -> Path:
    torch.manual_seed(0)
    ViT(CONFIG).save_pretrained(folder)
    return folder / changed


def write_run(kind: str, changed: str, folder: Path) -> Path:
    shutil.copytree(RUN / kind, folder, dirs_exist_ok=True)
    return folder / changed


def read_run(changed: str, path: Path) -> None:
    """All that commands read of a run's folder: each part by itself, so that one sentence doesn't hide another."""
    root = path.parents[changed.count("/")]
    folder = RunFolder(root)
    sentences = []
    for attempt in (
        folder.run, folder.plan, lambda: read_history(root, "run"), folder.checkpoints.listing,
        folder.checkpoints.newest, lambda: pellucid.load(root),
    ):  # fmt: skip
        try:
            attempt()
        except (ValueError, OSError) as error:
            sentences.append(error)
    if sentences:
        raise sentences[0]


def trace() -> bytes:
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 5, 4)
    layer = Layer("layer", "image", "image", q, k, 0.5, False, torch.ones(5, 5, dtype=torch.bool), torch.rand(2, 5))
    return to_bytes(
        Trace(
            model="tiny",
            kind="classifier",
            streams=(Stream.patches("image", ("class", "0", "1", "2", "3"), (2, 2)),),
            pictures=(SeenPicture("image", torch.zeros(3, 8, 8, dtype=torch.uint8)),),
            layers=(layer,),
            answers=(("cat", 0.75), ("dog", 0.25)),
            words=(),
            maps=(Map("rollout", "cat", None, torch.rand(5)),),
        )
    )


def pickled(older: bool) -> bytes:
    torch.manual_seed(0)
    stream = io.BytesIO()
    weights = {name: torch.nn.Parameter(value) for name, value in ViT(CONFIG).state_dict().items()}
    torch.save({"model": weights, "epoch": 3}, stream, _use_new_zipfile_serialization=not older)
    return stream.getvalue()


def foreign(changed: str, folder: Path) -> Path:
    """A folder as Hugging Face's library writes it."""
    from pellucid.hub.folders import write_folder

    torch.manual_seed(0)
    write_folder(ViT(CONFIG), folder / "theirs", "huggingface")
    return folder / "theirs" / changed


def write_captioner(changed: str, folder: Path) -> Path:
    return write_run("captioner", changed, folder)


def files() -> dict[str, Format]:
    formats = {
        "idx": Format(partial(write_file, "idx", idx), read_idx),
        "idx gz": Format(partial(write_file, "idx.gz", lambda: gzip.compress(idx(), mtime=0)), read_idx, "gz"),
        "cifar10 binary": Format(partial(write_batches, ".bin", cifar_binary), lambda p: read_cifar10_binary(p.parent)),
        "cifar100 pickle": Format(write_cifar100, lambda p: read_cifar100_python(p.parent), weight=10),
        "mosaic": Format(
            partial(write_mosaics, "data_batch_1.png"), lambda p: read_cifar10_mosaics(p.parent), "png", 1
        ),
        "mosaic labels": Format(
            partial(write_mosaics, "test_lables.json"), lambda p: read_cifar10_mosaics(p.parent), "json", 1
        ),
        "tar pax": Format(partial(write_file, "a.tar", partial(packed, "tar", tarfile.PAX_FORMAT)), unpack, "tar", 10),
        "deb": Format(partial(write_file, "a.deb", partial(packed, "deb")), unpack, "bytes"),
        "shard": Format(partial(write_file, "a.tar", shard), inspect, "tar", 3),
        "table": Format(write_table, read_table, weight=0),
        "cache": Format(write_cache, lambda p: named.read_cache(p, named.KNOWN["cifar100"]), "safetensors"),
        "trace": Format(partial(write_file, "a.pellucid", trace), load_trace, "trace", 20),
        "pt": Format(partial(write_file, "a.pt", partial(pickled, False)), read_pickled, "zip", 12),
        "pt older": Format(partial(write_file, "a.pt", partial(pickled, True)), read_pickled, "bytes", 12),
        "model config": Format(partial(write_model, "config.json"), lambda p: pellucid.load(p.parent), "json", 6),
        "model weights": Format(
            partial(write_model, "model.safetensors"), lambda p: pellucid.load(p.parent), "safetensors", 6
        ),
        "foreign config": Format(partial(foreign, "config.json"), lambda p: read_folder(p.parent), "json"),
        "tokenizer": Format(partial(write_captioner, "tokenizer.json"), lambda p: pellucid.load(p.parent), "json", 3),
    }
    for protocol in (2, 4):
        write = partial(write_batches, "", partial(cifar_pickle, protocol))
        formats[f"cifar10 pickle {protocol}"] = Format(write, lambda p: read_cifar10_python(p.parent))
    for pack in ("tar", "tar.gz", "tar.bz2", "tar.xz"):
        formats[pack] = Format(partial(write_file, f"a.{pack}", partial(packed, pack)), unpack, pack, 6)
    for changed, kind in (
        ("config.json", "json"), ("plan.json", "json"), ("log.jsonl", "lines"),
        ("checkpoints/best.safetensors", "safetensors"), ("checkpoints/last.safetensors", "safetensors"),
    ):  # fmt: skip
        write = partial(write_run, "classifier", changed)
        formats[f"run {changed}"] = Format(write, partial(read_run, changed), kind, 3)
    return formats


def say_two_lines(path: Path) -> None:
    raise ValueError("two\nlines")


FORMATS: dict[str, Format] = pictures() | captions() | texts() | files()
# Read by their paths only; the last are to show that whoever counts failures sees them.
FORMATS["folder"] = Format(lambda folder: folder, lambda path: inspect_images(path), weight=0)
FORMATS["unpacked"] = Format(lambda folder: folder, unpack, weight=0)
FORMATS["an error"] = Format(lambda folder: folder, lambda path: [][0], weight=0)
FORMATS["two lines"] = Format(lambda folder: folder, say_two_lines, weight=0)
FORMATS["a crash"] = Format(lambda folder: folder, lambda path: os.abort(), weight=0)
FORMATS["a circle"] = Format(lambda folder: folder, lambda path: [None for _ in iter(int, 1)], weight=0)
FORMATS["too much"] = Format(lambda folder: folder, lambda path: len(bytearray(3 << 29)), weight=0)
FORMATS["picture"] = Format(partial(write_file, "a.png", lambda: encoded("PNG", picture())), read_picture, weight=0)
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
