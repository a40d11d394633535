"""The captioner: what it reads, what it may not read, its cache, and where it starts from."""

import pytest
import torch
from conftest import randomised
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from pellucid.models import Captioner, CaptionerConfig, ViT, ViTConfig
from pellucid.ops import masks
from pellucid.ops.positions import interpolate

ENCODER = {"image": (8, 12), "patch": (4, 4), "width": 16, "depth": 2, "heads": 2, "registers": 2}
POSITIONS = ("sinusoidal", "learned", "rotary")


def encoder(**changes) -> ViTConfig:
    return ViTConfig(**{**ENCODER, "pooling": "none"} | changes)


def captioner(**changes) -> Captioner:
    sizes = {"vocabulary": 11, "encoder": encoder(), "layers": 2, "heads": 2, "max_length": 9}
    model = Captioner(CaptionerConfig(**sizes | changes)).double().eval()
    randomised(model)
    return model


def batch(rows: int = 1):
    return torch.randn(3, 3, 8, 12, dtype=torch.float64), torch.randint(11, (3 * rows, 6))


# The encoder


def test_without_pooling_a_vit_gives_its_normalised_tokens():
    vit = ViT(encoder()).double().eval()
    images, _ = batch()
    assert vit.head is vit.class_token is vit.pool is None
    assert vit(images).shape == (3, 2 + 6, 16)
    assert torch.equal(vit(images), vit.features(images))
    mean = ViT(encoder(pooling="mean")).double().eval()
    assert set(mean.state_dict()) - set(vit.state_dict()) == {"head.weight", "head.bias"}
    mean.load_state_dict(vit.state_dict(), strict=False)
    assert_close(mean(images), mean.head(vit(images)[:, 2:].mean(1)), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="pooling is 'all'"):
        encoder(pooling="all")


def test_the_decoder_reads_registers_and_patches():
    model, (images, tokens) = captioner(), batch()
    context = model.encode(images)
    assert context.shape == (3, 8, 16)
    assert model.grid == (2, 3)
    for place in (0, 7):  # the first register, the last patch
        other = context.clone()
        other[:, place] += 1
        assert not torch.allclose(model.decode(tokens, other), model.decode(tokens, context))


# The decoder


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("tied", [True, False])
def test_cached_steps_equal_the_full_forward(positions, norm, tied):
    model = captioner(positions=positions, norm=norm, tied=tied, qk_norm=True)
    images, tokens = batch(rows=2)
    context = model.encode(images)
    for cache in (model.cache(), model.cache(6), model.cache(9)):
        parts = [model.decode(part, context, cache=cache) for part in tokens.split([2, 1, 3], dim=1)]
        assert_close(torch.cat(parts, 1), model(images, tokens), rtol=0, atol=1e-10)
        assert all(each.context is not None and each.context.k.shape[0] == 3 for each in cache)


@pytest.mark.parametrize("positions", POSITIONS)
def test_positions_may_be_given(positions):
    model, (images, tokens) = captioner(positions=positions), batch()
    context = model.encode(images)
    full = model.decode(tokens, context)
    assert_close(model.decode(tokens, context, positions=torch.arange(6)), full, rtol=0, atol=1e-12)
    assert not torch.allclose(model.decode(tokens, context, positions=torch.tensor([0, 2, 1, 3, 4, 5])), full)


def test_rows_of_one_image_share_its_context_and_nothing_else():
    model = captioner()
    images, tokens = batch(rows=4)
    together = model(images, tokens)
    apart = model(images.repeat_interleave(4, 0), tokens)
    assert_close(together, apart, rtol=0, atol=1e-12)
    grads = [torch.autograd.grad(y.square().sum(), list(model.parameters())) for y in (together, apart)]
    for ours, theirs in zip(*grads, strict=True):
        assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="7 sequences can't share 3 contexts"):
        model.decode(torch.randint(11, (7, 6)), model.encode(images))


