"""The server as a host starts it: without network, with nothing cached and a model that takes a minute to
load. The port answers at once, the page can be used meanwhile and afterwards, and gives no file away."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from model_folders import write_gpt2

from serving import ROOT, App

pytestmark = pytest.mark.slow
ANSWERS_WITHIN_S = 10.0
PATIENCE_MS = 120_000
SECRET = "nobody may read this"
NOWHERE = "http://127.0.0.1:9/"  # a port that refuses


@dataclass(frozen=True)
class Host:
    app: App
    folder: Path
    busy_s: float  # of processor time, until the page was served

    def let_load(self) -> None:
        (self.folder / "go").touch()


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("host")
    write_gpt2(folder / "tiny")
    for name in ("cache", "hub"):
        (folder / name).mkdir()
        (folder / name / "secret").write_text(SECRET)
    app = App(
        log=folder / "log", script="tests/hosting/slow_app.py", SLOW_UNTIL=str(folder / "go"), SECRET=SECRET,
        KSHIPRA_CACHE=str(folder / "cache"), HF_HOME=str(folder / "hub"), HF_ENDPOINT=NOWHERE,
        PIP_INDEX_URL=NOWHERE, PIP_CONFIG_FILE=os.devnull, PIP_RETRIES="0", GRADIO_SSR_MODE="true",
    )  # fmt: skip
    try:
        app.wait()
        spent = psutil.Process(app.process.pid).cpu_times()
        yield Host(app, folder, spent.user + spent.system)
    finally:
        app.kill()


@pytest.fixture
def page(chromium, host):
    tab = chromium.new_page()
    tab.set_default_timeout(PATIENCE_MS)
    tab.goto(host.app.address)
    tab.wait_for_selector("#stop:disabled")
    yield tab
    tab.close()


def state(page, name: str) -> str:
    page.wait_for_selector(f"#status[data-state='{name}']")
    return page.inner_text("#status")


def test_the_port_answers_while_the_model_loads_and_another_model_can_be_had_when_it_fails(host, page):
    assert host.busy_s < ANSWERS_WITHIN_S  # of one processor, so that other work here counts nothing
    page.wait_for_selector(".k-model span:has-text('Fetching: ')")
    page.click("#run")
    page.wait_for_selector("#status[data-state='loading']:has-text('Fetching: ')")  # it waits, and for what
    page.click("#stop")
    state(page, "stopped")
    page.click("#run:enabled")
    state(page, "loading")
    host.let_load()
    reason = state(page, "failed")
    assert "smollm2-135m-instruct" in reason
    assert page.inner_text(".k-model span") == reason
    page.fill("#model input", str(host.folder / "tiny"))
    page.keyboard.press("Enter")
    page.fill("#max-new-tokens input", "3")
    page.keyboard.press("Tab")
    page.click("#run:enabled")
    assert "All 9 tokens identical" in state(page, "done")


# What may not be read, and how it is asked for

PLACES = (
    "gradio_api/file=", "gradio_api/file/", "file=", "file/", "gradio_api/proxy=", "static/", "assets/", "",
    "svelte/", "gradio_api/custom_component/1/client/component/", "gradio_api/upload/", "gradio_api/kshipra/",
    "gradio_api/kshipra/plotly/", "gradio_api/kshipra/recorded/",
)  # fmt: skip
UP = "../" * 12
WRITTEN = (
    lambda path: path,
    lambda path: path.lstrip("/"),
    lambda path: UP + path.lstrip("/"),
    lambda path: quote(UP + path.lstrip("/"), safe=""),
    lambda path: (UP + path.lstrip("/")).replace(".", "%2e"),
    lambda path: quote(quote(UP, safe=""), safe="") + path.lstrip("/"),
    lambda path: UP.replace("/", "\\") + path.lstrip("/"),
    lambda path: UP.replace("../", "....//") + path.lstrip("/"),
    lambda path: f"file://{path}",
    lambda path: f"x%00/{UP}{path.lstrip('/')}",
    lambda path: f"/proc/self/root{path}",
)


def answer(app: App, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Of one request whose path goes out as it is written."""
    connection = http.client.HTTPConnection("127.0.0.1", app.port, timeout=30)
    connection.putrequest("GET" if body is None else "POST", f"/{path}", skip_accept_encoding=True)
    if body is not None:
        connection.putheader("Content-Type", "multipart/form-data; boundary=b")
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    said = connection.getresponse()
    found = said.status, said.read()
    connection.close()
    return found


def forbidden(host: Host) -> dict[str, bytes]:
    """Paths of files, and bytes of each that no answer may hold."""
    names = ("app.py", "README.md", "kshipra/ui/build.py", "assets/page.css", ".git/config")
    own = [ROOT / name for name in names]
    elsewhere = [host.folder / "cache/secret", host.folder / "hub/secret", host.folder / "log"]
    found = {str(path): path.read_bytes()[:60] for path in [*own, *elsewhere] if path.exists()}
    relative = {str(path.relative_to(ROOT)): path.read_bytes()[:60] for path in own if path.exists()}
    return found | relative | {"/proc/self/environ": SECRET.encode(), "/etc/passwd": b"root:"}


def test_no_file_of_the_machine_is_given_away(host):
    tried, given = 0, []
    for (path, marks), place, written in itertools.product(forbidden(host).items(), PLACES, WRITTEN):
        status, body = answer(host.app, place + written(path))
        tried += 1
        if marks in body or (status == 200 and b"<!doctype html" not in body.lower()):
            given.append((place, written(path), status))
    assert not given, f"{len(given)} of {tried}: {given[:5]}"
    assert tried > 1000


def test_nothing_is_fetched_or_kept_for_a_stranger(host):
    inside = quote(f"{host.app.address}config", safe="")
    for path in (f"gradio_api/file={inside}", f"gradio_api/file={host.app.address}config"):
        assert answer(host.app, path)[0] == 404
    sent = b'--b\r\nContent-Disposition: form-data; name="files"; filename="x.txt"\r\n\r\nx\r\n--b--\r\n'
    for path in ("upload", "upload/", "process_recording", "component_server"):
        assert answer(host.app, f"gradio_api/{path}", sent)[0] == 404, path
    assert answer(host.app, "gradio_api/deep_link?session_hash=x")[0] == 404
    assert answer(host.app, "monitoring")[0] == 403


def test_what_the_page_needs_is_given(host):
    status, body = answer(host.app, "gradio_api/kshipra/plotly/plotly.min.js")
    assert (status, b"plotly.js v" in body[:200]) == (200, True)
    status, body = answer(host.app, "gradio_api/kshipra/recorded/four-facts.json")
    assert json.loads(body)["ways"]


def test_the_server_renders_no_page_whatever_the_environment_says(host):
    """A Space sets GRADIO_SSR_MODE, as it is set for this server."""
    assert not psutil.Process(host.app.process.pid).children(), "a Node server stands before the page"
    assert "SSR" not in host.app.log.read_text()
    assert b"window.gradio_config" in answer(host.app, "")[1]


def test_the_page_says_nothing_of_this_machines_folders(host):
    folders = (str(ROOT), sys.prefix, str(Path.home()), str(host.folder), "site-packages")
    for path in ("", "config", "gradio_api/info", "gradio_api/openapi.json", "gradio_api/mcp/schema"):
        status, body = answer(host.app, path)
        assert status == 200, path
        assert [folder for folder in folders if folder.encode() in body] == [], path
