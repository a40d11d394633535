"""Attention flow (Abnar and Zuidema 2020): attention as pipes, and how much fits through them.

Every token of every layer is a node. Pipes lead from a token to those of the layer before, as wide as half its
attention to them (the mean of the heads), and to itself, as wide as the other half: what the residual carries. The flow
of a token of the input is the most that could come from it to what is read, were it alone. That is one maximum flow for
each token through all maps at once, so it is for few tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.explain.chains import DecoderRecords, Records, Start, check_decoder, check_self, list_records, weigh_start
from pellucid.extras import require
from pellucid.watching.record import Record

LIMIT = 256  # tokens
PRECISION = 1e-10  # of each flow; all lie between 0 and 1


def flow(records: Records, start: Start) -> Float[Tensor, "b t"]:
    """How much could flow from each token of the input to what is read, between 0 and 1."""
    return flow_decoder([], records, start)


def flow_decoder(decoder: DecoderRecords, encoder: Records, start: Start) -> Float[Tensor, "b s"]:
    """Through an encoder–decoder: from each token of the encoder's input, or of a context nobody encoded.

    Of a token of the decoder half stays with itself at each attention; the other half goes to the words before it, or
    to the encoder's last layer.
    """
    encoder = list_records(encoder)
    every = [*encoder, *(record for pair in decoder for record in pair if record is not None)]
    if not every:
        raise ValueError("flow needs at least one record; got none")
    most = max(max(record.q.shape[2], record.k.shape[2]) for record in every)
    if most > LIMIT:
        raise ValueError(f"flow holds every map and is for {LIMIT} tokens at most; got {most}: use rollout or gradient")
    if decoder:
        check_decoder(decoder, encoder)
    else:
        check_self(encoder, encoder[-1].q.shape[2])
    read = weigh_start(start, decoder[-1][1] if decoder else encoder[-1])
    tokens = (encoder[0] if encoder else decoder[0][1]).k.shape[2]
    first = 1 + len(encoder) * tokens
    blocks = _blocks(decoder, encoder, read, first, tokens)
    flows = [
        [_most(pipes, sink) for sink in range(first, first + tokens)]
        for pipes in (_pipes([(row, column, widths[i]) for row, column, widths in blocks]) for i in range(len(read)))
    ]
    return torch.tensor(flows, dtype=read.dtype, device=read.device)


def _blocks(
    decoder: DecoderRecords, encoder: Sequence[Record], read: Tensor, first: int, tokens: int
) -> list[tuple[int, int, np.ndarray]]:
    """Pipes from some nodes to others: the first of both, and how wide each is (b from to).

    Node 0 is what is read. The encoder's nodes follow, from its last layer to its input, whose first node is given;
    then those of the decoder, from its end to its beginning.
    """
    context = 1
    blocks = []
    for depth, record in enumerate(reversed(encoder)):
        here = context + depth * tokens
        blocks.append((here, here + tokens, _half(record) + np.eye(tokens) / 2))
    here = first + tokens if decoder else context
    blocks.append((0, here, read[:, None].double().cpu().numpy()))
    words = read.shape[1]
    stays = np.eye(words) / 2
    for own, cross in reversed(decoder):
        blocks += [
            (here, context, _half(cross)),
            (here, here + words, np.broadcast_to(stays, (len(read), *stays.shape))),
        ]
        here += words
        if own is not None:
            blocks.append((here, here + words, _half(own) + stays))
            here += words
    return blocks


def _half(record: Record) -> np.ndarray:
    return record.weights().double().mean(1).cpu().numpy() / 2


def _pipes(blocks: Sequence[tuple[int, int, np.ndarray]]) -> Any:
    """How wide the pipe between any two nodes is, for one image."""
    parts = [(row, column, widths, widths.nonzero()) for row, column, widths in blocks]
    starts = np.concatenate([row + rows for row, _, _, (rows, _) in parts])
    ends = np.concatenate([column + columns for _, column, _, (_, columns) in parts])
    nodes = 1 + max(column + widths.shape[1] for _, column, widths in blocks)
    widths = np.concatenate([widths[there] for _, _, widths, there in parts])
    sparse = require("scipy.sparse", "the method flow")
    return sparse.csr_array(sparse.coo_array((widths, (starts, ends)), shape=(nodes, nodes)))


def _most(pipes: Any, sink: int) -> float:
    """The maximum flow from node 0 to the sink.

    SciPy counts in 32-bit integers. So what fits is found in units of 2⁻²⁹ first; what that leaves, a unit of each
    pipe at most, is then found in units as much smaller, until it is less than the precision.
    """
    csr_array, maximum_flow = type(pipes), require("scipy.sparse.csgraph", "the method flow").maximum_flow
    total, unit, left = 0.0, 2.0**-29, pipes
    while True:
        units = np.clip(np.floor(np.asarray(left.data) / unit), 0, 2**30).astype(np.int32)
        largest = maximum_flow(csr_array((units, left.indices, left.indptr), shape=left.shape), 0, sink)
        total += largest.flow_value * unit
        missing = pipes.nnz * unit
        if missing < PRECISION:
            return total
        left = csr_array(left - csr_array(largest.flow) * unit)
        unit = missing / 2**30
