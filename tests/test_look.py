"""Two lines for any model: what the trace holds is what the model computed, and why, is what a reference says."""

import importlib
import itertools
import math
from functools import cache
from typing import Any

import pytest
import torch
from strangers import RATE, SMALL, STRANGERS, TEXT, Stranger, image_processor, picture, sound, stranger, tokenizer
from torch import nn
from torch.testing import assert_close

import pellucid
from pellucid.looking import ALL_METHODS, Reader, text_faithfulness
from pellucid.looking.answers import Target
from pellucid.looking.faithful import _values
from pellucid.ops import weights
from pellucid.ready import ReadyForeign
from pellucid.views.bundle import from_bytes, load_trace, to_bytes
from pellucid.views.look import ModelLook

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("timm", "transformers"),
]
STREAMS = {
    "vit": ["image"],
    "timm_vit": ["image"],
    "dinov2": ["image"],
    "clip": ["image", "text"],
    "blip": ["image", "text"],
    "bert": ["text"],
    "gpt2": ["text"],
    "llama": ["text"],
    "t5": ["source", "target"],
    "whisper": ["frames", "target"],
}


@cache
def looked(name: str) -> ModelLook:
    model, reader, asked = stranger(name)
    return pellucid.look(model, reader, **asked)


class Eager:
    """The maps that a model writes out itself when it is told to, by the names of its modules, in its precision."""

    def __init__(self, look: ModelLook, double: bool = False):
        assert look.passage is not None
        self.model, self.fed = look.passage.model, look.passage.fed
        self.maps: dict[str, torch.Tensor] = {}
        self.names = {layer.name for layer in look.trace.layers}

    def keep(self, name: str, given: Any) -> None:
        parts = given if isinstance(given, tuple) else (given,)
        found = [x for x in parts if isinstance(x, torch.Tensor) and x.ndim == 4]
        found = [
            x for x in found if torch.allclose(x.sum(-1), torch.ones((), dtype=x.dtype), atol=1e-5) and x.min() >= 0
        ]
        if found:
            self.maps[name] = found[-1]
            if found[-1].requires_grad:
                found[-1].retain_grad()

    def __enter__(self) -> "Eager":
        self.before = getattr(getattr(self.model, "config", None), "_attn_implementation", None)
        if self.before is not None:
            self.model.set_attn_implementation("eager")
        self.hooks = []
        for name, module in self.model.named_modules():
            if name in self.names:
                self.hooks.append(module.register_forward_hook(lambda m, a, out, name=name: self.keep(name, out)))
            if name.removesuffix(".attn_drop") in self.names and name.endswith(".attn_drop"):  # timm's
                self.model.get_submodule(name.removesuffix(".attn_drop")).fused_attn = False
                at = name.removesuffix(".attn_drop")
                self.hooks.append(module.register_forward_hook(lambda m, a, out, at=at: self.keep(at, out)))
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self.hooks:
            hook.remove()
        if self.before is not None:
            self.model.set_attn_implementation(self.before)


@pytest.mark.parametrize("name", STRANGERS)
def test_what_is_saved_are_the_models_own_weights(name, tmp_path):
    """Of every head of every attention, within what half precision does to q and k."""
    look = looked(name)
    look.save(tmp_path / "a.pellucid")
    saved = load_trace(tmp_path / "a.pellucid")
    with torch.no_grad(), Eager(look) as eager:
        eager.fed.call(eager.model)
    assert [stream.name for stream in saved.streams] == STREAMS[name]
    assert saved.layers
    assert not saved.missed
    assert set(eager.maps) == {layer.name for layer in saved.layers}
    for layer in saved.layers:
        theirs = eager.maps[layer.name]
        theirs = theirs[look.passage.answered.row if len(theirs) > 1 else 0]
        mine = weights(layer.q[None], layer.k[None], **layer.how)[0]
        longest = layer.q.norm(dim=-1).max() * layer.k.norm(dim=-1).max()
        rounding = float(abs(layer.beta) * longest * 2**-10 + 1e-5)
        assert mine.shape == theirs.shape
        assert float((mine - theirs).abs().max()) <= rounding
        assert mine.shape[-1] == 1 or not torch.allclose(mine.roll(1, -1), theirs, atol=rounding)  # the bound can tell


