"""Forty free photographs, what captioner-flickr8k says of them, and which of it a person would accept.

    apt-get download gcompris-qt-data lomiri-wallpapers-16.04 mate-backgrounds opencv-doc
    for each in *.deb; do dpkg-deb -x $each unpacked; done; pip install scikit-image
    python benchmarks/photographs.py --unpacked unpacked --when before            # what it says, into results/
    python benchmarks/photographs.py --when before --accept "dog by itself" …    # by somebody who has looked

`--when after` says the same of another model beside it. Accepted is a caption whose main things and what they do are
there; a wrong detail (a colour, a number) is forgiven, a wrong thing is not. Nothing in it trains or is chosen by.
"""

import argparse
import io
import json
import re
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from report import ROOT, Column, Table, keep

import pellucid

FARM, WORLD = "gcompris-qt-data:explore_farm_animals", "gcompris-qt-data:explore_world_animals"
LOMIRI, MATE, OPENCV = "lomiri-wallpapers-16.04", "mate-backgrounds", "opencv-doc"
PHOTOGRAPHS = {  # what is there: where it comes from, and its file, or its number in a file of resources
    "astronaut": ("scikit-image", "astronaut.png"),
    "man with a camera": ("scikit-image", "camera.png"),
    "face of a cat": ("scikit-image", "chelsea.png"),
    "cup of coffee": ("scikit-image", "coffee.png"),
    "red motorcycle": ("scikit-image", "motorcycle_left.png"),
    "rocket at dusk": ("scikit-image", "rocket.jpg"),
    "pagoda above a lake": ("scikit-learn", "china.jpg"),
    "orange dahlia": ("scikit-learn", "flower.jpg"),
    "officer before a flag": ("matplotlib", "grace_hopper.jpg"),
    "white duck": (FARM, 0),
    "cow on a meadow": (FARM, 1),
    "sheep on grass": (FARM, 2),
    "horses on a field": (FARM, 3),
    "kitten with wool": (FARM, 4),
    "hens on grass": (FARM, 5),
    "piglet on grass": (FARM, 6),
    "German shepherd": (FARM, 7),
    "owl on a branch": (FARM, 8),
    "kangaroo": (WORLD, 0),
    "moose in a field": (WORLD, 1),
    "crocodile on a bank": (WORLD, 3),
    "hedgehog in grass": (WORLD, 5),
    "red parrot": (WORLD, 6),
    "koala in a tree": (WORLD, 7),
    "lemurs on a rock": (WORLD, 8),
    "polar bear in snow": (WORLD, 10),
    "bison on grass": (WORLD, 11),
    "panda on wood": (WORLD, 14),
    "giraffes": (WORLD, 15),
    "bird behind a trunk": (LOMIRI, "Kleiber_by_Lukas_Baubkus.jpg"),
    "mountains in autumn": (LOMIRI, "aitzgorri_by_Aitzol_Berasategi.jpg"),
    "two dogs at a window": (LOMIRI, "friends_by_Aitzol_Berasategi.jpg"),
    "brook in a wood": (LOMIRI, "life_by_Aitzol_Berasategi.jpg"),
    "path below mountains": (LOMIRI, "picosdeeuropa_by_Aitzol_Berasategi.jpg"),
    "sunset over hills": (LOMIRI, "sunset_by_Aitzol_Berasategi.jpg"),
    "dune with grass": (MATE, "Dune.jpg"),
    "footballer with a ball": (OPENCV, "messi5.jpg"),
    "dog by itself": (OPENCV, "chicky_512.png"),
    "squirrel in a tree": (OPENCV, "squirrel_cls.jpg"),
    "houses along a street": (OPENCV, "leuvenA.jpg"),
}


