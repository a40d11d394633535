"""Pictures into batches: images/s from JPEG files to bytes of 224 × 224, and whether training is fed at its own rate.

    python benchmarks/feeding.py --before ../b4f5393     # decoders beside each other; on a GPU: is ViT-S/16 fed?
    python benchmarks/feeding.py --decoders --large 0 --files 4096 --train processes threads "kept decoded"

The files are made from the photographs that come with the package. Every contestant is a process of its own with as
many threads as there are cores; they take turns. Each brings the picture's middle to 224 × 224 by an antialiased
filter, unless its name says otherwise. `--before` names a checkout of an earlier commit, which takes part. Keeps
results/feeding-DEVICE.json.
"""

import argparse
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from report import Column, Table, keep
from torch import Tensor, multiprocessing
from torch.nn.functional import interpolate

# pellucid is imported where it is used: a contestant may be another commit's.
SIDE = 224
KINDS = {"500 × 335": (500, 335), "12 megapixels": (4000, 3000)}
CORES = len(os.sched_getaffinity(0))
SAMPLES = Path(__file__).parent.parent / "pellucid" / "cli" / "samples"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Read = Callable[[list[Path]], Tensor]


# How training is fed: whether pictures are kept decoded, what the data are asked for, and the smallest part of a
# picture that is cut out as it is read, and later on the device.
WAYS: dict[str, tuple[bool, dict[str, Any], float, float]] = {
    "threads": (False, {"workers": 0}, 1.0, 1.0),
    "processes": (False, {}, 1.0, 1.0),
    "parts of the original": (False, {}, 0.25, 1.0),
    "kept decoded": (True, {}, 1.0, 1.0),
    "kept decoded, threads": (True, {"workers": 0}, 1.0, 1.0),
    "kept decoded, parts on the device": (True, {}, 1.0, 0.25),
    "kept whole, parts of that": (True, {"cache_side": 256}, 0.25, 1.0),
}


def make_file(place: tuple[Path, int, int, int]) -> None:
    """A photograph's part, other for each number, as a JPEG of quality 90."""
    path, number, width, height = place
    draw = np.random.default_rng(number)
    with Image.open(SAMPLES / ("china.jpg", "flower.jpg")[number % 2]) as image:
        wide = int(image.width * draw.uniform(0.75, 1))
        tall = min(image.height, int(wide * height / width))
        left, top = int(draw.integers(image.width - wide + 1)), int(draw.integers(image.height - tall + 1))
        part = image.crop((left, top, left + wide, top + tall)).resize((width, height), Image.Resampling.BICUBIC)
    path.parent.mkdir(parents=True, exist_ok=True)
    part.save(path, quality=90)


def make_files(folder: Path, count: int, width: int, height: int) -> list[Path]:
    places = [(folder / str(i % 10) / f"{i:05}.jpg", i, width, height) for i in range(count)]
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(make_file, places))
    return [place[0] for place in places]


def kilobytes(paths: list[Path]) -> float:
    return sum(path.stat().st_size for path in paths) / len(paths) / 1000


# Contestants: each gives what brings files into one batch


def stacked(decode: Callable[[bytes], Tensor]) -> Read:
    """As one writes it with a pool of threads."""
    pool = ThreadPoolExecutor(CORES)
    return lambda paths: torch.stack(list(pool.map(lambda path: decode(path.read_bytes()), paths)))


