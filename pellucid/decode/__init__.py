"""From logits to tokens. These functions know neither words nor images."""

from pellucid.decode.attention import cross_attention
from pellucid.decode.beam import beam_search
from pellucid.decode.decoded import Decoded
from pellucid.decode.rows import greedy, sample

__all__ = ["Decoded", "beam_search", "cross_attention", "greedy", "sample"]
