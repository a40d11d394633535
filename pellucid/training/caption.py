"""Captioning as a task: pictures, captions, cross-entropy of each next word; then, if asked for, reward for whole ones.

Which captions a step reads, and what happens to their pictures, is a function of (seed, step) as in classification.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.data import draws
from pellucid.data.augment import Augment, augment, flips, normalised
from pellucid.data.caption_sources import load_captions
from pellucid.data.captions import CaptionSet, CaptionSplits, split_captions
from pellucid.data.loader import Share
from pellucid.data.sources import statistics
from pellucid.data.tokenizer import BACKWARD, END, MASK, NEVER, PAD, SPECIAL, START, UNKNOWN, CaptionTokenizer
from pellucid.decode import sample
from pellucid.decode.captions import caption_all
from pellucid.evaluation.captions import score
from pellucid.models import Captioner
from pellucid.processes import Processes
from pellucid.ready import ReadyCaptioner
from pellucid.runs.config import CaptionerRun
from pellucid.training.pictures import OnPictures, evaluated_on
from pellucid.training.reward import Reward
from pellucid.training.task import Metrics

CHOICE = 100  # stream of draws: which captions; augmentation's lie below
AT_ONCE = 250  # pictures that are evaluated together


def resolve(
    run: CaptionerRun, tokenizer: CaptionTokenizer | None = None, data: Any = None
) -> tuple[CaptionerRun, CaptionSplits, CaptionTokenizer]:
    """The run with what only its data knows (words, length, channels, normalisation), the data, and the tokenizer.

    tokenizer: of a run that goes on. data: a set of one's own, instead of what the run names.
    """
    splits = load_captions(run.data) if data is None else split_captions(data)
    train = splits.train
    if tokenizer is None:
        captions = (caption for several in train.captions for caption in several)
        w = run.words
        tokenizer = CaptionTokenizer.train(captions, kind=w.kind, min_count=w.min_count, size=w.size)
    encoder = run.model.encoder
    mean, std = (encoder.mean, encoder.std) if encoder.mean and encoder.std else statistics(train.images)
    channels, height, width = train.images.shape
    model = replace(
        run.model,
        vocabulary=len(tokenizer),
        encoder=replace(encoder, channels=channels, image=(height, width), mean=tuple(mean), std=tuple(std)),
    )
    return replace(run, model=model), splits, tokenizer


class Captioning(OnPictures):
    """Train a captioner to say each next word of people's captions."""

    def __init__(
        self,
        run: CaptionerRun,
        splits: CaptionSplits,
        tokenizer: CaptionTokenizer,
        device: torch.device,
        processes: Processes,
    ):
        super().__init__(run, splits.train.images, run.model.encoder, device, processes)
        self.run, self.tokenizer = run, tokenizer
        self.held_out: CaptionSet | None = evaluated_on(run, splits)
        self.exact = self.held_out is not None and all(len(said) == 1 for said in self.held_out.captions)
        self.score = "exact" if self.exact else "cider_d"
        self.known = KnownCaptions.of(splits.train, tokenizer, run.model.max_length, device)
        self.mirrored = tokenizer.mirrored.to(device)
        self.model = Captioner(run.model).to(device)

    def ready(self, name: str = "") -> ReadyCaptioner:
        return ReadyCaptioner(self.model, self.tokenizer, name=name, run=self.run)

    def share_loss(self, model: nn.Module, share: Share, pixels: Tensor) -> tuple[Tensor, Metrics]:
        run = self.run
        with torch.no_grad():
            images, flipped = self.augmented(share, pixels, self.fitting(pixels))
            tokens = self.mirrored_where(flipped, self.chosen(share))
            rows = self.rows(tokens)
            bags = self.bags(share, flipped) if run.bag else None
        with self.precision():
            logits = model(images, rows.inputs.flatten(0, 1), causal=rows.mask is None, mask=rows.mask)
        logits = logits.float().unflatten(0, rows.inputs.shape[:2])
        read, guessed = slice(0, rows.read), slice(rows.read, rows.read + rows.guessed)
        loss = self.entropy(logits[:, read], rows.targets[:, read])
        if rows.guessed:
            loss = (1 - run.in_parallel) * loss
            loss = loss + run.in_parallel * self.entropy(logits[:, guessed], rows.targets[:, guessed])
        if bags is not None:
            loss = loss - run.bag * (bags * logits[:, -1, 0].log_softmax(-1)).sum(-1).mean()
        there = rows.targets[:, read] != PAD
        right = (logits[:, read].detach().argmax(-1) == rows.targets[:, read]) & there
        return loss, {"accuracy": right.sum() / there.sum()}

    def rows(self, tokens: Int[Tensor, "b k t"]) -> "CaptionRows":
        """Everything that the decoder is asked of each picture, side by side: the picture is looked at once."""
        run, (_, k, t) = self.run, tokens.shape
        read = torch.cat([tokens, backwards(tokens)], 1) if run.backward else tokens
        inputs, targets = [read[..., :-1]], [read[..., 1:]]
        guessed = k if run.in_parallel else 0
        if guessed:  # the words unseen, their places alone are asked for
            inputs.append(torch.full_like(tokens[..., 1:], MASK))
            targets.append(tokens[..., 1:])
        if run.bag:
            row = torch.full_like(tokens[:, :1, 1:], PAD)
            inputs.append(row.index_fill(2, row.new_zeros(1), UNKNOWN))
            targets.append(row)
        mask = None
        if guessed:
            number = torch.arange(sum(part.shape[1] for part in inputs), device=tokens.device)
            open_to_all = (number >= read.shape[1]) & (number < read.shape[1] + guessed)
            past = torch.ones(t - 1, t - 1, dtype=torch.bool, device=tokens.device).tril()
            mask = repeat(past | open_to_all[:, None, None], "r q k -> (b r) 1 q k", b=len(tokens))
        return CaptionRows(torch.cat(inputs, 1), torch.cat(targets, 1), read.shape[1], guessed, mask)

    def bags(self, share: Share, flipped: Tensor) -> Float[Tensor, "b v"]:
        """For each picture how often its captions have each word, as shares."""
        words = self.mirrored_where(flipped, self.known.tokens[share.image]).flatten(1)
        counts = torch.zeros(len(words), len(self.mirrored), device=self.device)
        counts = counts.scatter_add(1, words, torch.ones_like(words, dtype=counts.dtype))
        counts = counts * (torch.arange(len(self.mirrored), device=self.device) >= SPECIAL)
        return counts / counts.sum(1, keepdim=True).clamp(min=1)

    def entropy(self, logits: Float[Tensor, "b k t v"], targets: Int[Tensor, "b k t"]) -> Float[Tensor, ""]:
        """Cross-entropy of a word. Summed and divided by how many words captions have on the whole, not in this batch:
        so the mean over processes is the mean over the batch."""
        total = F.cross_entropy(
            logits.flatten(0, 2),
            targets.flatten(),
            ignore_index=PAD,
            reduction="sum",
            label_smoothing=self.run.label_smoothing,
        )
        return total / (targets.shape[0] * targets.shape[1] * self.known.mean_length)

    def augmented(self, share: Share, pixels: Tensor, how: Augment) -> tuple[Tensor, Tensor]:
        """The share's pictures, normalised, and which of them are flipped."""
        key = (self.seed, share.step, share.position)
        images, *_ = augment(
            pixels, share.image, how, self.normalise,
            seed=self.seed, step=share.step, epoch=share.epoch, index=share.image, positions=share.position,
        )  # fmt: skip
        return images, flips(how, key, share.epoch, share.image)

    def chosen(self, share: Share) -> Int[Tensor, "b k t"]:
        """Some of each picture's captions: neighbours in its list, from a random one on."""
        count = self.known.counts[share.image]
        first = draws.integers(self.seed, share.step, share.position, CHOICE, count)
        which = (first[:, None] + torch.arange(self.run.captions, device=self.device)) % count[:, None]
        return self.known.tokens[share.image[:, None], which]

    def mirrored_where(self, flipped: Tensor, tokens: Int[Tensor, "b k t"]) -> Int[Tensor, "b k t"]:
        return torch.where(flipped[:, None, None], self.mirrored[tokens], tokens)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """What the model says of the pictures it is evaluated on, and how well it reads what people said."""
        if self.held_out is None:
            return {}
        self.model.eval()
        with self.precision(), torch.no_grad():
            captions = caption_all(self.model, self.tokenizer, self.held_out.images, beam=self.run.beam, batch=AT_ONCE)
            figures = self._read()
        ids = [str(i) for i in range(len(captions))]
        scores = score(dict(zip(ids, captions, strict=True)), dict(zip(ids, self.held_out.captions, strict=True)))
        if self.exact:
            pairs = zip(captions, self.held_out.captions, strict=True)
            figures["exact"] = sum(caption == true for caption, (true,) in pairs) / len(captions)
        return figures | {name: scores[name] for name in ("cider_d", "bleu4")}

    def _read(self) -> dict[str, float]:
        """Loss and accuracy of the next word, of the first caption of each picture."""
        assert self.held_out is not None
        first = [captions[0] for captions in self.held_out.captions]
        tokens = self.tokenizer.batch(first, self.run.model.max_length)
        loss = right = words = 0.0
        for part in torch.arange(len(first)).split(AT_ONCE):
            images = normalised(self.held_out.images.read(part).to(self.device), self.normalise)
            rows = tokens[part].to(self.device)
            logits = self.model(images, rows[:, :-1]).float()
            targets = rows[:, 1:]
            entropy = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum")
            loss += entropy.item()
            right += ((logits.argmax(-1) == targets) & (targets != PAD)).sum().item()
            words += (targets != PAD).sum().item()
        return {"loss": loss / words, "accuracy": right / words}


