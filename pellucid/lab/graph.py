"""Attention as message passing: every token a node, every weight an edge."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.lab.frame import Case, Claim, Experiment, Result, seeded, worst
from pellucid.lab.panels import matrix
from pellucid.ops import attend, masks


@dataclass(frozen=True)
class Graph:
    """Nodes, their width, and how far an edge of the sparse graph reaches."""

    nodes: int = 12
    """Number of nodes, or tokens."""
    width: int = 8
    """Of queries, keys and values."""
    radius: int = 2
    """In the sparse graph a node has edges to those at most this far away."""
    seed: int = 0
    """Of queries, keys and values."""


def update(
    q: Float[Tensor, "n d"], k: Float[Tensor, "n d"], v: Float[Tensor, "n e"], neighbours: list[list[int]]
) -> Float[Tensor, "n e"]:
    """One round of message passing, by hand: each node keeps the weighted mean of what its neighbours say."""
    heard = []
    for node, others in enumerate(neighbours):
        total, message = 0.0, torch.zeros_like(v[0])
        for other in others:
            weight = math.exp(q[node] @ k[other] / math.sqrt(q.shape[1]))
            total, message = total + weight, message + weight * v[other]
        heard.append(message / total)
    return torch.stack(heard)


def hears(layers: int, edges: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """Which node (row) has heard of which after some layers: each says its own name, and what arrives is passed on."""
    n = len(edges)
    alike, said = torch.ones(1, 1, n, 1, dtype=torch.float64), torch.eye(n, dtype=torch.float64)[None, None]
    for _ in range(layers):
        said = attend(alike, alike, said, edges)
    return said[0, 0] > 0


def graph(p: Graph) -> Result:
    """Attention and the hand-written update on the same graph; then how far a message travels."""
    with seeded(p.seed):
        q, k, v = torch.randn(3, p.nodes, p.width, dtype=torch.float64)
    everyone = [list(range(p.nodes))] * p.nodes
    edges = masks.window(p.nodes, radius=p.radius)
    near = [row.nonzero().flatten().tolist() for row in edges]
    dense = attend(q[None, None], k[None, None], v[None, None])[0, 0]
    sparse = attend(q[None, None], k[None, None], v[None, None], edges)[0, 0]

    distance = (torch.arange(p.nodes)[:, None] - torch.arange(p.nodes)).abs()
    rounds = math.ceil((p.nodes - 1) / p.radius)
    wrong = [int((hears(n, edges) != (distance <= n * p.radius)).sum()) for n in range(1, rounds + 1)]
    shorter = [int((hears(n, edges) != (distance <= p.radius)).sum()) for n in range(1, rounds + 1)]
    claims = (
        Claim(
            "graph.complete",
            "Attention is one round of message passing on a complete graph.",
            "true",
            "≤",
            1e-12,
            holds=(Case("largest difference from the hand-written update", worst(dense, update(q, k, v, everyone))),),
            twin=Case("from the update on a graph with edges missing", worst(dense, update(q, k, v, near))),
        ),
        Claim(
            "graph.mask",
            "A mask is a set of missing edges.",
            "true",
            "≤",
            1e-12,
            holds=(
                Case(
                    "masked attention: largest difference from the update over neighbours",
                    worst(sparse, update(q, k, v, near)),
                ),
            ),
            twin=Case("from the update over everyone", worst(sparse, update(q, k, v, everyone))),
        ),
        Claim(
            "graph.reach",
            f"With edges of length {p.radius}, a node hears exactly those at a distance of up to {p.radius}·n after "
            "n layers.",
            "true",
            "≤",
            0,
            holds=(Case(f"pairs of nodes for which it is otherwise, after 1 to {rounds} layers", sum(wrong)),),
            twin=Case("if layers didn't add up", sum(shorter)),
        ),
    )
    panels = (
        matrix("edges of the complete graph", torch.ones(p.nodes, p.nodes), unit="edge"),
        matrix(f"edges of the window of radius {p.radius}", edges.double(), unit="edge"),
        matrix("heard after three layers", hears(3, edges).double(), unit="heard"),
    )
    numbers = {
        "edges of the complete graph": p.nodes**2,
        "edges of the window": int(edges.sum()),
        "layers until all have heard all": rounds,
        "largest difference from the hand-written update": worst(dense, update(q, k, v, everyone)),
    }
    return Result(numbers, panels, claims)


EXPERIMENTS = (
    Experiment(
        name="graph",
        title="Attention as message passing",
        statement="Tokens are nodes, weights are edges, and one layer is one round of messages.",
        formula="hᵢ = Σ_{j ∈ N(i)} e^(β·qᵢ·kⱼ)·vⱼ / Σ_{j ∈ N(i)} e^(β·qᵢ·kⱼ), with N(i) everyone, or those that the "
        "mask allows",
        predict="Edges reach two nodes away. After how many layers does the first of twelve nodes hear of the last?",
        fails="A graph network may have features on its edges, and graphs that lack most of them; attention computes "
        "all n² "
        "and masks. A node without neighbours has no mean: here it gets zeros.",
        parameters=Graph,
        run=graph,
        shown=(update, hears),
    ),
)
