"""Which attention reads which: towers, windows, self and cross, found by following the data; chains that refuse."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from pellucid import ops
from pellucid.explain import chains
from pellucid.layers import EncoderBlock
from pellucid.models import Transformer, TransformerConfig
from pellucid.watching import Edge, watch

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = SMALL | {
    "vocab_size": 50,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


class Attention(nn.Module):
    """Self- or cross-attention, with a kernel or written out."""

    def __init__(self, width=16, heads=4, written=False):
        super().__init__()
        self.heads, self.written = heads, written
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x, context=None):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (self.q(x), *self.kv(x if context is None else context).chunk(2, dim=-1))
        )
        if self.written:
            y = ((q * q.shape[-1] ** -0.5) @ k.mT).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class Both(nn.Module):
    """An encoder of two layers that a decoder of two layers reads, as many tokens in both."""

    def __init__(self, written):
        super().__init__()
        self.encoder, self.decoder, self.cross = (
            nn.ModuleList(Attention(written=written) for _ in range(2)) for _ in range(3)
        )

    def forward(self, x, y):
        for layer in self.encoder:
            x = x + layer(x)
        for own, cross in zip(self.decoder, self.cross, strict=True):
            y = own(y) + y
            y = y + cross(F.layer_norm(y, (16,)), x)
        return y


@pytest.mark.parametrize("written", [True, False])
def test_towers_are_found_by_the_data_and_not_by_sizes(written):
    model = Both(written)
    with watch(model) as seen:
        model(torch.randn(2, 5, 16), torch.randn(2, 5, 16))
    assert [(t.name, t.kind, t.records) for t in seen.towers] == [
        ("encoder", "self", ("encoder.0", "encoder.1")),
        ("decoder", "self", ("decoder.0", "decoder.1")),
    ]
    assert [seen[name].reading.kind for name in ("cross.0", "cross.1")] == ["cross", "cross"]
    assert set(seen.graph()) == {
        Edge("encoder.0", "encoder.1", "q and k"),
        Edge("encoder.1", "cross.0", "k"),
        Edge("decoder.0", "cross.0", "q"),
        Edge("cross.0", "decoder.1", "q and k"),
        Edge("decoder.1", "cross.1", "q"),
    }
    encoder = [seen[name] for name in seen.towers[0].records]
    assert ops.rollout(encoder, 0).shape == (2, 5)
    for wrong, why in [
        (list(seen.values()), r"'decoder\.0' doesn't go on with the tokens of 'encoder\.1'"),
        ([seen["decoder.0"], seen["cross.0"]], r"'cross\.0' is cross-attention"),
        (encoder[::-1], r"'encoder\.0' doesn't go on with the tokens of 'encoder\.1'"),
    ]:
        with pytest.raises(ValueError, match=why):
            ops.rollout(wrong, 0)
        with pytest.raises(ValueError, match=why):
            chains.check_self(wrong, 5)


def test_two_that_stand_side_by_side_are_two_towers():
    class Side(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Attention(), Attention()

        def forward(self, x):
            return self.a(x) + self.b(x)

    model = Side()
    with watch(model) as seen:
        model(torch.randn(1, 5, 16))
    with pytest.raises(ValueError, match="doesn't go on with the tokens of 'a'"):
        ops.rollout(seen, 0)
    assert not seen.graph()


class Speech(nn.Module):
    """Sound that convolutions cut into frames; each frame's position comes from a convolution, as in wav2vec."""

    def __init__(self, stride):
        super().__init__()
        self.stem = nn.Conv1d(1, 16, 8, 4)
        self.position, self.between = nn.Conv1d(16, 16, 3, padding=1), nn.Conv1d(16, 16, 3, stride, padding=1)
        self.first, self.second = Attention(), Attention()

    def forward(self, sound):
        x = self.stem(sound[:, None]).transpose(1, 2)
        x = x + self.position(x.transpose(1, 2)).transpose(1, 2)
        x = self.between((x + self.first(x)).transpose(1, 2)).transpose(1, 2)
        return x + self.second(x)


