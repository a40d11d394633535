"""The whole as one FastAPI application: the API under /api, the page under /, and how it is for those who run it."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Query
from fastapi.responses import PlainTextResponse

from pellucid import __version__
from pellucid.ready import ReadyModel
from pellucid.serve import problems, schemas
from pellucid.serve.access import Access, AccessLog
from pellucid.serve.experiments import experiments
from pellucid.serve.guard import OPEN, Guard
from pellucid.serve.limits import Limits
from pellucid.serve.looking import looking
from pellucid.serve.pages import pages
from pellucid.serve.runs import Runs
from pellucid.serve.service import Service
from pellucid.serve.training import training

PROMETHEUS = "text/plain; version=0.0.4"


def create_app(
    models: Mapping[str, ReadyModel],
    runs: Path | None = None,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    names: Iterable[str] = (),
    proxies: Iterable[str] = (),
    log: Path | None = None,
) -> FastAPI:
    """The application around these models and this folder of runs; `app.state.service` is what its rooms share.

    names: what hosts it may be called by. proxies: whose X-Forwarded-For is believed. log: where requests are told of.
    """
    service = Service(limits or Limits(), proxies)
    access = None if log is None else AccessLog(log, service.limits.log)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()
        if access is not None:
            access.close()

    app = FastAPI(
        title="pellucid",
        version=__version__,
        description="What vision transformers and captioners see in a picture, and where they look.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=life,
        responses=problems.documented(*problems.EVERYWHERE),
    )
    app.state.service = service
    problems.install(app)
    app.add_middleware(Guard, names=tuple(names), token=token)
    write = None if access is None else access.write
    app.add_middleware(Access, callers=service.callers, metrics=service.metrics, write=write)  # the outermost
    add_states(app, service)
    doors = service.doors
    app.include_router(looking(models, service.desk, doors.look), prefix="/api")
    app.include_router(training(Runs(runs), service.desk, doors, service.killable, service.drawings), prefix="/api")
    app.include_router(experiments(doors.lab, service.killable, service.pages, service.limits.seconds), prefix="/api")
    app.include_router(pages())
    return app


def add_states(app: FastAPI, service: Service) -> None:
    """How it is: for the page, for what starts and stops the server, and for what draws its curves."""

    @app.get("/api/health")
    async def health(_: Annotated[schemas.Nothing, Query()]) -> schemas.ServerHealth:
        """Whether the server is there, and what it takes."""
        limits = service.limits
        taken = schemas.Bounds(bytes=limits.bytes, pixels=limits.pixels, seconds=limits.seconds)
        return schemas.ServerHealth(status="ready", version=__version__, requests=service.pictures, limits=taken)

    @app.get(OPEN, include_in_schema=False)
    async def healthz() -> PlainTextResponse:
        """For anybody, and so no more than this."""
        return PlainTextResponse("draining", 503) if service.is_draining else PlainTextResponse("ready")

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(service.metrics.text(service.gauges()), media_type=PROMETHEUS)
