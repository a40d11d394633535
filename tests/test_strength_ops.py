"""What a mutation run found untested in ops: the same values may come from the wrong place."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import MASK_KINDS, make_mask, qkv, truth
from torch.testing import assert_close

from pellucid import ops
from pellucid.ops import attend, attention, attention_weights, masks, positions, scores, weights
from pellucid.ops.attention import has_observers, observed_by
from pellucid.ops.checks import check_attention, is_learned
from pellucid.ops.exact import weight_blocks, weight_rows
from pellucid.ops.listed import takes_lists
from pellucid.ops.rules import Apply, Fill, Hold, MixHeads, Plus, Positions, Rule, Times, pick_heads, pick_rows

BETAS = (None, 0.0, 0.3, -0.7, 50.0)


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


# Attention where q, k and v are alike, as in nearly every call: the shortest way through the seam


@pytest.mark.parametrize("impl", ["auto", "reference", "fused"])
@pytest.mark.parametrize("kind", MASK_KINDS)
@pytest.mark.parametrize("width", [8, 6])
def test_attention_of_tensors_that_are_alike_is_the_formula(impl, kind, width):
    q, k, v = qkv(h=3, n_q=5, n_k=5, d=width, e=width)
    mask, causal = make_mask(kind, h=3, n_q=5, n_k=5)
    for beta in BETAS:
        out, _ = truth(q, k, v, mask, beta, causal)
        assert_close(attend(q, k, v, mask, beta=beta, causal=causal, impl=impl), out, rtol=0, atol=1e-12)
    if mask is None or mask.dtype == torch.bool:
        for beta in (math.inf, -math.inf):
            out, _ = truth(q, k, v, mask, beta, causal)
            assert_close(attend(q, k, v, mask, beta=beta, causal=causal, impl=impl), out, rtol=0, atol=1e-12)


def test_what_needs_nothing_done_to_it_goes_straight_to_the_kernel(kernel):
    for dtype in (torch.float64, torch.float32):
        q, k, v = qkv(n_q=5, n_k=5, d=8, e=8, dtype=dtype)
        attend(q, k, v, beta=0.5)
        assert kernel == [{"shapes": [(2, 4, 5, 8)] * 3, "scale": 0.5}]
        kernel.clear()
    for width in (6, 12):  # a width that kernels don't like goes the long way
        q, k, v = qkv(n_q=5, n_k=5, d=width, e=width)
        attend(q, k, v)
    assert [call["enable_gqa"] for call in kernel] == [False, False]


def test_one_hidden_key_of_a_mask_with_one_axis():
    q, k, v = qkv()
    mask = torch.tensor([True] * 6 + [False])
    for impl in ("reference", "fused"):
        assert_close(attend(q, k, v, mask, impl=impl), truth(q, k, v, mask)[0], rtol=0, atol=1e-12)
    assert_close(weights(q, k, mask, queries=[3, 1]), truth(q, k, v, mask)[1][:, :, [3, 1]], rtol=0, atol=1e-12)
    row = torch.rand(2, 1, 1, 7, dtype=torch.float64)  # one row for all queries
    assert_close(weights(q, k, row, queries=[3, 1]), truth(q, k, v, row)[1][:, :, [3, 1]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("impl", ["auto", "reference", "fused"])
def test_the_longest_dropout_is_refused_and_one_below_it_drops(impl):
    q, k, v = qkv(n_q=5, n_k=5, e=8, dtype=torch.float32)
    for dropout in (1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"expected a probability in \[0, 1\)"):
            attend(q, k, v, dropout=dropout, impl=impl)
    assert torch.equal(attend(q, k, v, dropout=0.0, impl=impl), attend(q, k, v, impl=impl))
    assert not torch.equal(attend(q, k, v, dropout=0.9, impl=impl), attend(q, k, v, impl=impl))
    for more in ({"beta": math.inf}, {"beta": -1.0}, {"causal": True}, {"mask": torch.ones(5, 5).bool()}):
        whole = attend(q, k, v, impl=impl, **more)
        dropped = torch.stack([attend(q, k, v, dropout=0.5, impl=impl, **more) for _ in range(300)])
        assert (dropped != whole).any()
        assert (dropped.mean(0) - whole).abs().mean() < 0.2  # the mean stays


def test_everybody_who_watches_is_shown_every_call_until_they_stop():
    q, k, v = qkv()
    one, other = [], []
    assert not has_observers()
    with observed_by(lambda *call: one.append(call)):
        attend(q, k, v, beta=0.5, causal=True, dropout=0.0)
        with observed_by(lambda *call: other.append(call)):
            assert has_observers()
            out = attend(q, k, v)
        attend(q, k, v)
    attend(q, k, v)
    assert not has_observers()
    assert (len(one), len(other)) == (3, 1)
    assert one[0][3:7] == (None, 0.5, True, 0.0)
    assert one[1][-1] is other[0][-1] is out
    with pytest.raises(RuntimeError), observed_by(one.append):
        raise RuntimeError
    assert not has_observers()


def test_a_subclass_that_stands_in_the_way_is_shown_the_whole_call():
    calls, theirs = [], torch.zeros(2, 4, 5, 6)

    class Proud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is attend:
                calls.append((len(args), kwargs))
                return theirs
            return super().__torch_function__(function, types, args, kwargs or {})

    q, k, v = qkv()
    listed = torch.zeros(2, 5, 1, dtype=torch.long)
    how = {"beta": 0.5, "causal": True, "listed": listed, "dropout": 0.25, "impl": "fused"}
    for place in range(3):
        three = [x.as_subclass(Proud) if i == place else x for i, x in enumerate((q, k, v))]
        assert attend(*three, None, **how) is theirs
    assert calls == [(4, how)] * 3


# What may enter


ALIKE = {
    "k of another precision": lambda q, k, v: (q, k.float(), v),
    "v of another precision": lambda q, k, v: (q, k, v.float()),
    "q of another precision": lambda q, k, v: (q.float(), k, v),
    "whole numbers": lambda q, k, v: (q.long(), k.long(), v.long()),
    "three axes": lambda q, k, v: (q[0], k[0], v[0]),
    "five axes": lambda q, k, v: (q[None], k[None], v[None]),
    "k elsewhere": lambda q, k, v: (q, k.to("meta"), v),
    "v elsewhere": lambda q, k, v: (q, k, v.to("meta")),
    "no key heads": lambda q, k, v: (q, k[:, :0], v[:, :0]),
    "v of another batch": lambda q, k, v: (q, k, v[:1]),
}


@pytest.mark.parametrize("wrong", ALIKE)
@pytest.mark.parametrize("e", [8, 6])
def test_what_does_not_fit_is_refused_in_a_sentence_however_much_else_fits(wrong, e):
    q, k, v = qkv(n_q=5, n_k=5, d=8, e=e)
    check_attention(q, k, v)
    with pytest.raises(ValueError, match=r"expected|must"):
        attend(*ALIKE[wrong](q, k, v))


@pytest.mark.parametrize("n_k", [5, 7])  # q and k alike, or not
@pytest.mark.parametrize("e", [4, 6])
def test_a_mask_fits_by_each_of_its_axes(n_k, e):
    q, k, v = qkv(b=2, h=3, n_q=5, n_k=n_k, d=4, e=e)
    whole = (2, 3, 5, n_k)
    for shape in itertools.product(*((1, size) for size in whole)):
        for axes in range(5):
            check_attention(q, k, v, torch.ones(shape[axes:], dtype=torch.bool))
            attend(q, k, v, torch.ones(shape[axes:], dtype=torch.bool))
    for axis, name in enumerate("bhqk"):
        for wrong in {0, whole[axis] - 1, whole[axis] + 1} - {1}:
            shape = [wrong if i == axis else size for i, size in enumerate(whole)]
            for call in (lambda mask: check_attention(q, k, v, mask), lambda mask: check_attention(q, k, mask=mask)):
                with pytest.raises(ValueError, match=f"mask axis {name}: got {wrong}, expected {whole[axis]} or 1"):
                    call(torch.ones(shape, dtype=torch.bool))
    for wrong, why in (
        (torch.ones(whole, dtype=torch.bool, device="meta"), "mask is on meta, expected cpu as q"),
        (torch.ones(whole, dtype=torch.int8), "mask must be boolean"),
        (torch.ones(1, *whole, dtype=torch.bool), "mask must have at most 4 axes"),
    ):
        with pytest.raises(ValueError, match=why):
            check_attention(q, k, v, wrong)


def test_a_list_names_keys_for_every_query_where_they_are():
    q, k, v = qkv(b=2, n_q=5)
    good = torch.zeros(2, 5, 1, dtype=torch.long)
    attend(q, k, v, listed=good)
    for wrong, why in (
        (good.to("meta"), "listed is on meta, expected cpu as q"),
        (good.int(), "listed holds torch.int32"),
        (good[0], r"listed must have 3 axes \(b q s\)"),
        (good[None], r"listed must have 3 axes \(b q s\)"),
        (good[:1], "with 2 for b and 5 for q"),
        (good[:, :4], "with 2 for b and 5 for q"),
        (good.mT, "with 2 for b and 5 for q"),
    ):
        with pytest.raises(ValueError, match=why):
            attend(q, k, v, listed=wrong)


def test_precisions_may_differ_where_autocast_makes_them_one():
    q, k, v = qkv(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"k is torch\.bfloat16, expected torch\.float32 as q"):
        attend(q, k.bfloat16(), v)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = attend(q, k.bfloat16(), v)
        assert_close(mixed, attend(q, k, v))
    assert mixed.dtype == torch.bfloat16


def test_what_is_learned_and_what_is_not():
    x, p = torch.zeros(1), torch.zeros(1, requires_grad=True)
    assert is_learned(x, p)
    assert is_learned(p, x)
    assert not is_learned(x, x)
    with torch.no_grad():
        assert not is_learned(p, p)


@pytest.mark.parametrize("size", [1, 3])
def test_lists_are_taken_where_they_can_be(size):
    q, k, v = qkv(b=1, h=1, n_q=1)
    listed = torch.arange(size)[None, None]
    assert takes_lists(q, k, v, listed)
    assert takes_lists(q.float(), k.float(), v.float(), listed)
    assert not takes_lists(q.bfloat16(), k.bfloat16(), v.bfloat16(), listed)
    assert not takes_lists(q, k, v, listed[..., :0])
    assert not takes_lists(q.to("meta"), k, v, listed)
    for i in range(3):
        three = [x.detach().requires_grad_(i == j) for j, x in enumerate((q, k, v))]
        assert not takes_lists(*three, listed)


@pytest.mark.parametrize(
    ("how", "taken"),
    [({}, True), ({"beta": 0.0}, True), ({"impl": "fused"}, False), ({"impl": "reference"}, False)]
    + [({"causal": True}, False), ({"dropout": 0.5}, False), ({"beta": math.inf}, False), ({"mask": 1}, False)],
)
def test_lists_are_read_alone_and_with_all_else_as_a_mask(how, taken, monkeypatch):
    q, k, v = qkv(dtype=torch.float32)
    calls = []
    run = ops.attention.attend_listed
    monkeypatch.setattr("pellucid.ops.attention.attend_listed", lambda *a: calls.append(a) or run(*a))
    listed = torch.rand(2, 5, 7).argsort(-1)[..., :3]
    if how.pop("mask", None):
        how["mask"] = torch.ones(5, 7, dtype=torch.bool)
    attend(q, k, v, listed=listed, **how)
    assert len(calls) == taken


# The map itself


def test_rows_in_another_precision_are_computed_in_it():
    q, k, _ = qkv(n_q=9, n_k=300, d=16, dtype=torch.float32)
    for beta in (0.25, math.inf):
        p = truth(q, k, torch.zeros(2, 4, 300, 1), beta=beta)[1]
        rows = weight_rows(q, k, None, beta, False, slice(2, 5), torch.float64)
        assert rows.dtype == torch.float64
        assert_close(rows, p[:, :, 2:5], rtol=0, atol=1e-12)
        blocks = [each for _, each in weight_blocks(q, k, None, beta, False, torch.float64)]
        assert_close(torch.cat(blocks, 2), p, rtol=0, atol=1e-12)
        assert weight_rows(q, k, None, beta, False, slice(2, 5)).dtype == torch.float32


@pytest.mark.parametrize("numbers", [1, 2 * 4 * 7, 2 * 4 * 7 + 5, 3 * 2 * 4 * 7, 10**6])
def test_blocks_are_as_many_whole_rows_as_fit_and_one_at_least(numbers, monkeypatch):
    monkeypatch.setattr("pellucid.ops.exact._BLOCK_NUMBERS", {"cpu": numbers})
    q, k, _ = qkv()
    blocks = list(weight_blocks(q, k, None, 1.0, False))
    step = max(1, numbers // (2 * 4 * 7))
    assert [(rows.start, rows.stop) for rows, _ in blocks] == [(i, min(5, i + step)) for i in range(0, 5, step)]
    assert_close(torch.cat([p for _, p in blocks], 2), attention_weights(q, k, beta=1.0), rtol=0, atol=0)
    assert list(weight_blocks(q[:, :, :0], k, None, 1.0, False)) == []
    assert len(list(weight_blocks(q, k[:, :, :0], None, 1.0, False))) == max(1, -(-5 // numbers))


def test_scores_of_shared_heads_and_of_half_precision():
    q, k, _ = qkv(g=2)
    assert_close(scores(q, k, beta=-0.7), -0.7 * q @ k.repeat_interleave(2, 1).mT, rtol=0, atol=1e-14)
    half = scores(q.bfloat16(), k.bfloat16())
    assert half.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        inside = scores(q.bfloat16(), k.bfloat16()), attention_weights(q.float(), k.float())
    assert torch.equal(inside[0], half)
    assert torch.equal(inside[1], attention_weights(q.float(), k.float()))


def test_keys_that_differ_by_more_than_rounding_are_no_tie():
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    eps = torch.finfo(torch.float64).eps
    k = torch.tensor([1.0, 1.0 - 4 * eps, 1.0 - 20 * eps, -3.0], dtype=torch.float64)[None, None, :, None]
    assert attention_weights(q, k[:, :, :3], beta=math.inf).flatten().tolist() == [0.5, 0.5, 0.0]
    assert attention_weights(q, k[:, :, :3], beta=-math.inf).flatten().tolist() == [0.0, 0.0, 1.0]
    assert attention_weights(q, k, beta=-math.inf).flatten().tolist() == [0.0, 0.0, 0.0, 1.0]


# Masks and positions


def test_masks_at_their_bounds():
    assert masks.padding(torch.tensor([3, 0]), 3)[:, 0, 0].tolist() == [[True] * 3, [False] * 3]
    assert masks.padding(torch.tensor([2, 1])).shape == (2, 1, 1, 2)
    assert masks.padding(torch.zeros(0, dtype=torch.long), 3).shape == (0, 1, 1, 3)
    assert torch.equal(masks.window(4, radius=0), torch.eye(4, dtype=torch.bool))
    assert torch.equal(masks.prefix(2, 3, length=0), masks.causal(2, 3))
    assert masks.prefix(2, 5, length=4).tolist() == [[True] * 4 + [False], [True] * 5]


def test_masks_are_combined_in_any_number_and_order():
    one, two, bias = masks.causal(4), masks.window(4, radius=1), torch.randn(4, 4)
    assert masks.combine(one, None) is one
    assert masks.combine(None, None, one) is one
    assert masks.combine(bias, None) is bias
    assert torch.equal(masks.combine(one, None, two, one), one & two)
    both = (one & two).float().log()  # 0 where it may, −∞ elsewhere
    for order in itertools.permutations((one, two, bias, None)):
        assert_close(masks.combine(*order), bias + both)
    assert_close(masks.combine(bias, bias), 2 * bias)


@pytest.mark.parametrize("options", [{}, {"base": 100.0}])
def test_positions_are_their_formulas_in_float64(options):
    base = options.get("base", 10_000.0)
    rows = torch.tensor([0.0, 3.0, 700.0, 12_345.0])
    angles = [[at * base ** (-2 * i / 8) for i in range(4)] for at in rows.tolist()]
    found = positions.rotary_angles(rows, 8, **options)
    assert_close(found.double(), torch.tensor(angles, dtype=torch.float64), rtol=1e-7, atol=0)
    grid = torch.tensor([[700.0, 2.0], [5.0, 12_345.0]])
    by_axis = [[at * base ** (-2 * i / 4) for at in row for i in range(2)] for row in grid.tolist()]
    assert_close(
        positions.rotary_angles(grid, 8, **options).double(),
        torch.tensor(by_axis, dtype=torch.float64),
        rtol=1e-7,
        atol=0,
    )
    waves = torch.tensor([[f(a) for a in row for f in (math.sin, math.cos)] for row in angles], dtype=torch.float64)
    assert_close(positions.sinusoids(rows, 8, **options), waves, rtol=0, atol=1e-9)
    table = positions.sinusoidal_2d(3, 5, 8, dtype=torch.float64, **options)
    for y, x in itertools.product(range(3), range(5)):
        expected = [f(at * base ** (-2 * i / 4)) for at in (y, x) for i in range(2) for f in (math.sin, math.cos)]
        assert table[y, x].tolist() == pytest.approx(expected, abs=1e-12)
    assert_close(positions.offset_rotation(5, 8, **options) @ positions.sinusoids(rows, 8, **options)[1],
                 positions.sinusoids(rows + 5, 8, **options)[1], rtol=0, atol=1e-12)  # fmt: skip
    assert positions.sinusoidal(2, 4).dtype == positions.sinusoidal_2d(2, 2, 4).dtype == torch.float32


def test_widths_are_multiples_and_more_than_nothing():
    assert positions.sinusoidal(3, 2).shape == (3, 2)
    assert positions.sinusoidal_2d(2, 3, 4).shape == (2, 3, 4)
    assert positions.rotary_angles(torch.zeros(3, 2), 4).shape == (3, 2)
    for make in (
        lambda: positions.sinusoidal(3, 0),
        lambda: positions.sinusoidal(3, 1),
        lambda: positions.sinusoidal_2d(2, 2, 2),
        lambda: positions.sinusoidal_2d(2, 2, 10),
        lambda: positions.rotary_angles(torch.zeros(3, 2), 2),
        lambda: positions.rotary_angles(torch.zeros(3, 2), 10),
        lambda: positions.rotary_angles(torch.zeros(()), 4),
    ):
        with pytest.raises(ValueError, match=r"expected a multiple of|must have axes"):
            make()


def test_a_rotation_is_that_of_complex_numbers():
    x, angles = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.rand(5, 4, dtype=torch.float64) * 6
    turned = torch.view_as_complex(x.unflatten(-1, (4, 2))) * torch.polar(torch.ones_like(angles), angles)
    assert_close(positions.rotate(x, angles), torch.view_as_real(turned).flatten(-2), rtol=0, atol=1e-12)
    for wrong in (x[..., :6], x[:, :, :4]):
        with pytest.raises(ValueError, match="angles are for 5 tokens × 8 features"):
            positions.rotate(wrong, angles)


def test_a_smaller_grid_is_averaged_and_a_larger_one_curved():
    table = torch.randn(8, 6, 3, dtype=torch.float64)
    image = table.permute(2, 0, 1)[None]
    for size in ((4, 3), (8, 3), (16, 9)):
        found = positions.interpolate(table, size)
        assert_close(found, F.interpolate(image, size, mode="bicubic", antialias=True)[0].permute(1, 2, 0))
    plain = F.interpolate(image, (4, 3), mode="bicubic")[0].permute(1, 2, 0)
    assert not torch.allclose(positions.interpolate(table, (4, 3)), plain, atol=1e-2)
    half = positions.interpolate(table.bfloat16(), (4, 3))
    assert half.dtype == torch.bfloat16
    assert_close(half.double(), positions.interpolate(table, (4, 3)), rtol=0, atol=0.05)


@pytest.mark.parametrize("heads", range(1, 18))
def test_slopes_of_any_number_of_heads_are_the_papers(heads):
    """Written as the paper's code: a power of two has a geometric row, others take every second of the next."""

    def row(n):
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]

    power = 1
    while 2 * power <= heads:
        power *= 2
    assert positions.alibi_slopes(heads) == pytest.approx(row(power) + row(2 * power)[0::2][: heads - power], rel=1e-12)
    bias = positions.alibi(heads, 2, 4)
    for i, j in itertools.product(range(2), range(4)):
        assert bias[:, i, j].tolist() == pytest.approx([-s * abs(i + 2 - j) for s in positions.alibi_slopes(heads)])


