"""What each verb takes, and the function it calls. Rooms that need torch are imported when a verb runs."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shapes:
    """Print every intermediate of multi-head attention with its equation and shape.

    Example: pellucid shapes --tokens 5 --width 768 --heads 12 --causal --figure attention.png
    """

    tokens: int = 5
    """Number of tokens."""
    width: int = 768
    """Width of a token."""
    heads: int = 12
    """Number of heads."""
    key_width: int | None = None
    """Width of one head's queries and keys; width / heads unless given."""
    value_width: int | None = None
    """Width of one head's values; the keys' unless given."""
    columns: bool = False
    """Write tokens as columns, Q = W·X, instead of rows, Q = X·W."""
    causal: bool = False
    """Let each token see only itself and those before it."""
    figure: Path | None = None
    """Draw the attention matrix and the mask, with numbers, into this file (.png, .svg, .pdf)."""
    head: int = 0
    """Which head the figure shows."""
    seed: int = 0
    """Seed of the random tokens and weights."""

    def run(self) -> None:
        from pellucid.cli.shapes import shapes

        shapes(self)


@dataclass(frozen=True)
class Demo:
    """Train a transformer to reverse ten digits, and draw where it looked.

    Example: pellucid demo --out demo
    """

    out: Path = Path("demo")
    """Folder for the pictures; it is made if it isn't there."""
    steps: int = 600
    """Training steps."""
    seed: int = 0
    """Seed of the weights and of the sequences."""

    def run(self) -> None:
        from pellucid.cli.demo import demo

        demo(self)


VERBS = {"shapes": Shapes, "demo": Demo}