@pytest.mark.parametrize(("stride", "towers"), [(1, [("first", "second")]), (2, [("first",), ("second",)])])
def test_frames_stay_frames_through_a_convolution_unless_there_are_fewer(stride, towers):
    model = Speech(stride)
    with watch(model) as seen:
        model(torch.randn(2, 64))
    assert [tower.records for tower in seen.towers] == towers
    assert {record.reading.kind for record in seen.values()} == {"self"}


def test_windows_are_told_from_the_whole():
    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.whole = Attention(), Attention()

        def forward(self, x):
            b, rows, columns, c = x.shape
            y = x.view(b, rows // 2, 2, columns // 2, 2, c).transpose(2, 3).reshape(-1, 4, c)
            y = self.attention(y)
            y = y.view(b, rows // 2, columns // 2, 2, 2, c).transpose(2, 3).reshape(b, rows, columns, c)
            return self.whole((x + y).flatten(1, 2))

    model = Windows()
    with watch(model) as seen:
        model(torch.randn(2, 4, 6, 16))
    assert seen["attention"].reading.kind == "windows"
    assert seen["whole"].reading.kind == "self"
    with pytest.raises(ValueError, match="attends within windows"):
        ops.rollout([seen["attention"]], 0)


@pytest.mark.parametrize("size", [(6, 8), (5, 7)])
@pytest.mark.parametrize("shift", [0, 1])
def test_which_token_stands_where_in_which_window(size, shift):
    rows, columns = size

    class Shifted(nn.Module):
        def forward(self, x):
            y = F.pad(x, (0, 0, 0, columns % 2, 0, rows % 2))
            if shift:
                y = torch.roll(y, (-shift, -shift), (1, 2))
            b, high, wide, c = y.shape
            y = y.view(b, high // 2, 2, wide // 2, 2, c).transpose(2, 3).reshape(-1, 1, 4, c)
            y = F.scaled_dot_product_attention(y, y, y)
            y = y.view(b, high // 2, wide // 2, 2, 2, c).transpose(2, 3).reshape(b, high, wide, c)
            y = torch.roll(y, (shift, shift), (1, 2)) if shift else y
            return x + y[:, :rows, :columns]

    model = nn.Sequential(Shifted(), Shifted())
    numbers = 1.0 + torch.arange(rows * columns).view(1, rows, columns, 1).expand(2, -1, -1, 8)
    with watch(model) as seen:
        model(numbers.contiguous())
    record = seen["0"]
    places = record.reading.places
    assert_close(record.q[:, 0, :, 0].view(2, -1, 4)[0], places + 1.0)  # padding is 0, which is −1 + 1
    assert torch.equal(seen["1"].reading.places, places)
    assert [(t.kind, len(t)) for t in seen.towers] == [("windows", 2)]


def test_windows_after_a_merging_are_a_tower_of_their_own(transformers):
    """Of 10×10 tokens in windows of 4 × 4, then of 5×5: each padded, and rolled in every other layer."""
    config = transformers.SwinConfig(
        image_size=40, patch_size=4, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4
    )
    model = transformers.SwinModel(config).eval()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(2, 3, 40, 40))
    assert [(t.kind, len(t)) for t in seen.towers] == [("windows", 2), ("windows", 2)]
    for name, n in zip(seen, (10, 10, 5, 5), strict=True):
        places = seen[name].reading.places
        assert sorted(places[places >= 0].tolist()) == list(range(n * n))  # each token once


def test_windows_that_are_rolled_behind_a_merging_stay_in_their_tower(timm):
    """Merged by splitting each side in two, where Hugging Face's takes every second token; padded, and rolled."""
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=40, window_size=4, embed_dim=12, depths=(2, 2), num_heads=(2, 2)
    ).eval()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 3, 40, 40))
    assert [(t.kind, len(t)) for t in seen.towers] == [("windows", 2), ("windows", 2)]
    for name, n in zip(seen, (10, 10, 5, 5), strict=True):
        places = seen[name].reading.places
        assert sorted(places[places >= 0].tolist()) == list(range(n * n))
        assert seen[name].reading.windows == len(places) == len(seen[name].q)


