"""Models: parameters in the shape of an idea. They know nothing of data."""

from pellucid.models.transformer import Transformer, TransformerConfig

__all__ = ["Transformer", "TransformerConfig"]
