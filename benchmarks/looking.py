"""Looking at other people's models: do maps of text mean anything, and what does a long text cost?

    python benchmarks/looking.py

A small text classifier learns in half a minute what colour the cat has, of three animals with a colour each. Then the
shipped translator: one word of each translation, drawn at random, from the sentence and the words said before it. Words
are masked in the order of each method's map, the likeliest answer followed; intervals are bootstrapped over sentences.
Last, 1,024 tokens of a 12 × 12 model with random weights: seconds until its trace is a file, and the file's bytes.
Prints a report and keeps it in results/looking-DEVICE.json.
"""

import argparse
import time
from dataclasses import replace
from typing import Any

import torch
from faithfulness import areas
from report import Column, Table, keep
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from zoo.stubs import load

import pellucid
from pellucid.data.tokenizer import START, UNKNOWN
from pellucid.explain.faithfulness import bootstrap_mean
from pellucid.looking import Question, Reader, explain, text_faithfulness
from pellucid.looking.passage import Passage
from pellucid.ready import ReadyForeign, ReadyTranslator
from pellucid.views.bundle import to_bytes

COLOURS, ANIMALS = ("red", "blue", "green", "white"), ("cat", "dog", "horse", "bird")
OTHER = (
    "the", "a", "film", "and", "we", "saw", "it", "with", "some", "in", "town", "on", "that", "day", "near", "by"
)  # fmt: skip
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*SPECIAL, *COLOURS, *ANIMALS, *OTHER)
PAIRS, LENGTH = 3, 14  # of a colour and an animal; words of a sentence
METHODS = ("raw", "column mass", "rollout", "gradient", "input gradient", "integrated gradients", "random")
WHO = ("A man", "A woman", "A boy", "A girl", "A young man", "An old woman", "A little girl")
WEARING = ("", " in a blue shirt", " in a red dress", " with a black hat", " wearing a white jacket")
DOING = ("rides a horse", "plays the guitar", "throws a ball", "eats an apple", "reads a book", "drives a car")
WHERE = ("", " on the beach", " in the park", " on the street", " in front of a house", " near a tree")
LONG = 1024