def test_windows_of_a_width_that_is_no_power_of_two_are_windows_after_a_merging(timm):
    """56 tokens as 8 windows of 7, then as 28 pairs: one side split in two ways."""
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=112, embed_dim=12, depths=(1, 2), num_heads=(1, 2)
    ).eval()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 3, 112, 112))
    assert [record.reading.places.shape for record in seen.values()] == [(16, 49), (4, 49), (4, 49)]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("written", [False, True])
def test_windows_are_no_heads(batch, written):
    """Wherever they stand: behind the heads, as Hiera has them, or with the batch, with as many heads as there are."""

    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads = 4
            self.map, self.qkv = nn.Linear(3, 16), nn.Linear(16, 48)

        def forward(self, x):
            n, t = len(x), 6
            y = self.qkv(self.map(x)).view(n, 4, t, 3, 4, 4)  # windows, tokens, q k v, heads, features
            q, k, v = y.permute(3, 0, 4, 1, 2, 5)
            y = (q @ k.mT * 0.5).softmax(-1) @ v if written else F.scaled_dot_product_attention(q, k, v)
            return y.permute(0, 2, 3, 1, 4).reshape(n, 4 * t, 16)

    model, x = Windows(), torch.randn(batch, 24, 3)
    with watch(model) as seen:
        model(x)
    (record,) = seen.values()
    assert record.q.shape == (4 * batch, 4, 6, 4)
    assert record.reading.places.tolist() == torch.arange(24).view(4, 6).tolist()
    own = model.qkv(model.map(x))[0, 6:12, :16].view(6, 4, 4)  # the second window's queries
    assert_close(record.q[1], own.transpose(0, 1))


@pytest.mark.parametrize("batch", [1, 3])
def test_heads_that_share_an_axis_with_the_batch_are_heads(batch):
    """As SAM of timm calls PyTorch's kernel: (b·h t d). Gradients and changes find them, too."""

    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(8, 24)

        def forward(self, x):
            n, t, _ = x.shape
            q, k, v = self.map(x).view(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4).reshape(3, n * 2, t, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(n * 2, t, t))
            return y.view(n, 2, t, 4).transpose(1, 2).reshape(n, t, 8)

    model, x = nn.Sequential(nn.Linear(8, 8), Joined()), torch.randn(batch, 5, 8)
    with watch(model, gradients=True) as seen:
        model(x).square().sum().backward()
    record = seen["1"]
    q = model[1].map(model[0](x)).view(batch, 5, 3, 2, 4)[:, :, 0].transpose(1, 2)
    assert_close(record.q, q.detach())
    assert record.gradient("q").shape == record.q.shape
    assert record.check() < 1e-5
    with torch.no_grad(), watch(model) as seen:
        model(x)
        seen["1"].replace(off=[1])
        out = model(x)
    assert not out[..., 4:].any()
    assert out[..., :4].any()


def test_unshifted_windows_of_two_sizes_are_two_towers(transformers):
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2
    )
    with torch.no_grad(), watch(model := transformers.SwinModel(config).eval()) as seen:
        model(torch.randn(1, 3, 32, 32))
    assert [len(t) for t in seen.towers] == [1, 1]


def test_channels_are_told_from_tokens():
    class Channels(nn.Module):
        def forward(self, x):
            q, k, v = (x @ torch.eye(16)).mT, x.mT, x.mT
            return (q @ k.mT).softmax(-1) @ v

    model = nn.Sequential(nn.Linear(16, 16), Channels())
    with watch(model) as seen:
        model(torch.randn(1, 5, 16))
    with pytest.raises(ValueError, match="attends to channels and not to tokens"):
        ops.rollout(seen, 0)


