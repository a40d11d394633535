"""Masks: added as −10⁴, added as −∞, or boolean; in three precisions; and pictures that need one."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.lab.frame import Case, Claim, Experiment, Result, relative, seeded
from pellucid.lab.panels import Bars, Curves, line
from pellucid.layers import EncoderBlock
from pellucid.ops import attend, masks

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Masks:
    """Tokens and their width."""

    tokens: int = 16
    """Number of tokens."""
    width: int = 64
    """Width of queries and keys."""
    seed: int = 0
    """Of queries and keys."""


def added(q: Float[Tensor, "1 1 q d"], k: Float[Tensor, "1 1 k d"], bias: Float[Tensor, "q k"]) -> Float[Tensor, "q k"]:
    """The textbook's masked softmax, all of it in the precision of q: scores, then the mask added to them."""
    scores = (q / math.sqrt(q.shape[-1])) @ k.mT
    return (scores + bias.to(q.dtype)).softmax(-1)[0, 0].double()


def boolean(q: Float[Tensor, "1 1 q d"], k: Float[Tensor, "1 1 k d"], mask: Tensor) -> Float[Tensor, "q k"]:
    """The weights of `attend` under a boolean mask: with one-hot values, the output is the map."""
    one_hot = torch.eye(k.shape[2], dtype=q.dtype)[None, None]
    return attend(q, k, one_hot, mask)[0, 0].double()


def leak(weights: Float[Tensor, "q k"], mask: Tensor) -> float:
    """The largest share of a row that falls on keys it may not see; NaN if a weight is."""
    return (weights * ~mask).sum(-1).max().item()


def masking(p: Masks) -> Result:
    """A causal mask in its three forms, over the size of the scores; and a row that may attend to nothing."""
    causal = masks.causal(p.tokens)
    empty = causal.clone()
    empty[0] = False  # padding on the left: the first token sees nothing
    with seeded(p.seed):
        q, k = torch.randn(2, 1, 1, p.tokens, p.width)
    sizes = [10.0 ** (i / 4) for i in range(21)]
    leaks: dict[str, list[float]] = {}
    for name, dtype in DTYPES.items():
        leaks[f"−10⁴, {name}"] = [
            leak(added((q * size).to(dtype), k.to(dtype), masks.additive(causal)), causal) for size in sizes
        ]
    ordinary = max(values[0] for values in leaks.values())
    large = max(value for values in leaks.values() for value in values if math.isfinite(value))
    exact = [boolean((q * size).to(dtype), k.to(dtype), causal) for dtype in DTYPES.values() for size in (1.0, 1e3)]
    exact += [boolean(q.to(dtype), k.to(dtype), empty) for dtype in DTYPES.values()]
    held = max(leak(weights, causal) for weights in exact)
    finite = masks.additive(empty)
    infinite = masks.additive(empty, -math.inf)
    open_row = [added(q.to(dtype), k.to(dtype), masks.additive(causal, -math.inf)) for dtype in DTYPES.values()]
    dead = {name: added(q.to(dtype), k.to(dtype), infinite) for name, dtype in DTYPES.items()}
    dead_finite = {name: leak(added(q.to(dtype), k.to(dtype), finite), empty) for name, dtype in DTYPES.items()}
    too_large = sum(bool(torch.tensor(-1e9).to(dtype).isinf()) for dtype in DTYPES.values())
    claims = (
        Claim(
            "masks.minus_10000",
            "−10⁴ added to the scores forbids as well as −∞ does.",
            "conditional",
            "≤",
            1e-6,
            holds=(Case("scores of variance one: largest weight on what is forbidden, of three precisions", ordinary),),
            breaks=(
                Case("scores of the size of 10⁴: largest weight on what is forbidden", large),
                Case("a row that may attend to nothing: weight on what is forbidden", dead_finite["float32"]),
            ),
            truth="True while the scores are small beside 10⁴ and every row has a key that it may see.",
        ),
        Claim(
            "masks.infinity",
            "−∞ is a safe mask.",
            "conditional",
            "≤",
            0.0,
            holds=(Case("rows with a key to see: share of weights that are NaN", nans(torch.stack(open_row))),),
            breaks=(Case("a row that may attend to nothing: share of NaN", nans(dead["float32"][0])),),
            truth="True while every row has a key that it may see; otherwise the softmax is 0/0.",
        ),
        Claim(
            "masks.boolean",
            "A boolean mask neither leaks nor makes NaN, in float32, bfloat16 and float16, for large scores and "
            "empty rows.",
            "true",
            "≤",
            0.0,
            holds=(Case("largest weight on what is forbidden, plus the share of NaN", held + max(map(nans, exact))),),
            twin=Case("−10⁴ instead, for large scores", large),
        ),
        Claim(
            "masks.minus_1e9",
            "−10⁹ is a finite number in every precision, and so a safer mask than −10⁴.",
            "false",
            "≤",
            0,
            breaks=(Case("precisions of three in which it is −∞", too_large),),
            twin=Case("in which −10⁴ is", sum(bool(torch.tensor(-1e4).to(d).isinf()) for d in DTYPES.values())),
            truth="float16 ends at 65,504: there −10⁹ is −∞, with NaN for empty rows.",
        ),
    )
    shown = tuple(
        line(
            name,
            [s for s, v in zip(sizes, values, strict=True) if math.isfinite(v)],
            [v for v in values if math.isfinite(v)],
        )
        for name, values in leaks.items()
    )
    panels = (
        Curves(
            "what −10⁴ lets through",
            "standard deviation of the scores",
            "largest weight on the future",
            shown,
            log="x",
        ),
        Bars(
            "a row that may attend to nothing",
            "weight on what is forbidden",
            tuple(DTYPES),
            (("−10⁴", tuple(dead_finite.values())), ("boolean", tuple(leak(w, empty) for w in exact[-3:]))),
        ),
    )
    numbers = {f"−10⁴, {name}, empty row: weight on what is forbidden": value for name, value in dead_finite.items()}
    numbers |= {f"−∞, {name}, empty row: share of NaN": nans(weights[0]) for name, weights in dead.items()}
    numbers |= {
        f"{name}: scores' deviation from which it leaks": next(
            (s for s, v in zip(sizes, values, strict=True) if v > 1e-6), "none"
        )
        for name, values in leaks.items()
    }
    return Result(numbers, panels, claims)


