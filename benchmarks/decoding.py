"""make bench, decoding part: captions/s of the same captioner here and in Hugging Face, in one run.

The same weights: a vision transformer and a pre-norm decoder with sinusoidal positions (theirs is Pegasus'), in a
VisionEncoderDecoderModel; of the sizes of the shipped captioners, and of others. The end is never said, so both say all
tokens; that they say the same ones is checked. Prints a report and keeps it in results/decoding-DEVICE.json.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from meter import peak_megabytes, seconds
from report import Column, Table, keep
from torch import Tensor, nn
from zoo.stubs import stub_torchvision

from pellucid.decode import beam_search, greedy
from pellucid.decode.beam import _Beam
from pellucid.decode.rows import _Greedy
from pellucid.decode.search import _captured
from pellucid.models import Captioner, CaptionerConfig, ViTConfig
from pellucid.ops.positions import sinusoidal
from pellucid.ready import load_captioner

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
START, END = 1, 2
HOW: dict[str, Any] = {"start": START, "end": END, "forbidden": (END,)}


class Sizes(NamedTuple):
    """What decides how much work a captioner is: its encoder's, then its decoder's."""

    name: str
    image: int
    patch: int
    width: int
    depth: int
    heads: int
    hidden: int
    layers: int
    decoder_heads: int
    vocabulary: int


def shipped(name: str) -> Sizes:
    c = load_captioner(name).model.config
    e = c.encoder
    hidden = e.hidden or 4 * e.width
    return Sizes(
        name, e.image[0], e.patch[0], e.width, e.depth, e.heads, hidden, c.layers, c.heads, c.vocabulary
    )  # fmt: skip


def plain(image: int, depth: int = 6) -> Sizes:
    return Sizes(f"256 × {depth} + 3", image, 16, 256, depth, 8, 1024, 3, 8, 4000)


def ours(sizes: Sizes, length: int) -> Captioner:
    """One register: theirs has a class token, which their decoder reads too."""
    s = sizes
    encoder = ViTConfig(
        image=(s.image, s.image), patch=(s.patch, s.patch), width=s.width, depth=s.depth, heads=s.heads,
        hidden=s.hidden, registers=1, pooling="none",
    )  # fmt: skip
    config = CaptionerConfig(
        vocabulary=s.vocabulary, encoder=encoder, layers=s.layers, heads=s.decoder_heads, max_length=length + 1
    )
    return Captioner(config).to(DEVICE).eval()


def theirs(model: Captioner) -> nn.Module:
    """The same weights in Hugging Face's modules."""
    warnings.simplefilter("ignore")
    stub_torchvision()
    from transformers import PegasusConfig, PegasusForCausalLM, VisionEncoderDecoderModel, ViTModel
    from transformers import ViTConfig as TheirConfig

    c, e = model.config, model.config.encoder
    encoder = TheirConfig(
        image_size=e.image[0], patch_size=e.patch[0], hidden_size=e.width, num_hidden_layers=e.depth,
        num_attention_heads=e.heads, intermediate_size=e.hidden or 4 * e.width, hidden_dropout_prob=0.0,
        layer_norm_eps=e.norm_eps,
    )  # fmt: skip
    decoder_config: Any = PegasusConfig  # it takes what every config takes
    decoder = decoder_config(
        vocab_size=c.vocabulary, d_model=e.width, decoder_layers=c.layers, decoder_attention_heads=c.heads,
        decoder_ffn_dim=4 * e.width, max_position_embeddings=c.max_length, scale_embedding=True, dropout=0.0,
        is_decoder=True, is_encoder_decoder=False, add_cross_attention=True, pad_token_id=0, eos_token_id=None,
        forced_eos_token_id=None, decoder_start_token_id=START,
    )  # fmt: skip
    other: Any = VisionEncoderDecoderModel(
        encoder=ViTModel(encoder, add_pooling_layer=False), decoder=PegasusForCausalLM(decoder)
    )
    _copy(model, other)
    return other.to(DEVICE).eval()


