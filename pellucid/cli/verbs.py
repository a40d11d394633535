"""What each verb takes. What it does is the function of its name in the file of its name, imported when it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import OmitSubcommandPrefixes, Positional, arg, subcommand

ModelArg = Annotated[Positional[str], arg(metavar="MODEL")]
RecipeArg = Annotated[Positional[str], arg(metavar="RECIPE")]
PicturesArg = Annotated[Positional[tuple[str, ...]], arg(metavar="PICTURE ...")]
SentencesArg = Annotated[Positional[tuple[str, ...]], arg(metavar="SENTENCE ...")]
DataArg = Annotated[Positional[str], arg(metavar="DATA")]
FolderArg = Annotated[Path | None, arg(metavar="FOLDER")]
FileArg = Annotated[Path | None, arg(metavar="FILE")]
TextArg = Annotated[str | None, arg(metavar="TEXT")]
NumberArg = Annotated[int | None, arg(metavar="N")]


@dataclass(frozen=True)
class ShapesOptions:
    """Print every intermediate of multi-head attention with its equation and shape.

    Example: pellucid shapes --tokens 5 --width 768 --heads 12 --causal --figure attention.png
    """

    tokens: int = 5
    """Number of tokens."""
    width: int = 768
    """Width of a token."""
    heads: int = 12
    """Number of heads."""
    key_width: NumberArg = None
    """Width of one head's queries and keys; width / heads unless given."""
    value_width: NumberArg = None
    """Width of one head's values; the keys' unless given."""
    columns: bool = False
    """Write tokens as columns, Q = W·X, instead of rows, Q = X·W."""
    causal: bool = False
    """Let each token see only itself and those before it."""
    figure: FileArg = None
    """Draw the attention matrix and the mask, with numbers, into this file (.png, .svg, .pdf)."""
    head: int = 0
    """Which head the figure shows."""
    seed: int = 0
    """Seed of the random tokens and weights."""


@dataclass(frozen=True)
class RecipesOptions:
    """List the recipes: what each trains, and the evidence for it.

    Example: pellucid recipes
    """


@dataclass(frozen=True)
class TrainOptions:
    """Train a recipe; any field of it can be changed, as --optim.lr 0.002 (pellucid train RECIPE --help lists them).

    Example: pellucid train vit_digits --out runs/mine --duration "20 epochs"
    """

    recipe: RecipeArg
    """Name of a recipe; pellucid recipes lists them."""
    out: FolderArg = None
    """Folder of the run; runs/RECIPE unless given."""
    resume: FolderArg = None
    """Folder of a run to go on with, from its last checkpoint to its end."""
    tensorboard: bool = False
    """Write the curves for TensorBoard too, into the run's folder (extra: tensorboard)."""


@dataclass(frozen=True)
class SweepOptions:
    """Train a recipe many times, with every combination of some values or with random ones, and compare; goes on after
    Ctrl-C. Fields are varied by --vary FIELD VALUES; others are given as for pellucid train.

    Example: pellucid sweep vit_digits --vary optim.lr 1e-3 3e-3 --vary batch 64 128 --duration "5 epochs"
    """

    recipe: RecipeArg
    """Name of a recipe; pellucid recipes lists them."""
    out: FolderArg = None
    """Folder of the runs; sweeps/RECIPE unless given. pellucid serve --runs shows them side by side."""
    draws: int = 0
    """Draw this many combinations at random instead, from the values given or from a range such as 1e-4..1e-2."""
    sweep_seed: int = 0
    """Seed of the draws: with more draws, the earlier ones stay the same."""