def middle(pixels: Tensor) -> Tensor:
    """The middle square of (c y x), scaled as torchvision does it."""
    side = min(pixels.shape[1:])
    top, left = ((length - side) // 2 for length in pixels.shape[1:])
    square = pixels[None, :, top : top + side, left : left + side]
    return interpolate(square, (SIDE, SIDE), mode="bicubic", antialias=True)[0]


def ours(processes: int = 0, plain: bool = False) -> Read:
    from pellucid.data.lazy import ImageFile, LazyImageSet

    if plain:
        from pellucid.data import jpeg

        jpeg.simplejpeg = None
    how: dict[str, Any] = {"processes": processes} if processes else {}

    def read(paths: list[Path], known: dict[Path, LazyImageSet] = {}) -> Tensor:  # noqa: B006 (kept between calls)
        if paths[0] not in known:
            items = [ImageFile(str(path), path) for path in paths]
            known[paths[0]] = LazyImageSet(items, torch.zeros(len(items)).long(), ("one",), (SIDE, SIDE), **how)
        return known[paths[0]].read(torch.arange(len(paths)))

    return read


def pillow() -> Read:
    def decode(data: bytes) -> Tensor:
        with Image.open(io.BytesIO(data)) as image:
            fitted = ImageOps.fit(image.convert("RGB"), (SIDE, SIDE), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(fitted)).permute(2, 0, 1).contiguous()

    return stacked(decode)


def simplejpeg_and_torch() -> Read:
    import simplejpeg

    return stacked(lambda data: middle(torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)))


def torchvision() -> Read:
    from torchvision.io import ImageReadMode, decode_jpeg

    def decode(data: bytes) -> Tensor:
        pixels: Any = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)
        return middle(pixels)

    return stacked(decode)


def opencv(way: str) -> Read:
    import cv2  # pyright: ignore[reportMissingImports]

    cv2.setNumThreads(1)

    def decode(data: bytes) -> Tensor:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        side = min(pixels.shape[:2])
        top, left = ((length - side) // 2 for length in pixels.shape[:2])
        fitted = cv2.resize(pixels[top : top + side, left : left + side], (SIDE, SIDE), interpolation=getattr(cv2, way))
        return torch.from_numpy(np.ascontiguousarray(fitted.transpose(2, 0, 1)))

    return stacked(decode)


def pyvips() -> Read:
    os.environ["VIPS_CONCURRENCY"] = "1"
    import pyvips  # pyright: ignore[reportMissingImports]

    def decode(data: bytes) -> Tensor:
        pixels = pyvips.Image.thumbnail_buffer(data, SIDE, height=SIDE, crop="centre").numpy()
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))

    return stacked(decode)


CONTESTANTS: dict[str, Callable[[], Read]] = {
    "pellucid": ours,
    "pellucid without simplejpeg": lambda: ours(plain=True),
    f"pellucid, {CORES} processes": lambda: ours(processes=CORES),
    "Pillow": pillow,
    "torchvision": torchvision,
    "simplejpeg, PyTorch's resize": simplejpeg_and_torch,
    "OpenCV, area": lambda: opencv("INTER_AREA"),
    "OpenCV, linear without antialiasing": lambda: opencv("INTER_LINEAR"),
    "pyvips thumbnail": pyvips,
}


class Contestant:
    """One of them in a process of its own."""

    def __init__(self, name: str, before: Path | None, files: dict[str, list[Path]]):
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.line, other = context.Pipe()
        self.process = context.Process(target=self._compete, args=(name, before, files, other))
        self.process.start()

    @staticmethod
    def _compete(name: str, before: Path | None, files: dict[str, list[Path]], line: Connection) -> None:
        torch.set_num_threads(1)
        if before is not None:
            sys.path.insert(0, str(before))
        try:
            read = ours() if before is not None else CONTESTANTS[name]()
            for paths in files.values():
                read(paths)
        except Exception as error:  # one that isn't installed is told, not hidden
            line.send(f"{type(error).__name__}: {str(error).splitlines()[0]}")
            return
        line.send(True)
        while kind := line.recv():
            begun = time.perf_counter()
            read(files[kind])
            line.send(len(files[kind]) / (time.perf_counter() - begun))

    def ready(self) -> bool:
        answer = self.line.recv()
        print(f"  {self.name}: {'ready' if answer is True else answer}", flush=True)
        return answer is True

    def turn(self, kind: str) -> float:
        self.line.send(kind)
        return self.line.recv()


