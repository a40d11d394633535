"""pellucid attend hf:FOLDER --text "…": the same page for anybody's model, of text, pictures, both, or sound."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pellucid.cli.pictures import find_pictures, number_file
from pellucid.cli.verbs import AttendOptions
from pellucid.devices import pick_device
from pellucid.explain.trace import Trace
from pellucid.ready import ReadyForeign, load
from pellucid.ready.loading import FOREIGN
from pellucid.views.bundle import save_trace
from pellucid.views.figures import save_figure
from pellucid.views.look import draw_answer
from pellucid.views.page import to_html

MOST_SECONDS = 600  # of sound
NAMED = 3  # answers that are printed


def is_anybodys(model: str) -> bool:
    """Whether it is named as a model of another library."""
    return model.partition(":")[0] in FOREIGN and ":" in model


def attend_any(options: AttendOptions) -> None:
    """Watch a model of another library read each input, and write one page."""
    inputs = list_inputs(options)
    model: ReadyForeign = load(options.model, device=pick_device(options.device))
    usual = options.method == AttendOptions.__dataclass_fields__["method"].default
    methods = None if usual else [method.replace("-", " ") for method in options.method]
    traces = [model.trace(methods=methods, target=_number(options.target), **each) for each in inputs]
    to_html(traces, options.out)
    files: dict[str, list[Path]] = {"report": [options.out]}
    for name, path in (("figure", options.figure), ("trace", options.trace)):
        files[name] = [] if path is None else [number_file(path, i + 1, len(traces)) for i in range(len(traces))]
    for seen, path in zip(traces, files["figure"], strict=False):
        save_figure(draw_answer(seen), path)
    for seen, path in zip(traces, files["trace"], strict=False):
        save_trace(seen, path)
    if options.json:
        print(json.dumps(summarise(options, inputs, traces, files), allow_nan=False))
        return
    for each, seen in zip(inputs, traces, strict=True):
        print(f"{_say_input(each)}  {say_answer(seen)}")
        for name, reason in seen.missed:
            print(f"not shown: {name}: {reason}")
    for name, paths in files.items():
        for path in paths:
            print(f"{name}: {path}")


def list_inputs(options: AttendOptions) -> list[dict[str, Any]]:
    """What the model is asked, input by input."""
    for option in ("heads", "lapse", "query", "beam"):
        if getattr(options, option) is not None:
            raise ValueError(f"--{option} is for models of ours; {options.model} is another library's")
    if options.faithfulness or options.rescale:
        option = "--faithfulness" if options.faithfulness else "--rescale"
        raise ValueError(f"{option} is for models of ours; {options.model} is another library's")
    extra: dict[str, Any] = {} if options.generate is None else {"generate": options.generate}
    if options.audio is not None:
        return [extra | {"audio": read_wave(options.audio)}]
    texts = list(options.text)
    if options.images:
        beside: dict[str, Any] = {} if not texts else {"text": texts[0] if len(texts) == 1 else texts}
        return [extra | beside | {"image": str(path)} for path in find_pictures(options.images)]
    if not texts:
        raise ValueError(f"{options.model} is given nothing to read; give --text, pictures, or --audio")
    if len(texts) > 2:
        raise ValueError(
            f"--text names {len(texts)} texts; expected one, two that are a pair, or more beside a picture"
        )
    return [extra | {"text": texts[0] if len(texts) == 1 else (texts[0], texts[1])}]


def read_wave(path: Path) -> NDArray[np.float32]:
    """The samples of a .wav file, its channels mixed; one sentence if it is something else."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, count = file.getsampwidth(), file.getnchannels(), file.getnframes()
            if width != 2 or not count or count > MOST_SECONDS * file.getframerate():
                raise ValueError(
                    f"{path} has {8 * width} bits and {count} samples; expected 16 bits, of ten minutes at most"
                )
            content = file.readframes(count)
            if len(content) < width * channels:
                raise EOFError("it is cut short")
    except (wave.Error, EOFError, OSError, RuntimeError) as error:  # the last, where a chunk ends beyond the file
        raise ValueError(f"{path} can't be read as a .wav file: {error or 'it is cut short'}") from None
    whole = len(content) // (2 * channels) * channels
    samples = np.frombuffer(content, "<i2", whole).astype(np.float32) / 2**15
    return samples.reshape(-1, channels).mean(1)


def say_answer(seen: Trace) -> str:
    """What it answered, in a line."""
    best = "  ".join(f"{label.strip()} {100 * share:.1f} %" for label, share in seen.answers[:NAMED])
    return seen.said or best or f"{len(seen.layers)} attentions"


def summarise(
    options: AttendOptions, given: list[dict[str, Any]], traces: list[Trace], files: dict[str, list[Path]]
) -> dict[str, Any]:
    """The same as JSON."""
    inputs = []
    for i, (each, seen) in enumerate(zip(given, traces, strict=True)):
        listed: dict[str, Any] = {name: value for name, value in each.items() if name in ("text", "image")}
        listed["answers"] = [{"label": label, "probability": share} for label, share in seen.answers]
        listed["words"] = [{"word": word, "log_probability": number} for word, number in seen.words]
        listed["maps"] = [
            {
                "method": m.method,
                "target": m.target,
                "word": m.word,
                "stream": m.stream,
                "most": seen.stream(m.stream).labels[int(m.values.argmax())],
                "value": float(m.values.max()),
            }
            for m in seen.maps
        ]
        listed["missed"] = [list(pair) for pair in seen.missed]
        listed |= {name: str(files[name][i]) for name in ("figure", "trace") if files[name]}
        inputs.append(listed)
    return {"model": traces[0].model, "kind": traces[0].kind, "report": str(options.out), "inputs": inputs}


def _say_input(given: dict[str, Any]) -> str:
    text = given.get("text")
    return str(given.get("image") or (" / ".join(text) if isinstance(text, tuple) else text) or "the sound")


def _number(target: str | None) -> int | str | None:
    return int(target) if target is not None and target.isdecimal() else target