def test_tokens_have_their_names():
    streams = {name: {stream.name: stream for stream in looked(name).trace.streams} for name in STRANGERS}
    bert = streams["bert"]["text"]
    assert bert.labels[:3] == ("[CLS]", "the", "cat")
    assert [bert.labels[i] for i in bert.special] == ["[CLS]", "[SEP]", "[SEP]"]
    dino = streams["dinov2"]["image"]
    assert (dino.labels[:3], dino.grid, dino.first) == (("class", "register 1", "register 2"), (4, 4), 3)
    frames = streams["whisper"]["frames"]
    assert (frames.kind, frames.labels[1], frames.seconds) == ("frames", "0.02 s", pytest.approx(0.02))
    assert streams["llama"]["text"].prompt == len(TEXT.split())
    assert streams["t5"]["target"].prompt == streams["blip"]["text"].prompt == 1
    kinds = {name: looked(name).trace.kind for name in STRANGERS}
    assert kinds["clip"] == kinds["vit"] == kinds["bert"] == "classifier"
    assert (kinds["blip"], kinds["t5"], kinds["whisper"], kinds["gpt2"]) == (
        "captioner",
        "translator",
        "transcriber",
        "language",
    )


def test_a_reader_knows_the_size_of_its_pictures():
    sizes = {name: Reader.of(stranger(name).reader).size for name in STRANGERS}
    seeing = {"vit", "timm_vit", "dinov2", "clip", "blip"}
    assert sizes == {name: (16, 16) if name in seeing else None for name in STRANGERS}


