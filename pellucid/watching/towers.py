"""The attentions of a model in order: towers of self-attentions over the same tokens, and who reads whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pellucid.watching.record import Record


@dataclass(frozen=True)
class Tower:
    """Self-attentions over the same tokens, from the first to the last: what a chain can walk through.

    >>> Tower("encoder", "self", ("encoder.0", "encoder.1")).records[0]
    'encoder.0'
    """

    name: str
    """What the names of its modules begin with."""
    kind: str
    records: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True)
class Edge:
    """One attention reads what another wrote, by its queries, its keys or both.

    >>> Edge("encoder.1", "decoder.0.cross", "keys").source
    'encoder.1'
    """

    source: str
    target: str
    by: str


def list_towers(records: Mapping[str, Record]) -> tuple[Tower, ...]:
    """The towers, in the order in which they begin; attentions of which nothing is known stand in none."""
    groups: dict[tuple, list[str]] = {}
    for name, record in records.items():
        reading = record.reading
        if reading is not None and reading.kind != "cross":
            key = reading.tokens or reading.number  # one token alone can't be told from another
            groups.setdefault((reading.kind, key), []).append(name)
    return tuple(Tower(_common(names), kind, tuple(names)) for (kind, _), names in groups.items())


def list_edges(records: Mapping[str, Record]) -> tuple[Edge, ...]:
    """Who reads whom without anybody between them."""
    known = {name: record.reading for name, record in records.items() if record.reading is not None}
    before = {name: reading.queries | reading.keys for name, reading in known.items()}
    edges = []
    for target, reading in known.items():
        direct = [name for name, other in known.items() if before[target] >> other.number & 1]
        for source in direct:
            bit = 1 << known[source].number
            if any(before[other] & bit for other in direct if other != source):
                continue  # somebody stands between them
            by = [part for part, bits in (("q", reading.queries), ("k", reading.keys)) if bits & bit]
            edges.append(Edge(source, target, " and ".join(by)))
    return tuple(edges)


def _common(names: Sequence[str]) -> str:
    """The module that all of them are in."""
    parts = [name.partition("#")[0].split(".") for name in names]
    shared = []
    for column in zip(*parts, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return ".".join(shared)
