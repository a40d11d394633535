"""Watch other people's models: which attentions were recorded, which were named as missed, what was left unsaid.

    python benchmarks/foreign.py                      # all of benchmarks/zoo; kept in results/foreign-cpu.json
    python benchmarks/foreign.py --library timm       # one library; --only swin: a part of the name; nothing is kept
    python benchmarks/foreign.py --quick              # those that the tests run
    python benchmarks/foreign.py --list               # what there is

Each model runs twice unwatched and once watched, from the same seed. Ctrl-C ends it with the table so far.
"""

import argparse
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from report import Column, Table, keep
from tables import markdown
from torch import Tensor, nn
from zoo import LIBRARIES, Entry, Inputs, entries

import pellucid

BAR = 1e-5  # the error of a record, relative; in half precision the record itself knows how much is rounding
MEANINGS = {
    "recorded": "every attention was recorded, and each record checks itself",
    "named": "what was not recorded is in `missed`, or in the sentence that was raised",
    "none": "has no attention, and none was recorded",
    "announced": "the output differs from the unwatched one, and that was said",
    "silent": "some attention was neither recorded nor named",
    "changed": "the output differs from the unwatched one, and nothing was said",
    "failed check": "a record does not give the output that it was recorded with",
    "too many": "more was recorded than the model has",
    "crash": "watching stopped the model, or the model does not run at all",
}
GOOD = ("recorded", "named", "none", "announced")
PACKAGES = {"HF": "transformers", "open_clip": "open_clip_torch"}


@dataclass(frozen=True)
class Outcome:
    """What came of watching one entry. error: the largest of the records' relative errors. why: the first reason."""

    entry: Entry
    outcome: str
    recorded: int
    missed: int
    error: float | None
    why: str
    seconds: float

    def row(self) -> dict[str, Any]:
        e = self.entry
        named = {"library": e.library, "family": e.family, "model": e.model, "implementation": e.implementation}
        counts = {"attentions": e.attentions, "recorded": self.recorded, "missed": self.missed}
        return named | counts | {"error": self.error, "outcome": self.outcome, "why": self.why}


@dataclass
class Watched:
    """One watched run: the output (None if it never came), what was seen, and what pellucid warned of."""

    output: Any = None
    finished: bool = False
    seen: Mapping[str, Any] | None = None
    raised: Exception | None = None
    said: tuple[str, ...] = ()


def judge(entry: Entry) -> Outcome:
    """Build the entry's model, watch it, and say what came of it; nothing but Ctrl-C gets out."""
    start = time.perf_counter()
    try:
        with quiet():
            model, inputs = entry.build()
            plain, again = (tensors(entry.run(model, inputs)) for _ in range(2))
        watched = watch(entry, model, inputs)
        found = verdict(entry, plain, same(plain, again), watched)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        found = ("crash", 0, 0, None, sentence(error))
    return Outcome(entry, *found, seconds=time.perf_counter() - start)


def watch(entry: Entry, model: nn.Module, inputs: Inputs) -> Watched:
    result = Watched()
    with quiet(), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            with pellucid.watch(model) as result.seen:
                result.output = entry.run(model, inputs)
                result.finished = True
        except Exception as error:
            result.raised = error
    result.said = tuple(str(w.message) for w in heard if w.category.__module__.startswith("pellucid"))
    return result


def verdict(
    entry: Entry, plain: list[Tensor], repeats: bool, watched: Watched
) -> tuple[str, int, int, float | None, str]:
    """Outcome, number recorded, number named, largest error, reason."""
    records = list(watched.seen.values()) if watched.seen is not None else []
    missed = list(getattr(watched.seen, "missed", ()))
    told = [f"{miss.module}: {miss.reason}" for miss in missed] + [sentence(watched.raised)] * bool(watched.raised)
    why, counts = next(iter(told), ""), (len(records), len(missed))
    if not watched.finished:
        return "crash", *counts, None, why
    error, failed = check(records)
    if failed:
        honest = re.search(r"in place|written over", failed)
        return "named" if honest else "failed check", *counts, error, failed
    if repeats and not same(plain, tensors(watched.output)):
        announced = any("output" in text for text in (*told, *watched.said))
        return "announced" if announced else "changed", *counts, error, why or "the output differs"
    if len(records) > entry.attentions:
        return "too many", *counts, error, ", ".join(watched.seen or ())
    if len(records) == entry.attentions:  # what is named beside that is no attention: worth a look, no harm
        return "recorded" if records else "none", *counts, error, why
    enough = watched.raised is not None or sum(counts) >= entry.attentions
    return "named" if enough else "silent", *counts, error, why or "nothing was said"


def check(records: list[Any]) -> tuple[float | None, str]:
    """The largest error of the records, and the sentence of the first that is wrong."""
    largest = None
    for record in records:
        try:
            error = float(record.check())
        except Exception as failure:  # anything but ValueError is a crash of check, and reads so
            return largest, sentence(failure)
        largest = max(error, largest or 0.0)
        if error > BAR and torch.finfo(record.q.dtype).bits >= 32:
            return largest, f"record {record.name!r} misses its output by {error:.1e}"
    return largest, ""


