"""A run: everything that decides what is trained, on what, how and how long. Recipes return one."""

import math
import re
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, get_args

from tyro.conf import Suppress

from pellucid.data.augment import Augment, check_canvases
from pellucid.data.caption_sources import CaptionData
from pellucid.data.parallel import ParallelData
from pellucid.data.sources import DataConfig
from pellucid.data.subwords import SubwordKind
from pellucid.data.tokenizer import TokenizerKind
from pellucid.models import CaptionerConfig, TransformerConfig, ViTConfig
from pellucid.runs.tuning import Tune

Precision = Literal["float32", "bf16"]
OptimizerName = Literal["adamw", "muon", "sgd"]
Fall = Literal["cosine", "linear", "constant"]
Balance = Literal["none", "weights", "sampling"]


@dataclass(frozen=True)
class Optim:
    """How gradients become steps.

    >>> Optim("muon", lr=0.002).schedule
    'cosine'
    """

    name: OptimizerName = "adamw"
    """Muon moves the blocks' matrices by orthogonalised momentum, and everything else by AdamW."""
    lr: float = 1e-3
    """Highest rate of AdamW or SGD."""
    muon_lr: float = 0.02
    """Highest rate of Muon's matrices."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    momentum: float = 0.95
    """Of Muon and SGD."""
    weight_decay: float = 0.05
    """Of the matrices that AdamW or SGD move; norms, biases, tokens and positions have none."""
    muon_decay: float = 0.0
    """Weight decay of Muon's matrices."""
    muon_stem: bool = False
    """Muon moves the stem's convolutions, too."""
    schedule: Fall = "cosine"
    """How the rate falls after the warm-up."""
    warmup: float = 0.1
    """Share of the run in which the rate rises from zero."""
    final: float = 0.0
    """Share of the highest rate at the end."""
    clip: float | None = None
    """Largest norm of the gradient; None for no limit."""
    ema: float = 0.0
    """Decay of the running average of the weights, which is then what is evaluated and kept; 0 for none."""
    encoder: float = 1.0
    """Share of the rates for a captioner's encoder: less, so that one that knows something forgets less of it."""

    def __post_init__(self) -> None:
        for name, choices in (("name", OptimizerName), ("schedule", Fall)):
            if getattr(self, name) not in get_args(choices):
                expected = ", ".join(map(repr, get_args(choices)))
                raise ValueError(f"optim.{name} is {getattr(self, name)!r}; expected one of {expected}")
        for name in ("lr", "muon_lr", "weight_decay", "muon_decay", "encoder"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"optim.{name} is {getattr(self, name)}; expected zero or more")
        for name in ("warmup", "final"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"optim.{name} is {getattr(self, name)}; expected a share, 0…1")
        decays = {"ema": self.ema, "momentum": self.momentum, "betas[0]": self.betas[0], "betas[1]": self.betas[1]}
        for name, value in decays.items():
            if not 0 <= value < 1:
                raise ValueError(f"optim.{name} is {value}; expected a decay in [0, 1)")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"optim.clip is {self.clip}; expected more than zero, or None for no limit")


@dataclass(frozen=True)
class Run:
    """What the engine itself reads: how and how long, whatever the task is.

    >>> import pellucid
    >>> run = pellucid.recipe("vit_digits")
    >>> isinstance(run, Run), run.kind, run.seed
    (True, 'classifier', 0)
    """

    kind: ClassVar[str] = ""

    recipe: str = ""
    """The name it was made by."""
    optim: Optim = field(default_factory=Optim)
    """How gradients become steps."""
    tune: Tune = field(default_factory=Tune)
    """What stays and what moves, for a model that begins with trained weights."""
    duration: str = "10 epochs"
    """As "400 steps", "50 epochs" or "10 minutes"."""
    batch: int = 256
    """Images in a step, over all processes; of sentences, their tokens, padding included."""
    accumulate: int = 1
    """Parts that a step is computed in, to save memory."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With many processes, "ddp" keeps the model in each of them, "fsdp" spreads it over all."""
    compile: bool = False
    """torch.compile the step."""
    graphs: bool = False
    """On CUDA, replay the step as one graph."""
    evaluate_every: str = "1 epochs"
    """A duration; "0 steps" is never, and the end always counts."""
    checkpoint_every: str = "1 epochs"
    """A duration; "0 steps" is never, and the end always counts."""
    patience: int = 0
    """Evaluations without a better score after which the run ends; 0 for no such end."""
    keep_every: str = "0 steps"
    """A duration after which the weights are kept for good, to look back on; "0 steps" is never."""
    seed: int = 0
    """Of the weights, the order of the images, their augmentation and dropout."""
    device: str = "auto"
    """One of "cpu", "cuda" and "auto"."""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.accumulate < 1:
            raise ValueError(f"batch is {self.batch} and accumulate {self.accumulate}; expected one or more")
        if self.patience < 0:
            raise ValueError(f"patience is {self.patience}; expected zero or more evaluations")
        if self.parallel not in ("ddp", "fsdp"):
            raise ValueError(f"parallel is {self.parallel!r}; expected 'ddp' or 'fsdp'")
        if self.tune.rank and self.parallel == "fsdp":
            raise ValueError("LoRA (tune.rank) keeps the model in every process; use --parallel ddp")
        if self.tune.rank and self.optim.ema:
            raise ValueError(
                "optim.ema averages weights, and LoRA (tune.rank) moves products only; leave out one of them"
            )
        for name in ("duration", "evaluate_every", "checkpoint_every", "keep_every"):
            length = Duration.parse(getattr(self, name), name)
            if name == "duration" and not length.amount:
                raise ValueError(f"duration is {self.duration!r}; expected more than nothing")