def draw(count: int, generator: torch.Generator) -> tuple[list[str], Tensor]:
    """Sentences in which three animals have a colour each, and the colour of the cat."""
    sentences, labels = [], []
    for _ in range(count):
        words = [OTHER[i] for i in torch.randint(len(OTHER), (LENGTH,), generator=generator).tolist()]
        places = (2 * torch.randperm(LENGTH // 2, generator=generator)[:PAIRS]).tolist()
        animals = [0, *(1 + torch.randperm(len(ANIMALS) - 1, generator=generator)[: PAIRS - 1]).tolist()]
        colours = torch.randperm(len(COLOURS), generator=generator)[:PAIRS].tolist()
        for place, animal, colour in zip(places, animals, colours, strict=True):
            words[place : place + 2] = COLOURS[colour], ANIMALS[animal]
        sentences.append(" ".join(words))
        labels.append(colours[0])
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
    return load("transformers").PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", **names)


def learn(tokenizer: Any, steps: int, seed: int) -> tuple[nn.Module, float]:
    """A classifier, and the seconds of processor that it took. Words are masked as it learns: it knows the mask."""
    transformers, rate = load("transformers"), 3e-3
    torch.manual_seed(seed)
    config = transformers.ModernBertConfig(
        vocab_size=len(WORDS), hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=32, pad_token_id=0, bos_token_id=2, cls_token_id=2, eos_token_id=3, sep_token_id=3,
        global_attn_every_n_layers=1, initializer_range=0.1, id2label=dict(enumerate(COLOURS)),
    )  # fmt: skip
    model = transformers.ModernBertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    begun = time.process_time()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / 50, 1, 2 * (1 - step / steps))
        sentences, labels = draw(128, generator)
        ids = tokenizer(sentences, return_tensors="pt")["input_ids"]
        hidden = (torch.rand(ids.shape, generator=generator) < 0.1) & (ids >= len(SPECIAL))
        loss = model(ids.masked_fill(hidden, tokenizer.mask_token_id), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), time.process_time() - begun


def measure_classifier(sentences: list[str], labels: Tensor, passages: list[Passage], steps: int) -> tuple[Table, Any]:
    """Deletion and insertion, and how often the largest value lies on the word that is the answer."""
    curves = text_faithfulness(passages, METHODS, steps=steps)
    title = "areas under deletion (less is better) and insertion (more is better), words replaced by [MASK]"
    table = replace(areas(curves, "mean"), title=title)
    for row in table.rows:
        hits = []
        for number, (text, label, passage) in enumerate(zip(sentences, labels.tolist(), passages, strict=True)):
            values = explain(passage, row["method"], passage.answered.targets[0], seed=number)[0].values
            hits.append(float(1 + int(values[1:-1].argmax()) == 1 + text.split().index(COLOURS[label])))
        row["on the colour"] = bootstrap_mean(torch.tensor(hits))
    return replace(table, columns=table.columns | {"on the colour": Column("share", 1)}), curves


class Saying(nn.Module):
    """A translator as other libraries call theirs."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> dict[str, Tensor]:
        return {"logits": self.model(input_ids, decoder_input_ids)}


def say(count: int, generator: torch.Generator) -> list[str]:
    """Sentences like those that the translator was trained on."""

    def pick(parts: tuple[str, ...]) -> str:
        return parts[int(torch.randint(len(parts), (), generator=generator))]

    return [f"{pick(WHO)}{pick(WEARING)} {pick(DOING)}{pick(WHERE)}." for _ in range(count)]


def translate(name: str, count: int, seed: int) -> list[Passage]:
    """A word of each translation as it was about to be said."""
    ready: ReadyTranslator = pellucid.load(name)
    generator = torch.Generator().manual_seed(seed)
    model, passages = Saying(ready.model).eval(), []
    model.config = type("Config", (), {"vocab_size": ready.model.config.vocabulary})()  # pyright: ignore
    reader = Reader(decode=lambda ids: [ready.tokenizer.label(i) for i in ids])
    for (best,) in ready.translate(say(count, generator), beam=1):
        source, said = torch.tensor([ready.tokenizer.source(best.source, None)]), best.tokens.tolist()
        place = int(torch.randint(len(said) - 1, (), generator=generator))
        asked = {"input_ids": source, "decoder_input_ids": torch.tensor([[START, *said[:place]]])}
        fed = reader.read(Question(arguments=asked), model)
        texts = (replace(fed.texts[0], special=((source.shape[1] - 1,),)), fed.texts[1])  # its end stays
        passages.append(Passage.watch(model, replace(fed, texts=texts), reader))
    return passages


def measure_long() -> Table:
    """Seconds and bytes of a long text's trace."""
    torch.manual_seed(0)
    transformers = load("transformers")
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
    parser.add_argument("--training", type=int, default=800, help="steps")
    parser.add_argument("--steps", type=int, default=8, help="points of a curve after the first")
    parser.add_argument("--translator", default="translator-en-de")
    parser.add_argument("--short", action="store_true", help="leave out the long text")
    options = parser.parse_args()
    tokenizer = read()
    model, seconds = learn(tokenizer, options.training, seed=0)
    sentences, labels = draw(options.sentences, torch.Generator().manual_seed(1_000_003))
    ready = ReadyForeign(model, tokenizer, name="what colour the cat has")
    passages = [ready.look(text) for text in sentences]
    right = [each.answered.targets[0].label == COLOURS[label] for each, label in zip(passages, labels, strict=True)]
    table, curves = measure_classifier(sentences, labels, passages, options.steps)
    words = text_faithfulness(
        translate(options.translator, options.sentences, seed=0), METHODS, steps=options.steps, fill=UNKNOWN
    )
    title = "areas for a word of a translation, words of the sentence replaced by <unknown>"
    tables = {"text": table, "translation": replace(areas(words, "mean"), title=title)}
    if not options.short:
        tables["long"] = measure_long()
    settings = {
        "sentences": len(sentences), "training": options.training,
        "seconds of processor in training": round(seconds, 1),
        "right": round(sum(right) / len(right), 4), "steps": options.steps, "translator": options.translator,
    }  # fmt: skip
    for name, measured in (("colour", curves), ("word", words)):
        settings[f"probability of the {name}, whole text"] = round(float(measured.deletion[0, :, 0].mean()), 3)
        settings[f"probability of the {name}, every word masked"] = round(float(measured.deletion[0, :, -1].mean()), 3)
    notes = "Sentences are drawn by rule, those of the tables by another seed than those of the training."
    keep("looking", tables, torch.device("cpu"), seeds=[0], settings=settings, notes=notes, libraries=["transformers"])


if __name__ == "__main__":
    main()
