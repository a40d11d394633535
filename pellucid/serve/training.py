"""The part of the API that tells of training runs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path as File
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from pellucid.ready import ReadyModel, load_checkpoint
from pellucid.serve import schemas
from pellucid.serve.confusion import ConfusionPicture, draw_confusion
from pellucid.serve.desk import Desk
from pellucid.serve.doors import Doors, while_there
from pellucid.serve.killable import KillableWorker
from pellucid.serve.looking import ABOUT_PICTURES, BUNDLE, trace_all
from pellucid.serve.problems import Problem, documented, shorten
from pellucid.serve.runs import Runs
from pellucid.serve.shared import Shared

T = TypeVar("T")
PNG = {200: {"content": {"image/png": {}}, "description": "A picture. The header X-Images says of how many images."}}


def training(
    runs: Runs, desk: Desk, doors: Doors, worker: KillableWorker, drawings: Shared[ConfusionPicture]
) -> APIRouter:
    """The routes, around one folder of runs. What reads files runs in threads, what takes long in the worker."""
    routes = APIRouter(tags=["runs"])
    limits = desk.limits

    async def read(request: Request, function: Callable[..., T], *arguments: Any) -> T:
        async def work() -> T:
            return await run_in_threadpool(function, *arguments)

        return await while_there(request, doors.runs.through(request, work), limits.seconds)

    @routes.get("/runs", responses=documented(503))
    async def list_runs(request: Request, _: Annotated[schemas.Nothing, Query()]) -> list[schemas.Summary]:
        """The runs, the newest first."""
        return [schemas.Summary(**summary) for summary in await read(request, runs.summaries)]

    @routes.get("/runs/{name}", responses=documented(404, 503))
    async def one_run(
        request: Request, name: Annotated[str, Path()], query: Annotated[schemas.RunQuery, Query()]
    ) -> schemas.Detail:
        """One of them: config, curves and evaluations. To see it go on, ask again for what came after the last step."""
        return schemas.Detail(**await read(request, describe_run, runs, name, query.after, limits.points))

    @routes.get("/runs/{name}/confusion.png", response_class=Response, responses=documented(404, 503) | PNG)
    async def confusion(
        request: Request, name: Annotated[str, Path()], _: Annotated[schemas.Nothing, Query()]
    ) -> Response:
        """What a classifier confuses, on images that the run holds back to be evaluated on."""
        place, written = await read(request, find_weights, runs, name)

        async def draw() -> ConfusionPicture:
            return await doors.drawings.through(request, partial(worker.run, draw_confusion, place, limits.evaluated))

        try:
            picture, images = await while_there(request, drawings.get((place, written), draw), limits.seconds)
        except ValueError as error:
            raise Problem(404, f"there is nothing to draw: {error}") from None
        return Response(picture, media_type="image/png", headers={"X-Images": str(images)})

    @routes.post(
        "/runs/{name}/trace",
        response_class=Response,
        openapi_extra=ABOUT_PICTURES["openapi_extra"],
        responses=ABOUT_PICTURES["responses"] | BUNDLE,
    )
    async def frame(
        request: Request, name: Annotated[str, Path()], query: Annotated[schemas.FrameQuery, Query()]
    ) -> Response:
        """What the run's model made of a picture at a checkpoint: one of the pictures of a time-lapse."""

        async def look(data: bytes) -> bytes:
            model = await run_in_threadpool(load_frame, runs, name, query.checkpoint)
            return await desk.ask(model, ("frame",), partial(trace_all, model), await desk.decode(model, data))

        return Response(await desk.answer(request, doors.runs, look), media_type="application/octet-stream")

    return routes


def find_run(runs: Runs, name: str) -> File:
    """Where the run of this name lies."""
    place = runs.listing().get(name)
    if place is None:
        raise Problem(404, f"no run is called {shorten(name)}; /api/runs lists them")
    return place


def describe_run(runs: Runs, name: str, after: int, points: int) -> dict[str, Any]:
    """All that is told of the run of this name."""
    place = find_run(runs, name)
    try:
        return runs.detail(name, place, after, points)
    except ValueError as error:
        raise Problem(404, f"the run {shorten(name)} can't be read: {error}") from None


def find_weights(runs: Runs, name: str) -> tuple[File, int]:
    """Where the run lies, and when the weights that it is known by were written."""
    place = find_run(runs, name)
    written = runs.weights_written(place)
    if written is None:
        raise Problem(404, f"the run {shorten(name)} has kept no weights yet")
    return place, written


def load_frame(runs: Runs, name: str, checkpoint: str) -> ReadyModel:
    """The run's model at one of its checkpoints."""
    place = find_run(runs, name)
    try:
        for step, path in runs.checkpoints(place):
            if path.stem == checkpoint:
                return load_checkpoint(place, path, name=f"{name}, step {step:,}")
    except ValueError as error:
        raise Problem(404, f"the run {shorten(name)} has no model to ask: {error}") from None
    raise Problem(404, f"the run {shorten(name)} has no checkpoint {shorten(checkpoint)}")
