"""Where a model begins: another one is found, a run takes over its shape, a model its weights.

Of classifiers and captioners that is the encoder of pictures, whosever it is; of translators a whole one of ours.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from pellucid.config import read_json
from pellucid.hub.encoders import download_encoder, read_encoder
from pellucid.hub.lite import PACKAGED, find_packaged
from pellucid.models import Captioner, ViT, ViTConfig
from pellucid.models.pretrained import CONFIG
from pellucid.models.starting import SHAPE, LearnedStem, adopt_config, start_from
from pellucid.ready import ReadyCaptioner, ReadyClassifier, load, load_translator, shipped
from pellucid.ready.translator import ReadyTranslator
from pellucid.recipes import RECIPES
from pellucid.runs import CaptionerRun, Run, RunFolder, TranslatorRun
from pellucid.runs.folder import is_run
from pellucid.runs.tuning import BODY, Tune
from pellucid.training.fitting import Choices

Source = ViT | LearnedStem | ReadyTranslator
TRANSLATORS_OWN = ("languages", "dropout", "attention_dropout", "zero_branches")  # what needn't be the source's


def find_start(source: str, own: ViTConfig, **said: Any) -> ViT | LearnedStem:
    """The encoder of pictures that a name stands for, whosever it is.

    own: the model that is to begin with it. said: heads and image, where they are known and weights may not tell.

    >>> find_start("vit-cifar10", ViTConfig()).config.width
    256
    """
    path = Path(source).expanduser()
    if source in shipped() or _is_ours(path):
        ready = load(source)
        if isinstance(ready, ReadyCaptioner):
            return ready.model.encoder
        if isinstance(ready, ReadyClassifier):
            return ready.transformer
        raise ValueError(f"{source} is a {ready.kind}, which sees no pictures; begin with a classifier or a captioner")
    if source in PACKAGED:
        path = find_packaged(source)
    elif not path.exists():
        if source.count("/") != 1 or source.startswith((".", "~", "/")):
            names = ", ".join([*shipped(), *PACKAGED])
            raise ValueError(
                f"start is {source!r}: there is no such path and no shipped model ({names}); "
                "expected one of them, or OWNER/MODEL on the Hub"
            )
        path = download_encoder(source)
    return read_encoder(path, own, **said)


def begin(
    run: Any, folder: RunFolder | None, module: nn.Module | None = None, choices: Choices = None
) -> tuple[Any, Source | None]:
    """The run as what it begins with makes it, and that; None for a run that goes on, or that begins with nothing.

    choices: the fields that were asked for; unless given, those in which the run differs from its recipe.
    """
    if getattr(run, "start", None) is None:
        return run, None
    if module is not None:
        raise ValueError("start is for models of ours; load its weights into your module, and leave it out")
    if folder is not None and any(folder.checkpoints.states()):
        return run, None
    return adopt_translator(run, choices) if isinstance(run, TranslatorRun) else adopt(run, choices)


def adopt(run: Any, choices: Choices = None) -> tuple[Any, ViT | LearnedStem]:
    """The run with the shape and the normalisation of what its model begins as, and that model.

    What was asked for, and the source hasn't, is an error.
    """
    captions = isinstance(run, CaptionerRun)
    own: ViTConfig = run.model.encoder if captions else run.model
    usual, prefix = _usual(run), "model.encoder" if captions else "model"
    names = _name_chosen(own, usual, prefix, choices)
    source = find_start(run.start, own, **{name: getattr(own, name) for name in ("heads", "image") if name in names})
    if isinstance(source, LearnedStem):
        run = _let_blocks_learn(run, choices)
    theirs = source.config(own) if isinstance(source, LearnedStem) else source.config
    _check_there(run, names.intersection(SHAPE) - {"layer_scale"}, own, theirs, prefix)
    if not captions and "pooling" not in names and theirs.pooling != "none":
        own = replace(own, pooling=theirs.pooling)
    config = theirs if isinstance(source, LearnedStem) else adopt_config(own, theirs)
    if captions:
        return replace(run, model=replace(run.model, encoder=config)), source
    size = theirs.image if run.data.size is None else run.data.size
    return replace(run, model=config, data=replace(run.data, size=size)), source


def _let_blocks_learn(run: Any, choices: Choices) -> Any:
    """The run without what is for blocks that have learned something: those on top of a stem are new."""
    tune = run.tune
    if tune.rank or tune.thaw or {BODY, "encoder", "blocks", "encoder.blocks"} & set(tune.freeze):
        part = "encoder.embed.project.body" if isinstance(run, CaptionerRun) else "embed.project.body"
        raise ValueError(
            f"{run.start} makes tokens, and the blocks that read them are new and have to learn: leave out tune.rank, "
            f"tune.thaw and the freezing of blocks; --tune.freeze {part} keeps what it knows"
        )
    usual = RECIPES[run.recipe]().tune if run.recipe in RECIPES else Tune()
    if "tune.layer_decay" in (choices or ()) or tune.layer_decay != usual.layer_decay:
        return run
    return replace(run, tune=replace(tune, layer_decay=1.0))


def adopt_translator(run: TranslatorRun, choices: Choices = None) -> tuple[TranslatorRun, ReadyTranslator]:
    """The run with the shape of the translator that it begins as, and that one, whose pieces of words it takes over."""
    assert run.start is not None
    source = load_translator(run.start)
    own, theirs = run.model, source.model.config
    names = _name_chosen(own, _usual(run), "model", choices) - set(TRANSLATORS_OWN)
    _check_there(run, names, own, theirs, "model")
    return replace(run, model=replace(theirs, **{name: getattr(own, name) for name in TRANSLATORS_OWN})), source


def begin_with(model: nn.Module, source: Source) -> None:
    """Give a model that was just made what the source has learned; of a classifier, the new head begins at zero."""
    if isinstance(source, ReadyTranslator):
        model.load_state_dict(source.model.state_dict())
        return
    if isinstance(model, Captioner):
        model.start_from(source)
        return
    assert isinstance(model, ViT)
    start_from(model, source)
    if model.head is not None:
        nn.init.zeros_(model.head.weight)


def _name_chosen(own: Any, usual: Any, prefix: str, choices: Choices) -> set[str]:
    """The fields of a model's config that were asked for."""
    return {
        field.name
        for field in fields(own)
        if getattr(own, field.name) != getattr(usual, field.name) or f"{prefix}.{field.name}" in (choices or ())
    }


def _check_there(run: Any, names: set[str], own: Any, theirs: Any, prefix: str) -> None:
    for name in sorted(names):
        said, known = getattr(own, name), getattr(theirs, name)
        if said != known:
            raise ValueError(f"{prefix}.{name} is {said!r}, and {run.start} has {known!r}; leave it out")


def _usual(run: Run) -> Any:
    """What the encoder, or a translator, would be if nobody had asked for anything."""
    usual: Any = RECIPES[run.recipe]() if run.recipe in RECIPES else type(run)()
    return usual.model.encoder if isinstance(usual, CaptionerRun) else usual.model


def _is_ours(path: Path) -> bool:
    """Whether a folder holds a run or a model of ours, and not another library's."""
    if not (path / CONFIG).is_file():
        return False
    config = read_json(path / CONFIG)
    return is_run(config) or (isinstance(config, dict) and isinstance(config.get("model"), str))