def test_answers_are_the_models():
    model, reader, asked = stranger("bert")
    with torch.no_grad():
        shares = model(**reader(*asked["text"], return_tensors="pt")).logits[0].softmax(-1)
    assert dict(looked("bert").trace.answers) == pytest.approx({"calm": float(shares[0]), "loud": float(shares[1])})
    model, reader, asked = stranger("gpt2")
    ids = reader(asked["text"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        following = model(ids).logits[0].softmax(-1)
    label, share = looked("gpt2").trace.answers[0]
    assert (reader.convert_tokens_to_ids(label), share) == (
        int(following[-1].argmax()),
        pytest.approx(float(following[-1].max())),
    )
    steps = looked("gpt2").trace.steps
    assert [step.position for step in steps] == list(range(ids.shape[1]))
    assert steps[2].answers[0][1] == pytest.approx(float(following[2].max()))


@pytest.mark.parametrize("name", ["llama", "blip"])
def test_what_is_generated_was_seen_as_it_was_said(name):
    """One pass over the whole is what the steps of generate saw, stitched."""
    look = looked(name)
    model, fed = (
        look.passage.model,
        look.ready.reading.read(pellucid.looking.Question(**stranger(name).asked), look.passage.model),
    )
    with pellucid.watch(model) as seen, torch.no_grad():
        model.generate(**fed.arguments, max_new_tokens=stranger(name).asked["generate"], do_sample=False)
    stitched = seen.stitch()
    words = [word for word, _ in look.trace.words]
    assert words
    for layer in look.trace.layers:
        mine = look.record(layer.name).weights()[0]
        theirs = stitched[layer.name].weights()[0]
        queries, keys = (min(a, b) for a, b in zip(mine.shape[1:], theirs.shape[1:], strict=True))
        assert_close(theirs[:, :queries, :keys], mine[:, :queries, :keys], rtol=0, atol=1e-4)


def shaken(model: nn.Module) -> nn.Module:
    """Weights large enough to attend unevenly."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=0.4)
    return model.eval()


def map_of_windows(theirs: torch.Tensor, side: int, width: int, shift: int) -> torch.Tensor:
    """The map over all tokens (h n n) of maps within windows (windows h w w), cut as Swin's paper says: padded at the
    right and below, rolled, cut. What goes to padding is lost."""
    padded = -(-side // width) * width
    places = torch.full((padded, padded), -1)
    places[:side, :side] = torch.arange(side**2).view(side, side)
    places = places.roll((-shift, -shift), (0, 1))
    found = torch.zeros(theirs.shape[1], side**2, side**2)
    for i, (row, column) in enumerate(itertools.product(range(0, padded, width), repeat=2)):
        window = places[row : row + width, column : column + width].flatten()
        inside = window >= 0
        found[:, window[inside][:, None], window[inside]] = theirs[i][:, inside][:, :, inside]
    return found


@pytest.mark.parametrize("side", [16, 18])
def test_windows_are_laid_out_over_the_picture(transformers, side):
    """Shifted or not, padded or not, each patch attends to those of its window as the model's own map of it says."""
    config = transformers.SwinConfig(
        image_size=2 * side, patch_size=2, embed_dim=16, depths=[2, 1], num_heads=[2, 2], window_size=4
    )
    model = shaken(transformers.SwinForImageClassification(config))
    look = pellucid.look(model, given={"pixel_values": torch.rand(1, 3, 2 * side, 2 * side)})
    half = side // 2
    grids = [(stream.kind, stream.grid) for stream in look.trace.streams]
    assert grids == [("patches", (side, side)), ("patches", (half, half))]
    assert (len(look.trace.layers), look.trace.missed, look.trace.maps) == (3, (), ())
    with torch.no_grad(), Eager(look) as eager:
        eager.fed.call(eager.model)
    read = from_bytes(to_bytes(look.trace))
    sizes = (side, 0), (side, 2), (half, 0)
    for layer, halved, (tokens, shift) in zip(look.trace.layers, read.layers, sizes, strict=True):
        truth = map_of_windows(eager.maps[layer.name], tokens, 4, shift)
        assert_close(layer.weights(), truth, rtol=0, atol=2e-5)
        longest = layer.q.norm(dim=-1).max() * layer.k.norm(dim=-1).max()
        assert_close(halved.weights(), truth, rtol=0, atol=float(abs(layer.beta) * longest * 2**-10 + 1e-3))
        assert not torch.allclose(layer.weights().roll(1, -1), truth, atol=1e-2)
        lost = 1 - layer.weights().sum(-1)
        assert (lost > 1e-3).any() == (tokens % 4 != 0 and not shift)  # on padding
    with pytest.raises(ValueError, match="attends within windows or to channels: no map goes through"):
        look.explain("rollout")
    with pytest.raises(ValueError, match="the trace holds no maps: none was asked for, or no method goes through"):
        look.figure()


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("swin_transformer.SwinTransformer", (64, 64)),
        ("swin_transformer.SwinTransformer", (48, 64)),
        ("swin_transformer_v2.SwinTransformerV2", (64, 64)),
    ],
)
@torch.no_grad()
def test_behind_a_merging_each_token_stands_where_it_came_in(timm, kind, size):
    """Windows of an even side, which share their halves with the merging of patches; with and without padding."""
    how = {"patch_size": 4, "window_size": 4, "embed_dim": 8, "depths": (2, 2), "num_heads": (1, 2), "num_classes": 5}
    module, name = kind.split(".")
    model = getattr(importlib.import_module(f"timm.models.{module}"), name)(img_size=size, **how)
    model, inputs = shaken(model), {}
    for i, j in itertools.product(range(2), repeat=2):
        model.layers[i].blocks[j].register_forward_pre_hook(lambda m, a, i=i, j=j: inputs.__setitem__((i, j), a[0]))
    trace = pellucid.look(model, given=torch.rand(1, 3, *size), methods=()).trace
    halves = tuple(side // 4 for side in size), tuple(side // 8 for side in size)
    assert [stream.grid for stream in trace.streams] == list(halves)
    assert (len(trace.layers), trace.missed) == (4, ())
    for (i, j), layer in zip(itertools.product(range(2), repeat=2), trace.layers, strict=True):
        block, tokens = model.layers[i].blocks[j], inputs[i, j]
        tokens = block.norm1(tokens) if name == "SwinTransformer" else tokens  # the second one normalises afterwards
        attention, width = block.attn, tokens.shape[-1]
        bias = attention.qkv.bias[:width] if name == "SwinTransformer" else attention.q_bias
        q = (tokens.flatten(0, 2) @ attention.qkv.weight[:width].T + bias).unflatten(-1, (len(layer.q), -1))
        alike = torch.cosine_similarity(layer.q, q.transpose(0, 1), dim=-1)
        assert_close(alike, torch.ones_like(alike), rtol=0, atol=1e-4)


def test_the_first_stage_of_a_swin_as_it_is_published_is_held(timm):
    """56 × 56 tokens in windows of 7: a map of ten million weights, of which the file has what the windows have."""
    model = shaken(timm.create_model("swin_tiny_patch4_window7_224", embed_dim=12, depths=(2, 1, 1, 1)))
    look = pellucid.look(model, given=torch.rand(1, 3, 224, 224))
    assert (len(look.trace.layers), look.trace.missed) == (5, ())
    assert [stream.grid for stream in look.trace.streams] == [(56, 56), (28, 28), (14, 14), (7, 7)]
    maps: dict[str, torch.Tensor] = {}
    for name in ("layers.0.blocks.0.attn", "layers.0.blocks.1.attn"):
        attention = model.get_submodule(name)
        attention.fused_attn = False
        attention.attn_drop.register_forward_hook(lambda m, a, out, name=name: maps.__setitem__(name, out))
    with torch.no_grad():
        look.passage.fed.call(model)
    queries = [0, 55, 1571, 3132, 3135]  # corners and the middle
    for layer, shift in zip(look.trace.layers[:2], (0, 3), strict=True):
        truth = map_of_windows(maps[layer.name], 56, 7, shift)[:, queries]
        assert_close(layer.weights(queries=queries), truth, rtol=0, atol=2e-5)
        assert len(layer.windows.bias) == (4 if shift else 1)  # inside, right, below, corner
    assert len(to_bytes(look.trace)) < 1.2e6


def test_windows_that_read_more_than_their_own_are_named(timm):
    """Halos: a block's keys are those of its window and of a rim around it."""
    halo = importlib.import_module("timm.layers.halo_attn").HaloAttn(16, num_heads=2, block_size=4, halo_size=1)
    model = nn.Sequential(nn.Conv2d(3, 16, 2, 2), halo).eval()
    with pytest.raises(ValueError, match="no attention of Sequential can be shown: 1: it attends within windows that"):
        pellucid.look(model, given=torch.rand(1, 3, 32, 32))


STEMS = {
    "convolutions whose steps overlap": ("levit_128s", 224, {}),
    "reduced keys": ("pvt_v2_b0", 64, {}),
    "convolutions, then windows of a grid": ("maxvit_pico_rw_256", 128, {"img_size": 128}),
    "windows behind heads, unrolled": ("hiera_tiny_224", 64, {"img_size": 64}),
    "strided blocks of a picture": ("mobilevit_xxs", 128, {}),
    "a ResNet": ("vit_tiny_r_s16_p8_224", 256, {"img_size": 256}),
    "pixels in a row": ("visformer_tiny", 128, {"img_size": 128}),
}


@pytest.mark.parametrize("name", STEMS)
def test_a_patch_lies_where_it_is_moved_from(timm, name):
    """Behind any stem: the queries that change when a place of the picture does lie around that place."""
    model, side, how = STEMS[name]
    model = timm.create_model(model, **how).eval()
    picture = torch.rand(1, 3, side, side)
    first = pellucid.look(model, given=picture, methods=())
    layer = first.trace.layers[0]
    stream = first.trace.stream(layer.queries)
    rows, columns = stream.grid
    assert (stream.kind, stream.picture) == ("patches", 0)
    for row, column in ((0, 0), (0, columns - 1), (rows - 1, 0), (rows // 2, columns - 1)):
        high, wide = side // rows, side // columns
        moved = picture.clone()
        moved[..., row * high : (row + 1) * high, column * wide : (column + 1) * wide] += 1
        other = pellucid.look(model, given=moved, methods=()).trace.layers[0]
        felt = (other.q - layer.q).square().sum((0, 2))[stream.first :].view(rows, columns)
        felt = felt * (felt > felt.max() / 10)
        middle = [float((felt.sum(1 - axis) * torch.arange(felt.shape[axis])).sum() / felt.sum()) for axis in (0, 1)]
        assert middle == pytest.approx((row, column), abs=1.5)


def test_tokens_that_were_put_in_another_order_are_no_patches(timm):
    """Hiera's, behind its windows: their number would fit, and each would be shown elsewhere."""
    model = timm.create_model("hiera_tiny_224", img_size=128).eval()
    seen = pellucid.look(model, given=torch.rand(1, 3, 128, 128), methods=()).trace
    assert [(stream.kind, len(stream.labels)) for stream in seen.streams][:3] == [
        ("patches", 1024), ("patches", 256), ("tokens", 64),
    ]  # fmt: skip
    assert {reason for _, reason in seen.missed} == {
        "it attends within windows, each of which reads other tokens than its own"
    }


def test_a_window_that_is_larger_than_the_picture_is_one(timm):
    """SAM's, of 4 × 4 patches in a window of 14: all else is padding. Its heads share an axis with the batch."""
    model = timm.create_model("samvit_base_patch16_224", img_size=64, depth=1, embed_dim=16, num_heads=2).eval()
    seen = pellucid.look(model, given=torch.rand(1, 3, 64, 64), methods=()).trace
    (layer,) = seen.layers
    assert [(stream.kind, stream.grid) for stream in seen.streams] == [("patches", (4, 4))]
    assert (layer.q.shape, layer.k.shape, layer.windows.places.shape) == ((2, 16, 8), (2, 196, 8), (1, 196))
    assert layer.weights().sum(-1).max() < 0.9


def test_patches_of_a_sound_are_no_frames(transformers):
    """A spectrogram cut into patches: each has a time and a band, so a row of times would be none of them."""
    config = transformers.ASTConfig(**SMALL, max_length=64, num_mel_bins=32, patch_size=16)
    reader = transformers.ASTFeatureExtractor(max_length=64, num_mel_bins=32)
    model = shaken(transformers.ASTForAudioClassification(config))
    seen = pellucid.look(model, reader, audio=sound()).trace
    assert [(stream.kind, len(stream.labels)) for stream in seen.streams] == [("tokens", 12)]


def test_tensors_are_given_in_their_order():
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval()
    seen = pellucid.look(model, given=[torch.rand(1, 5, 16), torch.rand(1, 3, 16)]).trace
    assert [(layer.q.shape[1], layer.k.shape[1]) for layer in seen.layers] == [(5, 5), (3, 3), (3, 5)]
    with pytest.raises(ValueError, match="expected tensors, or a dict of them by name"):
        Reader().read(pellucid.looking.Question(arguments=7), model)


def test_what_runs_many_times_over_one_input_is_named(timm):
    """Pixels within patches, with the patches in the batch: one of them alone would say nothing of the picture."""
    model = timm.create_model("tnt_s_patch16_224", img_size=64, depth=1).eval()
    seen = pellucid.look(model, given=torch.rand(1, 3, 64, 64), methods=()).trace
    assert [layer.q.shape[1] for layer in seen.layers] == [17]
    assert [reason for _, reason in seen.missed] == [
        "it ran 16 times over one input, over which of its tokens isn't known"
    ]


def test_channels_are_tokens_of_their_own(timm):
    model = shaken(timm.create_model("xcit_nano_12_p16_224", img_size=32, depth=2))
    seen = pellucid.look(model, given=torch.rand(1, 3, 32, 32)).trace
    channels = seen.layers[0]
    assert seen.stream(channels.queries).labels[:2] == ("channel 0", "channel 1")
    assert (channels.queries, channels.q.shape[1]) == (channels.keys, len(seen.stream(channels.keys).labels))


def test_turned_positions_keep_the_tokens(timm):
    """Models that turn all tokens but the first, and join them again, attend to one row of tokens in every layer."""
    model = shaken(timm.create_model("vit_small_patch16_dinov3", img_size=32, depth=2))
    seen = pellucid.look(model, given=torch.rand(1, 3, 32, 32)).trace
    assert [(stream.name, stream.grid, stream.first) for stream in seen.streams] == [("image", (2, 2), 5)]
    assert {layer.queries for layer in seen.layers} == {"image"}


def test_what_asks_without_being_a_patch_is_called_none(transformers):
    """A learned query that pools the patches, and patches of which some were taken away."""
    vision = SMALL | {"image_size": 16, "patch_size": 4}
    pooling = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**vision)).eval()
    seen = pellucid.look(pooling, given={"pixel_values": torch.rand(1, 3, 16, 16)}).trace
    assert [(stream.kind, len(stream.labels)) for stream in seen.streams] == [("patches", 16), ("tokens", 1)]
    masking = transformers.ViTMAEModel(transformers.ViTMAEConfig(**vision)).eval()
    seen = pellucid.look(masking, given={"pixel_values": torch.rand(1, 3, 16, 16)}).trace
    assert [(stream.kind, len(stream.labels)) for stream in seen.streams] == [("tokens", 5)]


def test_a_picture_that_lies_in_the_text(transformers):
    """A processor that writes a token for each patch reads text and picture at once."""
    words = tokenizer(bos_token="<s>", cls_token="[CLS]")
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**SMALL, vocab_size=len(words), pad_token_id=0).to_dict(),
        vision_config=transformers.CLIPVisionConfig(**SMALL, image_size=16, patch_size=4).to_dict(),
        image_token_id=words.cls_token_id,
        image_seq_length=16,
    )
    images = image_processor("CLIPImageProcessor", do_center_crop=False)
    how = {"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    reader = transformers.LlavaProcessor(images, words, image_token="[CLS]", **how)
    model = shaken(transformers.LlavaForConditionalGeneration(config))
    seen = pellucid.look(model, reader, image=picture(), text="the cat sat", generate=3).trace
    text = seen.stream("text")
    assert (seen.kind, seen.stream("image").grid, text.prompt) == ("captioner", (4, 4), 16 + 3)
    assert text.labels[15:19] == ("[CLS]", "the", "cat", "sat")
    again = pellucid.look(model, reader, image=picture(), text="[CLS] the cat sat", generate=3).trace
    assert again.words == seen.words
    with pytest.raises(ValueError, match="reads one text beside a picture"):
        pellucid.look(model, reader, image=picture(), text=["the cat", "a dog"])


def test_sinks_beside_a_mask_are_kept(transformers):
    config = transformers.GptOssConfig(
        **SMALL, num_key_value_heads=1, head_dim=8, vocab_size=len(tokenizer()), num_local_experts=2,
        num_experts_per_tok=1, pad_token_id=0,
    )  # fmt: skip
    model = shaken(transformers.GptOssForCausalLM(config))
    for layer in model.model.layers:
        layer.self_attn.sinks.data.normal_()
    look = pellucid.look(model, tokenizer(), TEXT)
    for layer in look.trace.layers:
        mine = weights(layer.q[None], layer.k[None], **layer.how)
        assert_close(mine, look.record(layer.name).weights(), rtol=0, atol=1e-5)
        assert mine.sum(-1).max() < 1  # a sink takes its share


def test_embeddings_of_places_are_none_of_the_text(transformers):
    """Marian's positions are looked up by a shape, not by a tensor."""
    config = transformers.MarianConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=len(tokenizer()), pad_token_id=0, eos_token_id=6,
        decoder_start_token_id=0, forced_eos_token_id=6, max_position_embeddings=32,
    )  # fmt: skip
    look = pellucid.look(shaken(transformers.MarianMTModel(config)), tokenizer(eos_token="</s>"), TEXT, generate=3)
    assert [stream.name for stream in look.trace.streams] == ["source", "target"]
    assert {each.method for each in look.trace.maps} == {"rollout", "gradient"}


