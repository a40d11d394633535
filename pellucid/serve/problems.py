"""Everything that goes wrong is one JSON object, {"error": "one clear sentence"}; tracebacks stay in the log."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

RETRY_AFTER = 1  # second
ECHO = 80  # characters of what was asked that an answer repeats
LONGEST = 400  # characters of a sentence
UNEXPECTED = "something went wrong inside the server; its log says what"
MEANINGS = {
    400: "The Host header is missing, or names a host that this server is not.",
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another origin or site.",
    404: "There is nothing of that name.",
    405: "The address is there, but not for this method.",
    413: "The picture's file is larger than the limit.",
    415: "The body is no picture that can be read, or has more pixels than the limit.",
    422: "A parameter is missing, unknown or out of range, or doesn't fit the model.",
    500: "A mistake of the server's own.",
    503: "The server is full, or the answer took longer than the time limit; Retry-After says when to try again.",
}
EVERYWHERE = (400, 401, 403, 422)  # what any address may answer


class Problem(Exception):
    """A request that can't be answered: the status and the sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class Sentence(BaseModel):
    """What went wrong."""

    error: str


def refused(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The answer to a request that can't be answered."""
    extra = dict(headers or {})
    if status == 503:
        extra["Retry-After"] = str(RETRY_AFTER)
    if status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": shorten(" ".join(sentence.split()), LONGEST, str)}, status, extra)


def shorten(text: str, most: int = ECHO, quote: Callable[[str], str] = repr) -> str:
    """What was asked, as an answer repeats it: quoted, and of so many characters at most.

    >>> shorten("graph"), shorten("x" * 50_000, 8)
    ("'graph'", "'xxxxxxx…'")
    """
    return quote(text if len(text) <= most else text[: most - 1] + "…")


def documented(*codes: int) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of these statuses.

    >>> documented(404)[404]["description"]
    'There is nothing of that name.'
    """
    responses: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        responses[code] = {"model": Sentence, "description": MEANINGS[code]}
    if 503 in responses:
        seconds = {"description": "Seconds to wait.", "schema": {"type": "integer"}}
        responses[503]["headers"] = {"Retry-After": seconds}
    return responses


def install(app: FastAPI) -> None:
    """Let the app tell its refusals this way."""

    @app.exception_handler(Problem)
    async def problem(_: Request, error: Problem) -> JSONResponse:
        return refused(error.status, error.sentence)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        path, method = shorten(request.url.path, quote=str), shorten(request.method, quote=str)
        said = {404: f"there is nothing at {path}", 405: f"{method} is not for {path}"}
        return refused(error.status_code, said.get(error.status_code, str(error.detail)), dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return refused(422, "; ".join(_describe_error(each) for each in error.errors()))


def _describe_error(error: dict[str, Any]) -> str:
    """One of pydantic's findings: which parameter, what came, what was expected."""
    name = shorten(str(error["loc"][-1]), quote=str) if error["loc"] else "the request"
    if error["type"] == "missing":
        return f"{name} is missing"
    if error["type"] == "extra_forbidden":
        return f"there is no parameter {name}"
    said = str(error["msg"])
    return f"{name} is {shorten(str(error.get('input')))}; {said[:1].lower()}{said[1:]}"
