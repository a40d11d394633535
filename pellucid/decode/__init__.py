"""From logits to tokens. These functions know neither words nor images."""

from pellucid.decode.greedy import greedy

__all__ = ["greedy"]