@torch.no_grad()
def _copy(model: Captioner, other: Any) -> None:
    width = model.config.encoder.width
    vit, looks, says, reads = model.encoder, other.encoder, model.decoder, other.decoder.model.decoder
    assert vit.grid is not None and vit.register_tokens is not None and isinstance(vit.embed.project, nn.Linear)  # noqa: PT018
    looks.embeddings.cls_token.copy_(vit.register_tokens.tokens[None])
    looks.embeddings.position_embeddings.copy_(nn.functional.pad(vit.grid.table.flatten(0, 1), (0, 0, 1, 0))[None])
    patches = looks.embeddings.patch_embeddings.projection
    patches.weight.copy_(vit.embed.project.weight.view_as(patches.weight))
    patches.bias.copy_(vit.embed.project.bias)
    looks.layernorm.load_state_dict(vit.norm.state_dict())
    attention = {"q": "q_proj", "k": "k_proj", "v": "v_proj"}
    encoder = {f"attention.{a}": f"attention.{b}" for a, b in attention.items()} | {
        "attention.out": "attention.o_proj", "attention_norm": "layernorm_before",
        "feed_forward_norm": "layernorm_after", "feed_forward.inner": "mlp.fc1", "feed_forward.outer": "mlp.fc2",
    }  # fmt: skip
    decoder = {f"attention.{a}": f"self_attn.{b}" for a, b in attention.items()}
    decoder |= {f"cross_attention.{a}": f"encoder_attn.{b}" for a, b in attention.items()} | {
        "attention.out": "self_attn.out_proj", "attention_norm": "self_attn_layer_norm",
        "cross_attention.out": "encoder_attn.out_proj", "cross_attention_norm": "encoder_attn_layer_norm",
        "feed_forward_norm": "final_layer_norm", "feed_forward.inner": "fc1", "feed_forward.outer": "fc2",
    }  # fmt: skip
    stacks = ((vit.blocks, looks.layers, encoder), (says.blocks, reads.layers, decoder))
    for our_blocks, their_blocks, names in stacks:
        for mine, yours in zip(our_blocks, their_blocks, strict=True):
            for a, b in names.items():
                yours.get_submodule(b).load_state_dict(mine.get_submodule(a).state_dict())
    reads.layer_norm.load_state_dict(says.norm.state_dict())
    reads.embed_tokens.weight.copy_(says.embedding.table.weight)
    other.decoder.get_output_embeddings().weight.copy_(says.embedding.table.weight)
    reads.embed_positions.weight.copy_(sinusoidal(model.config.max_length, width))


