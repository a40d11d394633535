"""The page's files. They are read once, by a listing: no path from a request reaches the disk."""

from pathlib import Path

from fastapi import APIRouter, Request, Response

from pellucid import views
from pellucid.serve.problems import Problem, shorten

PAGE = Path(__file__).parent / "page"
VIEWER = Path(views.__file__).parent / "viewer"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


def pages() -> APIRouter:
    """/ is the page, /page/… are its parts, and /viewer/… those of the viewer it shares with the other faces."""
    routes = APIRouter(include_in_schema=False)
    files = {
        f"{room}/{path.relative_to(folder).as_posix()}": (path.read_bytes(), TYPES[path.suffix])
        for room, folder in (("page", PAGE), ("viewer", VIEWER))
        for path in sorted(folder.rglob("*"))
        if path.suffix in TYPES
    }

    @routes.get("/")
    async def index() -> Response:
        data, kind = files["page/index.html"]
        return Response(data, media_type=kind, headers={"Cache-Control": "no-cache"})

    @routes.get("/page/{name}")
    @routes.get("/viewer/{name:path}")
    async def part(request: Request, name: str) -> Response:
        file = files.get(request.url.path.removeprefix("/"))
        if file is None:
            raise Problem(404, f"the page has no part {shorten(name)}")
        return Response(file[0], media_type=file[1], headers={"Cache-Control": "no-cache"})

    return routes
