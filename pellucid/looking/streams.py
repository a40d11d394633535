"""Which tokens each attention reads, and what they are called: text by its words, patches by place, frames by time."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from pellucid.explain.trace import Stream
from pellucid.looking.feeding import Fed, TextRow
from pellucid.watching import Record, Seen
from pellucid.watching.streams import Grid, Reading

MOST_EXTRA = 64  # tokens of a picture that are no patches
HEARD = ("input_features", "input_values")


@dataclass(eq=False)
class Tokens:
    """Tokens that attentions share."""

    count: int
    inputs: tuple[str, ...]
    """What the model was given that the first of them was made from."""
    kind: str | None = None
    """How the first attention reads them; None where the data could not be followed."""
    grid: Grid | None = None
    """How they lie on a picture, where the data say it."""
    placed: bool = False
    """Whether the places of windows say which is which."""
    names: list[str] = field(default_factory=list)
    """The attentions whose queries they are."""
    stream: Stream = field(init=False)

    @property
    def is_moved(self) -> bool:
        """Whether they stand in another order than what they were made of: they would be called what they aren't."""
        return _is_moved(self.grid) and not self.placed


@dataclass(frozen=True, eq=False)
class Ends:
    """The queries and the keys of an attention."""

    queries: Tokens
    keys: Tokens
    places: Int[Tensor, "windows w"] | None = None
    """Within windows: which of the tokens stands where."""


def find_streams(seen: Seen, fed: Fed, model: nn.Module, row: int = 0) -> dict[str, Ends]:
    """For each attention the tokens that ask and those that answer, named."""
    ends = _follow(seen)
    taken: set[str] = set()
    for tokens in dict.fromkeys(part for each in ends.values() for part in (each.queries, each.keys)):
        stream = _describe(tokens, fed, model, row)
        name, number = stream.name, 2
        while name in taken:
            name, number = f"{stream.name} {number}", number + 1
        taken.add(name)
        tokens.stream = replace(stream, name=name)
    return ends


def _follow(seen: Seen) -> dict[str, Ends]:
    """Tokens are the same where the data say so; where nothing is known of them, in one tower and of one number."""
    known: dict[Any, Tokens] = {}
    ends: dict[str, Ends] = {}
    for name, record in seen.items():
        reading, n_keys = record.reading, record.k.shape[2]
        count, kind = record.q.shape[2], None if reading is None else reading.kind
        places = reading.places if reading is not None and kind == "windows" else None
        if places is not None:
            count = n_keys = int((places >= 0).sum())
        grids = (None, None) if reading is None else reading.grids
        of = reading.tokens if reading is not None and kind != "channels" else None
        placed = places is not None
        which = of or (kind, _stack(name)), count, _is_moved(grids[0]) and not placed
        asking = known.setdefault(which, Tokens(count, seen.inputs(name), kind, grids[0], placed))
        asking.names.append(name)
        if reading is None or not _crosses(reading, count, n_keys):
            answering = asking if n_keys == count else known.setdefault((which, n_keys), Tokens(n_keys, (), kind))
        else:
            written = None if _is_moved(grids[1]) else _written_by(seen, ends, name)
            answering = written or known.setdefault(
                ("keys", reading.keys, n_keys), Tokens(n_keys, seen.inputs(name, "keys"), kind, grids[1])
            )
        ends[name] = Ends(asking, answering, places)
    return ends


def _is_moved(grid: Grid | None) -> bool:
    return grid is not None and not grid.in_order


def _crosses(reading: Reading, count: int, n_keys: int) -> bool:
    """One query alone can't be told from another token by its axis; what it was made from tells it."""
    return reading.kind == "cross" or (n_keys != count and reading.keys != reading.queries)


def _written_by(seen: Seen, ends: dict[str, Ends], name: str) -> Tokens | None:
    """The tokens of the last attention that the keys were made from, if they are as many."""
    reading, n_keys = seen[name].reading, seen[name].k.shape[2]
    for other in reversed(ends):
        wrote = seen[other].reading
        written = reading is not None and wrote is not None and reading.keys >> wrote.number & 1
        if written and ends[other].queries.count == n_keys:
            return ends[other].queries
    return None


def _stack(name: str) -> str:
    """The list that a block stands in."""
    parts = name.partition("#")[0].split(".")
    return ".".join(itertools.takewhile(lambda part: not part.isdigit(), parts))