# Explanations, beside references that know nothing of watching


@cache
def doubled(name: str) -> tuple[Stranger, ModelLook]:
    """The same model in float64, so that a reference can be compared tightly."""
    torch.manual_seed(0)
    made = STRANGERS[name]()
    with torch.no_grad():
        for parameter in made.model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=0.4)
    model = made.model.double().eval()
    return made, pellucid.look(model, made.reader, methods=(), target=None, **made.asked)


def reference_maps(look: ModelLook, target: Target) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The maps of an eager pass, and the gradient of the answer with respect to each."""
    with Eager(look) as eager:
        output = eager.fed.call(eager.model)
        target.score(output).backward()
    eager.model.zero_grad()
    return (
        {name: x.detach()[0] for name, x in eager.maps.items()},
        {name: x.grad[0] for name, x in eager.maps.items()},
    )


@pytest.mark.parametrize(("name", "read"), [("bert", 0), ("gpt2", -1), ("vit", 0)])
def test_explanations_of_a_tower_equal_the_textbooks(name, read):
    """Of a class, read off the first token, and of the next token, read off the last."""
    _, look = doubled(name)
    target = look.passage.answered.targets[0]
    maps, slopes = reference_maps(look, target)
    layers = [layer.name for layer in look.trace.layers]
    count = maps[layers[0]].shape[-1]
    rolled, relevance = torch.eye(count).double(), torch.eye(count).double()
    for each in layers:
        rolled = (maps[each].mean(0) + torch.eye(count)) / 2 @ rolled
        relevance = relevance + (maps[each] * slopes[each]).clamp(min=0).mean(0) @ relevance
    truths = {
        "raw": maps[layers[-1]].mean(0)[read],
        "column mass": maps[layers[-1]].mean((0, 1)),
        "rollout": rolled[read],
        "gradient": (relevance - torch.eye(count))[read],
    }
    for method, truth in truths.items():
        (found,) = look.explain(method)
        assert (found.target, found.word, found.stream) == (target.label, None, look.trace.streams[0].name)
        assert_close(found.values.double(), truth, rtol=1e-5, atol=1e-7)


def test_explanations_of_words_equal_the_textbooks():
    """Of a decoder's word: its own attention, and that across to what an encoder read (Chefer et al., eq. 6–10)."""
    _, look = doubled("t5")
    (target,) = look.passage.answered.targets[:1]
    maps, slopes = reference_maps(look, target)
    bar = {name: (maps[name] * slopes[name]).clamp(min=0).mean(0) for name in maps}
    own, across, inner = ([name for name in maps if part in name] for part in ("decoder", "EncDec", "encoder"))
    own = [name for name in own if name not in across]
    source = torch.eye(maps[inner[0]].shape[-1]).double()
    for name in inner:
        source = source + bar[name] @ source
    words, context = torch.eye(maps[own[0]].shape[-1]).double(), 0.0
    for mine, theirs in zip(own, across, strict=True):
        context = context + bar[mine] @ context if torch.is_tensor(context) else context
        words = words + bar[mine] @ words
        context = context + normalised(words).T @ bar[theirs] @ normalised(source)
    found = {each.stream: each.values for each in look.explain("gradient", 0)}
    assert_close(found["source"].double(), context[target.word], rtol=1e-5, atol=1e-8)
    shares = {each.stream: float(each.values.sum()) for each in look.explain("rollout", 0)}
    assert sum(shares.values()) == pytest.approx(1)


