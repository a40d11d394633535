"""Which inputs a network takes: of any size, or of the one that it was made for."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most, seeded
from pellucid.lab.panels import bar_chart
from pellucid.layers import EncoderBlock, LearnedGrid, LearnedPositions


class SizesSettings(NamedTuple):
    """Made for one size, asked with others."""

    own: int = 8  # Pixels of a side that each is made for.
    others: tuple[int, ...] = (4, 6, 12, 16)  # Pixels of a side that each is asked with.
    width: int = 16  # Of a token.
    seed: int = 0  # Of weights and pictures.


class SizesMeasurement(NamedTuple):
    refused: dict[str, float]  # share of the other sizes, by network


def make_networks(p: SizesSettings) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Five networks of a picture (1 1 y x), made for p.own."""
    convolutions = nn.Sequential(nn.Conv2d(1, p.width, 3, padding=1), nn.ReLU(), nn.Conv2d(p.width, p.width, 3))
    dense = nn.Linear(p.width * (p.own - 2) ** 2, 10)
    embed, block = nn.Linear(1, p.width), EncoderBlock(p.width, heads=2, norm="pre")
    table, grid = LearnedPositions(p.own**2, p.width), LearnedGrid((p.own, p.own), p.width)
    nn.init.normal_(table.table)

    def tokens(x: Tensor) -> Tensor:
        return embed(x.flatten(1)[..., None])

    def in_places(x: Tensor) -> Tensor:
        if x.shape[-1] ** 2 != len(table.table):  # a shorter row of pixels would get the places of another picture
            raise ValueError("there is one position for each pixel of the size that it was made for")
        return block(table(tokens(x)))

    return {
        "convolutions, then the mean": lambda x: convolutions(x).mean((2, 3)),
        "convolutions, then a dense head": lambda x: dense(convolutions(x).flatten(1)),
        "attention, no positions": lambda x: block(tokens(x)),
        "attention, learned positions": in_places,
        "attention, positions interpolated": lambda x: block(tokens(x) + grid((x.shape[-2], x.shape[-1]))),
    }


def refuses(network: Callable[[Tensor], Tensor], picture: Tensor) -> bool:
    try:
        network(picture)
    except (RuntimeError, ValueError):
        return True
    return False


@torch.no_grad()
def measure_sizes(p: SizesSettings) -> SizesMeasurement:
    """Ask each network with pictures of every size."""
    with seeded(p.seed):
        networks = make_networks(p)
        for name, network in networks.items():
            if refuses(network, torch.randn(1, 1, p.own, p.own)):
                raise ValueError(f"own is {p.own}; {name} can't be made for it, expected 3 or more")
        pictures = [torch.randn(1, 1, n, n) for n in p.others]
        refused = {
            name: sum(refuses(network, picture) for picture in pictures) / len(pictures)
            for name, network in networks.items()
        }
    return SizesMeasurement(refused)


def claim_sizes(p: SizesSettings, m: SizesMeasurement) -> Claims:
    mean, dense, bare, learned, _ = m.refused.values()
    yield Thesis("sizes.cnn", "A CNN needs inputs of one fixed size.").false(
        at_least(0.5, "convolutions, then the mean: share of other sizes that are refused", mean),
        twin=("convolutions, then a dense head", dense),
        truth="Convolutions take any size; a dense head on all places doesn't.",
        heard=True,
    )
    yield Thesis("sizes.transformer", "A transformer handles inputs of any size naturally.").conditional(
        at_most(0, "attention without positions: share of other sizes that are refused", bare),
        ("with learned positions", learned),
        truth="Attention does, learned positions don't. Interpolated, they take any size, and the answers get worse: "
        "the experiment `interpolation` measures by how much.",
    )


def draw_sizes(p: SizesSettings, m: SizesMeasurement) -> Drawing:
    chart = bar_chart(f"made for {p.own}×{p.own}", "share of other sizes refused", {"": m.refused})
    return {f"{name}: refused": share for name, share in m.refused.items()}, [chart]


SIZES = Experiment(
    name="sizes",
    title="Inputs of any size",
    statement="Convolutions and attention take any size. What fixes it is what counts places: a dense head, a table of "
    "positions.",
    formula="a convolution's weights: kernel² × channels²; attention's: width²; a dense head's: places × channels × 10",
    predict="Which of these refuse a larger picture: convolutions with a dense head, with a mean; attention with "
    "learned positions, without?",
    fails="To take a size is not to be good at it: what was never seen in training is answered less well.",
    functions=(measure_sizes, claim_sizes, draw_sizes),
    helpers=(make_networks, refuses),
)
