"""The real thing: `transformers serve` on a tiny model, as a way beside the same model here. Its pieces of
text are often several tokens, and its greedy text is ours."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request

import pytest
from model_folders import is_one_sentence, write_gpt2
from test_server_way import told_by

from kshipra.backends.local import LocalBackend
from kshipra.engine import roofline
from kshipra.types import Failed, Finished, ModelChoice, Plan, Roofline, SamplingParams, Server
from serving import free_port

pytestmark = pytest.mark.slow
STARTS_WITHIN_S = 120


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder of the model, the server's address)"""
    folder, port = tmp_path_factory.mktemp("tiny"), free_port()
    write_gpt2(folder)
    said = folder.with_suffix(".log")
    with said.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), "--device", "cpu",
             "--host", "127.0.0.1", "--port", str(port)],
            env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log,
        )  # fmt: skip
    end_s = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            break
        except OSError:
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < end_s, said.read_text()
            time.sleep(0.1)
    yield str(folder), f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture
def backend(monkeypatch):
    speed = Roofline("cpu", "float32", 2, 1e10, 1e11, "2026-01-01T00:00:00+00:00")
    monkeypatch.setattr(roofline, "cached_roofline", lambda *_, **__: speed)
    backend = LocalBackend()
    yield backend
    backend.close()


@pytest.mark.parametrize("chat", [False, True])
def test_its_text_and_its_count_are_those_of_the_model_here(tiny, backend, chat):
    folder, address = tiny
    ways, server = ("kv_cache", "server"), Server(address, folder)
    plan = Plan(
        ModelChoice(folder), ("The sea", "It rains"), ways, SamplingParams(16), chat=chat, server=server
    )
    messages, _, document = told_by(backend, plan)
    assert [one for one in messages if isinstance(one, Failed)] == []
    here, there = (one.result for one in messages if isinstance(one, Finished))
    assert [row.text for row in there.rows] == [row.text for row in here.rows]
    assert [row.new_tokens for row in there.rows] == [row.new_tokens for row in here.rows] == [16, 16]
    assert [row.finish_reason for row in there.rows] == ["length", "length"]
    assert sum(bool(token.text) for step in there.steps for token in step.new_tokens) < 32  # pieces are fewer
    assert there.end_to_end_tok_per_s == pytest.approx(32 / there.wall_s)
    assert there.kv_bytes is None
    assert "its text is that of B in 2 of 2 prompts" in " ".join(document["summary"]["verdict"])


def test_a_model_that_it_does_not_have_is_one_sentence(tiny, backend):
    folder, address = tiny
    plan = Plan(
        ModelChoice(folder), ("a",), ("server",), SamplingParams(4), server=Server(address, "no/such")
    )
    (failed,) = [one for one in told_by(backend, plan)[0] if isinstance(one, Failed)]
    assert "refuses the request (400): check model and settings; it says: Server is pinned" in failed.sentence
    assert is_one_sentence(failed.sentence)