def contest(names: list[str], before: Path | None, files: dict[str, list[Path]], rounds: int) -> Table:
    """Images a second of each, the median of rounds in which all take turns."""
    entries = [("pellucid at --before", before)] * (before is not None) + [(name, None) for name in names]
    contestants = [one for one in [Contestant(name, place, files) for name, place in entries] if one.ready()]
    rates: dict[str, dict[str, list[float]]] = {one.name: {kind: [] for kind in files} for one in contestants}
    for _ in range(rounds):
        for kind in files:
            for one in contestants:
                rates[one.name][kind].append(one.turn(kind))
    for one in contestants:
        one.line.send("")
    rows = [
        {"decoder": name} | {kind: statistics.median(r) for kind, r in each.items()} for name, each in rates.items()
    ]
    for row in rows:
        print(row, flush=True)
    columns = {"decoder": Column()} | {kind: Column("images/s", 1 if kind == "12 megapixels" else 0) for kind in files}
    return Table(f"JPEG files into batches of {SIDE} × {SIDE}, {CORES} cores", columns, rows)


# Training


def fed(
    folder: Path, names: list[str], batch: int, turns: int, seconds: float, limit: float, **how: Any
) -> Iterator[Table]:
    """The same engine fed with pictures in each way that there is, beside one batch again and again.

    The table as it stands after each row: who is stopped has lost nothing. limit: seconds after which no way is begun.
    """
    rows: list[dict[str, Any]] = []
    speed = Column("images/s")
    columns = {"way": Column(), "feeding alone": speed, "fed": speed, "one batch": speed, "ratio": Column("×", 3)}
    title = (
        f"ViT {how['size']}, patches of 16 at {SIDE} × {SIDE}, batch {batch}: fed with JPEGs, beside one repeated batch"
    )
    engines: dict[float, Any] = {}
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        for name in names:
            if rows and time.perf_counter() - begun > limit:
                tell(begun, f"{name}: left out, for there is no time left")
                continue
            row = feed_in_one_way(folder, Path(place), name, batch, turns, seconds, engines, begun, **how)
            rows.append(row)
            print(row, flush=True)
            yield Table(title, columns | {"ready after": Column("s", 1)}, rows)


def feed_in_one_way(
    folder: Path,
    place: Path,
    name: str,
    batch: int,
    turns: int,
    seconds: float,
    engines: dict[float, Any],
    begun: float,
    **how: Any,
) -> dict[str, Any]:
    """A row of the table. engines: those that are compiled, by what they do to pictures."""
    from pellucid.data.loader import Loader
    from pellucid.data.sources import DataConfig, load_images

    kept, data, as_read, on_device = WAYS[name]
    usual: dict[str, Any] = {"name": f"folder:{folder}", "size": (SIDE, SIDE), "zoom_into": "original"}
    started = time.perf_counter()
    cached: dict[str, Any] = {"cache": str(place)} if kept else {}
    images: Any = load_images(DataConfig(**usual, **data, **cached)).train
    ready = time.perf_counter() - started
    loader = Loader(images, batch, 0, DEVICE, zoom=as_read)
    shares = ([(*share, pixels) for share, pixels in parts] for parts in loader.shares(0, 1_000_000))
    try:
        one = next(shares)
        alone = rate(lambda parts: None, lambda: None, shares, batch, seconds)
        tell(begun, f"{name}: {alone:,.0f} images/s alone")
        if on_device not in engines:
            engines[on_device] = make_engine(batch, on_device, images, one, **how)
            tell(begun, "the engine is warm")
        engine = engines[on_device]
        step, wait = lambda parts: engine._step(0, 100, parts), engine._synchronise
        pairs = [
            (rate(step, wait, shares, batch, seconds), rate(step, wait, repeat(one), batch, seconds))
            for _ in range(turns)
        ]
    finally:
        shares.close()
        images.close()
    real, repeated = (statistics.median(each) for each in zip(*pairs, strict=True))
    row = {"way": name, "feeding alone": alone, "fed": real, "one batch": repeated, "ratio": real / repeated}
    return row | {"ready after": ready}


