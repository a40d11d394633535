"""Convolution by attention: one head for each place of the kernel, each looking one fixed step away."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from pellucid.lab.frame import Case, Claim, Experiment, Result, relative, seeded, worst
from pellucid.lab.panels import Bars, matrix
from pellucid.layers import MultiHeadAttention, watch
from pellucid.ops import masks
from pellucid.ops.positions import grid_positions

Kernel = Float[Tensor, "out in y x"]


@dataclass(frozen=True)
class Convolution:
    """The picture and the kernel."""

    size: int = 8
    """Height and width of the picture."""
    channels: int = 4
    """Of the picture, and of the output."""
    kernel: int = 3
    """Height and width of the kernel, odd."""
    sharpness: float = 32.0
    """How sharply a head finds its place: the leak is about e^(−sharpness)."""
    seed: int = 0
    """Of the picture and the kernel."""


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


def best_single_head(weight: Kernel, rounds: int = 200) -> tuple[float, float]:
    """How near one head comes to a convolution of white noise, at best: (found, bound), both relative errors.

    One head, however it attends by position, gives place δ of the kernel the slice p_δ·W, with p ≥ 0: of all these
    the nearest is a matrix of rank one to the slices as rows. The bound is that of any matrix of rank one (the
    largest singular value); what is found also has p ≥ 0, by alternating least squares from each slice.
    """
    slices = rearrange(weight.double(), "o c y x -> (y x) (o c)")
    energy, singular = slices.square().sum(), torch.linalg.svdvals(slices)
    bound = (1 - singular[0] ** 2 / energy).clamp(min=0).sqrt().item()
    found = float("inf")
    for start in slices:
        W, p = start, torch.zeros(len(slices))
        for _ in range(rounds):
            p = (slices @ W / W.square().sum()).clamp(min=0)
            W = p @ slices / p.square().sum()
        found = min(found, ((slices - p[:, None] * W).square().sum() / energy).sqrt().item())
    return found, bound


def convolution(p: Convolution) -> Result:
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
            made = run_on(layer, image, edge, c)
        layer.W_v[:, :c] = 0  # head 0 is removed
        removed = run_on(layer, image, edge, c)
    found, bound = best_single_head(weight)
    blurred, _ = best_single_head(blur)

    line, kernel = torch.randn(1, c, 32, generator=torch.Generator().manual_seed(p.seed)), weight[:, :, edge]
    band = masks.window(32, radius=edge).float()
    rows = band / band.sum(-1, keepdim=True)
    mean = kernel.mean(-1)  # the best map that all neighbours can share
    straight = F.conv1d(line, kernel, padding=edge)
    inside = slice(edge, 32 - edge)
    shared = ((mean * p.kernel) @ line @ rows.T)[..., inside]
    heads = [torch.eye(32).roll(i - edge, 1) for i in range(p.kernel)]  # row r of head i attends to r + i − edge alone
    shifted = torch.stack([kernel[:, :, i] @ line @ head.T for i, head in enumerate(heads)]).sum(0)[..., inside]

    claims = (
        Claim(
            "convolution.heads",
            f"A {p.kernel}×{p.kernel} convolution is attention with {p.kernel**2} heads, each looking one step away.",
            "true",
            "≤",
            1e-5,
            holds=(Case("largest difference from conv2d, borders included", worst(made, truth)),),
            twin=Case("with one head fewer", worst(removed, truth)),
        ),
        Claim(
            "convolution.one_head",
            f"One head that attends by position can be a {p.kernel}×{p.kernel} convolution.",
            "conditional",
            "≤",
            1e-5,
            holds=(Case("a blur, whose slices are all alike: best relative error", blurred),),
            breaks=(Case("random kernel: best relative error of any one head", found),),
            truth="Only if the kernel's slices are one matrix times weights ≥ 0. Here no head can do better than "
            f"{bound:.3f}.",
        ),
        Claim(
            "convolution.band",
            "A band matrix with ones on its diagonals is an attention matrix.",
            "false",
            "≤",
            1e-6,
            breaks=(Case("largest distance of a row's sum from one", (band.sum(-1) - 1).abs().max().item()),),
            twin=Case("after dividing each row by its sum", (rows.sum(-1) - 1).abs().max().item()),
            truth="The rows of attention sum to one.",
            heard=True,
        ),
        Claim(
            "convolution.band_is_one_map",
            f"Attention in a band, {p.kernel} neighbours wide, is a convolution of kernel {p.kernel}.",
            "false",
            "≤",
            1e-5,
            breaks=(
                Case(
                    "relative error of the band, with the value map that is best on white noise",
                    relative(shared, straight[..., inside]),
                ),
            ),
            twin=Case(
                f"of {p.kernel} heads, each one shift with its own value map", relative(shifted, straight[..., inside])
            ),
            truth=f"One head gives all neighbours the same linear map; a convolution needs {p.kernel} heads, each "
            "with its own.",
            heard=True,
        ),
        Claim(
            "convolution.rank",
            f"The kernel's {p.kernel**2} slices are independent, so that fewer heads that attend by position can't do.",
            "true",
            "≥",
            p.kernel**2,
            holds=(Case("rank of the slices, as rows", slices_rank(weight)),),
            twin=Case("rank for a blur", slices_rank(blur)),
        ),
    )
    at = (p.size + 2 * edge) * (p.size // 2 + edge) + p.size // 2 + edge  # a query in the middle
    looks = seen[""].weights(queries=[at])[0, :, 0].sum(0).unflatten(0, (p.size + 2 * edge,) * 2)
    panels = (
        matrix("all heads of one query, summed", looks, rows="y of the key", columns="x of the key"),
        Bars(
            "distance from the convolution",
            "relative error",
            (f"{p.kernel**2} heads", "one head fewer", "best one head"),
            (("", (relative(made, truth), relative(removed, truth), found)),),
            line=("bound for one head", bound),
        ),
    )
    numbers = {"largest difference": worst(made, truth), "best one head": found, "bound for one head": bound}
    return Result(numbers, panels, claims)


def run_on(
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


def slices_rank(weight: Kernel) -> int:
    return int(torch.linalg.matrix_rank(rearrange(weight.double(), "o c y x -> (y x) (o c)")))


EXPERIMENTS = (
    Experiment(
        name="convolution",
        title="Convolution by attention",
        statement="Attention with a head for each place of the kernel is a convolution; with one head it is not.",
        formula="Σ_δ W_δ·x(r + δ) = Σ_h W_h·Σ_r' P_h(r, r')·x(r') with P_h(r, r') = 1 where r' = r + δ_h",
        predict="How many heads does a 3×3 convolution need, and how near does one head come?",
        fails="Beyond the border there is nothing to attend to: the border of zeros has to be tokens. The bound for "
        "one head "
        "is for attention by position; attention by content is no linear map of the picture.",
        parameters=Convolution,
        run=convolution,
        shown=(steps, convolving, best_single_head, run_on),
    ),
)
