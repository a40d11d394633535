"""What models are called with: small random batches, drawn after the seed is set."""

import torch
from torch import Tensor

from zoo import Inputs

BATCH = 2
TOKENS = 10


def words(n: int = TOKENS, vocabulary: int = 99) -> Tensor:
    """Token numbers (b n) that are no special ones."""
    return torch.randint(10, vocabulary, (BATCH, n))


def text(n: int = TOKENS) -> Inputs:
    return {"input_ids": words(n)}


def padded(n: int = TOKENS) -> Inputs:
    """The second text is shorter, as tokenizers of encoders pad."""
    mask = torch.ones(BATCH, n, dtype=torch.long)
    mask[1, n - 3 :] = 0
    return {"input_ids": words(n), "attention_mask": mask}


def left_padded(n: int = TOKENS) -> Inputs:
    """The second text is shorter, as texts are padded before something is generated."""
    given = padded(n)
    return given | {"attention_mask": given["attention_mask"].flip(1)}


def pair(n: int = TOKENS) -> Inputs:
    """For an encoder and a decoder."""
    return {"input_ids": words(n), "decoder_input_ids": words(n - 3)}


def images(size: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(BATCH, channels, size, size)


def pixels(size: int = 32, channels: int = 3) -> Inputs:
    return {"pixel_values": images(size, channels)}


# For Hugging Face's.


def patches() -> Inputs:
    """SigLIP 2 takes patches, of pictures that may differ in shape."""
    shapes = torch.tensor([[4, 4], [4, 3]])
    mask = torch.arange(16) < shapes.prod(1, keepdim=True)
    return {
        "pixel_values": torch.randn(BATCH, 16, 192),
        "pixel_attention_mask": mask.long(),
        "spatial_shapes": shapes,
    }


def captioned(size: int = 32) -> Inputs:
    return pixels(size) | text()


def with_image_tokens(n_image: int, token: int = 98, size: int = 32) -> Inputs:
    """A picture, and a text in which its tokens have places."""
    ids = torch.cat([torch.full((BATCH, n_image), token), words(6, token)], 1)
    return {"pixel_values": images(size), "input_ids": ids, "attention_mask": torch.ones_like(ids)}


def gemma_tokens(n_image: int = 16) -> Inputs:
    given = with_image_tokens(n_image)
    return given | {"token_type_ids": (given["input_ids"] == 98).long()}


def kosmos_tokens() -> Inputs:
    ids = words(12)
    places = torch.zeros_like(ids)
    places[:, 2:6] = 1
    return {"pixel_values": images(), "input_ids": ids, "image_embeds_position_mask": places}


def spectrogram() -> Inputs:
    return {"input_features": torch.randn(BATCH, 16, 20), "decoder_input_ids": words(6)}


def waveform() -> Inputs:
    return {"input_values": torch.randn(BATCH, 400)}


def audio_patches() -> Inputs:
    return {"input_values": torch.randn(BATCH, 24, 16)}


def drawn_and_told() -> Inputs:
    return pixels() | {"decoder_input_ids": words(6)}


def document() -> Inputs:
    corners = torch.randint(0, 50, (BATCH, 10, 2))
    return text() | {"bbox": torch.cat([corners, corners + 10], -1)}


def drawn_document() -> Inputs:
    return document() | pixels()


def video(frames: int = 2, size: int = 32) -> Inputs:
    return {"pixel_values": torch.randn(BATCH, frames, 3, size, size)}


def clicked(size: int = 32) -> Inputs:
    """A picture with one point to segment at."""
    return pixels(size) | {"input_points": torch.rand(BATCH, 1, 1, 2) * size}


def video_patches() -> Inputs:
    """Qwen2-VL's tower takes two pictures as one row of patches."""
    return {"hidden_states": torch.randn(32, 2 * 3 * 8 * 8), "grid_thw": torch.tensor([[1, 4, 4], [1, 4, 4]])}


def flattened_patches() -> Inputs:
    places = torch.cartesian_prod(torch.arange(1, 5), torch.arange(1, 5)).expand(BATCH, -1, -1)
    return {"flattened_patches": torch.cat([places.float(), torch.randn(BATCH, 16, 192)], -1)}


def series() -> Inputs:
    past, future = torch.randn(BATCH, 19), torch.randn(BATCH, 4)
    return {
        "past_values": past, "past_time_features": torch.randn(BATCH, 19, 1),
        "past_observed_mask": torch.ones(BATCH, 19), "future_values": future,
        "future_time_features": torch.randn(BATCH, 4, 1),
    }  # fmt: skip


def latents() -> Inputs:
    return {"inputs": torch.randn(BATCH, 12, 24)}


def masked_picture() -> Inputs:
    return captioned() | {"bool_masked_pos": torch.zeros(BATCH, 16, dtype=torch.long)}


def globally() -> Inputs:
    """The first token sees all others and is seen by them."""
    mask = torch.zeros(BATCH, 16, dtype=torch.long)
    mask[:, 0] = 1
    return text(16) | {"global_attention_mask": mask}