def normalised(relevance: torch.Tensor) -> torch.Tensor:
    """What was added to the identity, each row divided by its sum, and the identity."""
    added = relevance - torch.eye(len(relevance))
    total = added.sum(1, keepdim=True)
    return torch.where(total > 0, added / total.where(total > 0, 1.0), 0.0) + torch.eye(len(relevance))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_gradients_of_the_input_go_through_the_embeddings(name):
    made, look = doubled(name)
    target = look.passage.answered.targets[0]
    arguments = dict(look.passage.fed.arguments)
    embedded = made.model.get_input_embeddings()(arguments.pop("input_ids")).detach()

    def score(x):
        return target.score(made.model(inputs_embeds=x, **arguments))

    (slope,) = torch.autograd.grad(score(embedded.requires_grad_()), embedded)
    (felt,) = look.explain("input gradient")
    assert_close(felt.values.double(), (slope * embedded).abs().sum(-1)[0].detach(), rtol=1e-5, atol=1e-8)
    steps, total = 20, torch.zeros_like(embedded)
    for i in range(steps):
        between = (embedded.detach() * (i + 0.5) / steps).requires_grad_()
        total += torch.autograd.grad(score(between), between)[0]
    (found,) = look.explain("integrated gradients", steps=steps)
    assert_close(found.values.double(), (embedded * total / steps).sum(-1)[0].detach(), rtol=1e-5, atol=1e-7)