@dataclass(frozen=True)
class PictureRun(Run):
    """What runs on pictures share."""

    start: str | None = None
    """What the encoder of pictures begins as: a shipped name, the folder of a run or of a saved model, weights of timm,
    Hugging Face, torchvision or of an nn.TransformerEncoder (a folder or a file), or OWNER/MODEL on the Hub. Its shape
    and its normalisation are taken over."""
    augment: Augment = field(default_factory=Augment)
    """What happens to the pictures first; where one is flipped, "left" and "right" change places in its captions."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes, or words."""
    precision: Precision = "float32"
    """Of the forward pass; "bf16" is PyTorch's autocast. Weights and their updates are float32 in both."""
    evaluate_on: Literal["validation", "test"] | None = None
    """By default validation pictures if there are any, else test pictures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}; expected a share in [0, 1)")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision is {self.precision!r}; expected 'float32' or 'bf16'")


@dataclass(frozen=True)
class Distil:
    """Learning from another model's answers beside the labels (Hinton et al. 2015)."""

    teacher: str | None = None
    """A trained classifier: a run's folder, a saved folder, or a shipped name."""
    weight: float = 0.5
    """Share of the loss that is the teacher's answers, 0…1; the labels have the rest."""
    temperature: float = 2.0
    """What both models' answers are divided by, so that unlikely classes count too."""
    features: float = 0.0
    """Weight of pictures being as alike to the model, in what its last layer reads, as they are to the teacher."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"distil.weight is {self.weight}; expected a share, 0…1")
        for name, value, least in (("temperature", self.temperature, "above zero"), ("features", self.features, "")):
            if not 0 <= value < math.inf or (least and not value):
                raise ValueError(f"distil.{name} is {value}; expected a number {least or 'of zero or more'}")


@dataclass(frozen=True)
class Pairs:
    """Learning from pictures alone: two views of each, augmented by different draws, must find each other among those
    of all pictures of the step (Chen et al. 2020)."""

    weight: float = 0.0
    """Share of the loss, 0…1; the labels have the rest. With 1 labels are not looked at."""
    temperature: float = 0.1
    """What cosines are divided by: the lower, the more the most alike of the others count."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"pairs.weight is {self.weight}; expected a share, 0…1")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"pairs.temperature is {self.temperature}; expected a number above zero")


@dataclass(frozen=True)
class ClassifierRun(PictureRun):
    """One training run of a classifier, from data to weights.

    >>> from dataclasses import replace
    >>> run = ClassifierRun(duration="3 epochs")
    >>> replace(run, batch=64).batch, run.data.name
    (64, 'digits')
    """

    kind: ClassVar[str] = "classifier"

    model: ViTConfig = field(default_factory=ViTConfig)
    """What is trained."""
    data: DataConfig = field(default_factory=DataConfig)
    """On which images."""
    distil: Distil = field(default_factory=Distil)
    """Another model to learn from."""
    pairs: Pairs = field(default_factory=Pairs)
    """Learning from the pictures alone, with or without labels."""
    balance: Balance = "none"
    """For classes of different sizes: give the images of small ones more weight in the loss (weights), or show those of
    every class equally often (sampling)."""
    module: Annotated[str | None, Suppress] = None
    """Name of the class of one's own that is trained instead of a vision transformer, from Python; not rebuilt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.balance not in get_args(Balance):
            raise ValueError(f"balance is {self.balance!r}; expected one of {', '.join(map(repr, get_args(Balance)))}")
        if self.data.keep_aspect or self.model.keep_aspect:
            check_canvases(self.augment)
            if self.distil.teacher is not None or self.module is not None:
                raise ValueError(
                    "pictures that keep the ratio of their sides are for a vision transformer of ours without a "
                    "teacher; leave out keep_aspect"
                )
        if self.pairs.weight and (self.augment.mixup or self.augment.cutmix):
            raise ValueError("pairs are of whole pictures; leave mixup and cutmix at 0 (--augment.cutmix 0)")
        still = replace(Augment(), crop_fill=self.augment.crop_fill)
        if self.pairs.weight and (self.augment == still or self.data.zoom_into == "original"):
            raise ValueError(
                "pairs are views that differ, of the image as it was brought to its size: give an augmentation, as "
                "--augment.zoom 0.3, and leave data.zoom_into at 'image'"
            )

    @property
    def data_as_seen(self) -> DataConfig:
        """Its data as its model sees them: what keeps the ratio of its sides is cut into the model's patches."""
        keep_aspect = self.data.keep_aspect or self.model.keep_aspect
        return replace(self.data, keep_aspect=keep_aspect, patch=self.model.patch if keep_aspect else None)


