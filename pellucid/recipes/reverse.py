"""Teach the transformer to say ten digits backwards: the smallest job that only cross-attention can do."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from pellucid.decode import greedy
from pellucid.layers import Record, watch
from pellucid.models import Transformer, TransformerConfig

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
    progress: Callable[[int, float], None] | None = None,
) -> Reversal:
    """pellucid demo: two cores, 14–20 s of training, 100.00 % of 2,000 unseen sequences exactly right (seeds 0, 1, 2).

    1 + 1 layers × 64, 8 heads, 117,696 parameters; measured 2026-11-15, commit 233e55b.
    progress is called after every step with its number and its loss.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(
            TransformerConfig(
                vocabulary=DIGITS + 1,
                width=64,
                hidden=256,
                encoder_layers=1,
                decoder_layers=1,
                norm="pre",
                dropout=0.0,
            )
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=0.1)
    started = time.perf_counter()
    for step in range(1, steps + 1):
        source = sequences(batch, generator, held_out=False)
        target = source.flip(1)
        loss = F.cross_entropy(model(source, shifted(target)).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step, loss.item())
    seconds = time.perf_counter() - started

    model.eval()
    source = sequences(test_sequences, generator, held_out=True)
    exact = (reversed_by(model, source) == source.flip(1)).all(1).float().mean().item()
    return Reversal(model, exact, test_sequences, seconds)


def sequences(n: int, generator: torch.Generator, *, held_out: bool) -> Int[Tensor, "b t"]:
    """n random sequences. Those whose digits add up to a multiple of ten are kept out of training."""
    found, kept = 0, []
    while found < n:
        drawn = torch.randint(DIGITS, (2 * n + 64, LENGTH), generator=generator)
        kept.append(drawn[(drawn.sum(1) % 10 == 0) == held_out])
        found += len(kept[-1])
    return torch.cat(kept)[:n]


def shifted(target: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """What the decoder reads in training: the target one step late, so that it never reads what it must say."""
    return F.pad(target[:, :-1], (1, 0), value=START)


@torch.no_grad()
def reversed_by(model: Transformer, source: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """The model's own answer, one digit after the other, with nothing to lean on but what it said before."""
    context, cache = model.encode(source), model.cache()
    first = source.new_full((len(source),), START)
    return greedy(lambda token: model.decode(token, context, cache=cache), first, length=source.shape[1])


@torch.no_grad()
def looking_back(model: Transformer, source: Int[Tensor, "1 t"]) -> Record:
    """The cross-attention of the last layer while the model reverses `source`."""
    answer = reversed_by(model, source)
    with watch(model) as seen:
        model(source, shifted(answer))
    return seen[f"decoder.blocks.{model.config.decoder_layers - 1}.cross_attention"]