def tensors(tree: Any, depth: int = 0) -> list[Tensor]:
    """Every tensor of an output, in order, copied: through containers, caches and what else has attributes."""
    if isinstance(tree, Tensor):
        parts = tree.unbind() if tree.is_nested else [tree]
        return [part.detach().clone() for part in parts]
    if depth > 6 or tree is None or isinstance(tree, (str, int, float, bool, nn.Module)):
        return []
    if isinstance(tree, Mapping):
        inner = list(tree.values())
    elif isinstance(tree, (list, tuple)):
        inner = list(tree)
    else:
        inner = list(getattr(tree, "__dict__", {}).values())
    return [x for part in inner for x in tensors(part, depth + 1)]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """Whether they are the same to the last bit."""
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.equal(bits(x), bits(y)) for x, y in zip(a, b, strict=True)
    )


def bits(x: Tensor) -> Tensor:
    return x.contiguous().flatten().view(torch.uint8)


def sentence(error: Exception | None) -> str:
    """The first line of what an error says."""
    if error is None:
        return ""
    first = next(iter(str(error).splitlines()), "")
    return first if isinstance(error, ValueError) else f"{type(error).__name__}: {first}"


@contextmanager
def quiet() -> Iterator[None]:
    """Without other libraries' warnings and logs: only what `watch` says counts."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def summarise(outcomes: list[Outcome]) -> Table:
    """Libraries by outcomes, those outcomes that came at all."""
    kinds = [kind for kind in MEANINGS if any(o.outcome == kind for o in outcomes)]
    rows = []
    for group in dict.fromkeys(map(group_of, outcomes)):
        counts = Counter(o.outcome for o in outcomes if group_of(o) == group)
        rows.append({"library": group, "models": counts.total()} | {kind: counts[kind] for kind in kinds})
    columns = {"library": Column(), "models": Column()} | {kind: Column() for kind in kinds}
    return Table("what came of watching", columns, rows)


def group_of(outcome: Outcome) -> str:
    """A library, or one of the implementations that are counted apart."""
    e = outcome.entry
    apart = e.library in ("HF", "timm")
    return f"{e.library} {e.implementation}" if apart else e.library


def details(outcomes: list[Outcome]) -> Table:
    names = ("library", "family", "model", "implementation", "attentions", "recorded", "missed", "error", "outcome")
    columns = {name: Column(digits=8) if name == "error" else Column() for name in (*names, "why")}
    return Table("every model", columns, [outcome.row() for outcome in outcomes])


def line_of(outcome: Outcome) -> str:
    e = outcome.entry
    counts = f"{outcome.recorded} recorded, {outcome.missed} missed of {e.attentions}"
    return f"{outcome.outcome:12} {e.name}: {counts}" + (f"; {outcome.why}" if outcome.why else "")


def end(outcomes: list[Outcome]) -> None:
    """What is not wholly recorded, one line each, then the table."""
    left = [o for o in outcomes if o.outcome not in ("recorded", "none") or o.missed]
    for outcome in left:
        print(line_of(outcome))
    summary = summarise(outcomes).entry()
    print("", *markdown(summary["columns"], summary["rows"]), sep="\n")
    bad = sum(o.outcome not in GOOD for o in outcomes)
    print(
        f"\n{len(outcomes)} models, {bad} of them neither recorded nor told, {sum(o.seconds for o in outcomes):.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--library", default="", choices=["", *LIBRARIES])
    parser.add_argument("--only", default="", help="a part of the name")
    parser.add_argument("--quick", action="store_true", help="those that the tests run")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = list(entries(library=options.library, only=options.only, quick=options.quick))
    if options.list:
        for entry in chosen:
            print(f"{entry.attentions:3} {'quick' if entry.quick else '     '} {entry.name}")
        return
    torch.set_num_threads(1)
    outcomes: list[Outcome] = []
    try:
        for i, entry in enumerate(chosen, 1):
            print(f"\r\033[K[{i}/{len(chosen)}] {entry.name[:100]}", end="", file=sys.stderr, flush=True)
            outcomes.append(judge(entry))
        print("\r\033[K", end="", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"\nstopped after {len(outcomes)} of {len(chosen)}", file=sys.stderr)
        end(outcomes)
        sys.exit(130)
    if not (options.library or options.only or options.quick):
        notes = "; ".join(f"{kind}: {MEANINGS[kind]}" for kind in MEANINGS)
        tables = {"outcomes": summarise(outcomes), "models": details(outcomes)}
        packages = [PACKAGES.get(name, name) for name in LIBRARIES if name != "torch"]
        settings = {"error at most": BAR}
        keep("foreign", tables, torch.device("cpu"), seeds=[0], settings=settings, notes=notes, libraries=packages)
    end(outcomes)


if __name__ == "__main__":
    main()
