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
from pellucid.evaluation.doubt import Doubt, measure_sureness, name_things
from pellucid.explain.maps import Map, Method
from pellucid.explain.trace import USUAL_METHODS, Trace, trace_caption
from pellucid.explain.words import Unsaid, explain_caption, explain_word
from pellucid.models import Captioner
from pellucid.processes import Processes
from pellucid.ready.model import Pictures, ReadyModel, choose_split, is_many
from pellucid.runs import CaptionerRun, Run, RunFolder
from pellucid.runs.checkpoints import step_of
from pellucid.runs.folder import TOKENIZER

WIDER = 4  # how many captions are searched for each one that is to differ
ALIKE = 0.5  # share of the things that two captions name above which they say the same


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
        self,
        model: Captioner,
        tokenizer: CaptionTokenizer,
        *,
        name: str = "",
        run: CaptionerRun | None = None,
        doubt: Doubt | None = None,
    ):
        super().__init__(model, model.config.encoder, name=name, run=run)
        self.model: Captioner = model
        self.tokenizer, self.doubt = tokenizer, doubt
        self.folder: RunFolder | None = None

    @classmethod
    def assemble(cls, module: Captioner, folder: Path, *, name: str = "", run: Run | None = None) -> Self:
        assert run is None or isinstance(run, CaptionerRun)
        tokenizer = CaptionTokenizer.load(folder / TOKENIZER)
        if len(tokenizer) != module.config.vocabulary:
            raise ValueError(
                f"{folder / TOKENIZER} has {len(tokenizer)} tokens and the model {module.config.vocabulary}; "
                "they don't belong together"
            )
        home = None if run is None else RunFolder(folder)
        doubt = Doubt.load(folder, None if home is None else step_of(home.weights()))
        ready = cls(module, tokenizer, name=name, run=run, doubt=doubt)
        ready.folder = home
        return ready

    def save(self, folder: str | Path, *, half: bool = False) -> None:
        super().save(folder, half=half)
        self.tokenizer.save(Path(folder) / TOKENIZER)
        if self.doubt is not None:
            replace(self.doubt, step=None).save(Path(folder))

    def caption(
        self,
        pictures: Pictures,
        beam: int = 5,
        n_best: int = 1,
        *,
        attention: bool = False,
        different: bool = False,
    ) -> Any:
        """The n best captions of a picture, `[Caption, …]`, or for several a list of those.

        attention: with where it looked for each word. different: those that name different things, as many as there are
        among four times as many.
        """
        how = {"beam": beam, "n_best": n_best, "attention": attention}
        if different:
            how |= dict.fromkeys(("beam", "n_best"), max(beam, WIDER * n_best))
        captions = write_captions(self.model, self.tokenizer, self.read(pictures), **how)
        if different:
            captions = [choose_different(best, n_best) for best in captions]
        if self.doubt is not None:
            captions = [[replace(each, expected=self.doubt.expect(each.score)) for each in best] for best in captions]
        return captions if is_many(pictures) else captions[0]

    def learn_doubt(
        self, data: Any, split: str = "validation", *, path: str | None = None, beam: int = 5, batch: int = 64
    ) -> Doubt:
        """Find out on held-out images how much of its captions people say, too, by how sure it was of them.

        Captions say from then on how much of them is to be expected; a run keeps it in its folder, and `save` does.
        """
        if split == "test":
            raise ValueError("test images only test; learn doubt on validation images")
        images = data if isinstance(data, CaptionSet) else self.load_split(data, split, path)
        scores, said = measure_sureness(self.model, self.tokenizer, images, beam=beam, batch=batch)
        step = None if self.folder is None else step_of(self.folder.weights())
        self.doubt = replace(Doubt.fit(scores, said), step=step)
        if self.folder is not None:
            self.doubt.save(self.folder.path)
        return self.doubt

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

    def look_for(self, picture: Picture, word: str, **how: Any) -> Unsaid:
        """A word that it needn't have said: how likely it would be, with the picture and without, and where it looks.

        how: method, caption (to read instead of its own) and beam, as `explain.explain_word`.
        """
        return explain_word(self.model, self.tokenizer, self.read(picture)[0], word, **how)

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
        splits = load_captions(replace(self.data(data, path), tolerated=tolerated), trains=False)
        images = choose_split(data, splits, split)
        others = next(
            (part for name in ("validation", "train", "test") if name != split and (part := getattr(splits, name))),
            None,
        )
        return evaluate_captioner(
            self.model, self.tokenizer, images, training=splits.train or None, others=others, **how
        )

    def load_split(self, data: str | CaptionData, split: str, path: str | None = None) -> CaptionSet:
        """The captioned images of one split, at the size that it sees."""
        return choose_split(data, load_captions(self.data(data, path), trains=False), split)

    def data(self, data: str | CaptionData, path: str | None = None) -> CaptionData:
        """What its run was trained on, if that is asked for by the same name; else what is there."""
        if isinstance(data, CaptionData):
            return data
        trained_on = self.run.data if isinstance(self.run, CaptionerRun) else None
        config = trained_on if trained_on is not None and trained_on.name == data else CaptionData(data)
        return replace(config, images=config.images if path is None else path, size=self.reader.size)


def choose_different(captions: Sequence[Caption], most: int) -> list[Caption]:
    """The best of the captions, then the next ones that share at most half of what they name with each before them."""
    chosen: list[Caption] = []
    for caption in captions:
        things = name_things(caption.text)
        others = [name_things(each.text) for each in chosen]
        if len(chosen) < most and all(len(things & each) <= ALIKE * len(things | each) for each in others):
            chosen.append(caption)
    return chosen