def per_token(model: Captioner, context: Tensor, beams: int, length: int, rounds: int) -> list[float]:
    """Seconds of each step, the first to the last, best of the rounds."""
    options: dict[str, Any] = {"start": START, "end": END, "length": length, "forbidden": (END,)}
    kind = _Greedy if beams == 1 else _Beam
    options |= {} if beams == 1 else {"beams": beams, "keep": 1, "penalty": 1.0}
    step: Callable[[int], Any]
    if DEVICE.type == "cuda":
        captured = _captured(kind, model, (context,), options)
        step = lambda i: captured.next.replay() if i else captured.first.replay()  # noqa: E731
    else:
        search = kind(model, context, **options)
        step = lambda i: (None if i else search.begin(), search.advance(model))  # noqa: E731
    turns: list[list[float]] = []
    for _ in range(rounds):
        times = []
        for i in range(length):
            _wait()
            begun = time.perf_counter()
            step(i)
            _wait()
            times.append(time.perf_counter() - begun)
        turns.append(times)
    return [min(times) for times in zip(*turns, strict=True)]


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def rates(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of each, the best of rounds in which all take turns: what others do on a machine only adds."""
    turns: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            turns[name].append(seconds(way))
    return {name: min(times) for name, times in turns.items()}


def compare(sizes: Sizes, batch: int, beams: int, length: int, rounds: int) -> dict[str, Any]:
    """One row of the table: captions from pixels, and from a context that is there."""
    torch.manual_seed(0)
    model = ours(sizes, length)
    other: Any = theirs(model)
    images = torch.randn(batch, 3, sizes.image, sizes.image, device=DEVICE)
    context = model.encode(images)

    def here(context: Tensor) -> Tensor:
        if beams == 1:
            return greedy(model, context, length=length, **HOW).tokens[:, 0]
        return beam_search(model, context, length=length, beams=beams, **HOW).tokens[:, 0]

    agree = (here(context) == generated(other, context, beams, length)).all(1).float().mean().item()
    ways = {
        "pixels": lambda: here(model.encode(images)),
        "their pixels": lambda: generated(other, other.encoder(images).last_hidden_state, beams, length),
        "decoding": lambda: here(context),
        "their decoding": lambda: generated(other, context, beams, length),
    }
    times = rates(ways, rounds)
    a, b, c, d = (batch / times[name] for name in ways)
    row = {"sizes": sizes.name, "context": context.shape[1], "batch": batch, "beams": beams}
    row |= {"pellucid": a, "Hugging Face": b, "ratio": a / b, "decoding alone": c / d, "same captions": agree}
    print(row, flush=True)
    return row


def generated(other: Any, context: Tensor, beams: int, length: int) -> Tensor:
    """Hugging Face's tokens for a context, without the start token."""
    from transformers.modeling_outputs import BaseModelOutput

    read = BaseModelOutput(last_hidden_state=context)  # pyright: ignore[reportArgumentType]
    options = {"num_beams": beams, "max_new_tokens": length, "do_sample": False, "pad_token_id": 0}
    options |= {"bad_words_ids": [[END]], "decoder_start_token_id": START}
    return other.generate(encoder_outputs=read, **options)[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5 if DEVICE.type == "cuda" else 8)
    options = parser.parse_args()
    with torch.no_grad():
        compared = [(shipped(name), 32, 5) for name in ("captioner-scenes", "captioner-flickr8k")]
        compared += [(plain(128), 32, 5), (plain(224), 32, 5), (plain(128), 32, 1), (plain(128), 1, 5)]
        rows = [compare(sizes, batch, beams, options.length, options.rounds) for sizes, batch, beams in compared]
        model = ours(plain(128, depth=1), length=64)
        context = model.encode(torch.randn(32, 3, 128, 128, device=DEVICE))
        steps = []
        for beams in (1, 5):
            times = per_token(model, context, beams, 64, options.rounds)
            steps.append({"beams": beams} | {f"token {i}": 1000 * times[i - 1] for i in (1, 2, 16, 64)})
            print(steps[-1], flush=True)
        used = memory(model, theirs(model))
    rate, ratio = Column("captions/s", 1), Column("×", 2)
    columns = {"sizes": Column(), "context": Column(), "batch": Column(), "beams": Column(), "pellucid": rate}
    columns |= {"Hugging Face": rate, "ratio": ratio, "decoding alone": ratio, "same captions": Column("share")}
    about = "captions a second from pixels, beside Hugging Face's generate with the same weights"
    per_step = {name: Column() if name == "beams" else Column("ms", 2) for name in steps[0]}
    tables = {
        "captions": Table(about, columns, rows),
        "tokens": Table("one more token of 32 captions", per_step, steps),
        "memory": used,
    }
    notes = (
        "The sizes of the shipped captioners (with linear patches), and width 256 with 6 + 3 blocks, patches of 16 and "
        "4,000 tokens to choose from."
    )
    settings = {"tokens said": options.length, "precision": "float32"}
    keep("decoding", tables, DEVICE, seeds=[0], settings=settings, notes=notes, libraries=["transformers"])


def memory(model: Captioner, other: Any) -> Table:
    """Peak growth while captions of eight tokens are made of a long context: what is kept of it, and how often."""
    context = torch.randn(32, 577, 256, device=DEVICE)
    ways = {
        "pellucid": (
            lambda: greedy(model, context, length=8, **HOW),
            lambda: beam_search(model, context, length=8, beams=5, **HOW),
        ),
        "Hugging Face": (lambda: generated(other, context, 1, 8), lambda: generated(other, context, 5, 8)),
    }
    rows = []
    for name, (one, five) in ways.items():
        (_, a), (_, b) = peak_megabytes(one, DEVICE.type), peak_megabytes(five, DEVICE.type)
        rows.append({"library": name, "greedy": a, "beam 5": b, "ratio": b / a})
    columns = {"library": Column(), "greedy": Column("MB"), "beam 5": Column("MB"), "ratio": Column("×", 2)}
    return Table("peak memory beside the context, 32 contexts of 577 tokens, 8 tokens said", columns, rows)


if __name__ == "__main__":
    main()
