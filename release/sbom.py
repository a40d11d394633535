"""make sbom: what a release consists of, as CycloneDX JSON, from release/requirements.lock.

Each package with its version, the SHA-256 of every file that may be installed for it, its licence (where it is
installed here) and what it needs. Nothing is asked of the network, and the same lock gives the same file.
"""

import argparse
import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "release" / "requirements.lock"
OWN = "pellucid"

_PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))? ?\\?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"^    #(?: via|  ) +(?P<name>[\w.-]+)")


class Pin(NamedTuple):
    """One package of the lock. marker: where it is needed, '' for everywhere; wanted_by: the packages that need it."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    wanted_by: tuple[str, ...]


def read_lock(path: Path = LOCK) -> list[Pin]:
    """Every package that the lock names; a line that is none of its kinds is an error."""
    pins: list[tuple[re.Match[str], list[str], list[str]]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if pin := _PIN.match(line):
            pins.append((pin, [], []))
        elif pins and (digest := _HASH.search(line)):
            pins[-1][1].append(digest[1])
        elif pins and (via := _VIA.match(line)):
            pins[-1][2].append(via["name"])
        elif not line.startswith("    #"):
            raise ValueError(
                f"{path}, line {number} is no package, hash or comment: {line!r}; make it anew by `make lock`"
            )
    return [Pin(pin["name"], pin["version"], pin["marker"] or "", tuple(h), tuple(by)) for pin, h, by in pins]


def describe(pins: list[Pin], version: str) -> dict[str, Any]:
    """The bill of materials of this version, made of these packages."""
    own = {"type": "library", "bom-ref": OWN, "name": OWN, "version": version, "purl": f"pkg:pypi/{OWN}@{version}"}
    own |= {"licenses": [{"expression": "Apache-2.0"}]}
    needs: dict[str, list[str]] = {OWN: []} | {pin.name: [] for pin in pins}
    for pin in pins:
        for name in pin.wanted_by:
            if name in needs:
                needs[name].append(pin.name)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": [_component(pin) for pin in pins],
        "dependencies": [{"ref": name, "dependsOn": sorted(each)} for name, each in needs.items()],
    }


def _component(pin: Pin) -> dict[str, Any]:
    purl = f"pkg:pypi/{pin.name}@{pin.version}"
    # one package is several files, one for each platform, whose digests have their place at the package's address
    files = {
        "type": "distribution",
        "url": purl,
        "hashes": [{"alg": "SHA-256", "content": each} for each in pin.hashes],
    }
    component = {"type": "library", "bom-ref": pin.name, "name": pin.name, "version": pin.version, "purl": purl}
    component |= {"externalReferences": [files]}
    if licence := _licence(pin.name):
        component["licenses"] = [{"license": {"name": licence}}]
    if pin.marker:
        component["properties"] = [{"name": "python:marker", "value": pin.marker}]
    return component


def _licence(name: str) -> str:
    """What an installed package says of its licence, in one line; '' if it isn't installed or doesn't say."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    if stated := about.get_all("License-Expression"):
        return stated[0]
    said = [each.rpartition(" :: ")[2] for each in about.get_all("Classifier", []) if each.startswith("License ::")]
    field = "".join(about.get_all("License", []))  # some put the whole text there
    return "; ".join(said) or ("" if "\n" in field else field)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    out = parser.parse_args().out or ROOT / "dist" / f"{OWN}-{metadata.version(OWN)}.cdx.json"
    bill = describe(read_lock(), metadata.version(OWN))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    print(f"{len(bill['components'])} packages in {out}")


if __name__ == "__main__":
    main()
