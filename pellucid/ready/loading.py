"""A ready model by its name: a run's folder, a saved folder, or one that comes with the package; and how good it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pellucid import hub
from pellucid.config import brief, from_json, read_json
from pellucid.models.pretrained import CONFIG, WEIGHTS, Pretrained, build, load_strictly, read_shapes, read_weights
from pellucid.ready.captioner import ReadyCaptioner
from pellucid.ready.classifier import ReadyClassifier
from pellucid.ready.foreign import ReadyForeign, load_hugging_face, load_timm
from pellucid.ready.model import ReadyModel
from pellucid.ready.translator import ReadyTranslator
from pellucid.runs import ClassifierRun, RunFolder, checkpoints
from pellucid.runs.folder import is_run

Ready = ReadyClassifier | ReadyCaptioner | ReadyTranslator
FOREIGN = {"hf": load_hugging_face, "timm": load_timm}
SHIPPED = Path(hub.__file__).parent / "weights"
KINDS: tuple[type[Ready], ...] = (ReadyClassifier, ReadyCaptioner, ReadyTranslator)
HINTS = {
    "classifier": "pellucid predict says what a classifier sees",
    "captioner": "pellucid caption says what a captioner sees",
    "translator": "pellucid translate says sentences in another language",
}


def load(
    source: str | Path | nn.Module,
    *,
    device: torch.device | str = "cpu",
    module: nn.Module | None = None,
    reader: Any = None,
    labels: Sequence[str] | None = None,
) -> Any:
    """Load a model that can be asked.

    source: a shipped model's name, a run's folder (its best weights, else its last) or a saved folder: a
        `ReadyClassifier`, `ReadyCaptioner` or `ReadyTranslator` comes, as its kind is. Of "hf:FOLDER" and "hf:NAME"
        (Hugging Face's), "timm:FOLDER" and "timm:NAME", and of a module, a `ReadyForeign`.
    module: for the run of a module of one's own, such a module; it gets the run's weights.
    reader, labels: for a module, what reads for it, and what its classes are called.

    >>> model = load("vit-cifar10")
    >>> model
    ReadyClassifier('vit-cifar10', 5,654,154 parameters, on cpu)
    >>> model.predict(torch.zeros(3, 32, 32), top=1)[0].label in model.labels
    True
    """
    if isinstance(source, nn.Module):
        return ReadyForeign(source, reader, labels=labels).to(device)
    kind, _, place = str(source).partition(":")
    if kind in FOREIGN and place:
        return FOREIGN[kind](place, device)
    folder = find_folder(source)
    name = folder.resolve().name
    config = read_json(folder / CONFIG)
    if is_run(config):
        return load_checkpoint(folder, name=name, module=module).to(device)
    if not isinstance(config, dict):
        raise ValueError(f"{folder / CONFIG} holds no object; expected the config of a run or of a model")
    if "model_type" in config and "model" not in config:
        raise ValueError(f"{folder} holds a model of Hugging Face's; name it hf:{source}")
    said = config.pop("model", ReadyClassifier.module_class.__name__)
    kind = next((kind for kind in KINDS if kind.module_class.__name__ == said), None)
    if kind is None:
        known = " or a ".join(kind.module_class.__name__ for kind in KINDS)
        raise ValueError(f"{folder / CONFIG} describes a {brief(said)}; expected a {known}")
    described, weights = _describe(kind.module_class, config, folder / CONFIG), folder / WEIGHTS
    if not weights.is_file():
        raise ValueError(f"{folder} holds no {WEIGHTS}; expected it beside {CONFIG}")
    built = build(kind.module_class, described, read_shapes(weights), weights)
    load_strictly(built, read_weights(weights), weights)
    return kind.assemble(built, folder, name=name).to(device)


def evaluate(model: str | Path | ReadyModel, data: Any, split: str = "test", **how: Any) -> Any:
    """Measure how good a model is: accuracy and calibration, or scores of captions and translations beside controls.

    model: ready, or what `load` takes. data: by name, as `cifar10`, `folder:PATH` or `scenes`, or a set of images.
    how: what the model's own `evaluate` takes, as path, batch or beam. The report that comes back has its numbers in
        `figures`.

    >>> from pellucid.data import ImageSet
    >>> ship = ImageSet(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 0]), ("ship",))
    >>> evaluate("vit-cifar10", ship).figures["images"]
    2
    """
    ready = model if isinstance(model, ReadyModel) else load(model)
    return ready.evaluate(data, split, **how)


def load_checkpoint(
    folder: Path, checkpoint: Path | None = None, *, name: str = "", module: nn.Module | None = None
) -> Ready:
    """A run's model with the weights of one of its checkpoints; those that it is known by unless given.

    >>> import tempfile, pellucid
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trained = pellucid.train("vit_digits", out=f"{folder}/run", duration="2 steps", progress=False)
    ...     model = load_checkpoint(trained.folder)
    >>> model.kind
    'classifier'
    """
    run = RunFolder(folder).run()
    if isinstance(run, ClassifierRun) and run.module is not None and module is None:
        raise ValueError(f"{folder} trained a module of one's own, a {run.module}; give one: load(…, module=…)")
    kind = next(kind for kind in KINDS if kind.kind == run.kind)
    checkpoint = checkpoint or RunFolder(folder).weights()
    filled: Any = module
    if filled is None:
        filled = build(kind.module_class, run.model, checkpoints.read_shapes(checkpoint), checkpoint)
    checkpoints.fill_module(filled, checkpoint)
    return kind.assemble(filled, folder, name=name, run=run)


def load_classifier(source: str | Path, device: torch.device | str = "cpu") -> ReadyClassifier:
    """A classifier by its name or folder; what is something else is refused.

    >>> load_classifier("vit-cifar10").labels[:2]
    ('airplane', 'automobile')
    """
    return _load_kind(ReadyClassifier, source, device)


def load_captioner(source: str | Path, device: torch.device | str = "cpu") -> ReadyCaptioner:
    """A captioner by its name or folder; what is something else is refused.

    >>> load_captioner("captioner-scenes").kind
    'captioner'
    """
    return _load_kind(ReadyCaptioner, source, device)


def load_translator(source: str | Path, device: torch.device | str = "cpu") -> ReadyTranslator:
    """A translator by its name or folder; what is something else is refused.

    >>> load_translator("vit-cifar10")
    Traceback (most recent call last):
        ...
    ValueError: vit-cifar10 is a classifier; expected a translator (pellucid predict says what a classifier sees)
    """
    return _load_kind(ReadyTranslator, source, device)


def _load_kind(kind: type[Any], source: str | Path, device: torch.device | str) -> Any:
    ready = load(source, device=device)
    if not isinstance(ready, kind):
        raise ValueError(f"{source} is a {ready.kind}; expected a {kind.kind} ({HINTS[ready.kind]})")
    return ready


def shipped() -> list[str]:
    """The names of the models that come with the package.

    >>> shipped()[:2]
    ['captioner-flickr8k', 'captioner-scenes']
    """
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def find_folder(source: str | Path) -> Path:
    """Where a model lies: a path, or a shipped name."""
    path = Path(source).expanduser()
    if (path / CONFIG).is_file():
        return path
    if str(source) in shipped():
        return SHIPPED / str(source)
    known = ", ".join(shipped()) or "none"
    why = f"has no {CONFIG}" if path.is_dir() else "is a file" if path.is_file() else "is not there"
    raise ValueError(
        f"no model {str(source)!r}: as a path it {why}, and the shipped models are: {known}; "
        f"give the folder of a run, a folder with {CONFIG} and {WEIGHTS}, or a shipped name"
    )


def _describe(module_class: type[Pretrained], config: Any, source: Path) -> Any:
    try:
        return from_json(module_class.config_class, config)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