def nans(x: Tensor) -> float:
    return x.isnan().double().mean().item()


@dataclass(frozen=True)
class Padded:
    """Two pictures of different numbers of patches."""

    first: int = 16
    """Patches of the larger picture."""
    second: int = 9
    """Patches of the smaller one."""
    width: int = 32
    """Of a token."""
    seed: int = 0
    """Of patches and weights."""


def padded(p: Padded) -> Result:
    """The smaller picture alone, and beside the larger one: padded or packed, with a mask and without."""
    with seeded(p.seed), torch.no_grad():
        blocks = nn.ModuleList(EncoderBlock(p.width, heads=4, norm="pre") for _ in range(2))
        first, same, small = (
            torch.randn(1, p.first, p.width),
            torch.randn(1, p.first, p.width),
            torch.randn(1, p.second, p.width),
        )

        def run(x: Tensor, mask: Tensor | None = None) -> Tensor:
            for block in blocks:
                x = block(x, mask)
            return x

        alone = run(small)
        batch = torch.cat([first, F.pad(small, (0, 0, 0, p.first - p.second))])
        pack = torch.cat([first, small], dim=1)
        number = torch.tensor([0] * p.first + [1] * p.second)
        lengths = torch.tensor([p.first, p.second])
        found = {
            "one size, no mask": relative(run(torch.cat([first, same]))[1:], run(same)),
            "padded, no mask": relative(run(batch)[1:, : p.second], alone),
            "padded, mask": relative(run(batch, masks.padding(lengths, p.first))[1:, : p.second], alone),
            "packed, no mask": relative(run(pack)[:, p.first :], alone),
            "packed, mask": relative(run(pack, number[:, None] == number)[:, p.first :], alone),
        }
    claims = (
        Claim(
            "masks.vit",
            "The vision transformer needs no masks.",
            "conditional",
            "≤",
            1e-5,
            holds=(Case("pictures of one size: relative difference from each alone", found["one size, no mask"]),),
            breaks=(
                Case("a smaller picture padded, no mask", found["padded, no mask"]),
                Case("two pictures packed into one sequence, no mask", found["packed, no mask"]),
            ),
            truth="True for pictures of one size; padded, packed or dropped patches need one.",
            heard=True,
        ),
        Claim(
            "masks.padding",
            "With its mask, a padded or packed picture gets what it would get alone.",
            "true",
            "≤",
            1e-5,
            holds=(Case("largest relative difference", max(found["padded, mask"], found["packed, mask"])),),
            twin=Case("without it", min(found["padded, no mask"], found["packed, no mask"])),
        ),
    )
    panels = (
        Bars(
            "the smaller picture, against itself alone",
            "relative difference",
            tuple(found),
            (("", tuple(found.values())),),
            log=True,
        ),
    )
    return Result(dict(found), panels, claims)


EXPERIMENTS = (
    Experiment(
        name="masks",
        title="−10⁴, −∞ or boolean",
        statement="A mask as a number is a mask that can leak, or break; a boolean mask says what is meant.",
        formula="softmax(s + m), m = 0 or −10⁴: a forbidden key's weight is e^(−10⁴)·e^(s_forbidden − s_allowed), "
        "nothing, unless "
        "s_forbidden − s_allowed is near 10⁴ or nothing is allowed",
        predict="A row of the mask is −10⁴ everywhere. Where does that query attend to? And with −∞ everywhere?",
        fails="In float16 scores beyond 65,504 are infinite, and their softmax NaN, whatever the mask.",
        parameters=Masks,
        run=masking,
        shown=(added, boolean, leak),
    ),
    Experiment(
        name="padding",
        title="When a vision transformer needs a mask",
        statement="Patches that belong to no picture, or to another one, must not be seen.",
        formula="softmax over the keys of one's own picture alone: mask[i, j] = (picture of i = picture of j)",
        predict="A picture of 9 patches is padded with zeros to 16. Do zero tokens change what the others get?",
        fails="The padded positions themselves still get an output, which means nothing; don't pool over it.",
        parameters=Padded,
        run=padded,
    ),
)
