"""The part of the API that looks at pictures: models, samples, classes, captions and traces."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from pellucid.serve import schemas
from pellucid.serve.limits import Limits
from pellucid.serve.problems import Problem, documented
from pellucid.serve.samples import samples
from pellucid.serve.served import Classifier, Served, Speaker, said
from pellucid.serve.uploads import Door
from pellucid.serve.worker import Worker

PICTURE = {
    "required": True,
    "description": "The file of a picture as it is, in any format that Pillow reads: "
    "curl --data-binary @photo.jpg 'http://127.0.0.1:8000/api/classify?model=vit-cifar10'.",
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}
ABOUT_PICTURES: dict[str, Any] = {
    "openapi_extra": {"requestBody": PICTURE},
    "responses": documented(404, 413, 415, 503),
}
BUNDLE = {200: {"description": "A trace, as docs/trace.md describes it.", "content": {"application/octet-stream": {}}}}


def looking(models: Mapping[str, Served], door: Door, worker: Worker, limits: Limits) -> APIRouter:
    """The routes, around these models."""
    routes = APIRouter(tags=["look"])

    def model_of(name: str, kind: type[Any] | None = None) -> Any:
        if name not in models:
            raise Problem(404, f"no model is called {name!r}; there are: {', '.join(models) or 'none'}")
        found = models[name]
        if kind is not None and not isinstance(found, kind):
            other = "/api/caption" if isinstance(found, Speaker) else "/api/classify"
            raise Problem(422, f"{name} is a {found.kind}; ask it at {other}")
        return found

    async def answer(request: Request, model: Served, key: tuple[Any, ...], run: Any, together: int) -> Any:
        async with door.entered():
            image = await door.picture(request, partial(model.read, pixels=limits.pixels))
            return await asyncio.wrap_future(worker.submit((model.name, *key), run, image, together=together))

    @routes.get("/models")
    async def list_models(_: Annotated[schemas.Nothing, Query()]) -> list[schemas.Model]:
        """The models that can be asked."""
        return [schemas.Model(**model.about()) for model in models.values()]

    @routes.get("/samples")
    async def list_samples(_: Annotated[schemas.Nothing, Query()]) -> list[schemas.Sample]:
        """Pictures to begin with."""
        return [schemas.Sample(name=s.name, title=s.title, kind=s.kind) for s in samples().values()]

    @routes.get(
        "/samples/{name}",
        response_class=Response,
        responses=documented(404) | {200: {"content": {"image/png": {}, "image/jpeg": {}}}},
    )
    async def sample(name: Annotated[str, Path()], _: Annotated[schemas.Nothing, Query()]) -> Response:
        """One of them, as a file."""
        found = samples().get(name)
        if found is None:
            raise Problem(404, f"no sample is called {name!r}; there are: {', '.join(samples())}")
        return Response(found.data, media_type=found.type)

    @routes.post("/classify", **ABOUT_PICTURES)
    async def classify(request: Request, asked: Annotated[schemas.ClassifyQuery, Query()]) -> schemas.Classes:
        """The likeliest classes of a picture."""
        model: Classifier = model_of(asked.model, Classifier)
        found = await answer(request, model, ("classify",), model.classify, limits.batch)
        classes = [schemas.Class(label=label, probability=share) for label, share in model.best(found, asked.top)]
        return schemas.Classes(model=model.name, classes=classes)

    @routes.post("/caption", **ABOUT_PICTURES)
    async def caption(request: Request, asked: Annotated[schemas.CaptionQuery, Query()]) -> schemas.Captions:
        """What a captioner says of a picture."""
        model: Speaker = model_of(asked.model, Speaker)
        if asked.n_best > asked.beam:
            raise Problem(422, f"n_best is {asked.n_best}; expected 1…{asked.beam}, at most as many as the beam")
        run = partial(model.describe, beam=asked.beam, n_best=asked.n_best)
        found = await answer(request, model, ("caption", asked.beam, asked.n_best), run, limits.batch)
        return schemas.Captions(model=model.name, captions=[schemas.OneCaption(**said(each)) for each in found])

    @routes.post(
        "/trace",
        response_class=Response,
        openapi_extra=ABOUT_PICTURES["openapi_extra"],
        responses=ABOUT_PICTURES["responses"] | BUNDLE,
    )
    async def trace(request: Request, asked: Annotated[schemas.TraceQuery, Query()]) -> Response:
        """All that the attention follows from as the model looks at a picture: a file for the viewer."""
        model: Served = model_of(asked.model)
        run = model.trace
        if asked.target is not None:
            if not isinstance(model, Classifier) or asked.target not in model.labels:
                raise Problem(422, f"target is {asked.target!r}; expected a class that {model.name} knows")
            run = partial(model.trace, target=asked.target)
        found = await answer(request, model, ("trace",), run, 1)
        return Response(found, media_type="application/octet-stream")

    return routes