def _describe(tokens: Tokens, fed: Fed, model: nn.Module, row: int) -> Stream:
    texts = [text for text in fed.texts if len(text.labels[0]) == tokens.count]
    named = [text for text in texts if text.argument in tokens.inputs]
    if tokens.kind == "channels":
        return Stream("channels", "tokens", tuple(f"channel {i}" for i in range(tokens.count)))
    if tokens.is_moved:
        return Stream("tokens", "tokens", tuple(map(str, range(tokens.count))))
    seen_pixels = bool({"pixel_values", "0"} & set(tokens.inputs)) or tokens.kind is None
    if named or (texts and not (fed.pictures and seen_pixels)):
        return _text((named or texts)[0], fed, row)
    apart = not {text.argument for text in fed.texts} & set(tokens.inputs)  # in one row with words they are mixed
    if fed.pictures and seen_pixels and apart and (grid := lay_out(tokens, fed, model)) is not None:
        return _patches(tokens.count, grid)
    if fed.seconds and tokens.grid is None and (set(HEARD) & set(tokens.inputs) or not tokens.inputs):
        return _frames(tokens.count, fed.seconds)
    return Stream("tokens", "tokens", tuple(map(str, range(tokens.count))))


def _text(text: TextRow, fed: Fed, row: int) -> Stream:
    several = len(fed.texts) > 1 or text.argument == "decoder_input_ids"
    name = "text" if not several else "target" if text.argument == "decoder_input_ids" else "source"
    row = min(row, len(text.labels) - 1)
    return Stream(name, "text", text.labels[row], special=text.special[row], prompt=text.prompt)


def _patches(count: int, grid: Grid) -> Stream:
    before = ["class"][: grid.first] + [f"register {i + 1}" for i in range(grid.first - 1)]
    places = [f"patch {row},{column}" for row in range(grid.rows) for column in range(grid.columns)]
    after = [f"token {i}" for i in range(len(before) + len(places), count)]
    special = (*range(grid.first), *range(count - len(after), count))
    labels = (*before, *places, *after)
    return Stream("image", "patches", labels, special, (grid.rows, grid.columns), grid.first, 0)


def lay_out(tokens: Tokens, fed: Fed, model: nn.Module) -> Grid | None:
    """How tokens of a picture lie on it: by the data, or where those weren't followed, by their number."""
    grid = tokens.grid
    if grid is None and tokens.kind is None:
        sides = find_grid(tokens.count, fed, model)
        return None if sides is None else Grid(*sides, first=tokens.count - sides[0] * sides[1])
    size = 0 if grid is None else grid.rows * grid.columns
    return grid if grid is not None and 1 < size <= tokens.count - grid.first <= size + MOST_EXTRA else None


def _frames(count: int, seconds: float) -> Stream:
    each = seconds / count
    return Stream("frames", "frames", tuple(f"{i * each:.2f} s" for i in range(count)), seconds=each)


def find_grid(count: int, fed: Fed, model: nn.Module) -> tuple[int, int] | None:
    """Rows and columns of the patches among so many tokens of a picture, if a convolution of the model cuts it so."""
    height, width = fed.pictures[0].pixels.shape[-2:]
    for high, wide in patch_sizes(model):
        rows, columns = height // high, width // wide
        if 0 < rows * columns <= count <= rows * columns + MOST_EXTRA:
            return rows, columns
        while rows * columns > count and rows > 1 and columns > 1:  # stages that merge patches by twos
            rows, columns = rows // 2, columns // 2
        if rows * columns == count > 1:  # fewer, with others beside them, may be any that were chosen
            return rows, columns
    return None


def patch_sizes(model: nn.Module) -> list[tuple[int, int]]:
    """Of the convolutions that cut a picture into patches: as large as their steps, from colours to features."""
    sizes = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels in (1, 3) and module.stride == module.kernel_size:
            sizes.append((int(module.kernel_size[0]), int(module.kernel_size[1])))
        elif type(module).__name__ == "PatchEmbed" and hasattr(module, "patch"):  # ours: an unfold and a linear map
            sizes.append(tuple(module.patch))  # pyright: ignore[reportArgumentType]
    return list(dict.fromkeys(sizes))


def self_records(seen: Seen, ends: dict[str, Ends], tokens: Tokens) -> list[Record]:
    """The self-attentions over these tokens, from the first to the last."""
    return [seen[name] for name in tokens.names if ends[name].keys is tokens]


def cross_records(
    seen: Seen, ends: dict[str, Ends], tokens: Tokens
) -> dict[Tokens, list[tuple[Record | None, Record]]]:
    """For each context that these tokens read, the decoder's layers: attention to each other, and to the context."""
    pairs: dict[Tokens, list[tuple[Record | None, Record]]] = {}
    own: Record | None = None
    for name in tokens.names:
        if ends[name].keys is tokens:
            own = seen[name]
        else:
            pairs.setdefault(ends[name].keys, []).append((own, seen[name]))
            own = None
    return pairs


def contexts(ends: dict[str, Ends]) -> Sequence[Tokens]:
    """Tokens that others read across."""
    return list(dict.fromkeys(each.keys for each in ends.values() if each.keys is not each.queries))
