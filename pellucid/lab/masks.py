"""Masks: added as −10⁴, added as −∞, or boolean; in three precisions; and pictures that need one."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most, relative_error, seeded
from pellucid.lab.panels import bar_chart, line_chart
from pellucid.layers import EncoderBlock
from pellucid.ops import attend, masks

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class MasksSettings(NamedTuple):
    """Tokens and their width."""

    tokens: int = 16  # Number of tokens.
    width: int = 64  # Width of queries and keys.
    seed: int = 0  # Of queries and keys.


class MasksMeasurement(NamedTuple):
    sizes: list[float]  # of the scores
    leaks: dict[str, list[float]]  # through −10⁴: for each precision and size, the largest weight on the future
    boolean_fault: float  # leak and NaN of a boolean mask, the worst there is
    open_nans: float  # share of NaN with −∞, where every row has a key to see
    empty_nans: dict[str, float]  # in a row that may attend to nothing
    empty_leaks: dict[str, dict[str, float]]  # weight on what is forbidden there, by mask and precision
    infinite: dict[str, int]  # precisions in which a number is −∞


def add_mask(
    q: Float[Tensor, "1 1 q d"], k: Float[Tensor, "1 1 k d"], bias: Float[Tensor, "q k"]
) -> Float[Tensor, "q k"]:
    """The textbook's masked softmax, all of it in the precision of q: scores, then the mask added to them."""
    scores = (q / math.sqrt(q.shape[-1])) @ k.mT
    return (scores + bias.to(q.dtype)).softmax(-1)[0, 0].double()


def mask_boolean(q: Float[Tensor, "1 1 q d"], k: Float[Tensor, "1 1 k d"], mask: Tensor) -> Float[Tensor, "q k"]:
    """The weights of `attend` under a boolean mask: with one-hot values, the output is the map."""
    one_hot = torch.eye(k.shape[2], dtype=q.dtype)[None, None]
    return attend(q, k, one_hot, mask)[0, 0].double()


def leak(weights: Float[Tensor, "q k"], mask: Tensor) -> float:
    """The largest share of a row that falls on keys it may not see; NaN if a weight is."""
    return (weights * ~mask).sum(-1).max().item()


def nans(weights: Tensor) -> float:
    """The share of weights that are NaN."""
    return weights.isnan().double().mean().item()


def measure_masks(p: MasksSettings) -> MasksMeasurement:
    """A causal mask in its three forms, over the size of the scores; and a row that may attend to nothing."""
    causal = masks.causal(p.tokens)
    empty = causal.clone()
    empty[0] = False  # padding on the left: the first token sees nothing
    with seeded(p.seed):
        q, k = torch.randn(2, 1, 1, p.tokens, p.width)
    sizes = [10.0 ** (i / 4) for i in range(21)]
    leaks, booleans, open_rows, empty_nans = {}, [], [], {}
    empty_leaks: dict[str, dict[str, float]] = {"−10⁴": {}, "boolean": {}}
    for name, dtype in PRECISIONS.items():
        key, queries = k.to(dtype), {size: (q * size).to(dtype) for size in (*sizes, 1e3)}
        query = queries[1.0]
        leaks[f"−10⁴, {name}"] = [leak(add_mask(queries[s], key, masks.additive(causal)), causal) for s in sizes]
        open_rows.append(add_mask(query, key, masks.additive(causal, -math.inf)))
        empty_nans[name] = nans(add_mask(query, key, masks.additive(empty, -math.inf))[0])
        empty_leaks["−10⁴"][name] = leak(add_mask(query, key, masks.additive(empty)), empty)
        closed = mask_boolean(query, key, empty)
        empty_leaks["boolean"][name] = leak(closed, empty)
        booleans += [mask_boolean(query, key, causal), mask_boolean(queries[1e3], key, causal), closed]
    fault = max(leak(weights, causal) for weights in booleans) + max(map(nans, booleans))
    infinite = {
        name: sum(bool(torch.tensor(number).to(dtype).isinf()) for dtype in PRECISIONS.values())
        for name, number in (("−10⁴", -1e4), ("−10⁹", -1e9))
    }
    return MasksMeasurement(sizes, leaks, fault, nans(torch.stack(open_rows)), empty_nans, empty_leaks, infinite)


def claim_masks(p: MasksSettings, m: MasksMeasurement) -> Claims:
    ordinary = max(values[0] for values in m.leaks.values())
    large = max(value for values in m.leaks.values() for value in values if math.isfinite(value))
    yield Thesis("masks.minus_10000", "−10⁴ added to the scores forbids as well as −∞ does.").conditional(
        at_most(1e-6, "scores of variance one: largest weight on what is forbidden, of three precisions", ordinary),
        ("scores of the size of 10⁴: largest weight on what is forbidden", large),
        ("a row that may attend to nothing: weight on what is forbidden", m.empty_leaks["−10⁴"]["float32"]),
        truth="True while the scores are small beside 10⁴ and every row has a key that it may see.",
    )
    yield Thesis("masks.infinity", "−∞ is a safe mask.").conditional(
        at_most(0.0, "rows with a key to see: share of weights that are NaN", m.open_nans),
        ("a row that may attend to nothing: share of NaN", m.empty_nans["float32"]),
        truth="True while every row has a key that it may see; otherwise the softmax is 0/0.",
    )
    yield Thesis(
        "masks.boolean",
        "A boolean mask neither leaks nor makes NaN, in float32, bfloat16 and float16, for large scores and empty "
        "rows.",
    ).true(
        at_most(0.0, "largest weight on what is forbidden, plus the share of NaN", m.boolean_fault),
        twin=("−10⁴ instead, for large scores", large),
    )
    yield Thesis("masks.minus_1e9", "−10⁹ is a finite number in every precision, and so a safer mask than −10⁴.").false(
        at_most(0, "precisions of three in which it is −∞", m.infinite["−10⁹"]),
        twin=("in which −10⁴ is", m.infinite["−10⁴"]),
        truth="float16 ends at 65,504: there −10⁹ is −∞, with NaN for empty rows.",
    )


