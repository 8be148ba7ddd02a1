"""What the page's server gives beside Gradio's own parts: Plotly and the recorded runs, each by name. No
other file of this machine is given to anybody, and none is taken: Gradio's ways for both are closed.

Addresses are relative, so the page is at home under any path of any host, and say nothing of folders here.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from kshipra.ui import recorded, words

PLOTLY = Path(str(resources.files("plotly") / "package_data"))
API = "gradio_api"  # under it whatever stands before Gradio's server, Node included, passes everything on
# They give any file of Gradio's caches, fetch any public address for anybody, and keep what anybody sends.
CLOSED = (
    "file={rest:path}", "file/{rest:path}", "upload", "upload/", "process_recording", "process_recording/",
    "deep_link", "component_server", "component_server/",
)  # fmt: skip


def plotly_address() -> str:
    return f"{API}/kshipra/plotly/plotly.min.js"


def recorded_address(name: str) -> str:
    """That of the recorded run in the file `name`."""
    return f"{API}/kshipra/recorded/{quote(name)}"


def _files_of(folder: Path, path: str) -> Route:
    """The files right in `folder`. No Mount: that fails where a proxy has taken a path off the address."""
    files = StaticFiles(directory=folder)

    async def give(request: Request) -> Response:
        return await files.get_response(request.path_params["name"], request.scope)

    return Route(f"/{API}/kshipra/{path}/{{name}}", give)


def _closed(request: Request) -> Response:
    return PlainTextResponse(words.NO_FILES, status_code=404)


def routes() -> list[Route]:
    """They come before Gradio's own."""
    return [
        _files_of(PLOTLY, "plotly"),
        _files_of(recorded.FOLDER, "recorded"),
        *(Route(f"/{API}/{path}", _closed, methods=["GET", "POST"]) for path in CLOSED),
    ]
