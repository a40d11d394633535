"""Masks and positions."""

import math

import pytest
import torch
from torch.testing import assert_close

from pellucid.ops import attend, masks, offset_rotation, positions


def test_causal_is_bottom_right():
    assert masks.causal(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    assert torch.equal(masks.causal(2, 5), masks.causal(5)[-2:])
    assert not torch.equal(masks.causal(2, 5), torch.ones(2, 5).tril().bool())


def test_padding_window_prefix_and_blocks():
    assert masks.padding(torch.tensor([0, 2]), 3).shape == (2, 1, 1, 3)
    assert masks.padding(torch.tensor([0, 2]), 3)[:, 0, 0].tolist() == [[False] * 3, [True, True, False]]
    for i, row in enumerate(masks.window(9, radius=2).tolist()):
        assert [j for j, open_ in enumerate(row) if open_] == [j for j in range(9) if abs(i - j) <= 2]
    assert torch.equal(masks.window(3, 9, radius=2), masks.window(9, radius=2)[-3:])
    assert torch.equal(masks.prefix(5, length=0), masks.causal(5))
    assert masks.prefix(5, length=5).all()
    grid = torch.tensor([[True, False], [False, True]])
    assert torch.equal(masks.block_sparse(grid, 3), torch.kron(grid.int(), torch.ones(3, 3).int()).bool())
    assert masks.block_sparse(grid, (2, 3)).shape == (4, 6)


def test_additive_form_is_the_textbooks_triangle():
    mask = masks.additive(masks.causal(5))
    assert torch.equal(mask, torch.full((5, 5), -1e4).triu(1))
    q = torch.randn(1, 2, 5, 8)
    assert_close(attend(q, q, q, mask), attend(q, q, q, causal=True))
    nothing = masks.additive(torch.zeros(5, 5, dtype=torch.bool))
    assert (attend(q, q, q, nothing) != 0).any()  # −10⁴ everywhere forbids nothing


def test_combine():
    causal, window = masks.causal(4), masks.window(4, radius=1)
    assert masks.combine(None, None) is None
    assert masks.combine(None, causal) is causal
    assert torch.equal(masks.combine(causal, window), causal & window)
    bias = torch.randn(4, 4)
    both = masks.combine(bias, causal)
    assert_close(both[causal], bias[causal])
    assert (both[~causal] == -math.inf).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: masks.padding(torch.tensor([4]), 3), "lengths must lie in 0…3"),
        (lambda: masks.padding(torch.tensor([-1]), 3), "lengths must lie in 0…3"),
        (lambda: masks.window(3, radius=-1), "radius is -1"),
        (lambda: masks.prefix(3, length=-1), "length is -1"),
        (lambda: masks.block_sparse(torch.ones(2, 2, dtype=torch.bool), 0), "block is 0"),
        (lambda: positions.sinusoidal(3, 5), "width is 5; expected a multiple of 2"),
        (lambda: positions.sinusoidal_2d(3, 3, 6), "width is 6; expected a multiple of 4"),
        (lambda: positions.rotary_angles(torch.zeros(3, 2), 6), "width is 6; expected a multiple of 4"),
        (lambda: positions.rotary_angles(torch.zeros(1, 3, 2, 2), 8), "positions must have axes"),
        (lambda: positions.interpolate(torch.zeros(2, 2, 4), (0, 2)), "size is"),
        (lambda: positions.alibi(0, 4), "heads is 0"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_sinusoidal_is_the_papers_formula():
    table = positions.sinusoidal(50, 16, dtype=torch.float64)
    for pos in range(50):
        for i in range(8):
            angle = pos / 10_000 ** (2 * i / 16)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
    assert torch.equal(positions.sinusoidal(10, 16, start=40, dtype=torch.float64), table[40:])


@pytest.mark.parametrize("k", [0, 1, 7, -3, 100])
def test_an_offset_is_one_rotation_wherever_it_starts(k):
    table = positions.sinusoidal(200, 32, dtype=torch.float64)
    turn = offset_rotation(k, 32)
    start = table[max(0, -k) : 200 - max(0, k)]
    assert_close(start @ turn.T, table[max(0, k) :][: len(start)], rtol=0, atol=1e-12)
    assert_close(turn @ turn.T, torch.eye(32, dtype=torch.float64), rtol=0, atol=1e-12)
    other = offset_rotation(k + 1, 32)
    assert not torch.allclose(start @ other.T, table[max(0, k) :][: len(start)], atol=1e-3)


def test_sinusoidal_2d_tells_row_and_column():
    table = positions.sinusoidal_2d(3, 5, 16)
    assert table.shape == (3, 5, 16)
    assert_close(table[2, :, :8], positions.sinusoidal(3, 8)[2].expand(5, 8))
    assert_close(table[:, 4, 8:], positions.sinusoidal(5, 8)[4].expand(3, 8))


def test_interpolation_keeps_the_grid_and_a_plane():
    table = torch.randn(4, 6, 8)
    assert positions.interpolate(table, (4, 6)) is table
    flat = torch.full((4, 6, 3), 2.5)
    assert_close(positions.interpolate(flat, (9, 5)), torch.full((9, 5, 3), 2.5))
    ramp = torch.arange(8.0)[:, None, None].expand(8, 8, 1)
    larger = positions.interpolate(ramp, (16, 8))
    assert (larger[1:] >= larger[:-1] - 1e-5).all()
    assert positions.interpolate(table, (9, 5)).shape == (9, 5, 8)


@pytest.mark.parametrize("axes", [1, 2])
def test_rotary_scores_depend_on_the_offset_alone(axes):
    q, k = torch.randn(1, 1, 1, 16, dtype=torch.float64), torch.randn(1, 1, 1, 16, dtype=torch.float64)

    def score(where_q, where_k):
        at = [torch.tensor([w[:axes]], dtype=torch.float64) for w in (where_q, where_k)]
        turned = [positions.rotate(x, positions.rotary_angles(a, 16).double()) for x, a in zip((q, k), at, strict=True)]
        return (turned[0] * turned[1]).sum().item()

    assert score((3, 2), (1, 7)) == pytest.approx(score((13, 22), (11, 27)), abs=1e-5)
    assert score((3, 2), (1, 7)) != pytest.approx(score((4, 2), (1, 7)), abs=1e-3)
    if axes == 2:  # an offset along the columns is not one along the rows
        assert score((0, 0), (0, 2)) != pytest.approx(score((0, 0), (2, 0)), abs=1e-3)


def test_rotation_keeps_lengths():
    x = torch.randn(2, 3, 5, 16)
    turned = positions.rotate(x, positions.rotary_angles(torch.arange(5), 16))
    assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert_close(turned[:, :, 0], x[:, :, 0])
    with pytest.raises(ValueError, match="angles are for 5 tokens × 16 features"):
        positions.rotate(x[:, :, :4], positions.rotary_angles(torch.arange(5), 16))


def test_alibi_slopes_are_the_papers():
    assert positions.alibi_slopes(8) == [2**-i for i in range(1, 9)]
    assert len(set(positions.alibi_slopes(12))) == 12
    bias = positions.alibi(8, 3, 5)
    assert bias.shape == (8, 3, 5)
    assert bias[0, 2].tolist() == [-2.0, -1.5, -1.0, -0.5, 0.0]
    assert torch.equal(bias, positions.alibi(8, 5)[:, -3:])


def test_grid_positions_run_row_by_row():
    assert positions.grid_positions(2, 3).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
