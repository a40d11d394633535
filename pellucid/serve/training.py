"""The part of the API that tells of training runs."""

import asyncio
from functools import partial
from pathlib import Path as File
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from pellucid.serve import schemas
from pellucid.serve.confusion import Drawn, draw_confusion
from pellucid.serve.lapse import load_checkpoint
from pellucid.serve.limits import Limits
from pellucid.serve.looking import ABOUT_PICTURES, BUNDLE
from pellucid.serve.problems import Problem, documented
from pellucid.serve.runs import Runs
from pellucid.serve.served import Served
from pellucid.serve.uploads import Door
from pellucid.serve.worker import Worker

PICTURE = {
    200: {"content": {"image/png": {}}, "description": "A picture. The header X-Images says of how many images."}
}


def training(runs: Runs, door: Door, worker: Worker, limits: Limits) -> APIRouter:
    """The routes, around one folder of runs. Those that read files run in threads."""
    routes = APIRouter(tags=["runs"])
    drawn: dict[File, tuple[int, Drawn]] = {}  # by run: when its weights were written, and the picture

    def place_of(name: str) -> File:
        found = runs.listing().get(name)
        if found is None:
            raise Problem(404, f"no run is called {name[:80]!r}; /api/runs lists them")
        return found

    def weights_of(name: str) -> tuple[File, int]:
        place = place_of(name)
        written = runs.weights_written(place)
        if written is None:
            raise Problem(404, f"the run {name!r} has kept no weights yet")
        return place, written

    @routes.get("/runs")
    def list_runs(_: Annotated[schemas.Nothing, Query()]) -> list[schemas.Summary]:
        """The runs, the newest first."""
        return [schemas.Summary(**summary) for summary in runs.summaries()]

    @routes.get("/runs/{name}", responses=documented(404))
    def one_run(name: Annotated[str, Path()], asked: Annotated[schemas.RunQuery, Query()]) -> schemas.Detail:
        """One of them: config, curves and evaluations. To see it go on, ask again for what came after the last step."""
        return schemas.Detail(**runs.detail(name, place_of(name), asked.after, limits.points))

    @routes.get("/runs/{name}/confusion.png", response_class=Response, responses=documented(404, 503) | PICTURE)
    async def confusion(name: Annotated[str, Path()], _: Annotated[schemas.Nothing, Query()]) -> Response:
        """What a classifier confuses, on images that the run holds back to be evaluated on."""
        place, written = await run_in_threadpool(weights_of, name)
        if drawn.get(place, (None,))[0] != written:
            async with door.entered():
                try:
                    await asyncio.wrap_future(worker.submit(("confusion",), draw, (place, written)))
                except ValueError as error:
                    raise Problem(404, f"there is nothing to draw: {error}") from None
        picture, images = drawn[place][1]
        return Response(picture, media_type="image/png", headers={"X-Images": str(images)})

    def draw(asked: list[tuple[File, int]]) -> list[None]:
        """Kept here, and not by who asks: they may have gone when a long drawing ends, and come again."""
        for place, written in asked:
            drawn[place] = (written, draw_confusion(place, limits.evaluated))
        return [None] * len(asked)

    @routes.post(
        "/runs/{name}/trace",
        response_class=Response,
        openapi_extra=ABOUT_PICTURES["openapi_extra"],
        responses=ABOUT_PICTURES["responses"] | BUNDLE,
    )
    async def frame(
        request: Request, name: Annotated[str, Path()], asked: Annotated[schemas.FrameQuery, Query()]
    ) -> Response:
        """What the run's model made of a picture at a checkpoint: one of the pictures of a time-lapse."""
        async with door.entered():
            try:
                model = await run_in_threadpool(model_at, name, asked.checkpoint)
            except ValueError as error:
                raise Problem(404, f"the run {name!r} has no model to ask: {error}") from None
            image = await door.picture(request, partial(model.read, pixels=limits.pixels))
            found = await asyncio.wrap_future(worker.submit(("frame",), model.trace, image))
        return Response(found, media_type="application/octet-stream")

    def model_at(name: str, checkpoint: str) -> Served:
        place = place_of(name)
        for step, file in runs.checkpoints(place):
            if file.stem == checkpoint:
                return load_checkpoint(place, file, f"{name}, step {step:,}")
        raise Problem(404, f"the run {name!r} has no checkpoint {checkpoint[:80]!r}")

    return routes