def test_integrated_gradients_add_up_to_the_answer():
    _, look = doubled("vit")
    passage, target = look.passage, look.passage.answered.targets[0]
    pixels = passage.fed.arguments["pixel_values"]
    with torch.no_grad():
        moved = target.score(passage.output) - target.score(passage.model(torch.zeros_like(pixels)))
    (found,) = look.explain("integrated gradients", steps=200)
    assert float(found.values.sum()) == pytest.approx(float(moved), rel=1e-2)
    (felt,) = look.explain("input gradient")
    assert float(felt.values[0]) == 0.0  # no pixel made the class token
    assert not math.isclose(float(felt.values.sum()), float(moved), rel_tol=1e-2)


def test_a_target_is_named_or_numbered():
    look = looked("bert")
    by_name, by_number = look.explain("gradient", "calm"), look.explain("gradient", 0)
    assert torch.equal(by_name[0].values, by_number[0].values)
    assert by_name[0].target == "calm"
    assert not torch.allclose(by_name[0].values, look.explain("gradient", 1)[0].values)
    cat = looked("gpt2").explain("gradient", "cat")[0]
    assert cat.target == "cat"
    for wrong in ("purple", 7):
        with pytest.raises(ValueError, match=r"target is .*; expected one of calm, loud"):
            look.explain("gradient", wrong)
    with pytest.raises(ValueError, match="which is 2 tokens"):
        looked("gpt2").explain("gradient", "cat dog")