def find(package: str, name: str | int, unpacked: Path) -> Image.Image:
    """One of them, from an installed library or from the packages of Debian that were unpacked."""
    if isinstance(name, int):
        (file,) = unpacked.rglob(f"{package.partition(':')[2]}.rcc")
        return read_resources(file.read_bytes())[name]
    if package in ("scikit-image", "scikit-learn", "matplotlib"):
        spec = find_spec({"scikit-image": "skimage", "scikit-learn": "sklearn"}.get(package, package))
        if spec is None or spec.origin is None:
            raise SystemExit(f"{package} isn't installed; run pip install {package}")
        found = sorted(Path(spec.origin).parent.rglob(name))
    else:
        found = sorted(path for path in unpacked.rglob(name) if path.is_file())
    return Image.open(found[0]).convert("RGB")


def read_resources(content: bytes) -> list[Image.Image]:
    """The photographs in a file of resources of Qt, in its order."""
    pictures = []
    for match in re.finditer(rb"\xff\xd8\xff|RIFF....WEBP", content, re.DOTALL):
        try:
            picture = Image.open(io.BytesIO(content[match.start() :])).convert("RGB")
        except OSError:  # three bytes of something else
            continue
        if min(picture.size) >= 200:
            pictures.append(picture)
    return pictures


def caption(model: Any, unpacked: Path, folder: Path | None) -> tuple[dict[str, Any], list[float]]:
    """What the model says of each, and how long each took."""
    said, seconds = {}, []
    for there, place in PHOTOGRAPHS.items():
        picture = find(place[0], place[1], unpacked)
        if folder is not None:
            picture.save(folder / f"{there}.png")
        pixels = model.read(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
        begun = time.process_time()
        (best,) = model.caption(pixels[0])
        seconds.append(time.process_time() - begun)
        said[there] = best
    return said, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="captioner-flickr8k")
    parser.add_argument("--unpacked", type=Path, help="folder into which the packages were unpacked")
    parser.add_argument("--when", choices=["before", "after"], required=True)
    parser.add_argument("--accept", nargs="*", help="the photographs whose caption is accepted; all others aren't")
    parser.add_argument("--save", type=Path, help="folder for the photographs, to look at")
    options = parser.parse_args()
    path = ROOT / "results" / "photographs-cpu.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    there = kept["tables"]["photographs"]["rows"] if kept else []
    rows = {row["photograph"]: dict.fromkeys(COLUMNS) | row for row in there}
    settings = dict(kept.get("settings", {"beam": 5}))
    when = options.when
    if options.unpacked is not None:
        said, seconds = caption(pellucid.load(options.model), options.unpacked, options.save)
        settings |= {f"ms of processor a caption, {when}": round(1000 * sorted(seconds)[len(seconds) // 2])}
        for there, best in said.items():
            row = rows.setdefault(there, dict.fromkeys(COLUMNS) | {"photograph": there})
            row |= {"from": PHOTOGRAPHS[there][0].partition(":")[0], when: best.text, f"accepted {when}": None}
            row |= {f"unsure {when}": None if best.expected is None else "yes" if best.unsure else "no"}
    if options.accept is not None:
        if unknown := set(options.accept) - set(rows):
            raise SystemExit(f"{', '.join(sorted(unknown))}: no such photographs")
        for there, row in rows.items():
            row[f"accepted {when}"] = "yes" if there in options.accept else "no"
    for name in ("before", "after"):
        told = [row for row in rows.values() if row[f"accepted {name}"] is not None]
        if told:
            settings[f"accepted {name}"] = sum(row[f"accepted {name}"] == "yes" for row in told)
            of_sure = [row["accepted " + name] == "yes" for row in told if row[f"unsure {name}"] == "no"]
            settings[f"said to be sure, {name}"] = len(of_sure)
            settings[f"accepted of these, {name}"] = sum(of_sure)
    columns = {name: Column() for name in COLUMNS if any(row[name] is not None for row in rows.values())}
    table = Table("forty free photographs", columns, list(rows.values()))
    keep("photographs", {"photographs": table}, torch.device("cpu"), settings=settings, notes=NOTES)


COLUMNS = (
    *("photograph", "from", "before", "accepted before", "unsure before"),
    *("after", "accepted after", "unsure after"),
)
NOTES = "Judged by one who looked at each photograph: the main things and what they do must be there."

if __name__ == "__main__":
    main()