def tell(begun: float, what: str) -> None:
    print(f"  {time.perf_counter() - begun:.0f} s: {what}", flush=True)


def make_engine(batch: int, zoom: float, images: Any, one: list[tuple[Any, ...]], *, size: str, compiled: bool) -> Any:
    """As `pellucid train` makes it, warm."""
    from pellucid.data.augment import Augment
    from pellucid.data.sources import Splits
    from pellucid.models import ViTConfig
    from pellucid.runs import ClassifierRun, Optim
    from pellucid.training import Engine
    from pellucid.training.classify import Classification
    from pellucid.training.distributed import Processes

    cuda = DEVICE.type == "cuda"
    fast: dict[str, Any] = {"compile": compiled, "graphs": True, "precision": "bf16"} if cuda else {}
    model = ViTConfig.named(size, classes=10, mean=(0.5,) * 3, std=(0.25,) * 3)
    augment = Augment(flip="random", zoom=zoom)
    run = ClassifierRun(model=model, batch=batch, augment=augment, optim=Optim(warmup=0.0), **fast)
    torch._dynamo.reset()
    task = Classification(run, Splits(images), DEVICE, Processes())
    task.batches = lambda start, end: iter([one])
    engine = Engine(task, run, DEVICE)
    engine._warm_up(0)
    return engine


def rate(
    step: Callable[[Any], Any], wait: Callable[[], None], batches: Iterator[Any], batch: int, seconds: float
) -> float:
    """Images a second, after the batches that were read ahead while others had their turn."""
    for _ in range(8):
        step(next(batches))
    wait()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds or count < 2:
        step(next(batches))
        count += 1
        if count % 20 == 0:
            wait()
    wait()
    return count * batch / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decoders", nargs="*", default=list(CONTESTANTS), help="which contestants take part")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit")
    parser.add_argument("--files", type=int, default=256, help="pictures of 500 × 335 to decode in a turn")
    parser.add_argument("--large", type=int, default=2 * CORES, help="pictures of 12 megapixels")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--train", nargs="*", default=[], help=f"feed a training in these ways: {', '.join(WAYS)}")
    parser.add_argument("--pictures", type=Path, help="JPEGs to use instead of making some, a folder for each class")
    parser.add_argument("--size", default="small")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn of training")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds after which no other way to feed is begun")
    parser.add_argument("--eager", action="store_true", help="train without compiling")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high" if DEVICE.type == "cuda" else "highest")
    tables: dict[str, Table] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = options.pictures or Path(place) / "pictures"
        if options.pictures is None:
            make_files(folder, options.files, *KINDS["500 × 335"])
        files = {"500 × 335": sorted(folder.rglob("*.jpg"))[: options.files]}
        if options.large:
            files["12 megapixels"] = make_files(Path(place) / "large", options.large, *KINDS["12 megapixels"])
        settings = {f"{kind}, KB a file": round(kilobytes(paths)) for kind, paths in files.items()} | {"cores": CORES}
        libraries = ("Pillow", "simplejpeg", "torchvision", "opencv-python-headless", "pyvips")
        how: dict[str, Any] = {"settings": settings | {"rounds": options.rounds}, "libraries": libraries}
        if options.decoders:
            tables["decoders"] = contest(options.decoders, options.before, files, options.rounds)
            keep("feeding", tables, DEVICE, **how)
        ways = (options.batch, options.turns, options.seconds, options.limit)
        for table in fed(folder, options.train, *ways, size=options.size, compiled=not options.eager):
            keep("feeding", tables | {"training": table}, DEVICE, **how)


if __name__ == "__main__":
    main()
