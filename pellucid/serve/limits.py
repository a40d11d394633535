"""What the server takes at most; beyond it, a request is refused with a sentence."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one server. They are small enough for a laptop and large enough for a photograph."""

    bytes: int = 16 << 20
    """Of one picture's file."""
    pixels: int = 1 << 25
    """Of one picture, by its header, before anything is decoded: 100 MB in colour."""
    held: int = 256 << 20
    """Bytes of all files that are being received or decoded."""
    requests: int = 128
    """Pictures in the house: being received, waiting for a model, or looked at."""
    batch: int = 32
    """Pictures that go through a model together."""
    gather: float = 0.004
    """Seconds that the first picture of a batch waits for others."""
    seconds: float = 30.0
    """From the first byte of a request to its answer."""
    points: int = 2000
    """Of a curve in one answer; longer ones are told as means of equal spans."""
    evaluated: int = 1000
    """Images that a confusion matrix is drawn from."""