def test_clip_with_as_many_words_as_patches(transformers):
    vision = SMALL | {"image_size": 16, "patch_size": 8, "projection_dim": 8}
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=vision, projection_dim=8)
    model = transformers.CLIPModel(config).eval()
    with torch.no_grad(), watch(model) as seen:
        model(input_ids=torch.randint(3, 50, (2, 5)), pixel_values=torch.randn(2, 3, 16, 16))
    assert [(len(t), t.kind) for t in seen.towers] == [(2, "self"), (2, "self")]
    assert {t.name.split(".")[0] for t in seen.towers} == {"vision_model", "text_model"}
    with pytest.raises(ValueError, match="a chain stays in one tower"):
        ops.rollout(seen, 0)
    for tower in seen.towers:
        assert_close(ops.rollout([seen[name] for name in tower.records], 0).sum(-1), torch.ones(2))


def test_t5_and_its_cross_attention(transformers):
    config = transformers.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=50)
    model = transformers.T5Model(config).eval()
    ids = torch.randint(50, (1, 5))
    with torch.no_grad(), watch(model) as seen:
        model(input_ids=ids, decoder_input_ids=ids)
    assert [len(t) for t in seen.towers] == [2, 2]
    crossing = [name for name, record in seen.items() if record.reading.kind == "cross"]
    assert crossing == [name for name in seen if "EncDec" in name]
    with pytest.raises(ValueError, match=r"cross-attention|in one tower"):
        ops.rollout(seen, 0)


def test_swin_attends_in_windows(transformers):
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4
    )
    model = transformers.SwinModel(config).eval()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(2, 3, 32, 32))
    assert [(t.kind, len(t)) for t in seen.towers] == [("windows", 2), ("self", 1)]


def test_our_own_models_know_their_towers():
    config = TransformerConfig(vocabulary=12, width=32, hidden=64, heads=4, encoder_layers=2, decoder_layers=2)
    model = Transformer(config).eval()
    with watch(model) as seen:
        model(torch.randint(12, (1, 6)), torch.randint(12, (1, 6)))
    assert [(t.name, len(t)) for t in seen.towers] == [("encoder.blocks", 2), ("decoder.blocks", 2)]
    with pytest.raises(ValueError, match="in one tower"):
        ops.rollout([seen["encoder.blocks.1.attention"], seen["decoder.blocks.0.attention"]], 0)
    with pytest.raises(ValueError, match="cross-attention"):
        ops.rollout([seen["decoder.blocks.0.cross_attention"]], 0)
    blocks = nn.Sequential(*(EncoderBlock(32, 4, norm="pre") for _ in range(2)))
    with watch(blocks) as seen:
        blocks(torch.randn(1, 5, 32))
    assert len(seen.towers) == 1


# Generation.


def causal_model(transformers, kind):
    config = TEXT | {"attn_implementation": kind}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**config, num_key_value_heads=1)).eval()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_steps_of_a_generation_are_one_record(transformers, attention, cache):
    model, ids = causal_model(transformers, attention), torch.randint(3, 50, (2, 5))
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    options |= {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    with torch.no_grad(), watch(model, copy=cache == "static") as seen:
        said = model.generate(ids, **options)
    whole = seen.stitch()
    assert len(whole) == 2
    with torch.no_grad(), watch(model) as once:
        model(said[:, :-1])
    for name, record in whole.items():
        assert record.q.shape[2] == 8
        assert record.check() < 1e-5
        assert_close(record.weights()[..., :8], once[name].weights(), rtol=0, atol=1e-5)
        assert record.weights()[..., 8:].sum() == 0


@pytest.mark.parametrize("kind", ["bloom", "t5"])
@torch.no_grad()
def test_words_that_are_the_same_are_keys_of_their_own(transformers, kind):
    """Without positions in them, keys of the same word have the same numbers in the first layer."""
    torch.manual_seed(0)
    ids, end = torch.tensor([[3, 4, 3, 5, 3]]), {"eos_token_id": None, "do_sample": False, "max_new_tokens": 6}
    if kind == "bloom":
        config = transformers.BloomConfig(vocab_size=10, hidden_size=16, n_layer=2, n_head=2)
        model = transformers.BloomForCausalLM(config).eval()
    else:
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}
        config = transformers.T5Config(vocab_size=10, **sizes, decoder_start_token_id=0)
        model = transformers.T5ForConditionalGeneration(config).eval()
    with watch(model) as seen:
        said = model.generate(ids, **end)
    whole = seen.stitch()
    with watch(model) as once:
        model(ids, decoder_input_ids=said[:, :-1]) if kind == "t5" else model(said[:, :-1])
    assert len(said[0].unique()) < said.shape[1]
    assert list(whole) == list(once)
    for name, record in whole.items():
        assert_close(record.weights(), once[name].weights(), rtol=0, atol=1e-5)
        assert record.check() < 1e-5


