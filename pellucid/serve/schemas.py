"""What is asked and answered, as types: OpenAPI is made of them, and a parameter that is unknown is refused."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pellucid.serve.samples import SampleKind

Name = Annotated[str, Field(min_length=1, max_length=200)]
MOST_TEXT = 2000  # characters
MOST_SENTENCE = 500  # of what is translated: each word of the translation is explained, some seconds in all
Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
WIDEST = 16  # beam


class Query(BaseModel):
    """Parameters in the address."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[Name, Field(description="Name of a model, as /api/models lists them.")]


class ClassifyQuery(Query):
    top: Annotated[int, Field(ge=1, le=1000, description="How many classes to name.")] = 5


class CaptionQuery(Query):
    beam: Annotated[int, Field(ge=1, le=WIDEST, description="How many sentences are followed at a time.")] = 5
    n_best: Annotated[int, Field(ge=1, le=WIDEST, description="How many captions to give; at most the beam.")] = 1


class TraceQuery(Query):
    target: Annotated[
        Name | None, Field(description="The answer that the maps explain; the likeliest unless given.")
    ] = None
    text: Annotated[Text | None, Field(description="What a model that sees and reads is to read.")] = None


class RunQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    after: Annotated[int, Field(ge=0, le=1 << 53, description="Tell only what came after this step.")] = 0


class FrameQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    checkpoint: Annotated[Name, Field(description="Name of a checkpoint, as the run lists them.")]


class Nothing(BaseModel):
    """No parameters."""

    model_config = ConfigDict(extra="forbid")


class Bounds(BaseModel):
    """What a picture may have at most, and how long an answer may take."""

    bytes: int
    pixels: int
    seconds: float


class ServerHealth(BaseModel):
    status: Literal["ready"]
    version: str
    requests: Annotated[int, Field(description="Pictures that are arriving, waiting or looked at at this moment.")]
    limits: Bounds


class ModelEntry(BaseModel):
    name: str
    kind: Literal["classifier", "captioner", "translator", "model"]
    reads: Annotated[list[Literal["picture", "text"]], Field(description="What it can be asked with.")]
    image: Annotated[
        tuple[int, int] | None, Field(description="Height and width in pixels that it looks at, if known.")
    ]
    channels: int | None
    parameters: int
    labels: Annotated[list[str], Field(description="What a classifier calls its answers.")]


class Class(BaseModel):
    label: str
    probability: float


class Classes(BaseModel):
    model: str
    classes: Annotated[list[Class], Field(description="The likeliest, first first.")]


class SpokenWord(BaseModel):
    word: str
    probability: float


class OneCaption(BaseModel):
    caption: str
    log_prob: Annotated[float, Field(description="Of the whole sentence, its end included.")]
    score: Annotated[float, Field(description="What it was chosen by.")]
    expected: Annotated[
        float | None,
        Field(description="The share of its words that people would say, too, if that was measured for this model."),
    ]
    unsure: Annotated[bool, Field(description="Whether most of its words are likely to be wrong.")]
    words: list[SpokenWord]


class Captions(BaseModel):
    model: str
    captions: Annotated[list[OneCaption], Field(description="Best first.")]


class SampleEntry(BaseModel):
    name: str
    title: str
    kind: Annotated[SampleKind, Field(description="What sort of picture it is.")]


class Summary(BaseModel):
    name: str
    recipe: str
    kind: Literal["classifier", "captioner"]
    step: Annotated[int, Field(description="The last one that is logged.")]
    steps: Annotated[int | None, Field(description="How many there are to be, once that is known.")]
    running: bool
    figures: Annotated[dict[str, float | None], Field(description="Of the last evaluation.")]


class Evaluation(BaseModel):
    step: int
    epoch: float
    seconds: float | None
    figures: dict[str, float | None]


class CheckpointEntry(BaseModel):
    name: str
    step: int


class Detail(Summary):
    config: dict[str, Any]
    environment: dict[str, Any]
    curves: Annotated[dict[str, list[float | None]], Field(description="Columns: step, epoch, loss, and what else.")]
    checkpoints: Annotated[list[CheckpointEntry], Field(description="Whose weights are kept, the earliest first.")]
    evaluations: list[Evaluation]
    odd_lines: Annotated[int, Field(description="Of the log, which tell of no step and no evaluation.")]


class Parameter(BaseModel):
    """A number of an experiment that can be changed."""

    name: str
    about: str
    whole: Annotated[bool, Field(description="Whether only whole numbers are taken.")]
    default: float
    low: float
    high: float
    step: Annotated[float, Field(description="What a slider moves by.")]


class ExperimentSummary(BaseModel):
    name: str
    title: str
    statement: Annotated[str, Field(description="What is shown.")]
    formula: str
    predict: Annotated[str, Field(description="What to guess before looking.")]
    fails: Annotated[str, Field(description="Where it isn't so.")]
    parameters: Annotated[list[Parameter], Field(description="What can be changed; nothing of those that take long.")]


class ClaimEntry(BaseModel):
    """A claim, and what was measured."""

    id: str
    statement: str
    verdict: Literal["true", "false", "conditional"]
    relation: Annotated[Literal["≤", "≥"], Field(description="How the number is said to stand to the tolerance.")]
    measured: float | None
    tolerance: float
    counter_example: str | None


class ExperimentPage(BaseModel):
    name: str
    title: str
    statement: str
    formula: str
    predict: str
    code: Annotated[str, Field(description="What ran, as it stands in its file.")]
    parameters: dict[str, Any]
    numbers: dict[str, int | float | str | None]
    panels: Annotated[list[dict[str, Any]], Field(description="Figures as data: curves, bars or a matrix, by kind.")]
    claims: list[ClaimEntry]
    failures: Annotated[list[str], Field(description="What speaks against a verdict; nothing when all stand.")]
    fails: str
