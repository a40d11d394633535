"""The part of the API that tells of training runs."""

import asyncio
from functools import partial
from pathlib import Path as File
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from pellucid.ready import ReadyModel, load_checkpoint
from pellucid.serve import schemas
from pellucid.serve.confusion import ConfusionPicture, draw_confusion
from pellucid.serve.limits import Limits
from pellucid.serve.looking import ABOUT_PICTURES, BUNDLE, trace_all
from pellucid.serve.problems import Problem, documented
from pellucid.serve.runs import Runs
from pellucid.serve.uploads import Door
from pellucid.serve.worker import Worker

PNG = {200: {"content": {"image/png": {}}, "description": "A picture. The header X-Images says of how many images."}}


def training(runs: Runs, door: Door, worker: Worker, limits: Limits) -> APIRouter:
    """The routes, around one folder of runs. Those that read files run in threads."""
    routes = APIRouter(tags=["runs"])
    drawn: dict[File, tuple[int, ConfusionPicture]] = {}  # by run: when its weights were written, and the picture

    @routes.get("/runs")
    def list_runs(_: Annotated[schemas.Nothing, Query()]) -> list[schemas.Summary]:
        """The runs, the newest first."""
        return [schemas.Summary(**summary) for summary in runs.summaries()]

    @routes.get("/runs/{name}", responses=documented(404))
    def one_run(name: Annotated[str, Path()], query: Annotated[schemas.RunQuery, Query()]) -> schemas.Detail:
        """One of them: config, curves and evaluations. To see it go on, ask again for what came after the last step."""
        return schemas.Detail(**runs.detail(name, find_run(runs, name), query.after, limits.points))

    @routes.get("/runs/{name}/confusion.png", response_class=Response, responses=documented(404, 503) | PNG)
    async def confusion(name: Annotated[str, Path()], _: Annotated[schemas.Nothing, Query()]) -> Response:
        """What a classifier confuses, on images that the run holds back to be evaluated on."""
        place, written = await run_in_threadpool(find_weights, runs, name)
        if drawn.get(place, (None,))[0] != written:
            async with door.entered():
                try:
                    await asyncio.wrap_future(worker.submit(("confusion",), draw, (place, written)))
                except ValueError as error:
                    raise Problem(404, f"there is nothing to draw: {error}") from None
        picture, images = drawn[place][1]
        return Response(picture, media_type="image/png", headers={"X-Images": str(images)})

    def draw(jobs: list[tuple[File, int]]) -> list[None]:
        """Kept here, and not by who asks: they may have gone when a long drawing ends, and come again."""
        for place, written in jobs:
            drawn[place] = (written, draw_confusion(place, limits.evaluated))
        return [None] * len(jobs)

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
        async with door.entered():
            try:
                model = await run_in_threadpool(load_frame, runs, name, query.checkpoint)
            except ValueError as error:
                raise Problem(404, f"the run {name!r} has no model to ask: {error}") from None
            picture = await door.picture(
                request, partial(model.reader.read, max_pixels=limits.pixels, name="the picture")
            )
            bundle = await asyncio.wrap_future(worker.submit(("frame",), partial(trace_all, model), picture))
        return Response(bundle, media_type="application/octet-stream")

    return routes


def find_run(runs: Runs, name: str) -> File:
    """Where the run of this name lies."""
    place = runs.listing().get(name)
    if place is None:
        raise Problem(404, f"no run is called {name[:80]!r}; /api/runs lists them")
    return place


def find_weights(runs: Runs, name: str) -> tuple[File, int]:
    """Where the run lies, and when the weights that it is known by were written."""
    place = find_run(runs, name)
    written = runs.weights_written(place)
    if written is None:
        raise Problem(404, f"the run {name!r} has kept no weights yet")
    return place, written


def load_frame(runs: Runs, name: str, checkpoint: str) -> ReadyModel:
    """The run's model at one of its checkpoints."""
    place = find_run(runs, name)
    for step, path in runs.checkpoints(place):
        if path.stem == checkpoint:
            return load_checkpoint(place, path, name=f"{name}, step {step:,}")
    raise Problem(404, f"the run {name!r} has no checkpoint {checkpoint[:80]!r}")
