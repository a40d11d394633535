"""What of a model that begins with trained weights moves, and how fast."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Adapted = Literal["q", "k", "v", "out", "inner", "outer"]
Beside = Literal["norms", "biases", "tokens"]
BODY = "body"


@dataclass(frozen=True)
class Tune:
    """Fine-tuning: everything moves, at the same rate, unless told otherwise.

    The body is what was there before: of a classifier all but its head, of a captioner the encoder.
    """

    freeze: tuple[str, ...] = ()
    """Parts that stay as they are, by the beginnings of their names, as embed or blocks.0; "body" is all of it."""
    thaw: float = 0.0
    """Share of the run in which the body begins to move, from its last block to its first; before that it stays."""
    layer_decay: float = 1.0
    """Share that each block has of the rate of the block after it; the first has the least (Clark et al. 2020)."""
    rank: int = 0
    """Of LoRA (Hu et al. 2022): the body stays, and a product of two matrices as thin as this is added to some of its
    own; what is kept is the sum. 0 for none."""
    alpha: float | None = None
    """The product is multiplied by alpha / rank; by one unless given."""
    adapt: tuple[Adapted, ...] = ("q", "k", "v", "out")
    """To which matrices of each block: those of its attention, and inner and outer of its feed-forward layer."""
    beside: tuple[Beside, ...] = ()
    """What else of the body moves beside LoRA's products: norms, biases, tokens (and positions)."""

    def __post_init__(self) -> None:
        if not 0 <= self.thaw <= 1:
            raise ValueError(f"tune.thaw is {self.thaw}; expected a share of the run, 0…1")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"tune.layer_decay is {self.layer_decay}; expected a share above 0, up to 1")
        if self.rank < 0:
            raise ValueError(f"tune.rank is {self.rank}; expected zero or more")
        if self.alpha is not None and not 0 < self.alpha < math.inf:
            raise ValueError(f"tune.alpha is {self.alpha}; expected more than zero")
        for name, choices in (("adapt", Adapted), ("beside", Beside)):
            if odd := [each for each in getattr(self, name) if each not in get_args(choices)]:
                expected = ", ".join(get_args(choices))
                raise ValueError(f"tune.{name} names {odd[0]!r}; expected some of {expected}")
        if self.rank:
            self._check_with_rank()
        elif self.beside or self.alpha is not None:
            named = "tune.beside" if self.beside else "tune.alpha"
            raise ValueError(f"{named} is for LoRA, and tune.rank is 0; give a rank, or leave it out")

    def _check_with_rank(self) -> None:
        if not self.adapt:
            raise ValueError(f"tune.rank is {self.rank} and tune.adapt names nothing; expected q, k, v or out")
        others = {"freeze": self.freeze, "thaw": self.thaw}
        if given := [name for name, value in others.items() if value]:
            raise ValueError(f"with LoRA the body stays as it is; leave out tune.{given[0]}, or tune.rank")