class SelfCritical(Captioning):
    """Raise the probability of the model's own captions that score above its others (Rennie et al. 2017).

    Of each picture some captions are drawn; a caption's reward is its CIDEr-D, less the mean of the others' (Luo 2020).
    Dropout is off throughout: what is made likelier is what was drawn from.
    """

    def __init__(self, *parts: Any):
        super().__init__(*parts)
        self.reward = Reward(self.known.tokens[..., 1:], vocabulary=len(self.tokenizer), pad=PAD)

    def share_loss(self, model: nn.Module, share: Share, pixels: Tensor) -> tuple[Tensor, Metrics]:
        self.model.eval()
        index, k = share.image, self.run.critical.samples
        images, flipped = self.augmented(share, pixels, self.fitting(pixels))
        captions = self._sample(images, k)
        rewards = self.reward(index, self.mirrored_where(flipped, captions))  # the references' picture isn't flipped
        gain = rewards - (rewards.sum(1, keepdim=True) - rewards) / (k - 1)
        if self.run.critical.only_better:
            gain = gain.clamp(min=0)
        rows = F.pad(captions, (1, 0), value=START)
        teacher = self.run.critical.teacher
        if teacher:
            rows = _stacked(rows, self.mirrored_where(flipped, self.chosen(share)))
        inputs, targets = rows[..., :-1], rows[..., 1:]
        with self.precision():
            logits = model(images, inputs.masked_fill(inputs == PAD, END).flatten(0, 1)).float()
        logits = logits.unflatten(0, rows.shape[:2])
        log_probs = -F.cross_entropy(
            logits[:, :k].flatten(0, 2), targets[:, :k].flatten(), ignore_index=PAD, reduction="none"
        )
        per_caption = log_probs.view(len(rows), k, -1).sum(-1)
        loss = -(gain * per_caption).mean() / self.known.mean_length
        if teacher:
            loss = (1 - teacher) * loss + teacher * self.entropy(logits[:, k:], targets[:, k:])
        return loss, {"reward": rewards.mean()}

    @torch.no_grad()
    def _sample(self, images: Float[Tensor, "b c y x"], count: int) -> Int[Tensor, "b k t"]:
        """Captions by the model's own probabilities: words, END, PAD."""
        with self.precision():
            context = self.model.encode(images)
            decoded = sample(
                self.model,
                context,
                start=START,
                end=END,
                length=self.run.model.max_length - 1,
                count=count,
                forbidden=NEVER,
            )
        place = torch.arange(decoded.tokens.shape[-1], device=images.device)
        return decoded.tokens.masked_fill(place >= decoded.lengths[..., None], PAD)


