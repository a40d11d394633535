"""Attention as message passing: every token a node, every weight an edge."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most, max_error, seeded
from pellucid.lab.panels import heatmap
from pellucid.ops import attend, masks


class GraphSettings(NamedTuple):
    """Nodes, their width, and how far an edge of the sparse graph reaches."""

    nodes: int = 12  # Number of nodes, or tokens.
    width: int = 8  # Of queries, keys and values.
    radius: int = 2  # In the sparse graph a node has edges to those at most this far away.
    seed: int = 0  # Of queries, keys and values.


class GraphMeasurement(NamedTuple):
    edges: Tensor  # of the sparse graph
    errors: dict[str, float]  # of attention, beside the hand-written update over everyone or neighbours
    masked_errors: dict[str, float]  # of masked attention
    layers: int  # until all have heard all
    wrong: int  # pairs that don't hear of each other as said, after each number of layers
    wrong_if_not_added: int  # if layers didn't add up
    heard: Tensor  # after three layers


def update(
    q: Float[Tensor, "n d"], k: Float[Tensor, "n d"], v: Float[Tensor, "n e"], neighbours: list[list[int]]
) -> Float[Tensor, "n e"]:
    """One round of message passing, by hand: each node keeps the weighted mean of what its neighbours say."""
    messages = []
    for node, others in enumerate(neighbours):
        total, message = 0.0, torch.zeros_like(v[0])
        for other in others:
            weight = math.exp(q[node] @ k[other] / math.sqrt(q.shape[1]))
            total, message = total + weight, message + weight * v[other]
        messages.append(message / total)
    return torch.stack(messages)


def hears(layers: int, edges: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """Which node (row) has heard of which after some layers: each says its own name, and what arrives is passed on."""
    n = len(edges)
    alike, names = torch.ones(1, 1, n, 1, dtype=torch.float64), torch.eye(n, dtype=torch.float64)[None, None]
    for _ in range(layers):
        names = attend(alike, alike, names, edges)
    return names[0, 0] > 0


def measure_graph(p: GraphSettings) -> GraphMeasurement:
    """Attention and the hand-written update on the same graph; then how far a message travels."""
    with seeded(p.seed):
        q, k, v = torch.randn(3, p.nodes, p.width, dtype=torch.float64)
    edges = masks.window(p.nodes, radius=p.radius)
    near = [row.nonzero().flatten().tolist() for row in edges]
    updates = {"everyone": update(q, k, v, [list(range(p.nodes))] * p.nodes), "neighbours": update(q, k, v, near)}
    dense = attend(q[None, None], k[None, None], v[None, None])[0, 0]
    masked = attend(q[None, None], k[None, None], v[None, None], edges)[0, 0]

    distance = (torch.arange(p.nodes)[:, None] - torch.arange(p.nodes)).abs()
    layers = math.ceil((p.nodes - 1) / p.radius)
    heard = {n: hears(n, edges) for n in range(1, layers + 1)}
    return GraphMeasurement(
        edges,
        {over: max_error(dense, update) for over, update in updates.items()},
        {over: max_error(masked, update) for over, update in updates.items()},
        layers,
        wrong=sum(int((heard[n] != (distance <= n * p.radius)).sum()) for n in heard),
        wrong_if_not_added=sum(int((heard[n] != (distance <= p.radius)).sum()) for n in heard),
        heard=hears(3, edges),
    )


def claim_graph(p: GraphSettings, m: GraphMeasurement) -> Claims:
    yield Thesis("graph.complete", "Attention is one round of message passing on a complete graph.").true(
        at_most(1e-12, "largest difference from the hand-written update", m.errors["everyone"]),
        twin=("from the update on a graph with edges missing", m.errors["neighbours"]),
    )
    far, near = m.masked_errors.values()
    yield Thesis("graph.mask", "A mask is a set of missing edges.").true(
        at_most(1e-12, "masked attention: largest difference from the update over neighbours", near),
        twin=("from the update over everyone", far),
    )
    yield Thesis(
        "graph.reach",
        f"With edges of length {p.radius}, a node hears exactly those at a distance of up to {p.radius}·n after n "
        "layers.",
    ).true(
        at_most(0, f"pairs of nodes for which it is otherwise, after 1 to {m.layers} layers", m.wrong),
        twin=("if layers didn't add up", m.wrong_if_not_added),
    )


def draw_graph(p: GraphSettings, m: GraphMeasurement) -> Drawing:
    numbers = {
        "edges of the complete graph": p.nodes**2,
        "edges of the window": int(m.edges.sum()),
        "layers until all have heard all": m.layers,
        "largest difference from the hand-written update": m.errors["everyone"],
    }
    return numbers, [
        heatmap("edges of the complete graph", torch.ones(p.nodes, p.nodes), unit="edge"),
        heatmap(f"edges of the window of radius {p.radius}", m.edges.double(), unit="edge"),
        heatmap("heard after three layers", m.heard.double(), unit="heard"),
    ]


GRAPH = Experiment(
    name="graph",
    title="Attention as message passing",
    statement="Tokens are nodes, weights are edges, and one layer is one round of messages.",
    formula="hᵢ = Σ_{j ∈ N(i)} e^(β·qᵢ·kⱼ)·vⱼ / Σ_{j ∈ N(i)} e^(β·qᵢ·kⱼ), with N(i) everyone, or those that the mask "
    "allows",
    predict="Edges reach two nodes away. After how many layers does the first of twelve nodes hear of the last?",
    fails="A graph network may have features on its edges, and graphs that lack most of them; attention computes all "
    "n² and masks. A node without neighbours has no mean: here it gets zeros.",
    functions=(measure_graph, claim_graph, draw_graph),
    helpers=(update, hears),
)
