"""A vision transformer that can be asked: what it sees in a picture, why, and how often it is right."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from pellucid.data.division import HeldOut
from pellucid.data.lazy import TOLERATED
from pellucid.data.own import as_image_set
from pellucid.data.reader import Picture
from pellucid.data.sources import SET_NAMES, DataConfig, load_split, split_own
from pellucid.evaluation.accuracy import Answers, ClassificationReport, evaluate_classifier, evaluate_together
from pellucid.evaluation.asking import ask, fit_temperature, log_odds
from pellucid.evaluation.labels import relabel
from pellucid.evaluation.multilabel import MultiLabelReport
from pellucid.evaluation.probing import Probe, probe
from pellucid.explain.classes import explain, target_of
from pellucid.explain.maps import Map, Method
from pellucid.explain.trace import USUAL_METHODS, Trace, trace
from pellucid.layers.modes import evaluating
from pellucid.models import ViT, ViTConfig
from pellucid.processes import Processes
from pellucid.ready.model import Pictures, ReadyModel, is_many
from pellucid.runs import ClassifierRun, Run, RunFolder


class Prediction(NamedTuple):
    """One class, and how probable it is to the model.

    >>> Prediction("cat", 0.9).label
    'cat'
    """

    label: str
    probability: float


class ReadyClassifier(ReadyModel):
    """A classifier, with the names of its classes.

    >>> from pellucid.ready import load
    >>> model = load("vit-cifar10")
    >>> model.labels[:3]
    ('airplane', 'automobile', 'bird')
    >>> [len(best) for best in model.predict([torch.zeros(3, 40, 60), torch.ones(3, 32, 32)], top=3)]
    [3, 3]
    """

    kind, module_class, fit = "classifier", ViT, "cover"

    def __init__(
        self, model: nn.Module, looks: ViTConfig | None = None, *, name: str = "", run: ClassifierRun | None = None
    ):
        """looks: what a module of one's own is fed and answers; ours say so themselves."""
        config: ViTConfig = model.config if looks is None else looks  # pyright: ignore
        super().__init__(model, config, name=name, run=run)
        self.labels = self.looks.names
        self.held_out: HeldOut = {}  # by the run that it came from
        self.temperature = 1.0  # that answers are divided by before they become probabilities
        self.folder: Path | None = None  # of the run

    @classmethod
    def assemble(cls, module: ViT, folder: Path, *, name: str = "", run: Run | None = None) -> Self:
        assert run is None or isinstance(run, ClassifierRun)
        ready = cls(module, None if run is None else run.model, name=name, run=run)
        if run is not None:
            ready.folder, ready.held_out = folder, RunFolder(folder).held_out()
            ready.temperature = RunFolder(folder).temperature()
        return ready

    def predict(self, pictures: Pictures, top: int = 5, views: int = 1) -> Any:
        """The likeliest classes of a picture, `[Prediction, …]`, or for several a list of those.

        views: of each picture, whose probabilities are averaged: 2 mirrors it too, 10 also shifts both.
        """
        if top < 1:
            raise ValueError(f"top is {top}; expected one or more")
        best = self.probabilities(self.read(pictures), views).topk(min(top, len(self.labels)))
        answers = [
            [Prediction(self.labels[place], share) for place, share in zip(places, shares, strict=True)]
            for places, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        return answers if is_many(pictures) else answers[0]

    def probabilities(self, pixels: UInt8[Tensor, "b c y x"], views: int = 1) -> Float[Tensor, "b classes"]:
        """Of all classes, picture by picture; they add up to one unless several may be true."""
        self._check_answers()
        with evaluating(self.model):
            several = self.looks.multi_label
            how = {"several": several, "temperature": self.temperature, "views": views}
            logits = ask(self.model, pixels.to(self.device), self.reader.normalise, **how)
        if not logits.isfinite().all():
            raise ValueError("the model's answer is no number; its weights are damaged")
        return (logits.sigmoid() if several else logits.softmax(-1)).cpu()

    def calibrate(self, data: Any, split: str = "validation", **how: Any) -> float:
        """Make it as sure as it is right: fit the temperature on images that it was not trained on, and keep it.

        data, split, how: as `evaluate` takes them. A run keeps it in its folder; `save` puts it into the weights.
        """
        if split == "test":
            raise ValueError("test images only test; calibrate on validation images")
        report = self.evaluate(data, split, **how)
        several = self.looks.multi_label
        self.temperature *= fit_temperature(log_odds(report.probabilities, several), report.labels)
        if self.folder is not None:
            RunFolder(self.folder).keep_temperature(self.temperature, str(data), len(report.labels))
        return self.temperature

    def save(self, folder: str | Path, *, half: bool = False) -> None:
        """Keep it as config.json and model.safetensors; its last layer is divided by the temperature."""
        head = getattr(self.model, "head", None)
        if self.temperature == 1.0 or not isinstance(head, nn.Linear):
            return super().save(folder, half=half)
        kept = copy.deepcopy(self.model)
        with torch.no_grad():
            for p in kept.head.parameters():  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
                p /= self.temperature
        return type(self)(kept, self.looks, name=self.name).save(folder, half=half)

    def trace(
        self, picture: Picture, *, methods: Sequence[Method] = USUAL_METHODS, target: int | str | None = None
    ) -> Trace:
        """All that its attention follows from, and what explains a class: the likeliest unless `target` names one."""
        pixels, model = self.reader.read(picture), self.transformer
        return trace(model, pixels, name=self.name, methods=methods, target=self.target(target))

    def explain(
        self, picture: Picture, method: Method = "gradient", target: int | str | None = None, **how: Any
    ) -> Map:
        """How much each token of the picture counts for a class; how: layer, head and seed, as `explain.explain`."""
        return explain(self.transformer, self.reader.read(picture), method, target=self.target(target), **how)

    def evaluate(
        self,
        data: Any,
        split: str = "test",
        *,
        path: str | None = None,
        batch: int = 500,
        classes: Mapping[str, str] | None = None,
        tolerated: float = TOLERATED,
        views: int = 1,
        processes: Processes | None = None,
        answers: Answers | None = None,
    ) -> ClassificationReport | MultiLabelReport:
        """How often it is right, class by class, on images by name (`cifar10`, `folder:PATH`, …), or on any dataset.

        split: "train", "validation", "test" or "all". A run knows the data that it was trained on by its images: of
        those, its validation and test images are the ones that it held out.
        classes: what the model calls classes that the data has other names for, as {"robin": "bird"}.
        tolerated: the share of images that may be unreadable. views: of each, as `predict` takes them.
        processes: that share the work; each gets the whole answer. answers: where they are kept as they come.
        """
        self._check_answers()
        if isinstance(data, (str, DataConfig)):
            images = load_split(self._data(data, path, tolerated), split, self.held_out)
        else:
            images = (
                data if hasattr(data, "labels") else as_image_set(data, size=self.reader.size, patch=self.reader.patch)
            )
        self._check_channels(images)
        if (images.labels.ndim == 2) != self.looks.multi_label:
            kind, other = (
                ("several classes", "one class") if self.looks.multi_label else ("one class", "several classes")
            )
            raise ValueError(f"the model was trained to say {kind} of a picture, and these have labels of {other}")
        labels = relabel(images, self.looks.labels, self.looks.classes, classes)
        how = {"device": self.device, "batch": batch, "names": self.labels, "views": views}
        how["temperature"] = self.temperature
        if answers is not None or (processes is not None and processes.world > 1):
            how |= {"answers": answers}
            return evaluate_together(
                self.model, images, self.reader.normalise, processes or Processes(), labels=labels, **how
            )
        return evaluate_classifier(self.model, images, self.reader.normalise, labels=labels, **how)

    def probe(
        self,
        data: Any,
        split: str = "test",
        kind: Probe = "knn",
        *,
        path: str | None = None,
        batch: int = 500,
        tolerated: float = TOLERATED,
    ) -> ClassificationReport:
        """How much its features say of the classes of any images, learned from their training images.

        kind: "knn", the twenty nearest training images vote, or "linear", one layer is fitted to the features.
        data: by name, as `evaluate` takes it, or several sets by split.
        """
        if split not in ("test", "validation"):
            raise ValueError(f"split is {split!r}; a probe learns from train, so expected 'test' or 'validation'")
        if isinstance(data, (str, DataConfig)):
            config = self._data(data, path, tolerated)
            train, images = (load_split(config, each, self.held_out) for each in ("train", split))
        else:
            splits = split_own(data, self._with_aspect(DataConfig(size=self.reader.size)))
            train, images = splits.train, getattr(splits, split)
            if images is None:
                raise ValueError(f"data has no {split} images; give {{'train': …, {split!r}: …}}")
        self._check_channels(images)
        how = {"kind": kind, "device": self.device, "batch": batch}
        return probe(self.model, train, images, self.reader.normalise, **how)

    def _check_answers(self) -> None:
        if isinstance(self.run, ClassifierRun) and self.run.pairs.weight == 1:
            raise ValueError(
                "the run learned without labels and has no answers; ask its features (evaluate … --probe knn), "
                "or begin with it (--start)"
            )

    def _check_channels(self, images: Any) -> None:
        area = getattr(images, "area", None)
        if area is not None and not self.looks.keep_aspect:
            raise ValueError("these images keep the ratio of their sides, and the model sees pictures of one shape")
        channels = images.shape[0] - (area is not None)
        if channels != self.reader.channels:
            raise ValueError(f"the images have {channels} channels and the model was trained on {self.reader.channels}")

    def target(self, target: int | str | None) -> int | None:
        """The number of a class, by number or name."""
        if isinstance(target, str) and target not in self.labels and target.isdecimal():
            target = int(target)
        return target_of(target, self.labels)

    def _data(self, data: str | DataConfig, path: str | None, tolerated: float) -> DataConfig:
        """What is to be loaded; of a set of arrays that it was trained on, with as many held out."""
        if isinstance(data, DataConfig):
            return self._with_aspect(data)
        trained_on = self.run.data if isinstance(self.run, ClassifierRun) else None
        same = trained_on is not None and not self.held_out and trained_on.name == data
        several = self.looks.multi_label and data.startswith("csv:")
        config = DataConfig(data, path=path, size=self.reader.size, tolerated=tolerated, several=several)
        config = self._with_aspect(config)
        if trained_on is None or not same:
            return config
        return replace(config, held_out=trained_on.held_out, folds=trained_on.folds, fold=trained_on.fold)

    def _with_aspect(self, config: DataConfig) -> DataConfig:
        """The images in the shapes that the model was trained on; sets of arrays have but one."""
        if not self.looks.keep_aspect or config.name in SET_NAMES:
            return replace(config, keep_aspect=False)
        return replace(config, size=config.size or self.reader.size, keep_aspect=True, patch=self.reader.patch)

    @property
    def transformer(self) -> ViT:
        """The model, which must be a vision transformer of ours."""
        if not isinstance(self.model, ViT):
            raise ValueError(f"a {type(self.model).__name__} can't be traced so; watch it with pellucid.watch(model)")
        return self.model
