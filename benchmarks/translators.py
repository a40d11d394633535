"""Training and decoding of translators beside nn.Transformer and Hugging Face's Marian of the same shape, in one run.

    python benchmarks/translators.py --device cpu --threads 2 --data multi30k
    python benchmarks/translators.py --device cuda --data multi30k

Encoder and decoder of 4 blocks × 256, post-norm, 8,000 pieces; batches of a few shapes as Multi30k's, random tokens;
AdamW, label smoothing, dropout 0.1. Rounds are interleaved, the median counts. On CUDA in bf16: ours as recipes run it,
the step as a graph; theirs eager and compiled, the better counts. And with --data, Multi30k's folder, real sentences:
the shipped model translates a test set here and as Hugging Face's Pegasus, which is the same with other names; batches
are sorted by length for both, each has its best size, and neither's texts are counted. Keeps
results/translators-DEVICE.json.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from report import Column, Table, keep
from torch import Tensor, nn
from zoo.stubs import load

import pellucid
from pellucid.data.parallel import ParallelData, load_pairs
from pellucid.data.tokenizer import END, NEVER, PAD, START
from pellucid.decode import beam_search
from pellucid.decode.translations import SLACK
from pellucid.decode.translations import _padded as padded
from pellucid.evaluation.translation import bleu
from pellucid.hub.translators import from_marian, marian_names
from pellucid.models import Transformer, TransformerConfig
from pellucid.ops import masks
from pellucid.ops.positions import sinusoidal
from pellucid.runs import Optim, Run
from pellucid.training import Engine

SHAPE: dict[str, Any] = {
    "vocabulary": 8000,
    "width": 256,
    "heads": 4,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "hidden": 1024,
}
LENGTHS = (12, 16, 20, 24, 32)
SIDES = ("encoder", "decoder")
BATCHES = {"cpu": (32, 64, 128, 256), "cuda": (125, 250, 500, 1000)}  # of real sentences
Batch = tuple[Tensor, Tensor]


class Batches:
    """A task of random sentences in batches of so many tokens."""

    unit, score = "tokens", "none"

    def __init__(self, tokens: int, device: torch.device, model: nn.Module):
        generator = torch.Generator().manual_seed(0)
        self.all = []
        for length in LENGTHS:
            rows = tokens // length
            sides = [torch.randint(6, 8000, (rows, length + more), generator=generator) for more in (0, 1)]
            ends = torch.randint(length * 3 // 4, length + 1, (rows,), generator=generator)
            sides = [side.masked_fill(torch.arange(side.shape[1]) > ends[:, None], PAD) for side in sides]
            self.all.append((sides[0].to(device), sides[1].to(device)))
        self.model = model.to(device)
        self.batch = int(sum((target[:, 1:] != PAD).sum() for _, target in self.all)) // len(self.all)
        self.epoch_size = self.batch * len(self.all)
        self.half = device.type == "cuda"

    def batches(self, start: int, end: int) -> Any:
        for step in range(start, end):
            yield [self.all[step % len(self.all)]]

    def loss(self, model: nn.Module, source: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast(source.device.type, torch.bfloat16, enabled=self.half):
            logits = model(source, target[:, :-1], (source != PAD)[:, None, None])
        return entropy(logits, target), {}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}


def entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1)


class Theirs(nn.Module):
    """nn.Transformer between the usual embeddings, positions and tied logits."""

    def __init__(self) -> None:
        super().__init__()
        width = SHAPE["width"]
        self.words = nn.Embedding(SHAPE["vocabulary"], width)
        self.places: Tensor
        self.register_buffer("places", sinusoidal(512, width))
        self.stacks = nn.Transformer(
            width, SHAPE["heads"], SHAPE["encoder_layers"], SHAPE["decoder_layers"], SHAPE["hidden"], 0.1,
            batch_first=True,
        )  # fmt: skip
        self.dropout = nn.Dropout(0.1)

    def forward(self, source: Tensor, target: Tensor, exists: Tensor) -> Tensor:
        x, y = (self.dropout(self.words(t) * 16 + self.places[: t.shape[1]]) for t in (source, target))
        hidden = ~exists[:, 0, 0]
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        how = {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden, "tgt_is_causal": True}
        return F.linear(self.stacks(x, y, tgt_mask=causal, **how), self.words.weight)


class Marian(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, target: Tensor, exists: Tensor) -> Tensor:
        attends = exists[:, 0, 0].long()
        return self.model(input_ids=source, attention_mask=attends, decoder_input_ids=target, use_cache=False).logits


def make_marian() -> Any:
    transformers = load("transformers")
    config = transformers.MarianConfig(
        vocab_size=SHAPE["vocabulary"], d_model=SHAPE["width"], encoder_layers=SHAPE["encoder_layers"], bos_token_id=1,
        decoder_layers=SHAPE["decoder_layers"], encoder_attention_heads=SHAPE["heads"], forced_eos_token_id=None,
        decoder_attention_heads=SHAPE["heads"], encoder_ffn_dim=SHAPE["hidden"], decoder_ffn_dim=SHAPE["hidden"],
        activation_function="relu", scale_embedding=True, pad_token_id=PAD, eos_token_id=END, dropout=0.1,
        attention_dropout=0.1, activation_dropout=0.1, decoder_start_token_id=START,
    )  # fmt: skip
    return transformers.MarianMTModel(config)


def ours(tokens: int, device: torch.device) -> tuple[Callable[[int], Any], int]:
    run = Run(optim=Optim(betas=(0.9, 0.98), schedule="constant"), graphs=True, evaluate_every="0 steps")
    task = Batches(tokens, device, Transformer(TransformerConfig(**SHAPE)))
    engine = Engine(task, run, device)
    return lambda step: engine._step(step, 10_000, next(task.batches(step, step + 1))), task.batch


def plain(tokens: int, device: torch.device, model: nn.Module, compiled: bool) -> Callable[[int], None]:
    """The usual loop around a module, eager or compiled."""
    task = Batches(tokens, device, model)
    optimizer = torch.optim.AdamW(task.model.parameters(), 1e-3, betas=(0.9, 0.98), fused=True)
    loss = torch.compile(task.loss) if compiled else task.loss
    task.model.train()

    def step(number: int) -> None:
        loss(task.model, *next(task.batches(number, number + 1))[0])[0].backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def rates(steps: dict[str, Callable[[int], None]], words: int, rounds: int, device: torch.device) -> dict[str, float]:
    """Tokens a second, the median of interleaved rounds over all shapes."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            begun = time.perf_counter()
            for number in range(len(LENGTHS)):
                step(number)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:
                seconds[name].append(time.perf_counter() - begun)
    return {name: words * len(LENGTHS) / statistics.median(each) for name, each in seconds.items()}


