"""The encoder–decoder: its choices, its cache, its initial values, and what it learns."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pellucid.models import Transformer, TransformerConfig
from pellucid.models.init import initialise
from pellucid.ops import masks
from pellucid.training.reverse import reverse, sequences, shifted


def small(**options):
    sizes = {"vocabulary": 12, "width": 32, "hidden": 64, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    return Transformer(TransformerConfig(**(sizes | options))).double().eval()


def batch():
    return torch.randint(12, (3, 9)), torch.randint(12, (3, 6))


def test_the_default_is_the_papers_base_model():
    config = TransformerConfig(vocabulary=37_000)
    assert (config.width, config.heads, config.hidden, config.encoder_layers) == (512, 8, 2048, 6)
    assert (config.norm, config.activation, config.positions, config.dropout) == ("post", "relu", "sinusoidal", 0.1)
    with torch.device("meta"):
        blocks = Transformer(TransformerConfig(vocabulary=1))
    # 6 encoder layers of 4·512² + 2·512·2048 weights, 6 decoder layers with 4·512² more, biases and norms
    encoder = 4 * (512 * 512 + 512) + 2 * 512 * 2048 + 2048 + 512 + 2 * 1024
    decoder = encoder + 4 * (512 * 512 + 512) + 1024
    assert sum(p.numel() for p in blocks.parameters()) == 6 * (encoder + decoder) + 512


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("tied", [True, False])
def test_cached_steps_equal_the_full_forward(norm, positions, tied):
    model, (source, target) = small(norm=norm, positions=positions, tied=tied), batch()
    exists = masks.padding(torch.tensor([9, 4, 2]))
    full = model(source, target, exists)
    context, cache = model.encode(source, exists), model.cache()
    parts = [model.decode(part, context, exists, cache=cache) for part in target.split([2, 1, 3], dim=1)]
    assert_close(torch.cat(parts, 1), full, rtol=0, atol=1e-12)


def test_teacher_forcing_never_reads_what_it_must_say():
    model, (source, target) = small(), batch()
    before = model(source, target)
    changed = target.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 12
    after = model(source, changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])


def test_padding_is_not_read():
    model, (source, target) = small(), batch()
    exists = masks.padding(torch.tensor([9, 4, 2]))
    changed = source.clone()
    changed[1, 4:] = (changed[1, 4:] + 1) % 12
    assert_close(model(source, target, exists), model(changed, target, exists), rtol=0, atol=0)
    assert not torch.allclose(model(source, target), model(changed, target))


def test_tying_shares_one_table():
    tied, free = small(tied=True), small(tied=False, target_vocabulary=5)
    assert tied.target_embedding is None
    assert tied.output is None
    source, _ = batch()
    assert free(source, torch.randint(5, (3, 6))).shape == (3, 6, 5)
    with pytest.raises(ValueError, match="the vocabularies are 12 and 5"):
        small(tied=True, target_vocabulary=5)
    with pytest.raises(ValueError, match="positions is 'none'"):
        small(positions="none")


def test_dropout_is_what_training_and_testing_differ_in():
    model, (source, target) = small(dropout=0.3), batch()
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


def test_every_initial_value_comes_from_one_place():
    model = small(positions="learned", tied=False, norm="pre")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    initialise(model)
    assert all(p.isfinite().all() for p in model.parameters())
    linear = model.encoder.blocks[0].feed_forward.inner
    assert linear.weight.abs().max() <= (6 / (32 + 64)) ** 0.5 + 1e-12
    assert (linear.bias == 0).all()

    class Stranger(nn.Module):
        def __init__(self):
            super().__init__()
            self.secret = nn.Parameter(torch.zeros(3))

    with pytest.raises(TypeError, match=r"no initial value for secret of 0"):
        initialise(nn.Sequential(Stranger()))


def test_held_out_sequences_are_never_trained_on():
    generator = torch.Generator().manual_seed(0)
    assert (sequences(500, generator, held_out=True).sum(1) % 10 == 0).all()
    assert (sequences(500, generator, held_out=False).sum(1) % 10 != 0).all()
    assert shifted(torch.tensor([[4, 5, 6]])).tolist() == [[10, 4, 5]]


class Losses:
    """Sees the training go on."""

    def began(self, step, steps):
        self.steps, self.values = steps, []

    def logged(self, lines):
        self.values += [line["loss"] for line in lines if "loss" in line]


def test_it_learns_to_reverse_ten_digits():
    """The bar is 99 % of unseen sequences in under 90 s on two cores."""
    losses = Losses()
    result = reverse(observer=losses)
    assert result.exact >= 0.99
    assert result.seconds < 90
    assert losses.values[0] > 1.5
    assert len(losses.values) == losses.steps == 600
    untrained = reverse(steps=4, test_sequences=200)
    assert untrained.exact < 0.05


def test_reversing_is_deterministic():
    one, two = (reverse(steps=4, test_sequences=10).model.state_dict() for _ in range(2))
    other = reverse(steps=4, test_sequences=10, seed=1).model.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