def test_the_source_is_masked_in_the_order_of_its_own_map():
    """Though what was said before is as long as the sentence, so that both maps are."""
    model, reader, asked = stranger("t5")
    passage = ReadyForeign(model, reader).look(asked["text"], generate=8)
    assert len(passage.fed.texts) == 2
    source, said = passage.fed.texts
    assert (passage.stream_of(source), passage.stream_of(said)) == ("source", "target")
    target = passage.answered.targets[0]
    maps = {each.stream: each.values for each in pellucid.looking.explain(passage, "gradient", target)}
    assert_close(_values(passage, "gradient", target, source, 0), maps["source"])
    assert len(maps["source"]) == len(maps["target"])
    assert not torch.equal(maps["source"], maps["target"])


def test_words_that_are_masked_lose_the_answer():
    """Deletion ends where everything is masked, insertion begins there, and each point is the model's own answer."""
    model, reader, asked = stranger("bert")
    passage = ReadyForeign(model, reader).look(asked["text"])
    found = text_faithfulness([passage], ["input gradient", "random"], steps=4)
    assert found.deletion.shape == found.insertion.shape == (2, 1, 5)
    whole = dict(passage.answered.answers)[passage.answered.targets[0].label]
    assert_close(found.deletion[:, 0, 0], torch.full((2,), whole))
    assert_close(found.insertion[:, 0, -1], torch.full((2,), whole))
    assert_close(found.deletion[..., -1], found.insertion[..., 0])
    values = pellucid.looking.explain(passage, "input gradient")[0].values
    words = [i for i in range(len(values)) if i not in passage.fed.texts[0].special[0]]
    half = sorted(words, key=lambda i: -float(values[i]))[: round(len(words) / 2)]
    ids = passage.fed.arguments["input_ids"].clone()
    ids[0, half] = reader.mask_token_id
    with torch.no_grad():
        left = model(**{**passage.fed.arguments, "input_ids": ids}).logits[0].softmax(-1)
    assert_close(found.deletion[0, 0, 2], left[passage.output.logits[0].argmax()])
    with pytest.raises(ValueError, match="0 methods and 1 texts"):
        text_faithfulness([passage], [])


# Faces and doors