# Summaries


def self_attention(tokens=5, **changes):
    q, k, _ = qkv(n_q=tokens, n_k=tokens)
    return SimpleNamespace(**{"q": q, "k": k, "mask": None, "beta": 0.5, "causal": False} | changes)


def test_selections_at_their_bounds():
    q, k, _ = qkv()
    p = attention_weights(q, k)
    assert torch.equal(ops.row(q, k, -5), p[:, :, 0])
    assert torch.equal(ops.row(q, k, 4), p[:, :, 4])
    assert torch.equal(weights(q, k, heads=[-4, 3]), p[:, [0, 3]])
    assert weights(q, k, queries=[]).shape == (2, 4, 0, 7)
    for wrong in ([-6], [5], [0, 5], [-6, 0]):
        with pytest.raises(ValueError, match=r"axis q \(queries\): got .*, expected integers in 0…4"):
            ops.rows(q, k, wrong)
    for n in (1, 7):
        top = ops.topk(q, k, n)
        assert_close(top.weights, p.sort(descending=True).values[..., :n])
        assert top.keys.dtype == torch.long
    for n in (0, 8):
        with pytest.raises(ValueError, match=f"n is {n}; expected 1…7"):
            ops.topk(q, k, n)


@pytest.mark.parametrize("mask", [torch.rand(4, 5, 7) > 0.3, torch.rand(1, 5, 7) > 0.3, torch.rand(2, 4, 1, 7) > 0.3])
def test_some_heads_keep_their_own_keys_and_their_own_mask(mask):
    q, k, v = qkv(g=2)
    p = truth(q, k, v, mask)[1]
    for heads in ([3, 0], [2], slice(1, 3)):
        assert_close(weights(q, k, mask, heads=heads, queries=[4, 0]), p[:, heads][:, :, [4, 0]], rtol=0, atol=1e-12)


