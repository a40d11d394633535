"""Pictures into batches: images/s from JPEG files to bytes of 224 × 224, and whether training is fed at its own rate.

    python benchmarks/feeding.py --before ../b4f5393                # decoders beside each other
    python benchmarks/feeding.py --peers torchvision --train 8192   # and on a GPU ViT-S/16 beside one repeated batch

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


def make_file(place: tuple[Path, int, int, int]) -> int:
    """A photograph's part, other for each number, as a JPEG of quality 90; its bytes."""
    path, number, width, height = place
    draw = np.random.default_rng(number)
    with Image.open(SAMPLES / ("china.jpg", "flower.jpg")[number % 2]) as image:
        wide = int(image.width * draw.uniform(0.75, 1))
        tall = min(image.height, int(wide * height / width))
        left, top = draw.integers(image.width - wide + 1), draw.integers(image.height - tall + 1)
        part = image.crop((left, top, left + wide, top + tall)).resize((width, height), Image.Resampling.BICUBIC)
    path.parent.mkdir(parents=True, exist_ok=True)
    part.save(path, quality=90)
    return path.stat().st_size


def make_files(folder: Path, count: int, width: int, height: int) -> tuple[list[Path], float]:
    places = [(folder / str(i % 10) / f"{i:05}.jpg", i, width, height) for i in range(count)]
    with multiprocessing.get_context("spawn").Pool(CORES) as pool:
        sizes = pool.map(make_file, places, chunksize=16)
    return [place[0] for place in places], sum(sizes) / count / 1000


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
    how = {"processes": processes} if processes else {}

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

    return stacked(
        lambda data: middle(decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB))
    )


def opencv(way: str) -> Read:
    import cv2

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
    import pyvips

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


def fed(folder: Path, batch: int, seconds: float, rounds: int, size: str) -> Table:
    """The same engine fed with pictures in each way that there is, beside one batch again and again."""
    from pellucid.data.loader import Loader
    from pellucid.data.sources import DataConfig, load_images

    usual = {"name": f"folder:{folder}", "size": (SIDE, SIDE), "zoom_into": "original"}
    kept = {"cache": str(folder.parent / "kept")}
    ways = {  # what the data are asked for, and the smallest part of a picture that is cut out as it is read and after
        "threads": ({"workers": 0}, 1.0, 1.0),
        "processes": ({}, 1.0, 1.0),
        "processes, parts of the original": ({}, 0.25, 1.0),
        "kept decoded": (kept, 1.0, 1.0),
        "kept decoded, parts of it on the device": (kept, 1.0, 0.25),
        "kept whole at 256, parts of that": (kept | {"cache_side": 256}, 0.25, 1.0),
    }
    rows, engines = [], {}
    for name, (data, as_read, on_device) in ways.items():
        config = DataConfig(**(usual | data))
        begun = time.perf_counter()
        images = load_images(config).train
        ready = time.perf_counter() - begun
        loader = Loader(images, batch, 0, DEVICE, zoom=as_read)
        shares = ([(*share, pixels) for share, pixels in parts] for parts in loader.shares(0, 1_000_000))
        one = next(shares)
        if on_device not in engines:
            engines[on_device] = make_engine(size, batch, on_device, images, one)
        engine = engines[on_device]
        turns = [
            (rate(engine, shares, batch, seconds), rate(engine, again(one), batch, seconds)) for _ in range(rounds)
        ]
        real, repeated = (statistics.median(each) for each in zip(*turns, strict=True))
        rows.append({"way": name, "fed": real, "one batch": repeated, "ratio": real / repeated, "ready after": ready})
        print(rows[-1], flush=True)
        shares.close()
        images.close()
    columns = {"way": Column(), "fed": Column("images/s"), "one batch": Column("images/s"), "ratio": Column("×", 3)}
    title = f"ViT {size}, patches of 16 at {SIDE} × {SIDE}, batch {batch}: fed with JPEGs, beside one repeated batch"
    return Table(title, columns | {"ready after": Column("s", 1)}, rows)


def make_engine(size: str, batch: int, zoom: float, images: Any, one: list[tuple[Any, ...]]) -> Any:
    """As `pellucid train` makes it, warm."""
    from pellucid.data.augment import Augment
    from pellucid.data.sources import Splits
    from pellucid.models import ViTConfig
    from pellucid.runs import ClassifierRun, Optim
    from pellucid.training import Engine
    from pellucid.training.classify import Classification
    from pellucid.training.distributed import Processes

    fast: dict[str, Any] = {"compile": True, "graphs": True, "precision": "bf16"} if DEVICE.type == "cuda" else {}
    model = ViTConfig.named(size, classes=10, mean=(0.5,) * 3, std=(0.25,) * 3)
    augment = Augment(flip="random", zoom=zoom)
    run = ClassifierRun(model=model, batch=batch, augment=augment, optim=Optim(warmup=0.0), **fast)
    torch._dynamo.reset()
    task = Classification(run, Splits(images), DEVICE, Processes())
    task.batches = lambda start, end: iter([one])
    engine = Engine(task, run, DEVICE)
    engine._warm_up(0)
    return engine


def again(batch: Any) -> Iterator[Any]:
    while True:
        yield batch


def rate(engine: Any, batches: Iterator[Any], batch: int, seconds: float) -> float:
    """Images a second, after the batches that were read ahead while others had their turn."""
    for _ in range(8):
        engine._step(0, 100, next(batches))
    engine._synchronise()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds or count < 2:
        engine._step(0, 100, next(batches))
        count += 1
        if count % 20 == 0:
            engine._synchronise()
    engine._synchronise()
    return count * batch / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="*", default=list(CONTESTANTS), help="which contestants take part")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit")
    parser.add_argument("--files", type=int, default=256, help="pictures of 500 × 335 to decode in a turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, default=3, help="of each way of feeding")
    parser.add_argument("--train", type=int, default=0, metavar="FILES", help="feed a training with so many files")
    parser.add_argument("--size", default="small")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn of training")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high" if DEVICE.type == "cuda" else "highest")
    tables: dict[str, Table] = {}
    with tempfile.TemporaryDirectory() as place:
        sizes = {"500 × 335": options.files, "12 megapixels": 2 * CORES}
        made = {kind: make_files(Path(place) / kind, n, *KINDS[kind]) for kind, n in sizes.items()}
        files, kilobytes = ({kind: each[i] for kind, each in made.items()} for i in (0, 1))
        if options.peers:
            tables["decoders"] = contest(options.peers, options.before, files, options.rounds)
        if options.train:
            folder = Path(place) / "train"
            make_files(folder, options.train, *KINDS["500 × 335"])
            tables["training"] = fed(folder, options.batch, options.seconds, options.turns, options.size)
        settings = {f"{kind}, KB a file": round(size) for kind, size in kilobytes.items()} | {
            "cores": CORES,
            "rounds": options.rounds,
        }
        libraries = ("Pillow", "simplejpeg", "torchvision", "opencv-python-headless", "pyvips")
        keep("feeding", tables, DEVICE, settings=settings, libraries=libraries)


if __name__ == "__main__":
    main()
