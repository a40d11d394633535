"""Convolution by attention: one head for each place of the kernel, each looking one fixed step away."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most, max_error, relative_error, seeded
from pellucid.lab.panels import bar_chart, heatmap
from pellucid.layers import MultiHeadAttention
from pellucid.ops import masks
from pellucid.ops.positions import grid_positions
from pellucid.watching import watch

Kernel = Float[Tensor, "out in y x"]


class ConvolutionSettings(NamedTuple):
    """The picture and the kernel."""

    size: int = 8  # Height and width of the picture.
    channels: int = 4  # Of the picture, and of the output.
    kernel: int = 3  # Height and width of the kernel, odd.
    sharpness: float = 32.0  # How sharply a head finds its place: the leak is about e^(−sharpness).
    seed: int = 0  # Of the picture and the kernel.


class BandErrors(NamedTuple):
    row_sum: float  # distance from one, at most, of a band of ones
    divided_row_sum: float  # after dividing each row by its sum
    band: float  # relative, from the convolution: attention in the band, with the best value map
    heads: float  # a head for each shift, with its own value map


class ConvolutionMeasurement(NamedTuple):
    errors: dict[str, float]  # from conv2d, the largest, of all heads and of one head fewer
    relative_errors: dict[str, float]
    one_head: float  # relative error of the best one head
    bound: float  # that no one head can go below
    one_head_blur: float  # for a kernel whose slices are all alike
    rank: int  # of the kernel's slices
    blur_rank: int
    band: BandErrors
    looks: Tensor  # where the heads of one query look


def steps(kernel: int) -> Tensor:
    """The (y, x) of every place of the kernel, from its middle."""
    return grid_positions(kernel, kernel) - kernel // 2


def convolving(weight: Kernel, sharpness: float) -> MultiHeadAttention:
    """One head for each place of the kernel: it attends to the token that lies its step away, and maps it by its slice.

    A token is its channels, then y, x, y² + x² and 1. A head that looks `step` away gives the key at r the score
    −s·‖r − (query's place + step)‖², up to what all keys share: largest at its place, smaller by s beside it. It is
    a product of the query (2s·(y + step), 2s·(x + step), −s) and the key (y, x, y² + x²).
    """
    out, c, kernel, _ = weight.shape
    heads = kernel * kernel
    layer = MultiHeadAttention(c + 4, heads, key_width=3, value_width=out, bias=False, beta=1.0)
    with torch.no_grad():
        for projection in (layer.W_q, layer.W_k, layer.W_v, layer.W_o):
            projection.zero_()
        for head, step in enumerate(steps(kernel)):
            q, k = (w[c:, 3 * head : 3 * head + 3] for w in (layer.W_q, layer.W_k))
            q[0, 0] = q[1, 1] = 2 * sharpness
            q[3, :2], q[3, 2] = 2 * sharpness * step, -sharpness
            k[0, 0] = k[1, 1] = k[2, 2] = 1
            values = slice(out * head, out * (head + 1))
            layer.W_v[:c, values] = weight[:, :, head // kernel, head % kernel].T
            layer.W_o[values, :out] = torch.eye(out)
    return layer


def slices(weight: Kernel) -> Float[Tensor, "places maps"]:
    """The kernel's places as rows."""
    return rearrange(weight.double(), "o c y x -> (y x) (o c)")


def best_single_head(weight: Kernel, rounds: int = 200) -> tuple[float, float]:
    """How near one head comes to a convolution of white noise, at best: (error, bound), both relative errors.

    One head, however it attends by position, gives place δ of the kernel the slice p_δ·W, with p ≥ 0: of all these
    the nearest is a matrix of rank one to the slices as rows. The bound is that of any matrix of rank one (the
    largest singular value); the error found here also has p ≥ 0, by alternating least squares from each slice.
    """
    rows = slices(weight)
    energy, singular = rows.square().sum(), torch.linalg.svdvals(rows)
    bound = (1 - singular[0] ** 2 / energy).clamp(min=0).sqrt().item()
    error = float("inf")
    for start in rows:
        W, p = start, torch.zeros(len(rows))
        for _ in range(rounds):
            p = (rows @ W / W.square().sum()).clamp(min=0)
            W = p @ rows / p.square().sum()
        error = min(error, ((rows - p[:, None] * W).square().sum() / energy).sqrt().item())
    return error, bound


def convolve_by(
    layer: MultiHeadAttention, image: Float[Tensor, "1 c y x"], edge: int, out: int
) -> Float[Tensor, "1 out y x"]:
    """The picture with a border of zeros as tokens, through the layer; the border's own outputs are cut off."""
    padded = F.pad(image, (edge,) * 4)
    height, width = padded.shape[-2:]
    at = grid_positions(height, width) - torch.tensor([height // 2, width // 2])
    places = torch.cat([at, at.square().sum(-1, keepdim=True), torch.ones(len(at), 1)], dim=-1)
    tokens = torch.cat([rearrange(padded, "b c y x -> b (y x) c"), places[None]], dim=-1)
    grid = rearrange(layer(tokens)[..., :out], "b (y x) c -> b c y x", y=height)
    return grid[..., edge : height - edge, edge : width - edge]


def band_errors(kernel: Float[Tensor, "out channels x"], seed: int) -> BandErrors:
    """On a line of 32 tokens: attention in a band, and heads that each attend to one shift, beside a convolution."""
    width, n = kernel.shape[-1], 32
    edge = width // 2
    line = torch.randn(1, kernel.shape[1], n, generator=torch.Generator().manual_seed(seed))
    band = masks.window(n, radius=edge).float()
    rows = band / band.sum(-1, keepdim=True)
    mean = kernel.mean(-1)  # the best map that all neighbours can share
    inside = slice(edge, n - edge)
    truth = F.conv1d(line, kernel, padding=edge)[..., inside]
    shared = ((mean * width) @ line @ rows.T)[..., inside]
    heads = [torch.eye(n).roll(i - edge, 1) for i in range(width)]  # row r of head i attends to r + i − edge alone
    shifted = torch.stack([kernel[:, :, i] @ line @ head.T for i, head in enumerate(heads)]).sum(0)[..., inside]
    band_sum, row_sum = ((weights.sum(-1) - 1).abs().max().item() for weights in (band, rows))
    return BandErrors(band_sum, row_sum, relative_error(shared, truth), relative_error(shifted, truth))


def measure_convolution(p: ConvolutionSettings) -> ConvolutionMeasurement:
    """Set the heads, and compare with PyTorch's convolution; then with fewer heads, and with a band of ones."""
    if p.kernel % 2 == 0 or p.kernel < 1:
        raise ValueError(f"kernel is {p.kernel}; expected an odd number")
    c, edge = p.channels, p.kernel // 2
    with seeded(p.seed):
        image, weight = torch.randn(1, c, p.size, p.size), torch.randn(c, c, p.kernel, p.kernel) / p.kernel
    truth = F.conv2d(image, weight, padding=edge)
    blur = weight[:, :, :1, :1].expand_as(weight).contiguous()  # every slice the same
    with torch.no_grad():
        with watch(layer := convolving(weight, p.sharpness)) as seen:
            outputs = {"all heads": convolve_by(layer, image, edge, c)}
        layer.W_v[:, :c] = 0  # head 0 is removed
        outputs["one head fewer"] = convolve_by(layer, image, edge, c)
    middle = (p.size + 2 * edge) * (p.size // 2 + edge) + p.size // 2 + edge  # a query
    return ConvolutionMeasurement(
        {name: max_error(output, truth) for name, output in outputs.items()},
        {name: relative_error(output, truth) for name, output in outputs.items()},
        *best_single_head(weight),
        one_head_blur=best_single_head(blur)[0],
        rank=int(torch.linalg.matrix_rank(slices(weight))),
        blur_rank=int(torch.linalg.matrix_rank(slices(blur))),
        band=band_errors(weight[:, :, edge], p.seed),
        looks=seen[""].weights(queries=[middle])[0, :, 0].sum(0).unflatten(0, (p.size + 2 * edge,) * 2),
    )


def claim_convolution(p: ConvolutionSettings, m: ConvolutionMeasurement) -> Claims:
    n = p.kernel
    yield Thesis(
        "convolution.heads", f"A {n}×{n} convolution is attention with {n**2} heads, each looking one step away."
    ).true(
        at_most(1e-5, "largest difference from conv2d, borders included", m.errors["all heads"]),
        twin=("with one head fewer", m.errors["one head fewer"]),
    )
    yield Thesis(
        "convolution.one_head", f"One head that attends by position can be a {n}×{n} convolution."
    ).conditional(
        at_most(1e-5, "a blur, whose slices are all alike: best relative error", m.one_head_blur),
        ("random kernel: best relative error of any one head", m.one_head),
        truth="Only if the kernel's slices are one matrix times weights ≥ 0. Here no head can do better than "
        f"{m.bound:.3f}.",
    )
    yield Thesis("convolution.band", "A band matrix with ones on its diagonals is an attention matrix.").false(
        at_most(1e-6, "largest distance of a row's sum from one", m.band.row_sum),
        twin=("after dividing each row by its sum", m.band.divided_row_sum),
        truth="The rows of attention sum to one.",
        heard=True,
    )
    yield Thesis(
        "convolution.band_is_one_map", f"Attention in a band, {n} neighbours wide, is a convolution of kernel {n}."
    ).false(
        at_most(1e-5, "relative error of the band, with the value map that is best on white noise", m.band.band),
        twin=(f"of {n} heads, each one shift with its own value map", m.band.heads),
        truth=f"One head gives all neighbours the same linear map; a convolution needs {n} heads, each with its own.",
        heard=True,
    )
    yield Thesis(
        "convolution.rank",
        f"The kernel's {n**2} slices are independent, so that fewer heads that attend by position can't do.",
    ).true(at_least(n**2, "rank of the slices, as rows", m.rank), twin=("rank for a blur", m.blur_rank))


def draw_convolution(p: ConvolutionSettings, m: ConvolutionMeasurement) -> Drawing:
    largest, bound = m.errors["all heads"], ("bound for one head", m.bound)
    numbers = {"largest difference": largest, "best one head": m.one_head, "bound for one head": m.bound}
    every, fewer = m.relative_errors.values()
    bars = {f"{p.kernel**2} heads": every, "one head fewer": fewer, "best one head": m.one_head}
    return numbers, [
        heatmap("all heads of one query, summed", m.looks, rows="y of the key", columns="x of the key"),
        bar_chart("distance from the convolution", "relative error", {"": bars}, line=bound),
    ]


CONVOLUTION = Experiment(
    name="convolution",
    title="Convolution by attention",
    statement="Attention with a head for each place of the kernel is a convolution; with one head it is not.",
    formula="Σ_δ W_δ·x(r + δ) = Σ_h W_h·Σ_r' P_h(r, r')·x(r') with P_h(r, r') = 1 where r' = r + δ_h",
    predict="How many heads does a 3×3 convolution need, and how near does one head come?",
    fails="Beyond the border there is nothing to attend to: the border of zeros has to be tokens. The bound for one "
    "head is for attention by position; attention by content is no linear map of the picture.",
    functions=(measure_convolution, claim_convolution, draw_convolution),
    helpers=(steps, convolving, convolve_by, slices, best_single_head, band_errors),
)