@dataclass(frozen=True)
class RateOptions:
    """Find a learning rate: train while the rate rises from almost nothing, until the loss does too; keep nothing.

    Example: pellucid rate vit_digits --steps 60 --figure rate.png
    """

    recipe: RecipeArg
    """Name of a recipe for classifiers; any field of it can be given as for pellucid train."""
    steps: int = 100
    """Training steps."""
    figure: Path = Path("rate.png")
    """The picture (.png, .svg, .pdf)."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure how good a model is: accuracy and calibration, or scores of captions and translations beside controls.

    Example: pellucid evaluate vit-cifar10 --data cifar10 --confusion confusion.png
    """

    model: ModelArg
    """A run's folder, a saved folder, or the name of a shipped model."""
    data: str
    """digits, cifar10, cifar100, mnist, fashion_mnist, folder:PATH, wds:SHARDS or hf:NAME; with captions: scenes, or
    the path of a JSON, a text file, a folder or shards; with translations: a folder, a table, or two files with a comma
    between."""
    path: TextArg = None
    """Where the files of a named set lie, or the images that captions speak of; searched for if not given."""
    split: str = "test"
    """test, validation, train or all, which is for classifiers; of translations what the folder calls it."""
    classes: FileArg = None
    """Classifiers: a JSON file with what the model calls classes that the data has other names for, as
    {"robin": "bird"}."""
    tolerated: float = 0.01
    """The share of images that may be unreadable; they are named and left out."""
    json: bool = False
    """Print one JSON object; shares, not percent."""
    views: int = 1
    """Classifiers: views of each picture whose answers are averaged: 2 mirrors it too, 10 also shifts both."""
    probe: Literal["knn", "linear"] | None = None
    """Classifiers: leave out what it answers, and ask what its features say of the data's own classes, whatever they
    are: by the twenty nearest training images, or by one linear layer fitted to those."""
    out: FileArg = None
    """Write what is said of every image into this file (.csv, .jsonl, .parquet): its label and the probability of each
    class, or its caption. After a kill the same command goes on there."""
    report: FileArg = None
    """Classifiers: write a page (.html) on every class, how sure it is and how often right, with its worst mistakes."""
    calibrate: bool = False
    """Runs: make a classifier as sure as it is right on these images, or learn how many of a captioner's words people
    say, by how sure it is of them; kept with the run, and refused on test images."""
    confusion: FileArg = None
    """Draw a classifier's confusion matrix into this file (.png, .svg, .pdf)."""
    beam: NumberArg = None
    """Captions and translations: how many sentences are followed at a time; 5 unless given."""
    captions: FileArg = None
    """Captions: write what the model says into this file, in the format of COCO's results."""
    examples: FileArg = None
    """Captions: draw eight pictures with what the model says of them, from its best to its worst (.png, .svg, .pdf)."""
    meteor: bool = False
    """Captions: METEOR too, by its own program (needs Java; extra: captions)."""
    spice: bool = False
    """Captions: SPICE too, likewise (needs a JDK, and Stanford's CoreNLP beside it)."""
    translations: FileArg = None
    """Translations: write them into this file, a line each."""
    batch: NumberArg = None
    """Images at a time; 500 unless given, 64 to caption them, or of sentences."""
    device: str = "auto"
    """cpu, cuda, or auto."""


@dataclass(frozen=True)
class PredictOptions:
    """Say what a model sees in your pictures.

    Example: pellucid predict vit-cifar10 photos --top 3 --out answers.csv
    """

    model: ModelArg
    """A run's folder, a saved folder, or the name of a shipped model."""
    images: PicturesArg
    """Files, folders, patterns such as 'photos/*.jpg', shards (wds:SHARDS) or tables (hf:NAME)."""
    top: int = 5
    """How many classes to name."""
    json: bool = False
    """Print a JSON list."""
    out: FileArg = None
    """Write the answers into this file, a picture a line (.csv, .jsonl, .parquet); what it has already is left out."""
    batch: int = 32
    """Pictures at a time."""
    views: int = 1
    """Views of each picture whose answers are averaged: 2 mirrors it too, 10 also shifts both."""
    device: str = "auto"
    """cpu, cuda, or auto."""


