"""A captioner that can be asked: what it says of a picture, where it looked for each word, and how good it is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pellucid.data.caption_sources import CaptionData, load_captions
from pellucid.data.captions import CaptionSet
from pellucid.data.lazy import TOLERATED
from pellucid.data.reader import Picture
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.decode.captions import Caption, write_captions
from pellucid.evaluation.captioning import CaptionAnswers, CaptioningReport, evaluate_captioner
from pellucid.explain.maps import Map, Method
from pellucid.explain.trace import USUAL_METHODS, Trace, trace_caption
from pellucid.explain.words import explain_caption
from pellucid.models import Captioner
from pellucid.processes import Processes
from pellucid.ready.model import Pictures, ReadyModel, choose_split, is_many
from pellucid.runs import CaptionerRun, Run
from pellucid.runs.folder import TOKENIZER


class ReadyCaptioner(ReadyModel):
    """A captioner, with the words it speaks.

    >>> import torch
    >>> from pellucid.ready import load
    >>> model = load("captioner-scenes")
    >>> best, second = model.caption(torch.zeros(3, 48, 48), beam=2, n_best=2)
    >>> best.score >= second.score, len(best.words) == len(best.probabilities)
    (True, True)
    """

    kind, module_class, fit = "captioner", Captioner, "stretch"

    def __init__(
        self, model: Captioner, tokenizer: CaptionTokenizer, *, name: str = "", run: CaptionerRun | None = None
    ):
        super().__init__(model, model.config.encoder, name=name, run=run)
        self.model: Captioner = model
        self.tokenizer = tokenizer

    @classmethod
    def assemble(cls, module: Captioner, folder: Path, *, name: str = "", run: Run | None = None) -> Self:
        assert run is None or isinstance(run, CaptionerRun)
        tokenizer = CaptionTokenizer.load(folder / TOKENIZER)
        if len(tokenizer) != module.config.vocabulary:
            raise ValueError(
                f"{folder / TOKENIZER} has {len(tokenizer)} tokens and the model {module.config.vocabulary}; "
                "they don't belong together"
            )
        return cls(module, tokenizer, name=name, run=run)

    def save(self, folder: str | Path, *, half: bool = False) -> None:
        super().save(folder, half=half)
        self.tokenizer.save(Path(folder) / TOKENIZER)

    def caption(self, pictures: Pictures, beam: int = 5, n_best: int = 1, *, attention: bool = False) -> Any:
        """The n best captions of a picture, `[Caption, …]`, or for several a list of those.

        attention: with where it looked for each word.
        """
        how = {"beam": beam, "n_best": n_best, "attention": attention}
        captions = write_captions(self.model, self.tokenizer, self.read(pictures), **how)
        return captions if is_many(pictures) else captions[0]

    def trace(
        self,
        picture: Picture,
        *,
        caption: Caption | None = None,
        beam: int = 5,
        methods: Sequence[Method] = USUAL_METHODS,
    ) -> Trace:
        """All that its attention follows from, and a map for each word that it says, or has said in a caption."""
        how = {"caption": caption, "beam": beam, "methods": methods, "name": self.name}
        return trace_caption(self.model, self.tokenizer, self.read(picture)[0], **how)

    def explain(
        self, picture: Picture, method: Method = "gradient", target: int | str | None = None, **how: Any
    ) -> tuple[Map, ...]:
        """How much each token of the picture counts for each word, or for those that `target` names, by place or word.

        how: caption (to explain instead of its own), beam, layer, head and seed, as `explain.explain_caption`.
        """
        maps = explain_caption(self.model, self.tokenizer, self.read(picture)[0], method, **how)
        chosen = tuple(each for each in maps if target in (None, each.word, each.target))
        if not chosen:
            words = ", ".join(each.target for each in maps)
            raise ValueError(
                f"target is {target!r}; expected one of the words {words}, or a place in 0…{len(maps) - 1}"
            )
        return chosen

    def evaluate(
        self,
        data: Any,
        split: str = "test",
        *,
        path: str | None = None,
        beam: int = 5,
        batch: int = 64,
        progress: Callable[[int, int], None] | None = None,
        tolerated: float = TOLERATED,
        processes: Processes | None = None,
        answers: CaptionAnswers | None = None,
    ) -> CaptioningReport:
        """Its scores beside those of not looking, on `scenes`, captions at a path, or a set of them.

        path: where the images lie that captions speak of, if not beside them. tolerated: the share of images, and of
        captions, that may be unusable. processes: that write the captions together. answers: where they are kept as
        they come.
        """
        how: dict[str, Any] = {"beam": beam, "batch": batch, "progress": progress, "processes": processes}
        how |= {"answers": answers}
        if beam < 1:
            raise ValueError(f"--beam is {beam}; expected one or more")
        if self.reader.channels != 3:
            raise ValueError(f"captioned images have 3 channels and the model sees {self.reader.channels}")
        if isinstance(data, CaptionSet):
            return evaluate_captioner(self.model, self.tokenizer, data, **how)
        splits = load_captions(replace(self.data(data, path), tolerated=tolerated))
        images = choose_split(data, splits, split)
        others = next(
            (part for name in ("validation", "train", "test") if name != split and (part := getattr(splits, name))),
            None,
        )
        return evaluate_captioner(self.model, self.tokenizer, images, training=splits.train, others=others, **how)

    def data(self, data: str | CaptionData, path: str | None = None) -> CaptionData:
        """What its run was trained on, if that is asked for by the same name; else what is there."""
        if isinstance(data, CaptionData):
            return data
        trained_on = self.run.data if isinstance(self.run, CaptionerRun) else None
        config = trained_on if trained_on is not None and trained_on.name == data else CaptionData(data)
        return replace(config, images=config.images if path is None else path, size=self.reader.size)