@dataclass(frozen=True)
class Words:
    """How captions become numbers."""

    kind: TokenizerKind = "words"
    """Whole words, or pieces of them by byte-pair encoding ("bpe")."""
    min_count: int = 5
    """How often a word must occur in the training captions to be known, for words."""
    size: int = 4000
    """How many pieces there are, for bpe."""


@dataclass(frozen=True)
class Critical:
    """The second stage: the model's own captions, drawn at random, become likelier as they score above each other."""

    duration: str = "0 epochs"
    """As "5 epochs"; "0 epochs" leaves the stage out."""
    optim: Optim = field(default_factory=lambda: Optim(lr=3e-5, weight_decay=0.0, schedule="constant", warmup=0.0))
    """How gradients become steps."""
    batch: int = 64
    """Images in a step."""
    samples: int = 5
    """Captions drawn of each image; each is measured against the mean of the others."""
    only_better: bool = False
    """Leave alone what scores below the others, instead of making it less likely: that can go on for ever."""
    teacher: float = 0.0
    """Weight, 0…1, of reading people's captions beside the reward, as in the first stage: so that what is rarely drawn
    stays rare."""
    augment: Augment = field(default_factory=Augment)
    """What happens to the images first."""
    evaluate_every: str = "1 epochs"
    """A duration; "0 steps" is never, and the end always counts."""

    def __post_init__(self) -> None:
        for name in ("duration", "evaluate_every"):
            Duration.parse(getattr(self, name), f"critical.{name}")
        if self.samples < 2:
            raise ValueError(f"critical.samples is {self.samples}; expected 2 or more, to be compared")
        if self.batch < 1:
            raise ValueError(f"critical.batch is {self.batch}; expected one or more")
        if not 0 <= self.teacher <= 1:
            raise ValueError(f"critical.teacher is {self.teacher}; expected a weight, 0…1")


@dataclass(frozen=True)
class CaptionerRun(PictureRun):
    """One training run of a captioner, from pictures and what people said of them to weights.

    >>> CaptionerRun(duration="3 epochs").kind
    'captioner'
    """

    kind: ClassVar[str] = "captioner"

    model: CaptionerConfig = field(default_factory=CaptionerConfig)
    """What is trained."""
    data: CaptionData = field(default_factory=CaptionData)
    """On which pictures and captions."""
    words: Words = field(default_factory=Words)
    """Which words it knows."""
    captions: int = 1
    """How many captions of each picture a step reads; the picture is looked at once."""
    backward: bool = False
    """Read each caption from its end, too: a second task that needs no other model (Desai & Johnson 2021)."""
    in_parallel: float = 0.0
    """Weight, 0…1, of predicting all words at once from the picture alone (Tschannen et al. 2023)."""
    bag: float = 0.0
    """Weight of naming, in one breath and in no order, every word of every caption that a picture has."""
    beam: int = 1
    """Width of the beam in the evaluations of the run."""
    critical: Critical = field(default_factory=Critical)
    """The second stage."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("captions", "beam"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected one or more")
        if not 0 <= self.in_parallel <= 1:
            raise ValueError(f"in_parallel is {self.in_parallel}; expected a weight, 0…1")
        if not 0 <= self.bag < math.inf:
            raise ValueError(f"bag is {self.bag}; expected a weight, zero or more")
        for augment in (self.augment, self.critical.augment):
            if augment.mixup or augment.cutmix:
                raise ValueError("mixup and cutmix make pictures that no caption is true of; leave them at 0")

    @property
    def second_stage(self) -> "CaptionerRun | None":
        """The run that goes on from this one's weights, if there is to be one."""
        c = self.critical
        if not Duration.parse(c.duration).amount:
            return None
        return replace(
            self, optim=c.optim, duration=c.duration, batch=c.batch, augment=c.augment, evaluate_every=c.evaluate_every,
            accumulate=1, compile=False, graphs=False, tune=replace(self.tune, thaw=0.0),
        )  # fmt: skip


