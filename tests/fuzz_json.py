"""Every JSON file that the project reads, valid and then mutated: it is read, or there is one sentence.

    .venv/bin/python tests/fuzz_json.py --seconds 600 --seed 1

runs on in a process with a gigabyte of its own, and prints what went wrong; test_fuzz_json.py runs a little of it.
"""

import argparse
import copy
import json
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from pellucid.config import parse_json, to_json
from pellucid.data.caption_files import Problems
from pellucid.data.caption_formats import list_captions
from pellucid.data.formats import _json_labels
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.explain.trace import trace
from pellucid.hub.folders import read_folder, write_folder
from pellucid.models import Captioner, CaptionerConfig, ViT, ViTConfig
from pellucid.ready import load
from pellucid.runs import RunFolder
from pellucid.runs.config import CaptionerRun, ClassifierRun, Plan
from pellucid.serve.runs import Runs
from pellucid.views.bundle import from_bytes, to_bytes

LOOKS = ViTConfig(
    classes=2, image=(8, 8), width=8, depth=1, heads=1, labels=("cat", "dog"), mean=(0.5,) * 3, std=(0.3,) * 3
)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 255, 256, 10**6, 2**31, 2**53, 2**63, 2**64, 10**30, 10**299, -(10**30)),
    *(0.0, -0.5, 1e-300, 1e308, float("nan"), float("inf"), "", "x", "0", "nan", "\ud800", "\0", "a\nb", "../x", "/"),
    *("x" * 5000, [], {}, [[]], [{}], {"": None}, ["x"], [0, 0], [10**10] * 2, [-1, -1], {"a": {"a": {}}}, [1.5] * 3),
)


@dataclass(frozen=True)
class Target:
    """A kind of file: a valid one, and what reads it."""

    name: str
    valid: Any  # JSON, or text of several lines of it
    read: Callable[[bytes], Any]