def test_two_lines_give_a_page_and_a_figure(tmp_path):
    look = looked("t5")
    look.save(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "<script" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    look.figure(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000
    assert repr(look).startswith("T5ForConditionalGeneration: ")
    assert "tokens of source" in repr(look)


def test_maps_may_be_left_out_and_asked_for_later():
    model, reader, asked = stranger("gpt2")
    bare, rolled = (pellucid.look(model, reader, **asked, methods=methods) for methods in ((), ("rollout",)))
    assert bare.trace.maps == ()
    assert torch.equal(bare.explain("rollout")[0].values, rolled.trace.maps[0].values)


def test_our_own_models_are_looked_at_alike():
    image = torch.rand(3, 32, 32)
    look = pellucid.look("vit-cifar10", given=image, methods=["raw"])
    assert_close(look.record("blocks.0.attention").row(0).sum(-1), torch.ones(1, 4))
    assert torch.equal(look.explain("raw")[0].values, look.trace.maps[0].values)


def test_a_module_of_ones_own_with_two_functions():
    words = ["a", "b", "c"]
    torch.manual_seed(0)

    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(3, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.head = nn.Linear(8, 2)

        def forward(self, ids):
            return self.head(self.layer(self.embed(ids))[:, 0])

    reader = (lambda text: torch.tensor([[words.index(each) for each in text]]), lambda ids: [words[i] for i in ids])
    look = pellucid.look(Tiny(), reader, "abca", labels=("no", "yes"), methods=ALL_METHODS)
    (stream,) = look.trace.streams
    assert (stream.labels, stream.kind, look.trace.kind) == (("a", "b", "c", "a"), "text", "classifier")
    assert {each.method for each in look.trace.maps} == set(ALL_METHODS)
    assert from_bytes(to_bytes(look.trace)).answers == look.trace.answers


def test_a_folder_of_timms_is_a_model(tmp_path):
    import timm

    small = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
    model = timm.create_model("vit_tiny_patch16_224", **small)
    model.pretrained_cfg["input_size"] = (3, 32, 32)
    timm.models.save_for_hf(model, tmp_path, model_args=small, safe_serialization=True)
    ready = pellucid.load(f"timm:{tmp_path}")
    found = ready.trace(image=picture())
    assert (found.streams[0].grid, found.kind, len(found.layers)) == ((2, 2), "classifier", 1)


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_a_folder_is_a_model(name, tmp_path):
    made = stranger(name)
    made.model.save_pretrained(tmp_path)
    made.reader.save_pretrained(tmp_path)
    ready = pellucid.load(f"hf:{tmp_path}")
    given = made.asked.get("text", made.asked.get("image"))
    assert [each.label for each in ready.predict(given)] == [label for label, _ in looked(name).trace.answers]
    assert repr(ready).startswith("ReadyForeign(")


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: pellucid.look(nn.Linear(2, 2), given=torch.randn(1, 2)), "no attention in Linear"),
        (
            lambda: pellucid.look(stranger("gpt2").model, stranger("clip").reader, TEXT * 9),
            "places for 32; give a shorter",
        ),
        (lambda: pellucid.look(small_vocabulary(), tokenizer(), TEXT), "don't belong together"),
        (lambda: pellucid.look(stranger("gpt2").model, None, TEXT), "text is read by a tokenizer|picture"),
        (lambda: pellucid.look(stranger("gpt2").model, tokenizer(), "  "), "the text is empty"),
        (lambda: pellucid.look(stranger("vit").model, tokenizer(), TEXT), "takes no input_ids"),
        (lambda: pellucid.look(stranger("bert").model, stranger("bert").reader, ["a", "b"]), "compared with a picture"),
        (lambda: pellucid.look(stranger("vit").model, 7, TEXT), "reader is 7; expected a tokenizer"),
        (lambda: pellucid.look(stranger("vit").model, stranger("vit").reader), "nothing to look at"),
        (lambda: looked("dinov2").explain("gradient"), "gives no answer that its output tells"),
        (lambda: looked("vit").explain("magic"), "method is 'magic'; expected one of raw"),
        (lambda: pellucid.load("hf:./nowhere"), "hf:./nowhere is no model: there is no config.json in it"),
        (lambda: pellucid.load("timm:no_such_model"), "timm:no_such_model can't be opened"),
    ],
)
def test_bad_input_gets_one_sentence(ask, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        ask()
    assert "\n" not in str(caught.value)


def small_vocabulary() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=4)).eval()


def test_other_inputs_are_refused_by_who_reads_them():
    gpt2, vit, whisper = (stranger(name) for name in ("gpt2", "vit", "whisper"))
    for reader, asked, sentence in (
        (gpt2.reader, {"image": picture()}, "picture is read by an image processor"),
        (gpt2.reader, {"audio": sound()}, "sound is read by a feature extractor"),
        (whisper.reader, {"audio": sound()[None]}, "expected one row of samples"),
        (gpt2.reader, {"text": TEXT, "generate": 0}, "generate is 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            pellucid.look(gpt2.model if reader is gpt2.reader else whisper.model, reader, **asked)
    assert vit.reader is not None
    assert whisper.reader.feature_extractor.sampling_rate == RATE