@torch.no_grad()
def decoding(sentences: int, rounds: int, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Sentences a second with five beams, 24 pieces each, by the same weights of this type."""
    theirs = make_marian().eval()
    model = from_marian(theirs.config, theirs.state_dict()).to(device, dtype)
    theirs = theirs.to(device, dtype)
    source = torch.randint(6, 8000, (sentences, 16), device=device)
    lengths = torch.randint(10, 17, (sentences,))
    exists = masks.padding(lengths, 16).to(device)
    attends, length = exists[:, 0, 0].long(), 24

    def beams() -> Any:
        how = {"start": START, "end": END, "length": length, "beams": 5, "context_mask": exists}
        return beam_search(model, model.encode(source, exists), forbidden=(END,), **how).tokens

    def generate() -> Any:
        return theirs.generate(
            source, attention_mask=attends, num_beams=5, do_sample=False, max_new_tokens=length, min_new_tokens=length
        )

    seconds: dict[str, list[float]] = {"pellucid": [], "Marian": []}
    for turn in range(rounds + 1):
        for name, run in (("pellucid", beams), ("Marian", generate)):
            begun = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:
                seconds[name].append(time.perf_counter() - begun)
    return {name: sentences / statistics.median(each) for name, each in seconds.items()}


def make_pegasus(model: Transformer) -> Any:
    """The same weights in Hugging Face's pre-norm encoder–decoder, whose positions are a table."""
    transformers = load("transformers")
    c = model.config
    config = transformers.PegasusConfig(
        vocab_size=c.vocabulary, d_model=c.width, encoder_layers=c.encoder_layers, decoder_layers=c.decoder_layers,
        encoder_attention_heads=c.heads, decoder_attention_heads=c.heads, encoder_ffn_dim=c.hidden,
        decoder_ffn_dim=c.hidden, activation_function=c.activation, scale_embedding=True, pad_token_id=PAD,
        eos_token_id=END, forced_eos_token_id=None, decoder_start_token_id=START, max_position_embeddings=c.max_length,
    )  # fmt: skip
    theirs = transformers.PegasusForConditionalGeneration(config)
    own = dict(model.named_parameters())
    finals = {f"{side}.norm.{kind}": f"model.{side}.layer_norm.{kind}" for side in SIDES for kind in ("weight", "bias")}
    weights = {name: own[mine] for mine, name in finals.items()}
    weights |= {
        name: own[mine] for mine, name, _ in marian_names({name: own[name] for name in own if name not in finals})
    }
    places = sinusoidal(c.max_length, c.width)
    weights |= {f"model.{side}.embed_positions.weight": places for side in SIDES}
    lost = theirs.load_state_dict(weights, strict=False)
    assert not lost.unexpected_keys
    theirs.tie_weights()
    return theirs.eval()


@torch.no_grad()
def translating(data: str, rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """Test sentences a second by the shipped model, five beams, for each library and size of a batch."""
    ready = pellucid.load("translator-en-de")
    model, tokenizer, penalty = ready.model.float(), ready.tokenizer, 1.4
    theirs = make_pegasus(model).to(device)
    model = model.to(device)
    pairs = load_pairs(ParallelData(name=data, source="en", target="de"), "test_2016_flickr")
    sources = [tokenizer.source(sentence, None) for sentence in pairs.sources]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))

    def ours(source: Tensor, exists: Tensor, length: int) -> Tensor:
        how: dict[str, Any] = {"start": START, "end": END, "forbidden": NEVER, "length": length, "beams": 5}
        context = model.encode(source, exists)
        return beam_search(model, context, length_penalty=penalty, context_mask=exists, **how).tokens[:, 0]

    def generate(source: Tensor, exists: Tensor, length: int) -> Tensor:
        how: dict[str, Any] = {"num_beams": 5, "do_sample": False, "length_penalty": penalty, "early_stopping": True}
        return theirs.generate(source, attention_mask=exists[:, 0, 0].long(), max_new_tokens=length, **how)[:, 1:]

    def translate(way: Callable[..., Tensor], batch: int) -> list[Tensor]:
        said = []
        for first in range(0, len(order), batch):
            source, exists = padded([sources[i] for i in order[first : first + batch]], model)
            said += list(way(source, exists, 2 * source.shape[1] + SLACK).cpu())
        return said

    rows = []
    for batch in BATCHES[device.type]:
        seconds: dict[str, list[float]] = {"pellucid": [], "Pegasus": []}
        scores = {}
        for turn in range(rounds + 1):
            for name, way in (("pellucid", ours), ("Pegasus", generate)):
                begun = time.perf_counter()
                said = translate(way, batch)
                if turn:
                    seconds[name].append(time.perf_counter() - begun)
                texts = dict(zip(order, map(tokenizer.decode, said), strict=True))
                scores[name] = bleu([texts[i] for i in range(len(order))], pairs.targets)
        for name, taken in seconds.items():
            rate = len(order) / statistics.median(taken)
            rows.append({"model": name, "batch": batch, "per_second": rate, "bleu": scores[name]})
            print(rows[-1], flush=True)
    return rows


