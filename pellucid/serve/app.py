"""The whole as one FastAPI application: the API under /api, the page under /."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Query

from pellucid import __version__
from pellucid.ready import ReadyModel
from pellucid.serve import problems, schemas
from pellucid.serve.experiments import experiments
from pellucid.serve.guard import Guard
from pellucid.serve.limits import Limits
from pellucid.serve.looking import looking
from pellucid.serve.pages import pages
from pellucid.serve.runs import Runs
from pellucid.serve.training import training
from pellucid.serve.uploads import Door
from pellucid.serve.worker import Worker


def create_app(
    models: Mapping[str, ReadyModel],
    runs: Path | None = None,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    names: Iterable[str] = (),
) -> FastAPI:
    """The application around these models and this folder of runs. names: what hosts it may be called by."""
    bounds = limits or Limits()
    door, worker, lab = Door(bounds), Worker(bounds.gather), Worker(0.0)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        door.close()
        worker.close()
        lab.close()

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
    problems.install(app)
    app.add_middleware(Guard, names=tuple(names), token=token)

    @app.get("/api/health")
    async def health(_: Annotated[schemas.Nothing, Query()]) -> schemas.ServerHealth:
        """Whether the server is there, and what it takes."""
        taken = schemas.Bounds(bytes=bounds.bytes, pixels=bounds.pixels, seconds=bounds.seconds)
        return schemas.ServerHealth(status="ready", version=__version__, requests=door.inside, limits=taken)

    app.include_router(looking(models, door, worker, bounds), prefix="/api")
    app.include_router(training(Runs(runs), door, worker, bounds), prefix="/api")
    app.include_router(experiments(door, lab), prefix="/api")
    app.include_router(pages())
    return app
