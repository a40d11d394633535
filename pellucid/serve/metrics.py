"""What the server counts, as Prometheus reads it."""

import bisect
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from pellucid.serve.problems import shorten

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
PICTURES = (1, 2, 4, 8, 16, 32)


class Histogram:
    """How many numbers lie at or below each bound.

    >>> sizes = Histogram((1, 2))
    >>> for size in (1, 2, 3):
    ...     sizes.add(size)
    >>> list(sizes.lines("sizes"))
    ['sizes_bucket{le="1"} 1', 'sizes_bucket{le="2"} 2', 'sizes_bucket{le="+Inf"} 3', 'sizes_sum 6', 'sizes_count 3']
    """

    def __init__(self, bounds: tuple[float, ...]):
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, **labels: str) -> Iterator[str]:
        below = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            yield line(f"{name}_bucket", below, **labels, le=str(bound))
        yield line(f"{name}_sum", self.sum, **labels)
        yield line(f"{name}_count", below, **labels)


class Counters:
    """Counters since the server began. What is a state at this moment is given to `text`."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()  # by route and status
        self.seconds: dict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))  # by route
        self.queued = Histogram(SECONDS)
        self.batches = Histogram(PICTURES)
        self.refused: Counter[str] = Counter()  # connections, by reason

    def add_request(self, route: str, status: int | None, seconds: float, queued: float | None) -> None:
        """One that has ended. route: the address with the names of its parameters; status: None if they left."""
        self.requests[route, str(status or "gone")] += 1
        self.seconds[route].add(seconds)
        if queued is not None:
            self.queued.add(queued)

    def text(self, gauges: Mapping[str, Mapping[str, float]]) -> str:
        """gauges: states by their name, and by the room or thing that they are of."""
        lines = ["# TYPE pellucid_requests_total counter"]
        for (route, status), count in sorted(self.requests.items()):
            lines.append(line("pellucid_requests_total", count, route=route, status=status))
        lines.append("# TYPE pellucid_request_seconds histogram")
        for route, histogram in sorted(self.seconds.items()):
            lines += histogram.lines("pellucid_request_seconds", route=route)
        lines.append("# TYPE pellucid_queue_seconds histogram")
        lines += self.queued.lines("pellucid_queue_seconds")
        lines.append("# TYPE pellucid_batch_size histogram")
        lines += self.batches.lines("pellucid_batch_size")
        lines.append("# TYPE pellucid_connections_refused_total counter")
        for reason, count in sorted(self.refused.items()):
            lines.append(line("pellucid_connections_refused_total", count, reason=reason))
        for name, values in gauges.items():
            lines.append(f"# TYPE pellucid_{name} gauge")
            lines += [line(f"pellucid_{name}", value, of=of) for of, value in values.items()]
        return "\n".join(lines) + "\n"


def line(name: str, value: float, **labels: str) -> str:
    """One sample.

    >>> line("pellucid_requests_total", 3, route="/api/runs/{name}", status="200")
    'pellucid_requests_total{route="/api/runs/{name}",status="200"} 3'
    """
    escaped = (f'{key}="{_escape(text)}"' for key, text in labels.items())
    inside = ",".join(escaped)
    return f"{name}{{{inside}}} {value:g}" if inside else f"{name} {value:g}"


def resident_memory(process: int | None = None) -> float:
    """Bytes that a process, this one unless given, holds in memory; nothing where that isn't known (no Linux)."""
    try:
        pages = int(Path(f"/proc/{process or os.getpid()}/statm").read_text().split()[1])
    except OSError:
        return float("nan")
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _escape(text: str) -> str:
    return shorten(text, quote=str).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
