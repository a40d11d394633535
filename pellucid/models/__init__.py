"""Models: parameters in the shape of an idea. They know nothing of data."""

from pellucid.models.transformer import Transformer, TransformerConfig
from pellucid.models.vit import ViT, ViTConfig, parameters_of

__all__ = ["Transformer", "TransformerConfig", "ViT", "ViTConfig", "parameters_of"]
