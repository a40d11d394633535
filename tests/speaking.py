"""A tiny captioner that knows five pictures by heart: with it, what is said can be told from what should be."""

import torch
import torch.nn.functional as F

from pellucid.data.augment import Normalise, normalised
from pellucid.data.tokenizer import PAD, CaptionTokenizer
from pellucid.models import Captioner, CaptionerConfig, ViTConfig

NORMALISE = Normalise((0.5, 0.25, 0.125), (0.25, 0.25, 0.25))
CAPTIONS = ("a red dog runs", "two cats sit", "the grass", "a red cat on grass", "birds")
REGISTERS = 2


def pictures(size: tuple[int, int] = (8, 12)) -> torch.Tensor:
    """Five of them, in patches of 4 × 4 pixels of one colour."""
    rows, columns = size[0] // 4, size[1] // 4
    colours = torch.randint(256, (5, 3, rows, columns), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    return colours.repeat_interleave(4, 2).repeat_interleave(4, 3)


def captioner(tokenizer: CaptionTokenizer, size: tuple[int, int] = (8, 12), steps: int = 60, **changes) -> Captioner:
    torch.manual_seed(0)
    encoder = ViTConfig(
        image=size,
        patch=(4, 4),
        width=32,
        depth=2,
        heads=2,
        registers=REGISTERS,
        pooling="none",
        mean=NORMALISE.mean,
        std=NORMALISE.std,
    )
    model = Captioner(
        CaptionerConfig(vocabulary=len(tokenizer), encoder=encoder, layers=2, heads=4, max_length=16, **changes)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    images, tokens = normalised(pictures(size), NORMALISE), tokenizer.batch(CAPTIONS, 16)
    for _ in range(steps):
        logits = model(images, tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()
