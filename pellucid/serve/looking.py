"""The part of the API that looks at pictures: models, samples, classes, captions and traces."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from pellucid.ready import ReadyCaptioner, ReadyClassifier, ReadyForeign, ReadyModel, ReadyTranslator
from pellucid.serve import schemas
from pellucid.serve.desk import Desk
from pellucid.serve.doors import Door
from pellucid.serve.problems import Problem, documented, shorten
from pellucid.serve.samples import samples
from pellucid.serve.served import describe_model, list_read
from pellucid.views.bundle import to_bytes

TEXT = {"text/plain": {"schema": {"type": "string", "maxLength": schemas.MOST_TEXT}}}
PICTURE: dict[str, Any] = {
    "required": True,
    "description": "The file of a picture as it is, PNG, JPEG, WebP, GIF, BMP, TIFF, PPM or AVIF: "
    "curl --data-binary @photo.jpg 'http://127.0.0.1:8000/api/classify?model=vit-cifar10'.",
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}
ABOUT_PICTURES: dict[str, Any] = {
    "openapi_extra": {"requestBody": PICTURE},
    "responses": documented(404, 413, 415, 503),
}
TO_TRACE = {"requestBody": {**PICTURE, "content": PICTURE["content"] | TEXT}}
BUNDLE = {200: {"description": "A trace, as docs/trace.md describes it.", "content": {"application/octet-stream": {}}}}


@dataclass(frozen=True)
class Models:
    """The models by name, and the way through one of them."""

    models: Mapping[str, ReadyModel]
    desk: Desk
    door: Door

    def of(self, name: str, kind: type[ReadyModel] = ReadyModel) -> Any:
        """The model of this name and kind; or where to ask it instead."""
        if name not in self.models:
            raise Problem(404, f"no model is called {shorten(name)}; there are: {', '.join(self.models) or 'none'}")
        model = self.models[name]
        if not isinstance(model, kind):
            other = "/api/caption" if isinstance(model, ReadyCaptioner) else "/api/classify"
            other = "/api/trace" if isinstance(model, ReadyForeign | ReadyTranslator) else other
            raise Problem(422, f"{name} is a {model.kind}; ask it at {other}")
        return model

    async def ask_reader(self, request: Request, model: ReadyModel, text: str | None, target: str | None) -> bytes:
        """The trace of a translator or of somebody else's model: of the text in the body, of a picture, or of both."""

        beside = {name: value for name, value in (("text", text), ("target", target)) if value is not None}

        async def trace(**how: Any) -> bytes:
            answer = await self.desk.ask(model, ("reader",), partial(trace_read, model), how | beside)
            if isinstance(answer, Problem):
                raise answer
            return answer

        async def look(data: bytes) -> bytes:
            if "picture" in list_read(model):
                async with self.desk.whole(data) as picture:
                    return await trace(image=picture)
            if text is not None:
                raise Problem(422, f"{model.name} reads text alone; send it as the body, and leave out the parameter")
            most = schemas.MOST_SENTENCE if isinstance(model, ReadyTranslator) else schemas.MOST_TEXT
            return await trace(text=read_text(data, most))

        return await self.desk.answer(request, self.door, look)

    async def look(self, request: Request, model: ReadyModel, way: tuple[Any, ...], run: Any, together: int = 1) -> Any:
        """What `run` makes of the request's picture, in one batch with others that go the same way."""

        async def look(data: bytes) -> Any:
            return await self.desk.ask(model, way, run, await self.desk.decode(model, data), together)

        return await self.desk.answer(request, self.door, look)


