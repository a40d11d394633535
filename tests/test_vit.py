"""The vision transformer: every option, its laws, its training shortcut, and models on disk."""

import json

import pytest
import torch
import torch.nn.functional as F
from conftest import randomised
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

from pellucid.models import ViT, ViTConfig, parameters_of
from pellucid.ops import positions
from pellucid.ops.positions import Turns
from pellucid.watching import watch

OPTIONS = {
    "plain": {},
    "conv stem": {"stem": "conv"},
    "conv stem, flat patches": {"stem": "conv", "patch": (2, 8)},
    "mean": {"pooling": "mean"},
    "mean, then norm": {"pooling": "mean", "norm_first": False},
    "class, then norm": {"norm_first": False},
    "sequence": {"pooling": "sequence"},
    "sinusoidal": {"positions": "sinusoidal"},
    "rotary": {"positions": "rotary"},
    "rotary, mean, registers": {"positions": "rotary", "pooling": "mean", "registers": 2},
    "no positions": {"positions": "none"},
    "registers": {"registers": 3},
    "registers, sequence": {"registers": 3, "pooling": "sequence"},
    "rms": {"norm_kind": "rms"},
    "qk norm": {"qk_norm": True},
    "layer scale": {"layer_scale": 0.1},
    "relu": {"activation": "relu"},
    "swiglu": {"activation": "swiglu", "hidden": 20},
    "quick gelu of normalised tokens": {"activation": "quick_gelu", "norm_tokens": True},
    "no bias": {"bias": False},
    "wide": {"image": (8, 24)},
    "tall patches": {"patch": (8, 2)},
    "one channel": {"channels": 1},
    "four channels": {"channels": 4},
    "dropouts": {"dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.2, "drop_token": 0.25},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def small(**options) -> ViT:
    return ViT(ViTConfig(**{"classes": 5, "image": (16, 16), "width": 32, "depth": 2, "heads": 4} | options)).double()


def images(model, n=2, size=None):
    return torch.randn(n, model.config.channels, *(size or model.config.image), dtype=model.head.weight.dtype)


@every_option
def test_every_option_gives_logits_features_and_another_size(options):
    model = randomised(small(**options)).eval()
    image = images(model)
    c, (rows, columns) = model.config, model.embed.grid(*model.config.image)
    logits = model(image)
    assert logits.shape == (2, 5)
    assert model.features(image).shape == (2, model.extra_tokens + rows * columns, 32)
    assert model.extra_tokens == c.registers + (c.pooling == "class")
    assert model(images(model, size=(24, 16))).shape == (2, 5)
    assert torch.equal(model(image), logits)
    assert_close(model(image[:1]), logits[:1], rtol=0, atol=1e-10)  # no image sees another
    changed = image.clone()
    changed[0, -1, -1, -1] += 5.0
    assert not torch.allclose(model(changed)[0], logits[0], atol=1e-4)
    assert_close(model(changed)[1], logits[1], rtol=0, atol=1e-10)


@every_option
def test_gradients_reach_every_parameter(options):
    """But for one that softmax can't see: one number added to all scores of a query."""
    model = randomised(small(**options | {"dropout": 0.0, "attention_dropout": 0.0, "drop_path": 0.0}))
    model(images(model)).square().sum().backward()
    norms = {name: 0.0 if p.grad is None else p.grad.abs().max().item() for name, p in model.named_parameters()}
    dead = {name for name, norm in norms.items() if norm < 1e-10}
    unseen = set()
    if not (model.config.qk_norm or model.config.positions == "rotary"):
        unseen = {name for name in norms if name.endswith("attention.k.bias")}
    assert dead == unseen


@pytest.mark.parametrize(
    "options", [{}, {"registers": 2}, {"norm_first": False}, {"positions": "rotary"}, {"qk_norm": True}]
)
def test_training_computes_only_the_class_token_of_the_last_block_and_nothing_changes(options):
    model = randomised(small(**options))
    image = images(model)

    def gradients(logits):
        model.zero_grad()
        logits.square().sum().backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    seen = []
    hook = model.blocks[-1].register_forward_hook(lambda module, args, out: seen.append(out.shape[1]))
    short = model.train()(image)
    whole = model.eval()(image)
    hook.remove()
    assert seen == [1, model.extra_tokens + 16]
    assert_close(short, whole, rtol=0, atol=1e-10)
    expected = gradients(whole)
    for name, gradient in gradients(short).items():
        assert_close(gradient, expected[name], rtol=1e-10, atol=1e-10)


def test_other_pooling_computes_every_token_in_training():
    model = randomised(small(pooling="mean"))
    image = images(model)
    assert_close(model.train()(image), model.eval()(image), rtol=0, atol=0)


@pytest.mark.parametrize("options", [{}, {"pooling": "mean", "positions": "rotary"}, {"registers": 2}])
@pytest.mark.parametrize(("share", "kept"), [(0.25, 12), (0.5, 8), (0.99, 1)])
def test_drop_token_leaves_out_patches_in_training_only(options, share, kept):
    model = randomised(small(drop_token=share, **options))
    seen = []
    model.blocks[0].register_forward_hook(lambda module, args, out: seen.append(args[0].shape[1] - model.extra_tokens))
    image = images(model)
    assert not torch.equal(model.train()(image), model(image))
    model.eval()
    assert torch.equal(model(image), model(image))
    assert seen == [kept, kept, 16, 16]


def test_drop_token_keeps_places_with_their_patches():
    """Tokens that stay are tokens of the whole image, in their order, each with the position of its patch."""
    for kind in ("learned", "rotary"):
        model = randomised(small(drop_token=0.5, positions=kind, pooling="mean"))
        x = torch.arange(16.0).view(1, 16, 1).expand(3, -1, 32).double()
        places = torch.arange(16.0)[:, None].expand(-1, 2)
        some, turns, _ = model._drop_tokens(x, Turns(places, -places), None)
        assert some.shape == (3, 8, 32)
        assert (some[:, 1:, 0] > some[:, :-1, 0]).all()
        assert turns is not None
        assert torch.equal(turns.cos[..., 0].double(), some[..., 0])
        assert torch.equal(turns.sin, -turns.cos)
        assert not torch.equal(some[0], some[1])


def test_drop_path_rises_to_the_last_block():
    model = small(depth=3, drop_path=0.2)
    assert [getattr(block.drop_path, "p", 0.0) for block in model.blocks] == [0.0, 0.1, 0.2]
    image = images(model, 16)
    assert not torch.equal(model.train()(image), model(image))
    assert torch.equal(model.eval()(image), model(image))


def shuffled(image, order, patch=4):
    """The image with its patches in another order."""
    b, c, y, x = image.shape
    patches = image.unflatten(2, (y // patch, patch)).unflatten(4, (x // patch, patch)).permute(0, 2, 4, 1, 3, 5)
    patches = patches.flatten(1, 2)[:, order].unflatten(1, (y // patch, x // patch))
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(b, c, y, x)


@pytest.mark.parametrize("pooling", ["class", "mean", "sequence"])
def test_without_positions_the_order_of_patches_is_invisible(pooling):
    order = torch.randperm(16)
    for kind in ("none", "learned", "sinusoidal", "rotary"):
        model = randomised(small(positions=kind, pooling=pooling)).eval()
        image = images(model)
        moved = shuffled(image, order)
        assert not torch.equal(moved, image)
        same = torch.allclose(model(moved), model(image), rtol=0, atol=1e-10)
        assert same == (kind == "none")
        if kind != "none":
            assert not torch.allclose(model(moved), model(image), atol=1e-5)


def test_norm_before_or_after_pooling():
    """For one token it is the same; for a mean it isn't."""
    for pooling in ("class", "mean"):
        first, last = (randomised(small(pooling=pooling, norm_first=order)).eval() for order in (True, False))
        last.load_state_dict(first.state_dict())
        image = images(first)
        assert torch.allclose(first(image), last(image), rtol=0, atol=1e-10) == (pooling == "class")


def test_sequence_pooling_is_a_weighted_mean():
    model = randomised(small(pooling="sequence", registers=2)).eval()
    image = images(model)
    x = model.features(image)[:, 2:]
    weights = (x @ model.pool.weight[0]).softmax(1)
    assert_close(model(image), model.head((weights[..., None] * x).sum(1)), rtol=0, atol=1e-10)
    with torch.no_grad():
        model.pool.weight.zero_()
    assert_close(model(image), model.head(x.mean(1)), rtol=0, atol=1e-10)


def test_zero_branches_start_as_the_identity():
    model = small(zero_branches=True)
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    assert all(torch.equal(block(x), x) for block in model.blocks)
    assert not any(torch.equal(block(x), x) for block in small().blocks)
    model(images(model)).sum().backward()
    assert all(block.attention.out.weight.grad.abs().max() > 0 for block in model.blocks)


def test_parameter_counts():
    assert parameters_of(ViTConfig(width=64, depth=5, heads=4)) == 257_994
    assert parameters_of(ViTConfig(width=256, depth=12, heads=8)) == 9_509_386
    assert parameters_of(ViTConfig.named("base")) == 86_567_656 - 768  # timm's, less the class token's position
    model = small(positions="rotary", registers=1)
    assert parameters_of(model.config) == sum(p.numel() for p in model.parameters())


def test_watching_sees_every_block():
    model = randomised(small(positions="rotary", registers=1)).float().eval()
    image = images(model)
    with torch.no_grad():
        plain = model(image)
        with watch(model) as seen:
            assert torch.equal(model(image), plain)
    assert list(seen) == ["blocks.0.attention", "blocks.1.attention"]
    assert seen["blocks.1.attention"].weights().shape == (2, 4, 18, 18)
    assert seen.check() < 1e-5
    model.train()
    with watch(model) as seen:
        model(image)
    assert [record.q.shape[2] for record in seen.values()] == [18, 1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"image": (16, 18)}, "image axis x: 18 pixels, expected a multiple of the patch's 4"),
        ({"stem": "conv", "patch": (3, 4)}, "expected powers of two"),
        ({"stem": "pool"}, "stem is 'pool'; expected 'linear', 'conv', 'deep', 'lite0'"),
        ({"positions": "sinusoidal", "width": 30, "heads": 2}, "need a width that is a multiple of 4; got 30"),
        ({"positions": "rotary", "heads": 16}, "got a width of 32, expected a multiple of 64 for 16 heads"),
        ({"heads": 5}, "width 32 can't be split into 5 heads"),
        ({"activation": "tanh"}, "activation is 'tanh'"),
        ({"norm_kind": "batch"}, "norm kind is 'batch'"),
        ({"drop_path": 1.5}, r"drop_path is 1\.5; expected a share"),
    ],
)
def test_what_can_not_be_built_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        small(**options)


def test_images_that_do_not_fit_are_refused():
    model = small()
    with pytest.raises(ValueError, match=r"image axis c \(channels\): got shape \[2, 1, 16, 16\]"):
        model(torch.randn(2, 1, 16, 16, dtype=torch.float64))
    with pytest.raises(ValueError, match="image axis y: 15 pixels"):
        model(torch.randn(2, 3, 15, 16, dtype=torch.float64))


@every_option
def test_saved_and_loaded_is_the_same(options, tmp_path):
    model = randomised(small(**options | {"labels": tuple("abcde")})).float().eval()
    model.save_pretrained(tmp_path)
    again = ViT.from_pretrained(tmp_path)
    assert again.config == model.config
    assert not again.training
    assert torch.equal(again(images(model)[:1] * 0 + 1), model(images(model)[:1] * 0 + 1))
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_saved_as_it_is_and_loaded_without_loss(dtype, tmp_path):
    model = randomised(small()).to(dtype)
    model.save_pretrained(tmp_path)
    assert {value.dtype for value in load_file(tmp_path / "model.safetensors").values()} == {dtype}
    again = ViT.from_pretrained(str(tmp_path)).state_dict()
    assert all(torch.equal(again[key].to(dtype), value) for key, value in model.state_dict().items())


def test_what_is_on_disk(tmp_path):
    model = small()
    model.save_pretrained(tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    assert (data["model"], data["image"], data["labels"]) == ("ViT", [16, 16], None)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors"} <= set(before)
    model.save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_damaged_folders_are_refused_in_a_sentence(tmp_path):
    def refused(sentence):
        with pytest.raises(ValueError, match=sentence) as error:
            ViT.from_pretrained(tmp_path)
        assert "\n" not in str(error.value)

    model = small()
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    refused("holds no config.json; expected a folder with config.json and model.safetensors")
    model.save_pretrained(tmp_path)
    data, whole = json.loads(config.read_text()), load_file(weights)

    for change, sentence in (
        ({"colour": "red"}, "unknown field in the config: colour; ViTConfig has classes, image"),
        ({"model": "Transformer"}, r"config\.json describes a 'Transformer'; expected a ViT"),
        ({"width": "wide"}, "config width is 'wide'; expected int"),
        ({"image": [16]}, "config image has 1 values; expected 2"),
        ({"pooling": "max"}, "config pooling is 'max'; expected one of 'class', 'mean', 'sequence'"),
        ({"labels": ["cat"]}, "labels names 1 classes; expected 5"),
        ({"depth": 3}, r"model\.safetensors doesn't fit this ViT: it lacks blocks\.2\."),
        ({"depth": 1}, r"it has unknown blocks\.1\."),
        ({"hidden": 7}, r"it has the wrong shape for blocks\.0\.feed_forward\.inner\.bias"),
    ):
        config.write_text(json.dumps(data | change))
        refused(sentence)
    for text, sentence in (("{", r"config\.json is not JSON"), ("[]", r"config file is \[\]; expected an object")):
        config.write_text(text)
        refused(sentence)
    config.write_text(json.dumps(data))

    save_file({key: value for key, value in whole.items() if key != "head.bias"}, weights)
    refused(r"it lacks head\.bias$")
    save_file(whole | {"extra": torch.zeros(1)}, weights)
    refused("it has unknown extra$")
    save_file(whole, weights)
    weights.write_bytes(weights.read_bytes()[:-8])
    refused(r"model\.safetensors is damaged or no safetensors file")
    weights.unlink()
    refused(r"holds no model\.safetensors")
    with pytest.raises(ValueError, match="from_pretrained doesn't know colour; expected revision, cache_dir"):
        ViT.from_pretrained(tmp_path, colour="red")


class _Cosines(TorchFunctionMode):
    """Counts the cosines that are taken."""

    def __init__(self):
        super().__init__()
        self.taken = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.taken += getattr(func, "__name__", "") == "cos"
        return func(*args, **(kwargs or {}))


def test_a_grid_is_turned_by_a_table():
    """As attention turns by places, to the last bit, for every grid; on the model's own no cosine is taken."""
    model = randomised(small(positions="rotary", registers=1))
    assert model.turns is not None
    for grid in ((4, 4), (2, 3), (6, 5)):
        places = torch.cat([torch.zeros(2, 2), positions.grid_positions(*grid)])
        x = images(model, 2, (4 * grid[0], 4 * grid[1]))
        block = model.blocks[0]
        tokens = torch.randn(2, len(places), 32, dtype=torch.float64)
        turns = Turns(*(F.pad(t, (0, 0, 2, 0), value=v) for t, v in zip(model.turns(grid), (1.0, 0.0), strict=True)))
        assert torch.equal(block(tokens, positions=turns), block(tokens, positions=places))
        with _Cosines() as cosines:
            model(x)
        assert cosines.taken == (grid == (6, 5)), "once, for a grid beyond the table"
    with _Cosines() as cosines:
        block(tokens, positions=places)
    assert cosines.taken == 1


def test_a_model_that_is_filled_later_turns_by_a_whole_table():
    """Made without numbers and filled from weights, or in half precision for a while: no file holds the table."""
    model = small(positions="rotary").eval()
    image = images(model)
    with torch.device("meta"):
        empty = ViT(model.config)
    filled = empty.double().to_empty(device="cpu").eval()
    filled.load_state_dict(model.state_dict())
    assert torch.equal(filled(image), model(image))
    assert torch.equal(model.half().double().turns.table, filled.turns.table)