def best_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The rate of each library at its best size of a batch."""
    return {name: max(row["per_second"] for row in rows if row["model"] == name) for name in ("pellucid", "Pegasus")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, help="of a batch; 8,192 on CUDA, 1,024 elsewhere")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, help="decoded together; 250 on CUDA, 32 elsewhere")
    parser.add_argument("--data", help="Multi30k's folder; without it no real sentences")
    parser.add_argument("--no-compile", action="store_true", help="leave their compiled ones out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    tokens, sentences = options.tokens or (8192 if on_gpu else 1024), options.sentences or (250 if on_gpu else 32)
    step, words = ours(tokens, device)
    steps = {"pellucid": step, "nn.Transformer": plain(tokens, device, Theirs(), False)}
    steps["Marian"] = plain(tokens, device, Marian(make_marian()), False)
    if on_gpu and not options.no_compile:
        steps["nn.Transformer, compiled"] = plain(tokens, device, Theirs(), True)
        steps["Marian, compiled"] = plain(tokens, device, Marian(make_marian()), True)
    trained = rates(steps, words, options.rounds, device)
    decoded = {
        f"beam 5, sentences, {name}": decoding(sentences, max(1, options.rounds // 2), device, dtype)
        for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16))[: 2 if on_gpu else 1]
    }
    translated = translating(options.data, max(1, options.rounds // 2), device) if options.data else []
    measured = {"training, tokens": trained} | decoded
    measured |= {"beam 5, the shipped model's test sentences": best_of(translated)} if translated else {}
    rows = [
        {"work": work, "model": name, "per_second": rate, "ratio": figures["pellucid"] / rate}
        for work, figures in measured.items()
        for name, rate in figures.items()
    ]
    columns = {"work": Column(), "model": Column(), "per_second": Column(), "ratio": Column(digits=2)}
    title = "translators of 4 + 4 × 256, and how many times as fast pellucid is"
    settings = {"tokens": tokens, "sentences": sentences, "precision of training": "bf16" if on_gpu else "float32"}
    tables = {"translators": Table(title, columns, rows)}
    if translated:
        columns = {"model": Column(), "batch": Column(), "per_second": Column(digits=1), "bleu": Column(digits=2)}
        tables["sentences"] = Table("1,000 test sentences by the shipped model's weights", columns, translated)
    keep("translators", tables, device, settings=settings, libraries=("transformers",))


if __name__ == "__main__":
    main()
