"""Looking at other people's models: do maps of text mean anything, and what does a long text cost?

    python benchmarks/looking.py

A small text classifier learns, in seconds, whether a sentence says more good than bad; "not" turns the next word round.
Words are masked in the order of each method's map, the likeliest class followed; intervals are bootstrapped over
sentences. Then 1,024 tokens of a 12 × 12 model with random weights: seconds until its trace is a file, and the file's
bytes. Prints a report and keeps it in results/looking-DEVICE.json.
"""

import argparse
import time
from dataclasses import replace
from typing import Any

import torch
from faithfulness import areas
from report import Column, Table, keep
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from zoo.stubs import load

from pellucid.looking import text_faithfulness
from pellucid.ready import ReadyForeign
from pellucid.views.bundle import to_bytes

transformers = load("transformers")

GOOD, BAD = ("good", "fine", "lovely", "great", "happy"), ("bad", "poor", "awful", "grim", "sad")
OTHER = (
    "the",
    "a",
    "film",
    "was",
    "and",
    "we",
    "saw",
    "it",
    "with",
    "some",
    "music",
    "in",
    "town",
    "on",
    "that",
    "day",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*SPECIAL, "not", *GOOD, *BAD, *OTHER)
LENGTH, SAYING = 14, 5  # words of a sentence; of which so many say something
METHODS = ("raw", "column mass", "rollout", "gradient", "input gradient", "integrated gradients", "random")
LONG = 1024


def draw(count: int, generator: torch.Generator) -> tuple[list[str], torch.Tensor]:
    """Sentences, and whether each says more good than bad; none says as much of both."""
    sentences, labels = [], []
    while len(sentences) < count:
        words = [OTHER[i] for i in torch.randint(len(OTHER), (LENGTH,), generator=generator).tolist()]
        score = 0
        for place in (torch.randperm(LENGTH - 1, generator=generator)[:SAYING] + 1).tolist():
            kind, which, turned = torch.randint(1 << 16, (3,), generator=generator).tolist()
            words[place] = (BAD, GOOD)[kind % 2][which % len(GOOD)]
            if turned % 3 == 0 and words[place - 1] in OTHER:
                words[place - 1] = "not"
        for before, word in zip(["", *words], words, strict=False):
            value = (word in GOOD) - (word in BAD)
            score += -value if before == "not" else value
        if score:
            sentences.append(" ".join(words))
            labels.append(int(score > 0))
    return sentences, torch.tensor(labels)


def read() -> Any:
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", **names)


def learn(tokenizer: Any, steps: int, seed: int) -> tuple[nn.Module, float]:
    """A classifier, and the seconds that it took. Some words are masked as it learns, so that it knows the mask."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=32, id2label={0: "bad", 1: "good"},
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(seed)
    begun = time.perf_counter()
    for step in range(steps):
        sentences, labels = draw(64, generator)
        ids = tokenizer(sentences, return_tensors="pt")["input_ids"]
        hidden = (torch.rand(ids.shape, generator=generator) < 0.1) & (ids >= len(SPECIAL))
        loss = model(ids.masked_fill(hidden, tokenizer.mask_token_id), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - step / steps)
    return model.eval(), time.perf_counter() - begun


def measure_long() -> Table:
    """Seconds and bytes of a long text's trace."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_positions=LONG)  # GPT-2's own sizes: 12 layers × 12 heads × 64
    model = transformers.GPT2LMHeadModel(config).eval()
    ready = ReadyForeign(model, name="12 × 12")
    arguments = {"input_ids": torch.randint(50257, (1, LONG))}
    rows = []
    for methods in ((), ("rollout",)):
        begun = time.perf_counter()
        size = len(to_bytes(ready.trace(arguments=arguments, methods=methods)))
        rows.append({
            "maps": ", ".join(methods) or "none",
            "seconds": round(time.perf_counter() - begun, 2),
            "MB": round(size / 1e6, 2),
        })  # fmt: skip
    columns = {"maps": Column(), "seconds": Column(digits=2), "MB": Column(digits=1)}
    return Table(f"{LONG:,} tokens of 12 layers × 12 heads, from token ids to the file's bytes", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--training", type=int, default=600, help="steps")
    parser.add_argument("--steps", type=int, default=8, help="points of a curve after the first")
    parser.add_argument("--short", action="store_true", help="leave out the long text")
    options = parser.parse_args()
    tokenizer = read()
    model, seconds = learn(tokenizer, options.training, seed=0)
    sentences, labels = draw(options.sentences, torch.Generator().manual_seed(1_000_003))
    with torch.no_grad():
        right = model(**tokenizer(sentences, return_tensors="pt")).logits.argmax(-1) == labels
    ready = ReadyForeign(model, tokenizer, name="good or bad")
    curves = text_faithfulness([ready.look(text) for text in sentences], METHODS, steps=options.steps)
    title = "areas under deletion (less is better) and insertion (more is better), words replaced by [MASK]"
    table = replace(areas(curves, "mean"), title=title)
    tables = {"text": table} if options.short else {"text": table, "long": measure_long()}
    settings = {
        "sentences": len(sentences), "training": options.training, "seconds of training": round(seconds, 1),
        "right": round(float(right.float().mean()), 4), "steps": options.steps,
        "probability, whole text": round(float(curves.deletion[0, :, 0].mean()), 3),
        "probability, every word masked": round(float(curves.deletion[0, :, -1].mean()), 3),
    }  # fmt: skip
    notes = "Sentences are drawn by rule, those of the table by another seed than those of the training."
    keep("looking", tables, torch.device("cpu"), seeds=[0], settings=settings, notes=notes, libraries=["transformers"])


if __name__ == "__main__":
    main()