def mutate(rng: random.Random, value: Any) -> Any:
    """The value with one thing in it changed: replaced, taken away, doubled, renamed, or moved."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not places:
            return rng.choice(ODD)
        parent, key = rng.choice(places)
        kind = rng.randrange(7)
        if kind == 0 and isinstance(parent, dict):
            parent.pop(key, None)
        elif kind == 1 and isinstance(parent, list):
            parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(rng.choice(parent)) if parent else 0)
        elif kind == 2 and isinstance(parent, dict):
            parent[rng.choice(("", "x", "model", "step", "\ud800", key + "x"))] = rng.choice(ODD)
        elif kind == 3:
            other, there = rng.choice(places)
            if _has(other, there) and _has(parent, key):
                parent[key] = copy.deepcopy(other[there])
        elif kind == 4 and _has(parent, key):
            parent[key] = [parent[key]]
        elif kind == 5 and isinstance(parent, list):
            del parent[rng.randrange(len(parent) + 1) :]
        elif _has(parent, key):
            parent[key] = rng.choice(ODD)
    return value


def _has(parent: Any, key: Any) -> bool:
    return key in parent if isinstance(parent, dict) else key < len(parent)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def damage(rng: random.Random, text: bytes) -> bytes:
    """The bytes with some of them changed, cut, doubled, or deep in brackets."""
    place, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    match rng.randrange(7):
        case 0:
            return text[:place]
        case 1:
            return text[:place] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 5))) + text[place:]
        case 2:
            return text[:place] + text[end:]
        case 3:
            return text[:end] + text[place:]
        case 4:
            return text[:place] + rng.choice((b"[", b'{"a":')) * rng.choice((10, 100, 200_000)) + text[place:]
        case 5:
            return text[:place] + b"9" * rng.choice((10, 400, 5_000)) + text[place:]
        case _:
            return (
                text[:place] + rng.choice((b"NaN", b"-", b"1e999", b'"', b",", b"\xff", b"\\ud800", b"\0")) + text[end:]
            )


def mutant(rng: random.Random, target: Target) -> bytes:
    lines = target.valid if isinstance(target.valid, list) and target.name.endswith("lines") else [target.valid]
    lines = [mutate(rng, line) if rng.random() < 0.7 else line for line in lines]
    text = b"\n".join(json.dumps(line).encode() for line in lines)
    return damage(rng, text) if rng.random() < 0.3 else text


def check(target: Target, text: bytes) -> str | None:
    """What is wrong with how it was read; None if it was read, or refused in a sentence, in time."""
    started = time.process_time()
    try:
        target.read(text)
    except ValueError as error:
        if isinstance(error, UnicodeError):
            return "".join(traceback.format_exception(error)[-3:])
        if len(str(error)) > 2500 or "\n" in str(error):
            return f"no sentence: {str(error)[:3000]!r}"
    except BaseException as error:
        return "".join(traceback.format_exception(error)[-4:])
    seconds = time.process_time() - started
    return f"it took {seconds:.1f} s" if seconds > 10 else None


def targets(here: Path) -> list[Target]:
    """All of them, with the files that belong to them in this folder."""
    return [
        *_models(here),
        *_foreign(here),
        *_runs(here),
        *_captions(here),
        _tokenizer(),
        _first_trace(),
        _trace(),
        _labels(here),
    ]


def _models(here: Path) -> Iterator[Target]:
    tokenizer = CaptionTokenizer.train(["a cat", "a dog on the left"], min_count=1)
    speaks = CaptionerConfig(
        vocabulary=len(tokenizer), encoder=replace(LOOKS, pooling="none"), layers=1, heads=1, max_length=8
    )
    ViT(LOOKS).save_pretrained(here / "vit")
    Captioner(speaks).save_pretrained(here / "captioner")
    tokenizer.save(here / "captioner" / "tokenizer.json")
    for name, config, run in (
        ("vit", LOOKS, ClassifierRun(recipe="mine", model=LOOKS)),
        ("captioner", speaks, CaptionerRun(recipe="mine", model=speaks)),
    ):
        folder = here / name
        yield _file(f"{name} config", json.loads((folder / "config.json").read_text()), folder, "config.json", load)
        _write_run(here / "runs" / name, run, here / name / "model.safetensors")
        tokenizer.save(here / "runs" / name / "tokenizer.json")
        written = {"kind": run.kind} | to_json(run)
        yield _file(f"{name} run", written, here / "runs" / name, "config.json", load)
        assert to_json(config) == written["model"]


def _file(name: str, valid: Any, folder: Path, file: str, opener: Callable[[Path], Any]) -> Target:
    whole = (folder / file).read_bytes()

    def read(text: bytes) -> Any:
        (folder / file).write_bytes(text)
        try:
            return opener(folder)
        finally:
            (folder / file).write_bytes(whole)

    return Target(name, valid, read)


def _write_run(folder: Path, run: Any, weights: Path) -> None:
    RunFolder(folder).create(run)
    facts = json.dumps({"step": 8, "seconds": 1.0, "best": 0.5, "figures": {"top1": 0.5}})
    tensors = {f"model.{name}": value for name, value in load_file(weights).items()}
    save_file(tensors, RunFolder(folder).checkpoints.best, metadata={"facts": facts})
    RunFolder(folder).keep_plan(Plan(16, 4, 4, 100))
    RunFolder(folder).log([{"step": 4, "epoch": 0.5, "loss": 2.0, "lr": 0.1}])


def _runs(here: Path) -> Iterator[Target]:
    """As the server shows them: what it shows must be JSON, too."""
    folder, runs = here / "runs" / "vit", Runs(here / "runs")
    kept = RunFolder(folder).checkpoints.best
    weights = load_file(kept)

    def show(_: Path) -> None:
        shown = runs.detail("vit", folder, 0, 100)
        json.dumps(shown, allow_nan=False, ensure_ascii=False).encode()
        runs.logs.clear()

    for file in ("config.json", "plan.json", "environment.json"):
        yield _file(f"shown {file}", json.loads((folder / file).read_text()), folder, file, show)
    plan = json.loads((folder / "plan.json").read_text())
    yield _file("plan", plan, folder, "plan.json", lambda there: RunFolder(there).plan())
    steps = [{"step": i, "epoch": i / 8, "loss": 2.0, "lr": 0.1} for i in range(1, 4)]
    evaluation = {"step": 3, "epoch": 0.4, "seconds": 1.0, "evaluation": {"top1": 0.5, "loss": 1.0}}
    yield _file("log lines", [*steps, evaluation], folder, "log.jsonl", show)

    def with_facts(text: bytes) -> Any:
        save_file(weights, kept, metadata={"facts": text.decode(errors="replace")})
        show(folder)
        return load(folder)

    yield Target("facts", {"step": 8, "seconds": 1.0, "best": 0.5, "figures": {"top1": 0.5}, "files": {}}, with_facts)


def _foreign(here: Path) -> Iterator[Target]:
    model = ViT(replace(LOOKS, hidden=16))
    for layout in ("timm", "huggingface", "torchvision"):
        write_folder(model, here / layout, layout)
        for file in sorted((here / layout).glob("*.json")):
            yield _file(f"{layout} {file.name}", json.loads(file.read_text()), here / layout, file.name, read_folder)


def _captions(here: Path) -> Iterator[Target]:
    from PIL import Image

    folder = here / "captions"
    folder.mkdir()
    for i in range(4):
        Image.new("RGB", (8, 8)).save(folder / f"{i}.png")
    splits = ("train", "train", "val", "test")
    sentences = [{"raw": "a dog runs", "tokens": ["a", "dog", "runs"], "sentid": 1}]
    karpathy = {"images": [{"filename": f"{i}.png", "split": s, "sentences": sentences} for i, s in enumerate(splits)]}
    coco = {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(4)],
        "annotations": [{"id": i, "image_id": i, "caption": "a dog"} for i in range(4)],
    }
    blip = [{"image": f"{i}.png", "caption": ["a dog", "a cat"]} for i in range(4)]
    lined = [{"file_name": f"{i}.png", "text": "a dog"} for i in range(4)]
    for name, valid, file in (
        ("karpathy", karpathy, "dataset_mine.json"),
        ("coco", coco, "captions_mine.json"),
        ("blip", blip, "list.json"),
        ("jsonl lines", lined, "metadata.jsonl"),
    ):

        def read(text: bytes, path: Path = folder / file) -> Any:
            path.write_bytes(text)
            try:
                return list_captions(str(path), None, Problems(tolerated=0.5))
            finally:
                path.unlink()

        yield Target(name, valid, read)


def _tokenizer() -> Target:
    tokenizer = CaptionTokenizer.train(["a cat", "a dog on the left", "cats and dogs " * 3], kind="bpe", size=40)

    def use(text: bytes) -> Any:
        data = parse_json(text, "it")
        read = CaptionTokenizer.from_json(json.dumps(data))
        ids = read.encode("a cat and <end> a dog? " * 3)
        return read.decode(ids), read.batch(["a cat", ""], 5), read.mirrored, len(read)

    return Target("tokenizer", json.loads(tokenizer.to_json()), use)


def _trace() -> Target:
    torch.manual_seed(0)
    made = to_bytes(trace(ViT(LOOKS).eval(), torch.zeros(3, 8, 8, dtype=torch.uint8), name="m"))
    length = struct.unpack("<Q", made[:8])[0]
    header = json.loads(made[8 : 8 + length])

    def read(text: bytes) -> Any:
        told = header["__metadata__"] | {"trace": text.decode(errors="replace")}
        whole = json.dumps(header | {"__metadata__": told}).encode()
        whole += b" " * (-len(whole) % 8)
        return from_bytes(struct.pack("<Q", len(whole)) + whole + made[8 + length :])

    return Target("trace", json.loads(header["__metadata__"]["trace"]), read)


def _first_trace() -> Target:
    made = (Path(__file__).parent / "traces-1" / "everything.pellucid").read_bytes()
    length = struct.unpack("<I", made[12:16])[0]

    def read(text: bytes) -> Any:
        text += b" " * (-(16 + len(text)) % 8)
        return from_bytes(made[:12] + struct.pack("<I", len(text)) + text + made[16 + length :])

    return Target("first trace", json.loads(made[16 : 16 + length]), read)


def _labels(here: Path) -> Target:
    path = here / "labels.json"

    def read(text: bytes) -> Any:
        path.write_bytes(text)
        return _json_labels(path)

    return Target("labels", list(range(10)), read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="targets with this in their name")
    parser.add_argument("--keep", type=Path, help="a folder for the mutants that went wrong")
    options = parser.parse_args()
    rng, counts, ended = random.Random(options.seed), {}, time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        every = [each for each in targets(Path(folder)) if options.only in each.name]
        for target in every:  # what is valid is read, and what PyTorch loads late is there before memory is bounded
            valid = target.valid if target.name.endswith("lines") else [target.valid]
            target.read(b"\n".join(json.dumps(line).encode() for line in valid))
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30), taken + (1 << 30)))
        wrong: dict[str, int] = {}
        while time.monotonic() < ended and sum(counts.values()) < options.count:
            target = rng.choice(every)
            text = mutant(rng, target)
            counts[target.name] = counts.get(target.name, 0) + 1
            if said := check(target, text):
                key = f"{target.name}: {said[-300:]}"
                wrong[key] = wrong.get(key, 0) + 1
                if wrong[key] == 1 and options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{target.name} {options.seed} {len(wrong)}").write_bytes(text)
                if wrong[key] == 1:
                    print(f"--- {target.name}: {text[:300]!r}\n{said}", flush=True)
    print(
        f"{sum(counts.values()):,} mutants, {sum(wrong.values()):,} went wrong in {len(wrong)} ways; of each: {counts}"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