def _stacked(a: Int[Tensor, "b j s"], b: Int[Tensor, "b k t"]) -> Int[Tensor, "b rows u"]:
    """Captions side by side, the shorter ones filled up."""
    longest = max(a.shape[-1], b.shape[-1])
    return torch.cat([F.pad(rows, (0, longest - rows.shape[-1]), value=PAD) for rows in (a, b)], 1)


class CaptionRows(NamedTuple):
    """What the decoder reads and should say for each picture: captions to read, to guess, and a row for all words."""

    inputs: Int[Tensor, "b rows t"]
    targets: Int[Tensor, "b rows t"]
    read: int
    guessed: int
    mask: Tensor | None


class KnownCaptions(NamedTuple):
    """The training captions as numbers. mean_length: how many of them a caption makes the model say, END included."""

    tokens: Int[Tensor, "images most t"]
    counts: Int[Tensor, " images"]
    mean_length: float

    @classmethod
    def of(cls, data: CaptionSet, tokenizer: CaptionTokenizer, length: int, device: torch.device) -> "KnownCaptions":
        counts = torch.tensor([len(captions) for captions in data.captions])
        rows = tokenizer.batch([caption for captions in data.captions for caption in captions], length)
        tokens = torch.full((len(counts), int(counts.max()), length), PAD)
        tokens[torch.arange(tokens.shape[1]) < counts[:, None]] = rows
        used = int((rows != PAD).sum(1).max())
        mean_length = (rows[:, 1:] != PAD).sum(1).float().mean().item()
        return cls(tokens[..., :used].to(device), counts.to(device), mean_length)


def backwards(tokens: Int[Tensor, "b k t"]) -> Int[Tensor, "b k t"]:
    """START a dog runs END → BACKWARD runs dog a END."""
    words = (tokens != PAD).sum(-1, keepdim=True) - 2
    place = repeat(torch.arange(tokens.shape[-1], device=tokens.device), "t -> b k t", b=len(tokens), k=tokens.shape[1])
    inside = (place >= 1) & (place <= words)
    turned = tokens.gather(-1, torch.where(inside, words + 1 - place, place))
    return torch.where(place == 0, BACKWARD, turned)