def test_heads_of_a_group_that_stood_as_queries_are_heads_again():
    """One step of four heads that share two keys, then one in which the heads of a group are the queries."""

    class Grouped(nn.Module):
        def forward(self, q, k, folded):
            if not folded:
                return F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
            return F.scaled_dot_product_attention(q.view(1, 2, 2, 8), k, k, mask).view(1, 4, 1, 8)

    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    mask = torch.ones(1, 1, 1, 5, dtype=torch.bool)
    with watch(model := Grouped()) as seen:
        model(q[:, :, :4], k[:, :, :4], False)
        model(q[:, :, 4:], k, True)
    (whole,) = seen.stitch().values()
    with watch(model) as once:
        model(q, k, False)
    assert_close(whole.weights(), once[""].weights(), rtol=0, atol=1e-6)
    assert whole.check() < 1e-5


def test_beams_are_followed_to_where_they_came_from(transformers):
    model, ids = causal_model(transformers, "sdpa"), torch.randint(3, 50, (1, 4))
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "num_beams": 3, "num_return_sequences": 3}
    with torch.no_grad(), watch(model, copy=True) as seen:
        said = model.generate(ids, **options, do_sample=False, pad_token_id=0)
        whole = seen.stitch()
        with watch(model) as once:
            model(said[:, :-1])
    for name, record in whole.items():
        record.check()
        mine, truth = record.weights(), once[name].weights()
        # The last step's beams are those that were said, each with its last word still to be chosen.
        for row in truth:
            assert min((row - other).abs().max() for other in mine) < 1e-5


def test_hypotheses_that_ended_earlier_are_stitched_by_their_beams(transformers):
    model, ids = causal_model(transformers, "sdpa"), torch.randint(3, 50, (2, 4))
    options = {"max_new_tokens": 8, "num_beams": 4, "num_return_sequences": 3, "do_sample": False, "pad_token_id": 0}
    options |= {
        "length_penalty": 0.0,
        "eos_token_id": list(range(3, 13)),
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    with torch.no_grad(), watch(model, copy=True) as seen:
        said = model.generate(ids, **options)
    lengths = (said.beam_indices >= 0).sum(-1)
    assert lengths.min() < lengths.max()  # some ended earlier
    whole = seen.stitch(said.beam_indices)
    with torch.no_grad():
        for i, sentence in enumerate(said.sequences):
            n = 4 + int(lengths[i]) - 1  # the last word is read by nobody
            with watch(model) as once:
                model(sentence[None, :n])
            for name, record in whole.items():
                assert_close(record.weights()[i, :, :n, :n], once[name].weights()[0], rtol=0, atol=1e-5)
                assert record.weights()[i, :, n:].sum() == 0
    assert all(record.check() < 1e-5 for record in whole.values())
    strange, longest = said.beam_indices.clone(), int(lengths.argmax())
    strange[longest, lengths.max() - 1] = (strange[longest, lengths.max() - 1] + 4) % 8  # a beam of the other prompt
    for beams, sentence in (
        (strange, "would read keys that it never wrote"),
        (said.beam_indices + 8, "in row .*; the batch has 8"),
        (said.beam_indices.repeat(1, 9).clamp(min=0), "steps; the model made"),
        (said.beam_indices[0], r"expected \(sentences, steps\)"),
    ):
        with pytest.raises(ValueError, match=sentence):
            seen.stitch(beams)


def test_a_window_that_slides_is_stitched(transformers):
    config = transformers.MistralConfig(**TEXT, num_key_value_heads=1, sliding_window=4, attn_implementation="eager")
    model, ids = transformers.MistralForCausalLM(config).eval(), torch.randint(3, 50, (1, 6))
    with torch.no_grad(), watch(model) as seen:
        said = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0)
        whole = seen.stitch()
        with watch(model) as once:
            model(said[:, :-1], use_cache=False)
    for name, record in whole.items():
        assert record.check() < 1e-5
        assert_close(record.weights(), once[name].weights(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2])
