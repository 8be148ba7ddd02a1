"""The page's own files: given by name, under any path, and nothing beside them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from fastapi import FastAPI
from page_fake import FakeBackend
from record_fake import document, record_in
from starlette.testclient import TestClient

from kshipra.ui import files, words


@pytest.fixture(params=["", "/kshipra"])
def client(request, tmp_path, monkeypatch) -> TestClient:
    """A server at that path of its host, whose proxy takes the path off."""
    record_in(tmp_path / "recorded", monkeypatch, one=document())
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "recorded" / "link.json").symlink_to(tmp_path / "secret.json")
    (tmp_path / "recorded" / "deeper").mkdir()
    (tmp_path / "recorded" / "deeper" / "one.json").write_text("{}")
    app = FastAPI(routes=files.routes())
    app.root_path = request.param  # as Gradio does it
    return TestClient(app)


def test_plotly_and_recorded_runs_are_given_and_not_sent_twice(client):
    answer = client.get(f"/{files.plotly_address()}")
    assert answer.status_code == 200
    assert "plotly.js" in answer.text[:200]
    again = client.get(f"/{files.plotly_address()}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert json.loads(client.get(f"/{files.recorded_address('one.json')}").content)["ways"]


@pytest.mark.parametrize(
    "name", ["link.json", "deeper", "deeper/one.json", "..%2Fsecret.json", "%2e%2e/secret.json", ""]
)
def test_what_lies_beside_them_or_is_linked_to_is_not(client, name):
    assert client.get(f"/gradio_api/kshipra/recorded/{name}").status_code == 404


@pytest.mark.parametrize(
    "path", ["file=/etc/passwd", "file=http://127.0.0.1/", "file/etc/passwd", "upload", "upload/"]
)
def test_gradios_own_ways_to_files_are_closed(client, path):
    for answer in (client.get(f"/gradio_api/{path}"), client.post(f"/gradio_api/{path}")):
        assert (answer.status_code, answer.text) == (404, words.NO_FILES)


def test_they_come_before_gradios_own(serve):
    url = serve(FakeBackend())

    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}gradio_api/file={files.__file__}")
