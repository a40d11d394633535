"""Models: parameters in the shape of an idea. They know nothing of data."""

from pellucid.models.captioner import Captioner, CaptionerConfig
from pellucid.models.transformer import Transformer, TransformerConfig
from pellucid.models.vit import ViT, ViTConfig, parameters_of

__all__ = ["Captioner", "CaptionerConfig", "Transformer", "TransformerConfig", "ViT", "ViTConfig", "parameters_of"]
