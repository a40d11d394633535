"""Any model with its reader, as one that can be asked: Hugging Face's by a folder or name, timm's, or a module."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from pellucid.config import one_line
from pellucid.explain.maps import Map
from pellucid.explain.trace import Trace
from pellucid.extras import require
from pellucid.looking.answers import Score, generate
from pellucid.looking.feeding import Question, Reader
from pellucid.looking.methods import explain
from pellucid.looking.passage import Passage
from pellucid.looking.tracing import find_target, needs_gradients, trace
from pellucid.models.pretrained import CONFIG
from pellucid.ready.classifier import Prediction
from pellucid.ready.model import ReadyModel


class ReadyForeign(ReadyModel):
    """A model that isn't ours, and what reads for it.

    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    >>> model = ReadyForeign(encoder, name="encoder")
    >>> [layer.name for layer in model.trace(torch.randn(1, 5, 16)).layers]
    ['layers.0.self_attn', 'layers.1.self_attn']
    """

    kind, module_class, fit = "model", nn.Module, "stretch"  # pyright: ignore[reportAssignmentType]

    def __init__(self, model: nn.Module, reader: Any = None, *, name: str = "", labels: Sequence[str] | None = None):
        if not isinstance(model, nn.Module):
            raise ValueError(f"the model is a {type(model).__name__}; expected a module, or the name of a model")
        self.model, self.name, self.run = model.eval(), name or type(model).__name__, None
        self.reading = Reader.of(reader)
        self.labels = tuple(labels or ())

    @classmethod
    def assemble(cls, module: Any, folder: Path, *, name: str = "", run: Any = None) -> NoReturn:
        raise ValueError(f"{folder} is opened by load('hf:…') or load('timm:…')")

    @property
    def reads(self) -> tuple[str, ...]:
        """What it can be asked with: "text", "picture" or both, as its reader has the parts."""
        parts = {"text": self.reading.tokenizer, "picture": self.reading.images or self.reading.timm}
        return tuple(name for name, part in parts.items() if part is not None)

    def look(self, given: Any = None, *, score: Score | None = None, gradients: bool = True, **inputs: Any) -> Passage:
        """Watch it: given is text, a pair or a list of texts, a picture, samples, or the model's own arguments.

        asked: the same by name, as text, image, audio, arguments, and generate (how many tokens at most).
        """
        wanted = ask(self.reading, given, **inputs)
        fed = generate(self.model, self.reading.read(wanted, self.model), self.reading, wanted)
        labels = self.labels or None
        return Passage.watch(self.model, fed, self.reading, labels=labels, score=score, gradients=gradients)

    def predict(self, given: Any = None, *, top: int = 5, **inputs: Any) -> list[Prediction]:
        """The likeliest answers, or the words that it generates with the probability of each."""
        if top < 1:
            raise ValueError(f"top is {top}; expected one or more")
        answered = self.look(given, gradients=False, **inputs).answered
        pairs = answered.answers[:top] or [(word, float(torch.tensor(share).exp())) for word, share in answered.words]
        return [Prediction(*pair) for pair in pairs]

    def trace(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        given: Any = None,
        *,
        methods: Sequence[str] | None = None,
        target: int | str | None = None,
        score: Score | None = None,
        **inputs: Any,
    ) -> Trace:
        """All that its attention follows from as it reads one input, and what explains its answer."""
        passage = self.look(given, score=score, gradients=needs_gradients(methods), **inputs)
        return trace(passage, name=self.name, methods=methods, target=target)

    def explain(
        self, given: Any = None, method: str = "gradient", target: int | str | None = None, **how: Any
    ) -> tuple[Map, ...]:
        """How much each token counts for the likeliest answer, for each word, or for the target.

        how: layer, head, seed and steps of the method; text, image, audio, arguments, generate and score of the input.
        """
        of_method = {name: how.pop(name) for name in ("layer", "head", "seed", "steps") if name in how}
        passage = self.look(given, **how)
        return explain(passage, method, find_target(passage, target), **of_method)

    def evaluate(self, data: Any, split: str = "test") -> NoReturn:
        raise ValueError(f"{self.name} isn't a model of ours, whose scores evaluate measures; look at it instead")

    def read(self, pictures: Any) -> NoReturn:
        raise ValueError(
            f"{self.name} has no pictures read apart from its other inputs; ask it with predict, trace or explain"
        )

    def save(self, folder: str | Path, *, half: bool = False) -> NoReturn:
        raise ValueError(f"{self.name} is another library's; save it as that library does")


def ask(reader: Reader, given: Any = None, **inputs: Any) -> Question:
    """What is asked of a model, by what it is: text if there is who reads text, else a picture's path."""
    known = ("text", "image", "audio", "arguments", "generate")
    if unknown := set(inputs) - set(known):
        raise ValueError(f"{', '.join(sorted(unknown))} can't be looked at; expected {', '.join(known)}")
    if given is None:
        return Question(**inputs)
    if inputs.get(name := _sort_of(reader, given)) is not None:
        raise ValueError(f"{name} is given twice")
    return Question(**{**inputs, name: given})


