"""The part of the API that runs the lab's experiments, within bounds that no request can hold the server up in."""

import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi import Query as InQuery
from pydantic import BaseModel, ConfigDict, Field, create_model

from pellucid.lab import EXPERIMENTS, Experiment
from pellucid.lab.ledger import describe_experiment
from pellucid.serve import schemas
from pellucid.serve.doors import Door, while_there
from pellucid.serve.killable import KillableWorker
from pellucid.serve.problems import Problem, documented, shorten
from pellucid.serve.shared import Shared

log = logging.getLogger("pellucid.serve")

COUNTS = 2  # times its default that a count may be: what an experiment costs can grow as the cube of it
NUMBERS = 4  # times for other numbers, which cost nothing
SEEDS = 999
# These train, look through many pictures or measure time: they run as they are, and once.
LONG = frozenset({
    "scaling", "embedding", "leaking", "depth", "warmup", "exposure", "reversed", "cost", "field", "rotation",
    "itself", "heads", "interpolation", "alignment", "searching",
})  # fmt: skip

Page = dict[str, Any]


def experiments(door: Door, worker: KillableWorker, pages: Shared[Page], seconds: float) -> APIRouter:
    """The routes: one for each experiment, for each has its own parameters. Pages are kept and shared by who asks."""
    routes = APIRouter(tags=["lab"])

    @routes.get("/lab")
    async def list_experiments(_: Annotated[schemas.Nothing, InQuery()]) -> list[schemas.ExperimentSummary]:
        """The experiments on attention, in an order that teaches, with what can be changed of each."""
        words = ("name", "title", "statement", "formula", "predict", "fails")
        return [
            schemas.ExperimentSummary(**{word: getattr(one, word) for word in words}, parameters=list(changeable(one)))
            for one in EXPERIMENTS.values()
        ]

    async def run(request: Request, one: Experiment, changes: Page) -> schemas.ExperimentPage:
        async def work() -> Page:
            return await door.through(request, partial(worker.run, run_page, one.name, changes))

        try:
            page = await while_there(request, pages.get((one.name, one.parameters(**changes)), work), seconds)
        except ValueError as error:
            raise Problem(422, str(error)) from None
        return schemas.ExperimentPage(**page)

    for one in EXPERIMENTS.values():
        routes.get(f"/lab/{one.name}", name=f"run_{one.name}", description=one.statement, responses=documented(503))(
            _endpoint(one, run)
        )

    @routes.get("/lab/{name}", include_in_schema=False)
    async def unknown(name: Annotated[str, Path()]) -> None:
        raise Problem(404, f"no experiment is called {shorten(name)}; /api/lab lists them")

    return routes


def _endpoint(one: Experiment, run: Callable[[Request, Experiment, Page], Awaitable[schemas.ExperimentPage]]) -> Any:
    """What answers at the address of one experiment."""

    async def endpoint(request: Request, changes: Any) -> schemas.ExperimentPage:
        return await run(request, one, changes.model_dump())

    endpoint.__annotations__["changes"] = Annotated[query_model(one), InQuery()]
    return endpoint


def run_page(name: str, changes: dict[str, Any]) -> Page:
    """The page of one run; or one sentence, where parameters within their bounds don't go together."""
    one = EXPERIMENTS[name]
    parameters = one.parameters(**changes)
    try:
        return describe_experiment(one, parameters, one(parameters))
    except ValueError as error:
        raise ValueError(f"{name} can't run with these parameters: {error}") from error
    except (ArithmeticError, AssertionError, IndexError, RuntimeError) as error:  # PyTorch's words help nobody here
        log.warning("%s%r: %s", name, parameters, error)
        raise ValueError(f"{name} can't run with these parameters; choose some nearer to its own") from error


def changeable(one: Experiment) -> tuple[schemas.Parameter, ...]:
    """The numbers of an experiment that a request may change, and how far.

    >>> [(each.name, each.low, each.high) for each in changeable(EXPERIMENTS["graph"])]
    [('nodes', 1.0, 24.0), ('width', 1.0, 16.0), ('radius', 1.0, 4.0), ('seed', 0.0, 999.0)]
    """
    if one.name in LONG:
        return ()
    about, parameters = _comments(one.parameters), []
    for name, default in one.parameters()._asdict().items():
        whole = isinstance(default, int)
        if not isinstance(default, int | float):
            continue
        least, most = one.bounds_of(name, default)
        low = max(0, least)
        high = min(most, SEEDS if name == "seed" else (COUNTS if whole else NUMBERS) * default)
        # Widths are split into heads and pairs: their halves can be.
        step = (high - low) / 100 if not whole else default // 2 if name.endswith("width") else 1
        bounds = {"default": default, "low": low, "high": high, "step": step}
        parameters.append(schemas.Parameter(name=name, about=about[name], whole=whole, **bounds))
    return tuple(parameters)


def query_model(one: Experiment) -> type[BaseModel]:
    """What may stand in the address, as a type."""
    fields: dict[str, Any] = {
        each.name: (
            Annotated[
                int if each.whole else float,
                Field(ge=each.low, le=each.high, allow_inf_nan=False, description=each.about),
            ],
            getattr(one.parameters(), each.name),
        )
        for each in changeable(one)
    }
    return create_model(one.name, __config__=ConfigDict(extra="forbid"), **fields)


def _comments(parameters: type) -> dict[str, str]:
    """What stands behind each field of the settings."""
    return dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(parameters), re.MULTILINE))
