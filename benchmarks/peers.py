"""The same vision transformer in other libraries: patches of 4 at 32², class token, learned positions, ten classes."""

import warnings

import torch
from torch import Tensor, nn
from zoo.stubs import stub_torchvision


class TorchViT(nn.Module):
    """nn.TransformerEncoder, as PyTorch's users put a vision transformer together."""

    def __init__(self, width: int, depth: int, heads: int):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.encoder(x)[:, 0])


def timm(width: int, depth: int, heads: int) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stub_torchvision()
        from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=32, patch_size=4, embed_dim=width, depth=depth, num_heads=heads, num_classes=10)


def vit_pytorch(width: int, depth: int, heads: int) -> nn.Module:
    stub_torchvision()
    from vit_pytorch import ViT

    return ViT(
        image_size=32, patch_size=4, num_classes=10, dim=width, depth=depth, heads=heads, mlp_dim=4 * width,
        dim_head=width // heads,
    )  # fmt: skip


class HuggingFace(nn.Module):
    def __init__(self, width: int, depth: int, heads: int):
        super().__init__()
        stub_torchvision()
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            image_size=32, patch_size=4, hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads,
            intermediate_size=4 * width, hidden_dropout_prob=0.0,
            num_labels=10, attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
        )  # fmt: skip
        self.model = ViTForImageClassification(config)

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


PEERS = {"nn.TransformerEncoder": TorchViT, "timm": timm, "vit-pytorch": vit_pytorch, "Hugging Face": HuggingFace}
