"""The server as it is started: it logs a line a run and no prompt, and ends when it is told to."""

from __future__ import annotations

import json
import time

import pytest
from gradio_client import Client
from model_folders import write_gpt2

from serving import App

SECRET = "a prompt of nobody"


@pytest.fixture
def app(tmp_path):
    folder = tmp_path / "tiny"
    write_gpt2(folder)
    apps: list[App] = []

    def start(*arguments: str, model: str = str(folder)) -> App:
        apps.append(App("--model", model, *arguments, log=tmp_path / "log"))
        return apps[-1]

    yield start
    for one in apps:
        one.kill()


def test_a_run_is_one_line_of_the_log_without_its_prompt_and_sigterm_ends_it_all(app):
    one = app("--log-level", "info")
    one.wait()
    client = Client(one.address, verbose=False)
    document = client.predict([SECRET, "b"], ["kv_cache"], 3, api_name="/compare")
    assert document["ways"][0]["result"]["new_tokens"] == 6
    assert one.end() == 0
    text = one.log.read_text()
    assert "Traceback" not in text
    assert SECRET not in text
    assert "nobody" not in text
    lines = [json.loads(line[line.index("{") :]) for line in text.splitlines() if "kshipra.runs: {" in line]
    assert [line["what"] for line in lines] == ["load", "run"]
    run = lines[1]
    assert (run["prompts"], run["characters"], run["max_new_tokens"]) == (2, len(SECRET) + 1, 3)
    assert run["ways"]["kv_cache"]["new_tokens"] == 6
    assert (run["failed"], run["stopped"]) == (0, False)
    assert run["worked_s"] >= run["ways"]["kv_cache"]["wall_s"] > 0


def test_sigterm_in_the_middle_of_a_run_ends_cleanly(app):
    one = app()
    one.wait()
    client = Client(one.address, verbose=False)
    client.submit(["x"] * 16, ["no_cache"], 400, api_name="/compare")
    time.sleep(2)
    assert one.end() == 0
    assert "Traceback" not in one.log.read_text()
