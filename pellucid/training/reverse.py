"""Teach the transformer to say ten digits backwards: the smallest job that only cross-attention can do."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from pellucid.decode import greedy
from pellucid.models import Transformer, TransformerConfig
from pellucid.runs import Optim, Run
from pellucid.training.engine import Engine, Observer
from pellucid.training.task import Metrics
from pellucid.watching import Record, watch

DIGITS, LENGTH, START = 10, 10, 10  # the token after the ten digits says "begin"


@dataclass(frozen=True)
class Reversal:
    """A trained model and what it can do on sequences it has never seen."""

    model: Transformer
    exact: float
    tested: int
    seconds: float


def reverse(
    *,
    steps: int = 600,
    batch: int = 128,
    learning_rate: float = 2e-3,
    test_sequences: int = 2000,
    seed: int = 0,
    observer: Observer | None = None,
) -> Reversal:
    """pellucid demo: 1 + 1 layers × 64, 8 heads, learn to say ten digits backwards, on two cores.

    Evidence: 100, 100, 100 % of 2,000 unseen sequences right (seeds 0, 1, 2); 14.3–20.3 s of training; 117,696
    parameters. 2 CPU threads, 2026-11-15, commit 233e55b.

    observer: sees it go on, step by step.
    """
    run = Run(
        recipe="reverse",
        optim=Optim(lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01, schedule="cosine", warmup=0.1),
        duration=f"{steps} steps",
        batch=batch,
        evaluate_every="0 steps",
        seed=seed,
        device="cpu",
    )
    with torch.random.fork_rng(devices=[]):
        task = Reversing(run, test_sequences)
        result = Engine(task, run, torch.device("cpu"), observer=observer).fit()
    return Reversal(task.model.eval(), result.figures["exact"], test_sequences, result.seconds)


class Reversing:
    """Endless random sequences and their reverse."""

    unit, score = "sequences", "exact"

    def __init__(self, run: Run, test_sequences: int):
        self.run, self.test_sequences = run, test_sequences
        self.batch = self.epoch_size = run.batch  # there is no end of new sequences: an epoch is a step
        torch.manual_seed(run.seed)
        self.model = Transformer(
            TransformerConfig(
                vocabulary=DIGITS + 1, width=64, hidden=256, encoder_layers=1, decoder_layers=1, norm="pre", dropout=0.0
            )
        )

    def batches(self, start: int, end: int) -> Iterator[list[tuple[Tensor]]]:
        for step in range(start, end):
            yield [(sequences(self.batch, self._generator(step), held_out=False),)]

    def loss(self, model: nn.Module, source: Int[Tensor, "b t"]) -> tuple[Tensor, Metrics]:
        target = source.flip(1)
        return F.cross_entropy(model(source, shifted(target)).flatten(0, 1), target.flatten()), {}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The share of unseen sequences that come out right to the last digit."""
        source = sequences(self.test_sequences, self._generator(-1), held_out=True)
        self.model.eval()
        return {"exact": (reversed_by(self.model, source) == source.flip(1)).all(1).float().mean().item()}

    def _generator(self, step: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.run.seed * 1_000_003 + step) % (1 << 63))


def sequences(n: int, generator: torch.Generator, *, held_out: bool) -> Int[Tensor, "b t"]:
    """n random sequences. Those whose digits add up to a multiple of ten are kept out of training."""
    count, kept = 0, []
    while count < n:
        drawn = torch.randint(DIGITS, (2 * n + 64, LENGTH), generator=generator)
        kept.append(drawn[(drawn.sum(1) % 10 == 0) == held_out])
        count += len(kept[-1])
    return torch.cat(kept)[:n]


def shifted(target: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """What the decoder reads in training: the target one step late, so that it never reads what it must say."""
    return F.pad(target[:, :-1], (1, 0), value=START)


@torch.no_grad()
def reversed_by(model: Transformer, source: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """The model's own answer, one digit after the other, with nothing to lean on but what it said before."""
    context = model.encode(source)
    decoded = greedy(model, context, start=START, end=START, length=source.shape[1], forbidden=(START,))
    return decoded.tokens[:, 0]


@torch.no_grad()
def looking_back(model: Transformer, source: Int[Tensor, "1 t"]) -> Record:
    """The cross-attention of the last layer while the model reverses `source`."""
    answer = reversed_by(model, source)
    with watch(model) as seen:
        model(source, shifted(answer))
    return seen[f"decoder.blocks.{model.config.decoder_layers - 1}.cross_attention"]