@dataclass(frozen=True)
class CaptionOptions:
    """Describe your pictures in words, and show where the captioner looked for each of them.

    Example: pellucid caption runs/mine photo.jpg --n-best 3 --figure looking.png
    """

    model: ModelArg
    """A run's folder, a saved folder, or the name of a shipped model."""
    images: PicturesArg
    """Files, folders, patterns such as 'photos/*.jpg', shards (wds:SHARDS) or tables (hf:NAME)."""
    beam: int = 5
    """How many sentences are followed at a time."""
    n_best: int = 1
    """How many captions to give of each picture, best first."""
    different: bool = False
    """Give captions that name different things, not the same ones in other words; a wider beam is searched for them."""
    about: tuple[str, ...] = ()
    """Words that it may not have said: how likely each would be, with this picture and without, and with --figure where
    it would look."""
    json: bool = False
    """Print a JSON list."""
    out: FileArg = None
    """Write the captions into this file, a picture a line (.csv, .jsonl, .parquet); what it has already is left out."""
    figure: FileArg = None
    """Draw each word's attention over the picture into this file (.png, .svg, .pdf); numbered for several pictures."""
    layer: int | None = -1
    """Which of the decoder's layers the figure shows: 0 is the first, −1 the last, None the mean of all."""
    head: NumberArg = None
    """Which head of it; the mean of all unless given."""
    device: str = "auto"
    """cpu, cuda, or auto."""


@dataclass(frozen=True)
class TranslateOptions:
    """Translate sentences, and show which words were read for each word.

    Example: pellucid translate translator-en-de "A man rides a horse." --figure alignment.png
    """

    model: ModelArg
    """A run's folder, a saved folder, or the name of a shipped model."""
    sentences: SentencesArg = ()
    """What to translate, each sentence in quotes."""
    file: FileArg = None
    """A text file instead, plain or .gz, a sentence a line; - for what is piped in."""
    beam: int = 5
    """How many translations are followed at a time; 1 is greedy."""
    n_best: int = 1
    """How many translations to give of each sentence, best first."""
    length_penalty: float | None = None
    """Power of the length that scores are divided by: larger favours longer translations; its own unless given."""
    temperature: float | None = None
    """Draw translations at random instead of searching; below one the likely become likelier."""
    seed: int = 0
    """Seed of the draw."""
    language: TextArg = None
    """Which language, for a model that says several."""
    json: bool = False
    """Print a JSON list."""
    figure: FileArg = None
    """Draw which words were read for each word into this file (.png, .svg, .pdf); numbered for several sentences."""
    layer: NumberArg = None
    """Which of the decoder's layers the figure shows: 0 is the first, −1 the last; the mean of all unless given."""
    head: NumberArg = None
    """Which head of it; the mean of all unless given."""
    device: str = "auto"
    """cpu, cuda, or auto."""


@dataclass(frozen=True)
class AttendOptions:
    """See what a model looks at: one page with every head of every layer, that works from disk and without a network.

    Example: pellucid attend vit-cifar10 photo.jpg --out report.html

    Anybody's model: pellucid attend hf:FOLDER --text "The cat sat because it was tired"
    """

    model: ModelArg
    """A run's folder, a saved folder, or the name of a shipped model; hf:FOLDER or hf:NAME
    (Hugging Face's), timm:FOLDER or timm:NAME."""
    images: PicturesArg = ()
    """Files, folders, or patterns such as 'photos/*.jpg'; of a translator sentences, each in quotes."""
    text: tuple[str, ...] = ()
    """What hf: models read: a text, two that are a pair, or several that a picture is compared with."""
    audio: FileArg = None
    """What hf: models hear: a .wav file of 16 bits, in the rate that the model takes."""
    generate: NumberArg = None
    """hf: models: how many tokens are generated at most; none unless it can't answer otherwise, then 20."""
    out: Path = Path("report.html")
    """The page, one self-contained file."""
    method: tuple[
        Literal[
            "raw", "rollout", "flow", "gradient", "input-gradient", "random", "column-mass", "integrated-gradients"
        ],
        ...,
    ] = (
        "rollout",
        "gradient",
    )
    """What says how much each patch or word counts, one or more; the last two are for hf: and timm: models."""
    target: TextArg = None
    """Classifiers: the class to explain, by name or number; the likeliest unless given."""
    beam: NumberArg = None
    """Captioners: how many sentences are followed at a time; 5 unless given."""
    figure: FileArg = None
    """Draw where every head looks into this file (.png, .svg, .pdf); numbered for several pictures."""
    query: TextArg = None
    """Whose attention the figure shows: a token as 'patch 3,4' or its number, or a captioner's word; unless given the
    class token's or the mean of all, and of a captioner every word's."""
    rescale: bool = False
    """Give each map of the figure the whole range of colours; the figure says so."""
    heads: FileArg = None
    """Draw the numbers of every head into this file: entropy, distance, likeness to the others; numbered likewise."""
    trace: FileArg = None
    """Keep what was seen in this file (.pellucid), to draw from and to look at later; numbered for several pictures."""
    lapse: FileArg = None
    """Runs of classifiers: draw into this file what the first method says after each checkpoint that the run has kept;
    train with --keep-every '1 epochs' to keep more than the best and the last. Numbered for several pictures."""
    faithfulness: bool = False
    """Classifiers: measure on these pictures what the answer loses without the patches that a method calls important,
    beside random; and draw it next to the page."""
    json: bool = False
    """Print one JSON object."""
    device: str = "auto"
    """cpu, cuda, or auto."""