def _sort_of(reader: Reader, given: Any) -> str:
    if isinstance(given, str) and reader.tokenizer is None and reader.encode is None:
        return "image"
    if isinstance(given, tuple | list) and given and all(isinstance(each, torch.Tensor) for each in given):
        return "arguments"
    if isinstance(given, str | tuple | list) or reader.encode is not None:
        return "text"
    if isinstance(given, dict) or (isinstance(given, torch.Tensor) and given.ndim != 3):
        return "arguments"
    sees = reader.images is not None or reader.timm is not None
    if getattr(given, "ndim", 3) == 1:
        return "audio"
    return "image" if sees or not isinstance(given, torch.Tensor) else "arguments"


def load_hugging_face(source: str, device: Any) -> ReadyForeign:
    """A model of Hugging Face's library: a folder that holds one, or a name on its Hub."""
    transformers = require("transformers", f"hf:{source}")
    path = Path(source).expanduser()
    local = path.exists() or source.startswith((".", "/", "~"))
    if local and not (path / CONFIG).is_file():
        raise ValueError(f"hf:{source} is no model: there is no {CONFIG} in it")
    how = {"local_files_only": local, "trust_remote_code": False}
    where = str(path) if local else source
    with _in_one_sentence(f"hf:{source}"):
        config = transformers.AutoConfig.from_pretrained(where, **how)
        named = (getattr(config, "architectures", None) or ["AutoModel"])[0]
        kind = getattr(transformers, named, None)
        if kind is None:
            raise ValueError(f"its class {named} isn't in transformers {transformers.__version__}")
        model = kind.from_pretrained(where, **how)
    return ReadyForeign(model, _read_reader(transformers, where, how), name=path.name).to(device)


def load_timm(source: str, device: Any) -> ReadyForeign:
    """A model of timm's: a folder with its config.json, or a name, whose weights are fetched."""
    timm = require("timm", f"timm:{source}")
    path = Path(source).expanduser()
    with _in_one_sentence(f"timm:{source}"):
        model = timm.create_model(f"local-dir:{path}" if path.is_dir() else source, pretrained=True)
    config = timm.data.resolve_model_data_config(model)
    labels = model.pretrained_cfg.get("label_names")
    return ReadyForeign(model, config, name=path.name, labels=labels).to(device)


def _read_reader(transformers: Any, where: str, how: dict[str, Any]) -> Any:
    """The processor, or whichever of its parts there is; None if the folder holds none."""
    for name in ("AutoProcessor", "AutoTokenizer", "AutoImageProcessor", "AutoFeatureExtractor"):
        try:
            return getattr(transformers, name).from_pretrained(where, **how)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


class _in_one_sentence:
    """What a library says of a model that can't be opened, as one sentence of ours."""

    def __init__(self, source: str):
        self.source = source

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, Exception):
            said = one_line(str(error)).partition(". ")[0][:300]
            raise ValueError(f"{self.source} can't be opened: {said or kind.__name__}") from error
