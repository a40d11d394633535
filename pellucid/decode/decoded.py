"""What decoding gives."""

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor


@dataclass(frozen=True)
class Decoded:
    """For each of b contexts n sequences of up to t tokens, best first.

    >>> import torch
    >>> from pellucid.decode import greedy
    >>> from pellucid.models import Transformer, TransformerConfig
    >>> config = TransformerConfig(12, width=16, heads=2, hidden=32, encoder_layers=1, decoder_layers=1)
    >>> model = Transformer(config).eval()
    >>> context = model.encode(torch.tensor([[3, 4, 5]]))
    >>> said = greedy(model, context, start=1, end=2, length=4)
    >>> said.tokens.shape[:2], said.log_probs.shape[:2]
    (torch.Size([1, 1]), torch.Size([1, 1]))
    """

    tokens: Tensor
    """Integers (b n t), without the start token; the end token included, then repeated."""
    log_probs: Tensor
    """(b n t): how probable the model found each token after those before it; 0 after the end."""
    lengths: Tensor
    """Integers (b n): tokens up to and with the end token, or t where it was never said."""
    scores: Tensor
    """(b n): Σ log_probs / lengths**penalty, by which the n are sorted; the penalty is 1 unless one was given."""

    def of(self, contexts: Bool[Tensor, " b"]) -> "Decoded":
        """What was found for these contexts."""
        return Decoded(*(each[contexts] for each in (self.tokens, self.log_probs, self.lengths, self.scores)))
