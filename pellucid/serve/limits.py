"""What the server takes at most; beyond it, a request is refused with a sentence."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """Bounds of one room."""

    slots: int
    """Requests that are worked on at a time."""
    queue: int
    """Requests that may wait behind them."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one server. They are small enough for a laptop and large enough for a photograph."""

    bytes: int = 16 << 20
    """Of one picture's file."""
    pixels: int = 1 << 25
    """Of one picture, by its header, before anything is decoded: 100 MB in colour."""
    held: int = 256 << 20
    """Bytes of all files that are being received, waiting, or being decoded."""
    uploads: int = 512
    """Pictures that are being received at a time."""
    uploads_each: int = 64
    """Of them, from one address."""
    upload: float = 30.0
    """Seconds that a picture may take to arrive."""
    seconds: float = 30.0
    """From then, or from the head of a request without a picture, to its answer."""
    look: Room = Room(slots=64, queue=64)
    """Pictures that a model is to look at."""
    runs: Room = Room(slots=4, queue=32)
    """Requests for training runs."""
    drawings: Room = Room(slots=1, queue=8)
    """Confusion matrices that are being drawn."""
    lab: Room = Room(slots=1, queue=32)
    """Different experiments; who wants the same one shares it."""
    longest: float = 600.0
    """Seconds that an experiment or a confusion matrix may take."""
    linger: float = 3.0
    """Seconds that one goes on after nobody waits for it: who was told to come again a second later finds it."""
    batch: int = 32
    """Pictures that go through a model together."""
    gather: float = 0.004
    """Seconds that the first picture of a batch waits for others."""
    points: int = 2000
    """Of a curve in one answer; longer ones are told as means of equal spans."""
    evaluated: int = 1000
    """Images that a confusion matrix is drawn from."""
    connections: int = 1000
    """Open at a time; fewer where the process may not open so many files."""
    connections_each: int = 100
    """Of them, from one address."""
    head: float = 10.0
    """Seconds that the head of a request may take to arrive, from the opening of the connection or its first byte."""
    idle: float = 15.0
    """Seconds that a connection is kept between two requests."""
    stalled: float = 30.0
    """Seconds that an answer waits for a reader who doesn't read."""
    unbounded: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks that no bound for one address holds for: this machine, and reverse proxies, behind which all are."""
    log: int = 16 << 20
    """Bytes of the access log in all."""