def test_rollout_at_its_bounds():
    record = self_attention()
    p = attention_weights(record.q, record.k, beta=0.5).mean(1)
    eye = torch.eye(5, dtype=torch.float64)
    assert_close(ops.rollout({"only": record}, -5, residual=0.25), (0.25 * eye + 0.75 * p)[:, 0], rtol=0, atol=1e-12)
    assert_close(ops.rollout([record], 2, residual=1.0), eye[2].expand(2, -1))
    assert_close(ops.rollout([record], 2), ops.rollout([record], 2, residual=0.5))
    for start in (5, -6):
        with pytest.raises(ValueError, match=f"start is {start}; expected a token in 0…4"):
            ops.rollout([record], start)
    for residual in (-0.1, 1.1):
        with pytest.raises(ValueError, match="expected a share between 0 and 1"):
            ops.rollout([record], 0, residual=residual)
    for wrong in (torch.ones(1, 5), torch.ones(2, 4), torch.ones(5)):
        with pytest.raises(ValueError, match=r"expected \(b t\) = \[2, 5\]"):
            ops.rollout([record], wrong)
    other = self_attention(k=qkv(n_k=7)[1])
    for records in ([record, other], [other, record], [self_attention(4), record]):
        with pytest.raises(ValueError, match="rollout follows self-attention"):
            ops.rollout(records, 0)
    half = self_attention(q=record.q.bfloat16(), k=record.k.bfloat16())
    assert ops.rollout([half], 0).dtype == torch.float32


