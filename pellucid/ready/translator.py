"""A translator that can be asked: what it says of sentences, which words it read for each word, and how good it is."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from pellucid.data.parallel import ParallelData, TextPairs, load_pairs
from pellucid.data.subwords import SubwordTokenizer
from pellucid.decode.translations import Sampling, Translation, translate_all
from pellucid.evaluation.translation import TranslationScores, score_translations
from pellucid.explain.sentences import USUAL_METHODS, PairMethod, trace_translation
from pellucid.explain.trace import Trace
from pellucid.models import Transformer
from pellucid.ready.model import ReadyModel
from pellucid.runs import Run, TranslatorRun
from pellucid.runs.folder import TOKENIZER

LENGTH_PENALTY = 1.4  # of a model without its run: what the recipes have, chosen on validation sentences


@dataclass(frozen=True, eq=False)
class TranslationReport:
    """What a translator said of sentences, and the figures of it."""

    pairs: TextPairs
    translations: list[str]
    scores: TranslationScores
    figures: dict[str, Any]

    def save_translations(self, path: Path) -> None:
        """One a line, as the sentences came."""
        path.write_text("".join(text.replace("\n", " ") + "\n" for text in self.translations), encoding="utf-8")


class ReadyTranslator(ReadyModel):
    """A transformer that translates, with the pieces of words that it reads and says.

    >>> ReadyTranslator.kind
    'translator'
    """

    kind, module_class, fit = "translator", Transformer, "stretch"

    def __init__(
        self, model: Transformer, tokenizer: SubwordTokenizer, *, name: str = "", run: TranslatorRun | None = None
    ):
        self.model: Transformer = model.eval()
        self.tokenizer, self.name, self.run = tokenizer, name, run
        self.labels = ()

    @classmethod
    def assemble(cls, module: Transformer, folder: Path, *, name: str = "", run: Run | None = None) -> Self:
        assert run is None or isinstance(run, TranslatorRun)
        tokenizer = SubwordTokenizer.load(folder / TOKENIZER)
        if len(tokenizer) != module.config.vocabulary:
            raise ValueError(
                f"{folder / TOKENIZER} has {len(tokenizer)} tokens and the model {module.config.vocabulary}; "
                "they don't belong together"
            )
        return cls(module, tokenizer, name=name, run=run)

    def save(self, folder: str | Path, *, half: bool = False) -> None:
        super().save(folder, half=half)
        self.tokenizer.save(Path(folder) / TOKENIZER)

    def translate(
        self,
        sentences: str | Sequence[str],
        beam: int = 5,
        n_best: int = 1,
        *,
        language: str | None = None,
        length_penalty: float | None = None,
        sampling: Sampling | None = None,
        attention: bool = False,
        batch: int = 64,
        progress: Callable[[int, int], None] | None = None,
    ) -> Any:
        """The n best translations of a sentence, `[Translation, …]`, or for several a list of those.

        language: if the model speaks several. sampling: draw n_best of them instead of searching with a beam.
        attention: with which words of the source it read for each word.
        """
        several = [sentences] if isinstance(sentences, str) else list(sentences)
        _check_sentences(several)
        translations = self._translate(
            several, language, length_penalty, beam=beam, n_best=n_best, sampling=sampling, attention=attention,
            batch=batch, progress=progress,
        )  # fmt: skip
        return translations[0] if isinstance(sentences, str) else translations

    def _translate(
        self, sentences: Sequence[str], language: str | None, length_penalty: float | None, **how: Any
    ) -> list[list[Translation]]:
        """Of any sentences, a blank one too: what it says of nothing is a control."""
        penalty = self.length_penalty if length_penalty is None else length_penalty
        language = self.language(language)
        return translate_all(self.model, self.tokenizer, sentences, language=language, length_penalty=penalty, **how)

    def evaluate(
        self,
        data: Any,
        split: str = "test",
        *,
        beam: int = 5,
        length_penalty: float | None = None,
        batch: int = 64,
        progress: Callable[[int, int], None] | None = None,
    ) -> TranslationReport:
        """sacreBLEU's scores beside those of not reading the source, on a folder, a table, or pairs of sentences."""
        pairs = data if isinstance(data, TextPairs) else load_pairs(self.data(data), split)
        if not len(pairs):
            raise ValueError(f"{data} has no {split} sentences")
        how: dict[str, Any] = {"beam": beam, "batch": batch}
        started = time.perf_counter()
        translations = self._translate(pairs.sources, pairs.direction[1], length_penalty, progress=progress, **how)
        seconds = time.perf_counter() - started
        texts = [best.text for best, *_ in translations]
        empty = self._translate([""], pairs.direction[1], length_penalty, **how)[0][0].text
        scores = score_translations(texts, pairs.targets, pairs.sources, empty=empty)
        figures = scores.figures | {"direction": "-".join(pairs.direction), "beam": beam}
        return TranslationReport(pairs, texts, scores, figures | {"sentences_per_second": len(pairs) / seconds})

    @property
    def length_penalty(self) -> float:
        return self.run.length_penalty if isinstance(self.run, TranslatorRun) else LENGTH_PENALTY

    def language(self, name: str | None = None) -> str | None:
        """The language that a sentence is translated into; None if there is only one and nothing to ask for."""
        known = tuple(self.tokenizer.languages) or self.model.config.languages[1:]
        if name is not None and known and name not in known:
            raise ValueError(f"{self.name or 'the model'} doesn't say {name!r}; expected {' or '.join(known)}")
        if not self.tokenizer.languages:
            return None
        usual = self.model.config.languages[1:2] or tuple(self.tokenizer.languages)
        return name or usual[0]

    def data(self, data: str | ParallelData) -> ParallelData:
        """Sentences by name, in the languages that the model reads and says."""
        if isinstance(data, ParallelData):
            return data
        source, target = self.model.config.languages or ("en", "de")
        return ParallelData(str(data), source=source, target=target)

    def trace(  # pyright: ignore[reportIncompatibleMethodOverride]  # it reads a sentence, not a picture
        self,
        sentence: str,
        *,
        translation: Translation | None = None,
        beam: int = 5,
        language: str | None = None,
        methods: Sequence[PairMethod] = USUAL_METHODS,
    ) -> Trace:
        """All that its attention follows from, and a map for each piece that it says, or has said in a translation."""
        said: Translation = translation or self.translate(sentence, beam, language=language)[0]
        if said.source != sentence:
            raise ValueError(f"the translation is of {said.source!r}; expected one of {sentence!r}")
        how: dict[str, Any] = {"language": self.language(language), "methods": methods, "name": self.name}
        return trace_translation(self.model, self.tokenizer, said, **how)

    def read(self, pictures: Any) -> Tensor:
        raise ValueError("a translator reads sentences, not pictures; ask it with translate(…)")


def _check_sentences(sentences: Sequence[str]) -> None:
    for number, sentence in enumerate(sentences, 1):
        if not isinstance(sentence, str):
            raise ValueError(f"a sentence to translate is a str; got {type(sentence).__name__}")
        if not sentence.strip():
            which = "the sentence" if len(sentences) == 1 else f"sentence {number} of {len(sentences)}"
            raise ValueError(f"{which} is blank; expected words to translate")