@dataclass(frozen=True)
class Subwords:
    """How sentences become numbers."""

    kind: SubwordKind = "bpe"
    """Pieces of words by byte-pair encoding, or by a unigram model."""
    size: int = 8000
    """How many pieces there are, for both languages together."""


@dataclass(frozen=True)
class TranslatorRun(Run):
    """One training run of a translator, from sentences in two languages to weights.

    >>> TranslatorRun().beam
    5
    """

    kind: ClassVar[str] = "translator"

    start: str | None = None
    """A translator to begin as, the folder of a run or of a saved model: its shape and its pieces are taken over."""
    model: TransformerConfig = field(default_factory=TransformerConfig)
    """What is trained."""
    data: ParallelData = field(default_factory=ParallelData)
    """On which sentences."""
    subwords: Subwords = field(default_factory=Subwords)
    """Which pieces of words it knows."""
    longest: int = 128
    """Pieces of the longest sentence that is trained on; longer pairs are left out."""
    word_dropout: float = 0.0
    """Probability that a piece is hidden from the encoder, or from the decoder that says the next one."""
    consistency: float = 0.0
    """Weight of two passes with different dropout agreeing on each piece (R-Drop: Wu et al. 2021); 0 is one pass."""
    label_smoothing: float = 0.1
    """Share of the target that is spread over all pieces."""
    precision: Precision = "float32"
    """Of the forward pass; "bf16" is PyTorch's autocast. Weights and their updates are float32 in both."""
    beam: int = 5
    """Width of the beam in the evaluations of the run."""
    length_penalty: float = 1.0
    """What a sentence's log-probability is divided by, in them: its length to this power."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}; expected a share in [0, 1)")
        if not 0 <= self.word_dropout < 1:
            raise ValueError(f"word_dropout is {self.word_dropout}; expected a probability in [0, 1)")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision is {self.precision!r}; expected 'float32' or 'bf16'")
        for name in ("consistency", "length_penalty"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected zero or more")
        if self.beam < 1:
            raise ValueError(f"beam is {self.beam}; expected one or more")
        if not 2 <= self.longest <= self.model.max_length:
            raise ValueError(
                f"longest is {self.longest}; expected 2…{self.model.max_length}, the longest sentence of the model"
            )


AnyRun = ClassifierRun | CaptionerRun | TranslatorRun
RUNS: dict[str, type[AnyRun]] = {cls.kind: cls for cls in (ClassifierRun, CaptionerRun, TranslatorRun)}


@dataclass(frozen=True)
class Duration:
    """A length of training, as people say it; `steps` converts it, once.

    >>> Duration.parse("50 epochs").steps(steps_per_epoch=48.8, seconds_per_step=0.01)
    2440
    >>> Duration.parse("2 minutes").steps(steps_per_epoch=48.8, seconds_per_step=0.01)
    12000
    """

    amount: float
    unit: Literal["steps", "epochs", "minutes"]

    @classmethod
    def parse(cls, text: str, name: str = "duration") -> "Duration":
        """The duration that a text such as '20 epochs' means; `name` is what messages call it."""
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(step|epoch|minute)s?\s*", text)
        if match is None:
            raise ValueError(
                f"{name} is {text!r}; expected a number and a unit, as '400 steps', '50 epochs', '10 minutes'"
            )
        return cls(float(match[1]), match[2] + "s")  # pyright: ignore[reportArgumentType]

    def steps(self, *, steps_per_epoch: float, seconds_per_step: float = 0.0) -> int:
        """How many training steps it is; minutes need the seconds of a step."""
        if self.amount == 0:
            return 0
        if self.unit == "epochs":
            return max(1, round(self.amount * steps_per_epoch))
        if self.unit == "minutes":
            return max(1, round(self.amount * 60 / seconds_per_step))
        return max(1, round(self.amount))


@dataclass(frozen=True)
class Plan:
    """A run's durations in steps, and what they were converted by. Kept, so that a run that goes on is the same run.

    >>> Plan(steps=100, evaluate_every=10, checkpoint_every=10, epoch_size=1000).keep_every
    0
    """

    steps: int
    evaluate_every: int
    checkpoint_every: int
    epoch_size: int
    keep_every: int = 0
    batch: int = 0

    def steps_of(self, duration: Duration, batch: int) -> int:
        """A duration in steps, as those of the plan were converted. batch: of the run, where the plan doesn't say."""
        return duration.steps(steps_per_epoch=self.epoch_size / (self.batch or batch))
