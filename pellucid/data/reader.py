"""How a model reads a picture: from a file, bytes, an image, an array or a tensor to what it was trained on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from pellucid.data.aspect import Area, Goal, join
from pellucid.data.augment import Normalise, normalised
from pellucid.data.images import Fit, Size, decode, to_grey_or_rgb, to_picture, to_tensor
from pellucid.data.opener import MAX_PIXELS

Picture = str | Path | bytes | Image.Image | np.ndarray | Tensor


@dataclass(frozen=True)
class PictureReader:
    """size: (height, width) that pictures are brought to. fit: "cover" keeps the centre, "stretch" all of the picture.

    >>> reader = PictureReader((8, 8), 3, Normalise((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))
    >>> reader.read(np.zeros((20, 30, 3), dtype=np.uint8)).shape
    torch.Size([3, 8, 8])
    """

    size: Size
    channels: int
    normalise: Normalise
    fit: Fit = "cover"
    patch: Size | None = None  # of which sides are multiples, where pictures keep the ratio of theirs

    @classmethod
    def of(cls, config: Any, fit: Fit = "cover") -> "PictureReader":
        """As a model's config (image, channels, mean, std) wants its pictures."""
        if config.mean is None or config.std is None:
            raise ValueError(
                "the model doesn't say how its images were normalised; say it by pellucid convert MODEL OUT --mean M M "
                "M --std S S S, or put mean and std into its config.json"
            )
        patch = config.patch if getattr(config, "keep_aspect", False) else None
        return cls(config.image, config.channels, Normalise(config.mean, config.std), fit, patch)

    @property
    def goal(self) -> Goal:
        """What pictures are brought to."""
        return self.size if self.patch is None else Area(self.size, self.patch)

    def join(self, pictures: list[Tensor]) -> UInt8[Tensor, "b c y x"]:
        """Pictures that were read, as one batch."""
        return join(pictures, self.goal)

    def read(
        self, picture: Picture, *, max_pixels: int = MAX_PIXELS, name: str | None = None
    ) -> UInt8[Tensor, "c y x"]:
        """The picture's pixels, upright and in the model's size; one sentence if it can't be read.

        Arrays are (y x) or (y x c), tensors (c y x), of bytes or of floats in 0…1. name: what the sentence calls it.
        """
        if isinstance(picture, (str, Path, bytes)):
            return decode(picture, self.goal, self.channels, max_pixels, name=name, fit=self.fit)
        image = to_picture(picture, name or "the picture")
        return to_tensor(to_grey_or_rgb(image, self.channels), self.goal, self.fit)

    def prepare(self, pixels: UInt8[Tensor, "b c y x"], module: nn.Module) -> Float[Tensor, "b c y x"]:
        """Pictures as the module wants them: normalised, on its device and in its precision."""
        parameter = next(module.parameters())
        return normalised(pixels.to(parameter.device), self.normalise).to(parameter.dtype)

    def blank(self) -> UInt8[Tensor, "c y x"]:
        """A picture without content: the mean colour of the training images, everywhere."""
        colour = torch.tensor(self.normalise.mean).mul(255).round().to(torch.uint8)
        return colour[:, None, None].expand(-1, *self.size).contiguous()