def test_heads_are_heads_whatever_the_batch(transformers, batch):
    """Of modules that don't say how many they have; queries (b h q d) or (b q h d)."""
    small = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    llama = transformers.LlamaConfig(**small, intermediate_size=32, num_key_value_heads=2, attn_implementation="eager")
    funnel = transformers.FunnelConfig(
        vocab_size=30, block_sizes=[1], num_decoder_layers=1, d_model=16, n_head=4, d_head=4, d_inner=32
    )
    for model in (transformers.LlamaModel(llama).eval(), transformers.FunnelModel(funnel).eval()):
        with torch.no_grad(), watch(model) as seen:
            model(torch.randint(30, (batch, 6)))
        assert {record.q.shape[:2] for record in seen.values()} == {(batch, 4)}


def test_parts_that_are_joined_again_are_the_tokens_that_they_were():
    """Positions turned in all tokens but the first; the other way round they are other tokens."""

    class Turned(nn.Module):
        def __init__(self, join):
            super().__init__()
            self.q, self.k, self.join = nn.Linear(16, 16), nn.Linear(16, 16), join

        def forward(self, x):
            q, k = (self.join(part(x)).unflatten(-1, (2, 8)).transpose(1, 2) for part in (self.q, self.k))
            y = torch.nn.functional.scaled_dot_product_attention(q, k, k)
            return x + y.transpose(1, 2).flatten(2)

    joins = {
        "sliced": lambda x: torch.cat([x[:, :1], 2 * x[:, 1:]], dim=1),
        "split": lambda x: torch.cat([2 * part for part in x.split([2, 3], dim=1)], dim=1),
        "exchanged": lambda x: torch.cat([x[:, 2:], x[:, :2]], dim=1),
        "again": lambda x: torch.cat([x[:, :2], x[:, :2], x[:, :1]], dim=1),
    }
    for name, join in joins.items():
        model = nn.Sequential(nn.Linear(16, 16), Turned(join), Turned(join))
        with torch.no_grad(), watch(model) as seen:
            model(torch.randn(2, 5, 16))
        towers = [(tower.kind, len(tower)) for tower in seen.towers]
        assert (towers == [("self", 2)]) == (name in ("sliced", "split")), name


def test_a_convolution_that_keeps_the_places_keeps_the_tokens():
    class Pixels(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Conv2d(8, 24, 1)

        def forward(self, x):
            q, k, v = self.qkv(x).flatten(2).transpose(1, 2).unflatten(-1, (3, 1, 8)).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return x + y[:, 0].transpose(1, 2).unflatten(-1, x.shape[2:])

    for side, count in ((1, [2]), (2, [1, 1])):
        model = nn.Sequential(nn.Conv2d(3, 8, 4, 4), Pixels(), nn.Conv2d(8, 8, side, side), Pixels())
        with torch.no_grad(), watch(model) as seen:
            model(torch.randn(2, 3, 16, 16))
        assert [len(tower) for tower in seen.towers] == count