def test_nobody_asks_and_nothing_is_handed_back():
    q, k, _ = qkv()
    assert torch.equal(ops.column_mass(q[:, :, :0], k), torch.zeros(2, 4, 7, dtype=torch.float64))
    x = torch.randn(2, 4, 0, 3, dtype=torch.float64)
    assert torch.equal(ops.apply_transposed(q[:, :, :0], k, x), torch.zeros(2, 4, 7, 3, dtype=torch.float64))


def test_the_fused_gradient_refuses_what_has_none():
    q, k, _ = qkv()
    for beta in (math.inf, -math.inf):
        with pytest.raises(ValueError, match="can't do beta=inf"):
            ops.column_mass(q, k, beta=beta, impl="fused")
    with torch.inference_mode():
        made = torch.ones_like(q), torch.ones_like(k)
    for q_, k_ in ((made[0], k), (q, made[1])):
        with pytest.raises(ValueError, match="inference mode forbids"):
            ops.column_mass(q_, k_, impl="fused")
    q.requires_grad_()
    with torch.no_grad():
        mass = ops.column_mass(q, k, impl="fused", beta=0.5)
    assert_close(mass, attention_weights(q, k, beta=0.5).sum(2).detach())
    assert not mass.requires_grad


def test_places_are_of_as_many_tokens_as_there_are():
    q, k, _ = qkv()
    places = torch.randn(7, 3, dtype=torch.float64)
    for keys_at, queries_at in ((places[:6], places[:5]), (places, places[:4]), (places, places[:6])):
        with pytest.raises(ValueError, match=r"coordinates have shape"):
            ops.mean_distance(q, k, keys_at, queries_at=queries_at)
    far = ops.mean_distance(q.float(), k.float(), 1000 * places, queries_at=1000 * places[:5])
    p = attention_weights(q, k)
    assert_close(far.double(), (p * torch.cdist(1000 * places[:5], 1000 * places)).sum(-1), rtol=1e-5, atol=0)


