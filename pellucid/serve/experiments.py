"""The part of the API that runs the lab's experiments, within bounds that no request can hold the server up in."""

import asyncio
import inspect
import re
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi import Query as InQuery
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from pellucid.lab import EXPERIMENTS, Experiment
from pellucid.lab.frame import FROM_ZERO
from pellucid.lab.ledger import describe_experiment
from pellucid.serve import schemas
from pellucid.serve.problems import Problem, documented
from pellucid.serve.uploads import Door
from pellucid.serve.worker import Worker

COUNTS = 2  # times its default that a count may be: what an experiment costs can grow as the cube of it
NUMBERS = 4  # times for other numbers, which cost nothing
SEEDS = 999
# These train, look through many pictures or measure time: they run as they are, and once.
LONG = frozenset({"scaling", "leaking", "depth", "exposure", "reversed", "cost", "itself", "heads", "interpolation"})
KEPT = 64  # answers
PARAMETERS = {
    "name": "parameters",
    "in": "query",
    "style": "form",
    "explode": True,
    "description": "Numbers by name, as /api/lab lists them with their bounds: /api/lab/graph?nodes=6&radius=1.",
    "schema": {"type": "object", "additionalProperties": {"type": "number"}},
}


def experiments(door: Door, worker: Worker) -> APIRouter:
    """The routes. The worker is the lab's own: pictures don't wait for experiments."""
    routes = APIRouter(tags=["lab"])
    kept: dict[tuple[str, Any], dict[str, Any]] = {}  # the oldest first

    @routes.get("/lab")
    async def list_experiments(_: Annotated[schemas.Nothing, InQuery()]) -> list[schemas.ExperimentSummary]:
        """The experiments on attention, in an order that teaches, with what can be changed of each."""
        words = ("name", "title", "statement", "formula", "predict", "fails")
        return [
            schemas.ExperimentSummary(**{word: getattr(one, word) for word in words}, parameters=list(changeable(one)))
            for one in EXPERIMENTS.values()
        ]

    @routes.get("/lab/{name}", responses=documented(404, 503), openapi_extra={"parameters": [PARAMETERS]})
    async def run_experiment(request: Request, name: Annotated[str, Path()]) -> schemas.ExperimentPage:
        """Run one, and tell what came out: numbers, panels to be drawn, and verdicts."""
        one = EXPERIMENTS.get(name)
        if one is None:
            raise Problem(404, f"no experiment is called {name[:80]!r}; /api/lab lists them")
        parameters = read_parameters(one, dict(request.query_params))
        async with door.entered():
            try:
                page = await asyncio.wrap_future(worker.submit(name, answer, (one, parameters)))
            except ValueError as error:
                raise Problem(422, str(error)) from None
        return schemas.ExperimentPage(**page)

    def answer(requests: list[tuple[Experiment, Any]]) -> list[dict[str, Any]]:
        """Kept here, and not by who asks: they may have gone when a long experiment ends, and come again."""
        pages = []
        for one, parameters in requests:
            key = (one.name, parameters)
            kept[key] = kept.pop(key, None) or run_page(one, parameters)
            if len(kept) > KEPT:
                del kept[next(iter(kept))]
            pages.append(kept[key])
        return pages

    return routes


def run_page(one: Experiment, parameters: Any) -> dict[str, Any]:
    """The page of one run; or one sentence, where parameters within their bounds don't go together."""
    try:
        return describe_experiment(one, parameters, one(parameters))
    except (ArithmeticError, AssertionError, IndexError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{one.name} can't run with these parameters: {reason}") from error


def read_parameters(one: Experiment, query: dict[str, str]) -> Any:
    """The experiment's parameters, with those that are given changed; refused as any other query is."""
    try:
        changes = _query_model(one).model_validate(query).model_dump()
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    return one.parameters(**changes)


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
        high = SEEDS if name == "seed" else (COUNTS if whole else NUMBERS) * default
        low = 1 if whole and name not in FROM_ZERO else 0
        # Widths are split into heads and pairs: their halves can be.
        step = high / 100 if not whole else default // 2 if name.endswith("width") else 1
        bounds = {"default": default, "low": low, "high": high, "step": step}
        parameters.append(schemas.Parameter(name=name, about=about[name], whole=whole, **bounds))
    return tuple(parameters)


@cache
def _query_model(one: Experiment) -> type[BaseModel]:
    """What may stand in the address, as a type."""
    fields: dict[str, Any] = {
        each.name: (
            Annotated[int if each.whole else float, Field(ge=each.low, le=each.high, allow_inf_nan=False)],
            getattr(one.parameters(), each.name),
        )
        for each in changeable(one)
    }
    return create_model(one.name, __config__=ConfigDict(extra="forbid"), **fields)


def _comments(parameters: type) -> dict[str, str]:
    """What stands behind each field of the settings."""
    return dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(parameters), re.MULTILINE))
