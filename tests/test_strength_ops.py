"""What a mutation run found untested in ops: the same values may come from the wrong place."""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import qkv, truth
from torch.testing import assert_close

from pellucid.ops import attend, masks, positions, weights
from pellucid.ops.exact import weight_blocks


@pytest.fixture
def kernel(monkeypatch) -> list[dict]:
    """What PyTorch's kernel is asked for, call by call."""
    calls = []
    run = F.scaled_dot_product_attention

    def noted(q, k, v, *rest, **options):
        calls.append({"shapes": [tuple(x.shape) for x in (q, k, v)], **options})
        return run(q, k, v, *rest, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    return calls


@pytest.mark.parametrize("impl", ["auto", "fused"])
@pytest.mark.parametrize("n_k", [5, 7])
def test_the_kernel_is_asked_once_and_the_formula_never_asks_it(kernel, impl, n_k):
    q, k, v = qkv(n_q=5, n_k=n_k, e=8)
    fused = attend(q, k, v, impl=impl)
    assert len(kernel) == 1
    assert_close(attend(q, k, v, impl="reference"), fused)
    assert len(kernel) == 1


def test_the_kernel_shares_heads_and_gets_one_width(kernel):
    """Heads repeated beforehand, or two widths, give the same values, but the map is built."""
    q, k, v = qkv(h=4, g=2, d=8, e=6)
    assert_close(attend(q, k, v), truth(q, k, v)[0])
    assert kernel[0]["shapes"] == [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)]
    assert kernel[0]["enable_gqa"]


def test_keys_and_values_that_agree_with_each_other_but_not_with_the_queries_are_refused():
    q, _, _ = qkv(b=2, n_q=5, n_k=5, d=8, e=8)
    _, k, v = qkv(b=3, n_q=5, n_k=5, d=8, e=8)
    with pytest.raises(ValueError, match=r"axis b \(batch\): k has 3, expected 2 as in q"):
        attend(q, k, v)


def test_each_sequence_of_a_batch_is_turned_by_its_own_angles():
    x, at = torch.randn(3, 2, 5, 8, dtype=torch.float64), torch.rand(3, 5, 2) * 9
    angles = positions.rotary_angles(at, 8)
    turned = positions.rotate(x, angles)
    for i in range(3):
        assert_close(turned[i : i + 1], positions.rotate(x[i : i + 1], angles[i]))
    assert not torch.allclose(turned[:1], positions.rotate(x[:1], angles[1]))
    with pytest.raises(ValueError, match="angles are for 5 tokens × 8 features; got axes t, d = \\[4, 8\\]"):
        positions.rotate(x[:, :, :4], angles)


def test_a_block_on_the_cpu_holds_two_to_the_twentieth_numbers():
    q, k = torch.empty(1, 1, 3000, 1), torch.empty(1, 1, 2**10, 1)
    blocks = [rows for rows, _ in weight_blocks(q, k, None, 1.0, False)]
    assert blocks == [slice(0, 1024), slice(1024, 2048), slice(2048, 3000)]


def test_a_block_of_one_token_is_the_grid_itself():
    grid = torch.rand(3, 4) > 0.5
    assert torch.equal(masks.block_sparse(grid, 1), grid)
    assert torch.equal(masks.block_sparse(grid, (2, 1)), grid.repeat_interleave(2, 0))
    for nothing in (0, (0, 1), (1, 0)):
        with pytest.raises(ValueError, match="expected one or more tokens"):
            masks.block_sparse(grid, nothing)


def test_sinusoids_of_another_base():
    table = positions.sinusoidal(5, 6, start=2, base=100.0, dtype=torch.float64)
    for i, row in enumerate(table.tolist()):
        angles = [(2 + i) * 100.0 ** (-2 * j / 6) for j in range(3)]
        assert row == pytest.approx([f(angle) for angle in angles for f in (math.sin, math.cos)], abs=1e-12)
    assert not torch.allclose(table, positions.sinusoidal(5, 6, start=2, dtype=torch.float64))


def test_a_textbook_mask_has_the_value_and_the_precision_that_are_asked_for():
    mask = masks.additive(masks.causal(2), -7.0, torch.float64)
    assert mask.dtype == torch.float64
    assert mask.tolist() == [[0.0, -7.0], [0.0, 0.0]]


def test_hard_attention_is_the_same_a_few_rows_at_a_time(monkeypatch):
    q, k, v = qkv()
    monkeypatch.setattr("pellucid.ops.exact._BLOCK_NUMBERS", {"cpu": 2 * 2 * 4 * 7})  # two of five queries
    assert_close(attend(q, k, v, beta=math.inf), truth(q, k, v, beta=math.inf)[0])


def test_a_grid_of_positions_shrinks_to_one_token():
    table = torch.randn(4, 4, 6, dtype=torch.float64)
    assert positions.interpolate(table, (1, 1)).shape == (1, 1, 6)
    assert positions.interpolate(table, (1, 3)).shape == (1, 3, 6)
    with pytest.raises(ValueError, match="expected a grid of at least 1×1 tokens"):
        positions.interpolate(table, (0, 3))


def test_a_block_of_the_map_refuses_a_mask_that_does_not_fit():
    q, k, _ = qkv()
    with pytest.raises(ValueError, match="mask axis k: got 6, expected 7 or 1"):
        weights(q, k, torch.ones(5, 6, dtype=torch.bool), queries=[0])
