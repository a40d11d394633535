"""Translation as a task: sentences in two languages, cross-entropy of each next piece of a word."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pellucid.data.parallel import TextPairs, load_training, load_validation
from pellucid.data.subwords import SubwordTokenizer
from pellucid.data.text_loader import TextLoader
from pellucid.data.tokenizer import MASK, PAD
from pellucid.decode.translations import translate_all
from pellucid.evaluation.translation import bleu
from pellucid.models import Transformer
from pellucid.processes import Processes
from pellucid.ready.translator import ReadyTranslator
from pellucid.runs.config import TranslatorRun
from pellucid.training.task import Metrics

AT_ONCE = 250  # sentences that are evaluated together


class Sentences:
    """What a run trains on, direction by direction, and what it chooses by."""

    def __init__(self, training: list[TextPairs], validation: TextPairs | None):
        self.training, self.validation = training, validation

    @property
    def train(self) -> list[tuple[str, str]]:
        """The pairs of all directions, one after the other."""
        return [pair for pairs in self.training for pair in zip(pairs.sources, pairs.targets, strict=True)]


def resolve(
    run: TranslatorRun, tokenizer: SubwordTokenizer | None = None
) -> tuple[TranslatorRun, Sentences, SubwordTokenizer]:
    """The run with what only its data knows (how many pieces there are), the sentences, and the tokenizer.

    tokenizer: of a run that goes on.
    """
    sentences = Sentences(load_training(run.data), load_validation(run.data))
    if tokenizer is None:
        languages = list(dict.fromkeys(target for _, target in run.data.directions))
        texts: dict[str, dict[str, None]] = {}  # each sentence of a language once, whatever the directions
        for pairs in sentences.training:
            for language, side in zip(pairs.direction, (pairs.sources, pairs.targets), strict=True):
                texts.setdefault(language, {}).update(dict.fromkeys(side))
        tokenizer = SubwordTokenizer.train(
            (text for language in sorted(texts) for text in texts[language]),
            kind=run.subwords.kind,
            size=run.subwords.size,
            languages=languages if len(run.data.directions) > 1 else (),
        )
    languages = (run.data.source, run.data.target)
    model = replace(run.model, vocabulary=len(tokenizer), target_vocabulary=None, languages=languages)
    return replace(run, model=model), sentences, tokenizer


class Translating:
    """Train a transformer to say each next piece of people's translations."""

    unit, score = "tokens", "bleu"

    def __init__(
        self,
        run: TranslatorRun,
        sentences: Sentences,
        tokenizer: SubwordTokenizer,
        device: torch.device,
        processes: Processes,
    ):
        self.run, self.tokenizer, self.device, self.processes = run, tokenizer, device, processes
        self.held_out = sentences.validation
        sources, targets = self._encoded(sentences.training)
        self.loader = TextLoader(
            sources, targets, run.batch, run.seed, device, processes.rank, processes.world, run.accumulate
        )
        self.batch = max(1, round(self.loader.words / self.loader.steps))  # tokens to say in a step, on average
        self.epoch_size = self.batch * self.loader.steps
        self.shares = processes.world * run.accumulate
        self.half = run.precision == "bf16"
        torch.manual_seed(run.seed)  # of the weights, which are made next
        self.model = Transformer(run.model).to(device)

    def _encoded(self, training: list[TextPairs]) -> tuple[list[list[int]], list[list[int]]]:
        sources: list[list[int]] = []
        targets: list[list[int]] = []
        for pairs in training:
            prefix = self.tokenizer.ask(pairs.direction[1])
            for source, target in zip(
                self.tokenizer.encode_all(pairs.sources), self.tokenizer.encode_all(pairs.targets), strict=True
            ):
                source, target = self.tokenizer.framed(source, target, prefix)
                if max(len(source), len(target)) <= self.run.longest:
                    sources.append(source)
                    targets.append(target)
        return sources, targets

    def ready(self, name: str = "") -> ReadyTranslator:
        return ReadyTranslator(self.model, self.tokenizer, name=name, run=self.run)

    def batches(self, start: int, end: int) -> Iterator[list[tuple[Any, ...]]]:
        for parts in self.loader.batches(start, end):
            yield list(parts)

    def loss(
        self, model: nn.Module, source: Int[Tensor, "b s"], target: Int[Tensor, "b t"], words: Int[Tensor, ""]
    ) -> tuple[Tensor, Metrics]:
        run = self.run
        if run.consistency:
            source, target = source.repeat(2, 1), target.repeat(2, 1)
        said, there = target[:, 1:], target[:, 1:] != PAD
        with self.precision():
            logits = model(self.hidden(source), self.hidden(target[:, :-1]), (source != PAD)[:, None, None])
        logits = logits.float()
        total = F.cross_entropy(
            logits.flatten(0, 1), said.flatten(), ignore_index=PAD, reduction="sum",
            label_smoothing=run.label_smoothing,
        )  # fmt: skip
        if run.consistency:
            total = total / 2 + run.consistency * disagreement(logits, there)
        right = (logits.detach().argmax(-1) == said) & there
        # Divided by the words of the whole step: the mean over processes and parts is the mean over its words.
        return total * self.shares / words, {"accuracy": right.sum() / there.sum().clamp(min=1)}

    def hidden(self, tokens: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
        """Some pieces hidden behind MASK, drawn anew at each step; the first of a sentence stays."""
        if not self.run.word_dropout:
            return tokens
        gone = torch.rand(tokens.shape, device=tokens.device) < self.run.word_dropout
        gone[:, 0] = False
        return torch.where(gone & (tokens != PAD), MASK, tokens)

    def precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """BLEU of its translations of the validation sentences, and how well it reads people's."""
        if self.held_out is None:
            return {}
        self.model.eval()
        run = self.run
        with self.precision(), torch.no_grad():
            translations = translate_all(
                self.model, self.tokenizer, self.held_out.sources, language=self.language, beam=run.beam,
                length_penalty=run.length_penalty, batch=AT_ONCE,
            )  # fmt: skip
            figures = self._read(self.held_out)
        return figures | {"bleu": bleu([best.text for best, *_ in translations], self.held_out.targets)}

    @property
    def language(self) -> str | None:
        return self.run.data.target if self.tokenizer.languages else None

    def _read(self, pairs: TextPairs) -> dict[str, float]:
        """Loss and accuracy of the next piece, people's own pieces before it given."""
        loss = right = words = 0.0
        sources = self.tokenizer.encode_all(pairs.sources)
        targets = self.tokenizer.encode_all(pairs.targets)
        framed = [
            self.tokenizer.framed(source, target, self.tokenizer.ask(self.language))
            for source, target in zip(sources, targets, strict=True)
        ]
        loader = TextLoader(
            [source for source, _ in framed], [target for _, target in framed], AT_ONCE * 64, 0, self.device
        )
        for ((source, target, _),) in loader.batches(0, loader.steps):
            logits = self.model(source, target[:, :-1], (source != PAD)[:, None, None]).float()
            said, there = target[:, 1:], target[:, 1:] != PAD
            loss += F.cross_entropy(logits.flatten(0, 1), said.flatten(), ignore_index=PAD, reduction="sum").item()
            right += ((logits.argmax(-1) == said) & there).sum().item()
            words += there.sum().item()
        return {"loss": loss / words, "accuracy": right / words}


def disagreement(logits: Float[Tensor, "twice t v"], there: Bool[Tensor, "twice t"]) -> Float[Tensor, ""]:
    """Σ over the pieces of the mean of KL(p‖q) and KL(q‖p), p and q being what the two passes expect there."""
    p, q = logits.log_softmax(-1).chunk(2)
    both = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2
    return (both * there[: len(both)]).sum()