# What every function of (q, k) does unless told otherwise, and what each of them refuses


SUMMARIES = {
    "the map": lambda q, k, mask=None, **how: attention_weights(q, k, mask, **how),
    "a block": lambda q, k, mask=None, **how: weights(q, k, mask, **how),
    "a row": lambda q, k, mask=None, **how: ops.row(q, k, 1, mask, **how),
    "rows": lambda q, k, mask=None, **how: ops.rows(q, k, [2, 0], mask, **how),
    "columns": lambda q, k, mask=None, **how: ops.column_mass(q, k, mask, **how),
    "columns, fused": lambda q, k, mask=None, **how: ops.column_mass(q, k, mask, impl="fused", **how),
    "entropy": lambda q, k, mask=None, **how: ops.entropy(q, k, mask, **how),
    "distance": lambda q, k, mask=None, **how: ops.mean_distance(
        q, k, torch.arange(7.0)[:, None], mask, queries_at=torch.arange(5.0)[:, None], **how
    ),
    "the best": lambda q, k, mask=None, **how: ops.topk(q, k, 2, mask, **how).weights,
    "forward": lambda q, k, mask=None, **how: ops.apply(q, k, k, mask, **how),
    "back": lambda q, k, mask=None, **how: ops.apply_transposed(q, k, q, mask, **how),
    "attention": lambda q, k, mask=None, **how: attend(q, k, k, mask, **how),
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_beta_is_one_over_the_root_of_the_width_and_nothing_is_hidden_unless_asked(name):
    """The width of a head, of three heads that are five numbers wide."""
    q, k, _ = qkv(h=3, d=5)
    summary = SUMMARIES[name]
    expected = summary(q, k, beta=5**-0.5, causal=False)
    assert_close(summary(q, k), expected, rtol=0, atol=1e-12)
    for other in ({"beta": 3**-0.5}, {"causal": True}, {"mask": torch.rand(5, 7) > 0.5}):
        assert not torch.allclose(summary(q, k, **other), expected)
    rule = Rule((Apply("twice", lambda s: 2 * s),))
    if name not in ("the map", "attention", "columns, fused"):  # which take masks alone
        assert_close(summary(q, k, rule), summary(q, k, beta=2 * 5**-0.5), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_mask_that_does_not_fit_is_refused_by_whoever_is_given_it(name):
    """Three axes of which the first is the batch's, too."""
    q, k, _ = qkv(b=2, h=4)
    for wrong, why in (
        (torch.ones(2, 5, 7, dtype=torch.bool), "mask axis h: got 2, expected 4 or 1"),
        (torch.ones(5, 6, dtype=torch.bool), "mask axis k: got 6, expected 7 or 1"),
        (torch.ones(3, 4, 5, 7, dtype=torch.bool), "mask axis b: got 3, expected 2 or 1"),
        (torch.ones(1, 2, 4, 5, 7), "mask must have at most 4 axes"),
    ):
        with pytest.raises(ValueError, match=why):
            SUMMARIES[name](q, k, wrong)


def test_what_is_handed_back_may_be_the_same_for_every_picture_and_head():
    q, k, _ = qkv()
    x = torch.randn(1, 1, 5, 3, dtype=torch.float64)
    p = attention_weights(q, k)
    for impl in ("blocks", "fused"):
        assert_close(ops.apply_transposed(q, k, x, impl=impl), p.mT @ x)
        assert_close(ops.apply_transposed(q, k, x[0, 0], impl=impl), p.mT @ x)  # two axes are enough
    assert ops.apply_transposed(q[:, :, :0], k, x[:, :, :0]).shape == (2, 4, 7, 3)
    values = torch.randn(7, 3, dtype=torch.float64)
    assert_close(ops.apply(q, k, values), p @ values)
    assert_close(ops.apply(q, k, torch.ones(1, 1, 7, 2)), torch.ones(2, 4, 5, 2, dtype=torch.float64))
    record = self_attention()
    assert_close(ops.rollout([record, record], 1, impl="fused"), ops.rollout([record, record], 1), rtol=0, atol=1e-12)


def test_distances_are_summed_in_float64_and_divided_by_what_a_row_sums_to():
    """The last bit is right: of 300 keys the sum of a row in float32 would not be."""
    q, k, _ = qkv(b=1, h=2, n_q=40, n_k=300, d=4, dtype=torch.float32)
    at, queries_at = torch.rand(300, 2, dtype=torch.float64) * 50, torch.rand(40, 2, dtype=torch.float64) * 50
    p = attention_weights(q, k).double()
    expected = (p * torch.cdist(queries_at, at)).sum(-1) / p.sum(-1)
    found = ops.mean_distance(q, k, at, queries_at=queries_at)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected.float())


def test_blocks_of_no_keys_and_of_one_hold_as_many_rows_as_numbers_fit(monkeypatch):
    monkeypatch.setattr("pellucid.ops.exact._BLOCK_NUMBERS", {"cpu": 4})
    q, k, _ = qkv(b=1, h=1, n_q=9, n_k=1)
    for keys in (k, k[:, :, :0]):
        blocks = [(rows.start, rows.stop) for rows, _ in weight_blocks(q, keys, None, 1.0, False)]
        assert blocks == [(0, 4), (4, 8), (8, 9)]


def test_ties_are_within_eight_roundings_of_the_largest_score_there_is():
    """Of its size, not of the best's or the smallest's."""
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    eps = torch.finfo(torch.float64).eps

    def hard(*keys: float, beta: float = math.inf) -> list[float]:
        k = torch.tensor(keys, dtype=torch.float64)[None, None, :, None]
        return attention_weights(q, k, beta=beta).flatten().tolist()

    assert hard(1.0, 1.0 - 8 * eps, 1.0 - 8.5 * eps) == [0.5, 0.5, 0.0]
    assert hard(1.0, 1.0 - 4 * eps, 0.0) == [0.5, 0.5, 0.0]
    assert hard(1.0, 1.0 + 4 * eps, 0.0, beta=-math.inf) == [0.0, 0.0, 1.0]
    assert hard(1.0, 1.0 + 20 * eps, 4.0, beta=-math.inf) == [0.5, 0.5, 0.0]
    assert hard(*[0.0] * 4) == [0.25] * 4


def test_the_formula_mixes_values_in_full_precision_whatever_is_around_it():
    q, k, v = qkv(dtype=torch.float32)
    assert_close(attend(q, k, v, impl="reference").double(), truth(q, k, v)[0], rtol=0, atol=2e-6)
    half = [x.bfloat16() for x in (q, k, v)]
    expected = (attention_weights(*half[:2]) @ half[2].float()).bfloat16()
    assert torch.equal(attend(*half, impl="reference"), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attend(q, k, v, impl="reference"), expected)
        for impl in ("reference", "fused"):  # what is in float64 stays there
            q64, k64, v64 = qkv()
            assert_close(attend(q64, k64, v64, impl=impl), truth(q64, k64, v64)[0], rtol=0, atol=1e-12)


def test_kernels_elsewhere_get_masks_widths_and_heads_as_they_want_them():
    """Off the CPU: a query that may attend to nothing is let see everything, widths are multiples of eight, and heads
    are shared in half precision without a mask. A device without memory stands for it."""
    q = torch.empty(2, 4, 5, 8, device="meta")
    mask = torch.rand(2, 4, 5, 7) > 0.5
    mask[0, 1, 2], mask[1, 3] = False, False
    alive = mask.any(-1, keepdim=True)
    found, seen, _ = attention._kernel_mask(mask, q)
    assert torch.equal(seen, alive)
    assert torch.equal(found, mask | ~alive)
    bias = torch.zeros(2, 4, 5, 7, dtype=torch.float64).masked_fill(~mask, -math.inf) - 3.0
    found, seen, _ = attention._kernel_mask(bias, q)
    assert torch.equal(seen, alive)
    assert torch.equal(found, torch.where(alive, bias, 0.0).float())
    one, there, _ = attention._kernel_mask(mask[0, 0, 0], q)
    assert (one.shape, there.shape) == ((1, 7), (1, 1))
    for here, e, width in (("meta", 6, 8), ("meta", 9, 16), ("meta", 16, 16), ("cpu", 6, 8), ("cpu", 9, 9)):
        assert attention._kernel_width(torch.empty(2, 4, 5, 8, device=here), torch.empty(2, 4, 5, e)) == width
        assert attention._kernel_width(torch.empty(2, 4, 5, e, device=here), torch.empty(2, 4, 5, 8)) == width
    for dtype, given, shares in (
        (torch.float16, None, True), (torch.bfloat16, None, True),
        (torch.float32, None, False), (torch.float16, mask, False),
    ):  # fmt: skip
        assert attention._kernel_shares_heads(q.to(dtype), given) is shares
        assert attention._kernel_shares_heads(torch.empty(1, dtype=dtype), given)


def test_what_a_mask_hides_is_found_once():
    """From its second call on a mask that leaves every query something costs nothing; once written to, it is new."""
    q = torch.empty(1, 1, 3, 8, device="meta")
    for mask in (torch.tensor([[True, False], [True, True], [False, True]]), torch.zeros(3, 2)):
        first = attention._kernel_mask(mask, q)
        assert first.alive is not None
        assert first.alive.all()
        second = attention._kernel_mask(mask, q)
        assert second.alive is None
        assert torch.equal(second.mask, mask)
        assert attention._kernel_mask(mask, q) is second
        half = attention._kernel_mask(mask, q.half())  # a bias is another one there
        assert half is second if mask.dtype == torch.bool else half.mask.dtype == torch.float16
        mask[1] = False if mask.dtype == torch.bool else -math.inf
        for _ in range(3):
            written = attention._kernel_mask(mask, q)
            assert written.alive.flatten().tolist() == [True, False, True]
            assert (written.mask[1] == (True if mask.dtype == torch.bool else 0.0)).all()
        assert attention._kernel_mask(mask, q) is written
    learned = torch.zeros(3, 2, requires_grad=True)
    assert attention._kernel_mask(learned, q) is not attention._kernel_mask(learned, q)
    with torch.inference_mode():
        unwatched = torch.zeros(3, 2)
    assert attention._kernel_mask(unwatched, q).alive is not None
    assert attention._kernel_mask(unwatched, q).alive is not None


def test_positions_are_those_of_ten_thousand_and_of_one_to_three_axes():
    assert torch.equal(positions.sinusoidal(9, 8), positions.sinusoids(torch.arange(9), 8, base=10_000.0).float())
    assert positions.sinusoidal(3, 4)[0].tolist() == [0.0, 1.0, 0.0, 1.0]  # from the first on
    for wrong in (torch.zeros(()), torch.zeros(1, 1, 1, 1)):
        with pytest.raises(ValueError, match=r"positions must have axes \(t\), \(t axes\) or \(b t axes\)"):
            positions.rotary_angles(wrong, 4)


def test_the_steps_of_a_rule_at_their_bounds():
    x, rows = torch.randn(2, 3, 2, 4, dtype=torch.float64), torch.tensor([3, 1])
    bias, lowest = torch.randn(5, 4, dtype=torch.float64), torch.finfo(torch.float64).min
    assert_close(Plus(bias)(x, rows), x + bias[rows], rtol=0, atol=0)
    low = x.float() - 1e9  # beside which nothing is left of a score in float32
    assert torch.equal(Hold(torch.float32)(x - 1e9, rows), low.double())
    assert Hold(torch.float32)(low, rows) is low
    assert Hold(torch.float64)(low, rows) is low
    assert Plus(bias)(x.float(), rows).dtype == torch.float32
    assert_close(Times(bias[:, :1])(x, rows), x * bias[rows, :1])
    barred = torch.rand(5, 4) > 0.5
    for value, expected in ((-math.inf, -math.inf), (lowest, torch.finfo(torch.float32).min), (-5.0, -5.0)):
        assert torch.equal(Fill(barred, value)(x.float(), rows), x.float().masked_fill(barred[rows], expected))
    mixed = MixHeads(torch.randn(6, 3, dtype=torch.float64), torch.arange(6.0))(x, rows)
    assert mixed.shape == (2, 6, 2, 4)
    for b, h, q, k in ((1, 2, 1, 3), (0, 1, 0, 2)):
        at = Positions(lambda score, b, h, q, k: 1000 * b + 100 * h + 10 * q + k + 0 * score)(x, rows)[b, h, q, k]
        assert at == 1000 * b + 100 * h + 10 * rows[q] + k
    for shape in ((), (4,), (1, 4), (3, 1, 1), (2, 3, 1, 4)):
        one = torch.randn(shape)
        assert pick_rows(one, rows) is one
    assert pick_rows(torch.arange(20).view(5, 4), rows).tolist() == [[12, 13, 14, 15], [4, 5, 6, 7]]
    some = torch.tensor([2, 0])
    for shape in ((5, 4), (1, 5, 4), (2, 1, 5, 4)):
        one = torch.randn(shape)
        assert pick_heads(one, some) is one
    three = torch.randn(3, 5, 4)
    assert torch.equal(pick_heads(three, some), three[[2, 0]])
    assert torch.equal(pick_heads(torch.stack([three, -three]), slice(1, 3))[1], -three[1:])


def test_a_rule_says_what_it_is_and_what_it_is_made_of():
    factor, sinks = torch.ones(3, 1, 1), torch.zeros(1, 3, 1, 2)
    cap = Apply("cap", torch.tanh)
    assert repr(Rule()) == "Rule()"
    assert repr(Rule((cap, Times(factor)))) == "Rule(before: cap, Times[3, 1, 1])"
    assert repr(Rule((), (Positions(lambda *_: 0),))) == "Rule(after: Positions)"
    assert repr(Rule((cap,), (cap,), sinks)) == "Rule(before: cap; after: cap; 2 sinks)"
    whole = Rule((Times(factor), cap), (Plus(factor),), sinks)
    assert [x is y for x, y in zip(whole.tensors(), (factor, factor, sinks), strict=True)] == [True] * 3
    assert Rule((cap,)).tensors() == []
    scores_ = torch.randn(1, 3, 2, 4, dtype=torch.float64)
    scores_[0, 0, 0] = -math.inf
    scores_[0, 1, 0, 1:] = -math.inf
    rows = torch.arange(2)
    weighed = Rule(sinks=sinks + 1).weigh(scores_, rows)
    expected = scores_.exp() / (scores_.exp().sum(-1, keepdim=True) + 2 * math.e)
    assert_close(weighed, expected)
    assert not Rule().weigh(scores_, rows)[0, 0, 0].any()
    assert Rule().weigh(scores_, rows)[0, 1, 0].tolist() == [1.0, 0.0, 0.0, 0.0]