def looking(served: Mapping[str, ReadyModel], desk: Desk, door: Door) -> APIRouter:
    """The routes, around these models."""
    routes = APIRouter(tags=["look"])
    models, batch = Models(served, desk, door), desk.limits.batch
    add_listings(routes, served)

    @routes.post("/classify", **ABOUT_PICTURES)
    async def classify(request: Request, query: Annotated[schemas.ClassifyQuery, Query()]) -> schemas.Classes:
        """The likeliest classes of a picture."""
        model: ReadyClassifier = models.of(query.model, ReadyClassifier)
        run = partial(model.predict, top=len(model.labels))  # all, so that requests for more and for fewer go together
        best = await models.look(request, model, ("classify",), run, batch)
        classes = [schemas.Class(label=label, probability=share) for label, share in best[: query.top]]
        return schemas.Classes(model=model.name, classes=classes)

    @routes.post("/caption", **ABOUT_PICTURES)
    async def caption(request: Request, query: Annotated[schemas.CaptionQuery, Query()]) -> schemas.Captions:
        """What a captioner says of a picture."""
        model: ReadyCaptioner = models.of(query.model, ReadyCaptioner)
        if query.n_best > query.beam:
            raise Problem(422, f"n_best is {query.n_best}; expected 1…{query.beam}, at most as many as the beam")
        run = partial(model.caption, beam=query.beam, n_best=query.n_best)
        captions = await models.look(request, model, ("caption", query.beam, query.n_best), run, batch)
        return schemas.Captions(
            model=model.name, captions=[schemas.OneCaption(**caption.to_json()) for caption in captions]
        )

    @routes.post(
        "/trace",
        response_class=Response,
        openapi_extra=TO_TRACE,
        responses=ABOUT_PICTURES["responses"] | BUNDLE,
    )
    async def trace(request: Request, query: Annotated[schemas.TraceQuery, Query()]) -> Response:
        """All that the attention follows from as the model looks at a picture or a text: a file for the viewer.

        The body is the picture, or the text of a model that reads text alone; one that does both reads `text`.
        """
        model: ReadyModel = models.of(query.model)
        if isinstance(model, ReadyTranslator) and query.target is not None:
            raise Problem(422, f"{model.name} explains each word that it says; leave out target")
        if isinstance(model, ReadyForeign | ReadyTranslator):
            bundle = await models.ask_reader(request, model, query.text, query.target)
            return Response(bundle, media_type="application/octet-stream")
        if query.text is not None:
            raise Problem(422, f"{model.name} looks at pictures and reads no text; leave out text")
        how = {}
        if query.target is not None:
            if query.target not in model.labels:
                raise Problem(422, f"target is {shorten(query.target)}; expected a class that {model.name} knows")
            how = {"target": query.target}
        bundle = await models.look(request, model, ("trace",), partial(trace_all, model, **how))
        return Response(bundle, media_type="application/octet-stream")

    return routes


def read_text(data: bytes, most: int = schemas.MOST_TEXT) -> str:
    """The text in a body, or a sentence."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Problem(415, "the text isn't UTF-8; send it as text/plain in UTF-8") from None
    if not text.strip() or len(text) > most:
        raise Problem(422, f"the text has {len(text):,} characters; expected 1…{most:,}")
    return text


def trace_read(model: Any, inputs: list[dict[str, Any]]) -> list[bytes | Problem]:
    """A file for the viewer, input by input; what the model can't read is a sentence."""
    answers: list[bytes | Problem] = []
    for each in inputs:
        try:
            given = {"sentence": each["text"].strip()} if isinstance(model, ReadyTranslator) else each
            answers.append(to_bytes(model.trace(**given)))
        except ValueError as error:
            answers.append(Problem(422, str(error)))
    return answers


def trace_all(model: ReadyModel, pictures: list[Any], **how: Any) -> list[bytes]:
    """A file for the viewer, picture by picture."""
    return [to_bytes(model.trace(picture, **how)) for picture in pictures]


def add_listings(routes: APIRouter, models: Mapping[str, ReadyModel]) -> None:
    """What there is to ask, and pictures to begin with."""

    @routes.get("/models")
    async def list_models(_: Annotated[schemas.Nothing, Query()]) -> list[schemas.ModelEntry]:
        """The models that can be asked."""
        return [schemas.ModelEntry(**describe_model(model)) for model in models.values()]

    @routes.get("/samples")
    async def list_samples(_: Annotated[schemas.Nothing, Query()]) -> list[schemas.SampleEntry]:
        """Pictures to begin with."""
        return [schemas.SampleEntry(name=s.name, title=s.title, kind=s.kind) for s in samples().values()]

    @routes.get(
        "/samples/{name}",
        response_class=Response,
        responses=documented(404) | {200: {"content": {"image/png": {}, "image/jpeg": {}}}},
    )
    async def sample(name: Annotated[str, Path()], _: Annotated[schemas.Nothing, Query()]) -> Response:
        """One of them, as a file."""
        chosen = samples().get(name)
        if chosen is None:
            raise Problem(404, f"no sample is called {shorten(name)}; there are: {', '.join(samples())}")
        return Response(chosen.data, media_type=chosen.type)