@dataclass(frozen=True)
class CurvesOptions:
    """Draw loss and accuracy of runs against the epoch, on training and validation images.

    Example: pellucid curves runs/mine --epochs 10 20 30 50 --out curves.png
    """

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN ...")]
    """Folders of runs."""
    epochs: tuple[int, ...] = ()
    """One panel for each of these numbers of epochs."""
    out: Path = Path("curves.png")
    """The picture (.png, .svg, .pdf)."""


@dataclass(frozen=True)
class ConvertOptions:
    """Rewrite a vision transformer's weights from and to the names of timm, Hugging Face and torchvision.

    Example: pellucid convert deit_small.safetensors converted --heads 6
    """

    source: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A folder with config.json and model.safetensors, a file of weights, or the folder of a run."""
    out: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """Folder to write."""
    layout: Literal["pellucid", "timm", "huggingface", "torchvision"] = "pellucid"
    """Whose names to write."""
    heads: NumberArg = None
    """Number of heads, where the file doesn't say."""
    mean: tuple[float, ...] | None = None
    """What was subtracted from its training images, in 0…1: one number, or one for each channel."""
    std: tuple[float, ...] | None = None
    """What they were divided by after that, likewise."""
    half: bool = False
    """Keep the weights in half precision, as the models that come with the package are; for the layout pellucid."""


@dataclass(frozen=True)
class FetchOptions:
    """Get a named image set into the cache, checked against its digests.

    Example: pellucid data fetch cifar10
    """

    name: Annotated[Positional[str], arg(metavar="NAME")]
    """cifar10, cifar100, mnist, fashion_mnist or digits."""
    path: TextArg = None
    """Where its files lie already."""


@dataclass(frozen=True)
class LookOptions:
    """Draw samples of an image set before and after augmentation, or captioned images with what is said of them.

    Example: pellucid data look cifar10 --recipe vit_cifar10_fast --out grid.png
    """

    name: DataArg
    """A named set, folder:PATH, wds:SHARDS or hf:NAME; or captions: scenes, or a path to some."""
    path: TextArg = None
    """Where the files of a named set lie; searched for if not given."""
    images: TextArg = None
    """Where captioned images lie, a folder or a tar, if not beside the captions."""
    recipe: TextArg = None
    """Whose augmentation; flips and crops unless given."""
    count: int = 8
    """How many images."""
    seed: int = 0
    """Seed of the choice and of the augmentation."""
    out: Path = Path("grid.png")
    """The picture (.png, .svg, .pdf)."""


