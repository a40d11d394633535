"""What attention costs: time and memory over the number of tokens."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most, exponent, seeded
from pellucid.lab.panels import line_chart
from pellucid.ops import attend, column_mass


class CostSettings(NamedTuple):
    """Which numbers of tokens, of which width."""

    tokens: tuple[int, ...] = (512, 1024, 2048, 4096)  # Numbers of tokens.
    width: int = 64  # Of queries, keys and values, in one head.
    repeats: int = 3  # How often each is timed; the fastest counts.
    seed: int = 0  # Of queries, keys and values.


class CostMeasurement(NamedTuple):  # each for the formula, the fused kernel and column_mass, by name
    seconds: dict[str, list[float]]  # for each number of tokens
    memory: dict[str, list[float]]  # MiB that are allocated at most
    time_exponents: dict[str, float]
    memory_exponents: dict[str, float]


def peak_bytes(function: Callable[[], Any]) -> int:
    """Bytes that were allocated at most, at one time, while the function ran."""
    with silence(), profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        function()
    assert seen.profiler is not None
    assert seen.profiler.kineto_results is not None
    live = highest = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            highest = max(highest, live)
    return highest


def fastest(function: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


@contextmanager
def silence() -> Iterator[None]:
    """The profiler writes that it starts and stops, whatever one asks for."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@torch.no_grad()
def measure_cost(p: CostSettings) -> CostMeasurement:
    """The formula, the fused kernel, and a summary of the map that is never built."""
    seconds: dict[str, list[float]] = {"reference": [], "fused": [], "column mass": []}
    memory: dict[str, list[float]] = {name: [] for name in seconds}
    with seeded(p.seed):
        for n in p.tokens:
            q, k, v = torch.randn(3, 1, 1, n, p.width)
            calls: dict[str, Callable[[], Any]] = {
                "reference": partial(attend, q, k, v, impl="reference"),
                "fused": partial(attend, q, k, v, impl="fused"),
                "column mass": partial(column_mass, q, k),
            }
            for name, call in calls.items():
                memory[name].append(peak_bytes(call) / 2**20)
                seconds[name].append(fastest(call, p.repeats))
    exponents = ({name: exponent(p.tokens, values[name]) for name in values} for values in (seconds, memory))
    return CostMeasurement(seconds, memory, *exponents)


def claim_cost(p: CostSettings, m: CostMeasurement) -> Claims:
    formula, fused, column_mass = m.memory_exponents.values()
    yield Thesis("cost.map", "Building the map takes memory that grows as N².").true(
        at_least(1.8, "exponent of the peak memory of the formula", formula), twin=("of the fused kernel", fused)
    )
    yield Thesis("cost.fused_memory", "The fused kernel's memory grows as N at most.").true(
        at_most(1.2, "exponent of the peak memory", fused), twin=("of the formula", formula)
    )
    yield Thesis(
        "cost.summary_memory", "What each key receives from all queries can be known in memory that grows as N at most."
    ).true(
        at_most(1.2, "exponent of the peak memory of column_mass", column_mass), twin=("of building the map", formula)
    )
    yield Thesis("cost.fused_time", "The fused kernel makes attention linear: its time grows as N.").false(
        at_most(1.3, "exponent of its time", m.time_exponents["fused"]),
        twin=("exponent of its memory", fused),
        truth="It computes all N² scores and keeps none: memory is linear, time is not.",
    )


def draw_cost(p: CostSettings, m: CostMeasurement) -> Drawing:
    numbers, last = {}, f"at {p.tokens[-1]} tokens"
    for name in m.seconds:
        numbers[f"{name}: exponent of time"] = m.time_exponents[name]
        numbers[f"{name}: exponent of memory"] = m.memory_exponents[name]
    numbers |= {f"{name}: MiB {last}": values[-1] for name, values in m.memory.items()}
    numbers |= {f"{name}: seconds {last}": values[-1] for name, values in m.seconds.items()}
    times = {f"{name}: N^{m.time_exponents[name]:.2f}": values for name, values in m.seconds.items()}
    sizes = {f"{name}: N^{m.memory_exponents[name]:.2f}": values for name, values in m.memory.items()}
    return numbers, [
        line_chart("time of one head", ("tokens N", "seconds"), p.tokens, times, log="xy"),
        line_chart("peak memory of one head", ("tokens N", "MiB allocated"), p.tokens, sizes, log="xy"),
    ]


COST = Experiment(
    name="cost",
    title="Time and memory",
    statement="All ways to compute attention take time N²; only the formula takes memory N².",
    formula="time = 4·N²·d operations; memory = N² weights for the formula, blocks of rows or tiles otherwise",
    predict="Twice as many tokens: how much more time, and how much more memory, with the map and without it?",
    fails="Small N hides the exponent behind what every call costs; blocks of a fixed size look like no growth at all. "
    "Times are of this machine, now.",
    functions=(measure_cost, claim_cost, draw_cost),
    helpers=(peak_bytes, fastest),
)