def draw_masks(p: MasksSettings, m: MasksMeasurement) -> Drawing:
    leaky = {
        name: [s for s, leak in zip(m.sizes, leaks, strict=True) if leak > 1e-6] for name, leaks in m.leaks.items()
    }
    weights = m.empty_leaks["−10⁴"].items()
    numbers = {f"−10⁴, {name}, empty row: weight on what is forbidden": weight for name, weight in weights}
    numbers |= {f"−∞, {name}, empty row: share of NaN": share for name, share in m.empty_nans.items()}
    firsts = {f"{name}: scores' deviation from which it leaks": next(iter(s), "none") for name, s in leaky.items()}
    axes = ("standard deviation of the scores", "largest weight on the future")
    return numbers | firsts, [
        line_chart("what −10⁴ lets through", axes, m.sizes, m.leaks, log="x"),
        bar_chart("a row that may attend to nothing", "weight on what is forbidden", m.empty_leaks),
    ]


class PaddingSettings(NamedTuple):
    """Two pictures of different numbers of patches."""

    first: int = 16  # Patches of the larger picture.
    second: int = 9  # Patches of the smaller one.
    width: int = 32  # Of a token.
    seed: int = 0  # Of patches and weights.


class PaddingMeasurement(NamedTuple):
    differences: dict[str, float]  # of a picture's tokens from what it gets alone, relative


def measure_padding(p: PaddingSettings) -> PaddingMeasurement:
    """The smaller picture alone, and beside the larger one: padded or packed, with a mask and without."""
    with seeded(p.seed), torch.no_grad():
        blocks = nn.ModuleList(EncoderBlock(p.width, heads=4, norm="pre") for _ in range(2))
        first, same, small = (torch.randn(1, n, p.width) for n in (p.first, p.first, p.second))

        def run(x: Tensor, mask: Tensor | None = None) -> Tensor:
            for block in blocks:
                x = block(x, mask)
            return x

        alone = run(small)
        batch = torch.cat([first, F.pad(small, (0, 0, 0, p.first - p.second))])
        pack = torch.cat([first, small], dim=1)
        number = torch.tensor([0] * p.first + [1] * p.second)
        lengths = masks.padding(torch.tensor([p.first, p.second]), p.first)
        return PaddingMeasurement(
            {
                "one size, no mask": relative_error(run(torch.cat([first, same]))[1:], run(same)),
                "padded, no mask": relative_error(run(batch)[1:, : p.second], alone),
                "padded, mask": relative_error(run(batch, lengths)[1:, : p.second], alone),
                "packed, no mask": relative_error(run(pack)[:, p.first :], alone),
                "packed, mask": relative_error(run(pack, number[:, None] == number)[:, p.first :], alone),
            }
        )


def claim_padding(p: PaddingSettings, m: PaddingMeasurement) -> Claims:
    same, padded, padded_masked, packed, packed_masked = m.differences.values()
    yield Thesis("masks.vit", "The vision transformer needs no masks.").conditional(
        at_most(1e-5, "pictures of one size: relative difference from each alone", same),
        ("a smaller picture padded, no mask", padded),
        ("two pictures packed into one sequence, no mask", packed),
        truth="True for pictures of one size; padded, packed or dropped patches need one.",
        heard=True,
    )
    yield Thesis("masks.padding", "With its mask, a padded or packed picture gets what it would get alone.").true(
        at_most(1e-5, "largest relative difference", max(padded_masked, packed_masked)),
        twin=("without it", min(padded, packed)),
    )


def draw_padding(p: PaddingSettings, m: PaddingMeasurement) -> Drawing:
    chart = bar_chart("the smaller picture, against itself alone", "relative difference", {"": m.differences}, log=True)
    return m.differences, [chart]


MASKS = Experiment(
    name="masks",
    title="−10⁴, −∞ or boolean",
    statement="A mask as a number is a mask that can leak, or break; a boolean mask says what is meant.",
    formula="softmax(s + m), m = 0 or −10⁴: a forbidden key's weight is e^(−10⁴)·e^(s_forbidden − s_allowed), nothing, "
    "unless s_forbidden − s_allowed is near 10⁴ or nothing is allowed",
    predict="A row of the mask is −10⁴ everywhere. Where does that query attend to? And with −∞ everywhere?",
    fails="In float16 scores beyond 65,504 are infinite, and their softmax NaN, whatever the mask.",
    functions=(measure_masks, claim_masks, draw_masks),
    helpers=(add_mask, mask_boolean, leak, nans),
)

PADDING = Experiment(
    name="padding",
    title="When a vision transformer needs a mask",
    statement="Patches that belong to no picture, or to another one, must not be seen.",
    formula="softmax over the keys of one's own picture alone: mask[i, j] = (picture of i = picture of j)",
    predict="A picture of 9 patches is padded with zeros to 16. Do zero tokens change what the others get?",
    fails="The padded positions themselves still get an output, which means nothing; don't pool over it.",
    functions=(measure_padding, claim_padding, draw_padding),
)