@dataclass(frozen=True)
class InspectOptions:
    """Say what a data set holds: format, splits, classes or captions, sizes, and every problem.

    Example: pellucid data inspect folder:pictures
    """

    name: DataArg
    """A named set, folder:PATH, wds:SHARDS, hf:NAME, scenes, or a path to images, captions or sentences in two
    languages in any known format; two text files with a comma between."""
    images: TextArg = None
    """Where captioned images lie, a folder or a tar, if not beside the captions."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True)
class DataOptions:
    """Fetch, look at and inspect image sets.

    Example: pellucid data look digits --out grid.png
    """

    what: OmitSubcommandPrefixes[
        Annotated[FetchOptions, subcommand("fetch")]
        | Annotated[LookOptions, subcommand("look")]
        | Annotated[InspectOptions, subcommand("inspect")]
    ]


@dataclass(frozen=True)
class ServeOptions:
    """Open the page and the API: look at pictures with the models, and watch runs train.

    Example: pellucid serve --models vit-cifar10 runs/mine --runs runs
    """

    models: tuple[str, ...] = ()
    """Runs' folders, saved folders or names of shipped models; all shipped ones unless given. hf:FOLDER and timm:FOLDER
    for other libraries' models, whatever they read."""
    runs: FolderArg = None
    """Folder whose subfolders are training runs; runs unless given."""
    host: str = "127.0.0.1"
    """Address to listen on; any but this machine's own demands a token."""
    port: int = 8000
    """Port to listen on; 0 for any that is free."""
    token: TextArg = None
    """What others must know to get in; or set PELLUCID_TOKEN, which the list of processes doesn't show."""
    names: tuple[str, ...] = ()
    """Names that it may be called by besides its own, such as that of a reverse proxy."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies, which are believed when they say whom they speak for."""
    log: FileArg = None
    """File to log every request in, a line of JSON each; it and the older ones beside it stay below 16 MB."""
    device: str = "auto"
    """cpu, cuda, or auto."""


@dataclass(frozen=True)
class DemoOptions:
    """Reverse ten digits, read handwritten ones, recognise two pictures, caption drawn scenes, run the lab; and report.

    Example: pellucid demo --out demo
    """

    out: Path = Path("demo")
    """Folder for the pictures and the report; it is made if it isn't there."""
    steps: int = 600
    """Training steps of the reversing transformer."""
    epochs: int = 45
    """Training epochs of the vision transformer."""
    scenes: NumberArg = None
    """Training steps of the captioner; as many as its recipe takes unless given."""
    lab: bool = True
    """Run every claim of the lab, too: about a minute."""
    seed: int = 0
    """Seed of the weights and of the sequences."""


@dataclass(frozen=True)
class LabOptions:
    """Run every claim about attention and print the ledger, or run one experiment and print its page.

    pellucid lab exercises OUT writes exercises, with tests and solutions, into a new folder.

    Example: pellucid lab temperature --keys 32 --figure temperature.png
    """

    name: Annotated[Positional[str | None], arg(metavar="EXPERIMENT")] = None
    """One experiment; all of them unless given. pellucid lab NAME --help lists its parameters."""
    json: bool = False
    """Print the claims as one JSON object."""
    figure: FileArg = None
    """Draw the experiment's figure into this file (.png, .svg, .pdf)."""
    out: FileArg = None
    """Write everything as one page with live sliders, that works from disk and without a network (.html)."""


@dataclass(frozen=True)
class ExercisesOptions:
    """Write exercises on attention, as notebooks and as Python files, with their tests; the solutions apart.

    Example: pellucid lab exercises exercises
    """

    out: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """Folder to write; it must be empty or not there yet."""


VERBS = {
    "shapes": ShapesOptions,
    "recipes": RecipesOptions,
    "train": TrainOptions,
    "sweep": SweepOptions,
    "rate": RateOptions,
    "evaluate": EvaluateOptions,
    "predict": PredictOptions,
    "caption": CaptionOptions,
    "translate": TranslateOptions,
    "attend": AttendOptions,
    "curves": CurvesOptions,
    "convert": ConvertOptions,
    "data": DataOptions,
    "serve": ServeOptions,
    "lab": LabOptions,
    "demo": DemoOptions,
}
