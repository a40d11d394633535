"""What decoding gives."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Decoded:
    """For each of b contexts n sequences of up to t tokens, best first."""

    tokens: Tensor
    """Integers (b n t), without the start token; the end token included, then repeated."""
    log_probs: Tensor
    """(b n t): how probable the model found each token after those before it; 0 after the end."""
    lengths: Tensor
    """Integers (b n): tokens up to and with the end token, or t where it was never said."""
    scores: Tensor
    """(b n): Σ log_probs / lengths**penalty, by which the n are sorted; the penalty is 1 unless one was given."""