class Shapes(TorchDispatchMode):
    """Keeps the shape of every tensor that is made."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.seen |= {tuple(x.shape) for x in (out if isinstance(out, (tuple, list)) else [out]) if torch.is_tensor(x)}
        return out


def test_the_context_is_never_copied_for_rows():
    model = captioner()
    tokens, context = torch.randint(11, (3 * 5, 7)), torch.randn(3, 13, 16, dtype=torch.float64)
    with Shapes() as shapes, torch.no_grad():
        model.decode(tokens, context)
    reading = {shape for shape in shapes.seen if 13 in shape}
    assert (3, 2, 13, 8) in reading  # keys and values of three images
    assert not {shape for shape in reading if shape[0] % 5 == 0}
    with Shapes() as shapes, torch.no_grad():
        model.decode(tokens, context.repeat_interleave(5, 0))
    assert (15, 2, 13, 8) in shapes.seen  # what the test would see


def test_a_token_sees_the_past_or_everything():
    model, (images, tokens) = captioner(), batch()
    changed = tokens.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 11
    before, after = model(images, tokens), model(images, changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])
    before, after = model(images, tokens, causal=False), model(images, changed, causal=False)
    assert not torch.isclose(before, after).all(-1).any()
    exists = masks.padding(torch.tensor([3, 3, 3]), 6)
    before, after = (model(images, each, causal=False, mask=exists) for each in (tokens, changed))
    assert_close(before[:, :3], after[:, :3], rtol=0, atol=0)
    assert_close(before[:, :3], model(images, tokens[:, :3], causal=False), rtol=0, atol=1e-12)


def test_tying_shares_one_table():
    tied, free = captioner(), captioner(tied=False)
    assert set(free.state_dict()) - set(tied.state_dict()) == {"decoder.output.weight", "decoder.output.bias"}
    images, tokens = batch()
    loss = tied(images, tokens)[..., 10].sum()  # a token that is not read, if it doesn't occur
    (gradient,) = torch.autograd.grad(loss, [tied.decoder.embedding.table.weight])
    assert gradient[10].abs().sum() > 0


def test_empty_branches_start_as_nothing():
    model = Captioner(CaptionerConfig(vocabulary=11, encoder=encoder(), layers=2, heads=2, zero_branches=True)).eval()
    images, tokens = torch.randn(3, 3, 8, 12), torch.randint(11, (3, 6))
    assert torch.equal(model(images, tokens), model(images + 1, tokens))
    assert not torch.equal(model(images, tokens), model(images, (tokens + 1) % 11))
    plain = Captioner(CaptionerConfig(vocabulary=11, encoder=encoder(), layers=2, heads=2)).eval()
    assert not torch.equal(plain(images, tokens), plain(images + 1, tokens))


def test_it_is_saved_and_loaded(tmp_path):
    model, (images, tokens) = captioner(positions="learned"), batch()
    model.save_pretrained(tmp_path)
    again = Captioner.from_pretrained(tmp_path)
    assert again.config == model.config
    assert_close(again.double()(images, tokens), model(images, tokens), rtol=1e-4, atol=1e-4)


# Where it starts from


@pytest.mark.parametrize("registers", [2, 3])
def test_it_starts_from_a_trained_vit(registers):
    vit = ViT(encoder(pooling="class", image=(16, 16), registers=registers, classes=7)).double()
    randomised(vit)
    model = captioner()
    own = model.encoder.register_tokens.tokens.clone()
    model.start_from(vit)
    state = model.encoder.state_dict()
    for name, value in vit.state_dict().items():
        if name.startswith(("embed.", "blocks.", "norm.")):
            assert torch.equal(state.pop(name), value), name
    assert_close(state.pop("grid.table"), interpolate(vit.grid.table, (2, 3)), rtol=0, atol=0)
    expected = vit.register_tokens.tokens if registers == 2 else own
    assert torch.equal(state.pop("register_tokens.tokens"), expected)
    assert not state


def test_what_does_not_fit_is_named():
    model = captioner()
    with pytest.raises(ValueError, match=r"it has width 32, not 16; depth 3, not 2"):
        model.start_from(ViT(encoder(width=32, depth=3)))
    with pytest.raises(ValueError, match=r"layer_scale 0\.1, not None"):
        model.start_from(ViT(encoder(layer_scale=0.1)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"encoder": encoder(pooling="mean")}, "pooling is 'mean'"),
        ({"layers": 0}, "layers is 0"),
        ({"vocabulary": 0}, "vocabulary is 0"),
        ({"heads": 3}, "can't be split into 3 heads"),
        ({"norm": "both"}, "norm is 'both'"),
        ({"positions": "none"}, "positions is 'none'"),
        ({"positions": "rotary", "heads": 16}, "expected a multiple of 32"),
        ({"activation": "tanh"}, "activation is 'tanh'"),
    ],
)
def test_wrong_configs_are_refused_in_a_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        captioner(**changes)


def test_sentences_have_a_longest_length():
    model, (images, _) = captioner(), batch()
    model(images, torch.randint(11, (3, 9)))
    with pytest.raises(ValueError, match="10 tokens; expected at most max_length = 9"):
        model(images, torch.randint(11, (3, 10)))
    with pytest.raises(ValueError, match="10 tokens; expected at most max_length = 9"):
        model.cache(10)
    context, cache = model.encode(images), model.cache()
    model.decode(torch.randint(11, (3, 9)), context, cache=cache)
    with pytest.raises(ValueError, match="10 tokens"):
        model.decode(torch.randint(11, (3, 1)), context, cache=cache)
