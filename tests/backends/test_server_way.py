"""A server among the ways of a plan: beside an engine here, in the page, its record, the endpoint and bench.
Nothing of a key is in any of them, and its faults cost the others nothing."""

from __future__ import annotations

import json
import logging
import pickle

import pytest
from openai_stub import DONE, ended, said, stub_server, usage

from conftest import Letters, make_gpt2
from kshipra.__main__ import main
from kshipra.backends import addresses
from kshipra.backends.local import LocalBackend
from kshipra.engine import roofline, runner
from kshipra.engine.runner import Engine
from kshipra.errors import InputError
from kshipra.limits import public
from kshipra.recipes import recipe_named
from kshipra.types import (
    Ended,
    Failed,
    Finished,
    ModelChoice,
    Plan,
    Reviewed,
    Roofline,
    Server,
    plain,
)  # fmt: skip
from kshipra.ui.form import Form, plan_of
from kshipra.ui.links import NAMES
from kshipra.ui.record import Recording, to_json
from kshipra.ui.view import RunView
from test_bench import SMALL, use

KEY = "sk-secret-5678"
CHOICE = ModelChoice("tiny")


@pytest.fixture(scope="module")
def server():
    with stub_server() as stub:
        yield stub


@pytest.fixture
def backend(monkeypatch):
    for name in (addresses.URL, addresses.MODEL, addresses.KEY, addresses.ALLOW):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(runner, "load", lambda *_, **__: Engine(make_gpt2(), Letters()))
    speed = Roofline("cpu", "float64", 2, 1e10, 1e11, "2026-01-01T00:00:00+00:00")
    monkeypatch.setattr(roofline, "cached_roofline", lambda *_, **__: speed)
    backend = LocalBackend()
    yield backend
    backend.close()


def form_of(stub, *recipes: str, **changes) -> Form:
    named = dict(server=stub.address, server_model="there/tiny-2", server_key=KEY)
    fields = dict(
        prompts=["abc", "xy"], recipes=list(recipes), model="tiny", device="auto", dtype="auto", chat="raw",
        max_new_tokens=4, temperature=0, top_k=0, top_p=1, repetition_penalty=1, seed="",
    )  # fmt: skip
    return Form(**(fields | named | changes))


def told_by(backend, plan: Plan) -> tuple[list, str, dict]:
    """The messages of a run, all that the page is sent, and the document."""
    run, found = backend.submit(plan), []
    view = RunView("id", tuple(map(recipe_named, plan.recipes)), plan.prompts)
    recording = Recording(plan)
    while not (found and isinstance(found[-1], Ended)):
        found += run.messages(5)
    view.add(found)
    for message in found:
        recording.add(message)
    return found, view.lines(1.0), recording.document()


def test_a_server_runs_beside_the_engine_and_is_told_alike(server, backend, caplog):
    caplog.set_level(logging.DEBUG)
    server.streams(said("wxyz"), 0.03, said("! and"), ended(), usage(4), DONE)
    plan = plan_of(form_of(server, "kv_cache", "static_batch", "server"), CHOICE)
    messages, text, document = told_by(backend, plan)
    finished = {one.recipe: one.result for one in messages if isinstance(one, Finished)}
    assert list(finished) == ["kv_cache", "static_batch", "server"]
    assert finished["server"].new_tokens == finished["kv_cache"].new_tokens == 8
    (reviewed,) = [one for one in messages if isinstance(one, Reviewed)]
    assert [(one.first, one.second) for one in reviewed.comparisons] == [("kv_cache", "static_batch")]
    local, there = document["ways"][0], document["ways"][2]
    assert (there["server_model"], there["spec"], there["prediction"]) == ("there/tiny-2", None, None)
    assert local["spec"]["vocabulary"] == 1000
    cells = document["summary"]["rows"][2][2]
    assert cells[6] == cells[8] == cells[9] == cells[10] == cells[13] == "–"  # passes, memory, padding
    assert cells[7] == "8"
    assert document["summary"]["same"] is True
    assert any("its text is that of B in 0 of 2 prompts" in line for line in document["summary"]["verdict"])
    everything = text + to_json(document) + caplog.text + repr(plan) + json.dumps(plain(plan))
    assert KEY not in everything
    assert server.address not in to_json(document) + json.dumps(plain(plan))
    assert KEY in pickle.dumps(plan).decode("latin1")  # it is there where it is used
    assert server.asked[0][1]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(("parts", "has_text"), [([], False), ([said("half a te")], True)])
def test_a_fault_there_costs_the_others_nothing(server, backend, parts, has_text):
    server.streams(*parts)
    plan = plan_of(form_of(server, "kv_cache", "static_batch", "server"), CHOICE)
    messages, text, document = told_by(backend, plan)
    (failed,) = [one for one in messages if isinstance(one, Failed)]
    assert (failed.recipe, failed.unavailable, failed.result is not None) == ("server", True, has_text)
    assert any(isinstance(one, Reviewed) for one in messages)
    assert len(document["ways"]) == 2 + has_text
    if has_text:
        assert document["ways"][2]["ended"] == "failed"
        assert document["ways"][2]["result"]["rows"][0]["text"] in ("half a te", "")
        assert "L Server broke off." in " ".join(document["summary"]["verdict"])
    else:
        assert "L Server did not run." in " ".join(document["summary"]["verdict"])
    assert failed.sentence in text


def test_a_server_alone_says_at_the_end_why_there_is_nothing(server, backend):
    server.refuses(401)
    _, text, document = told_by(backend, plan_of(form_of(server, "server"), CHOICE))
    assert document is None
    assert '["status","failed","L Server did not run. The server at' in text
    backend_free = plan_of(form_of(server, "server", server="", server_model=""), CHOICE)
    (failed,) = [one for one in told_by(backend, backend_free)[0] if isinstance(one, Failed)]
    assert "KSHIPRA_SERVER_URL" in failed.sentence


def test_what_is_typed_goes_no_further_without_the_way(server):
    assert plan_of(form_of(server, "kv_cache"), CHOICE).server == Server()
    assert "server_key" not in NAMES
    assert "server" not in NAMES


def test_strangers_have_it_where_a_list_is(server, backend, monkeypatch):
    backend.limits = public("tiny")
    plan = plan_of(form_of(server, "server"), CHOICE, backend.limits)
    with pytest.raises(InputError, match="no server on its list"):
        backend.submit(plan)
    monkeypatch.setenv(addresses.ALLOW, "https://api.example")
    (failed,) = [one for one in told_by(backend, plan)[0] if isinstance(one, Failed)]
    assert "its own list" in failed.sentence
    monkeypatch.setenv(addresses.ALLOW, server.address)
    server.asked.clear()
    (failed,) = [one for one in told_by(backend, plan)[0] if isinstance(one, Failed)]
    assert "private network" in failed.sentence
    assert server.asked == []


def test_it_takes_no_memory_here(server, backend):
    told_by(backend, plan_of(form_of(server, "kv_cache"), CHOICE))
    one = backend.estimate(plan_of(form_of(server, "kv_cache"), CHOICE))
    assert backend.estimate(plan_of(form_of(server, "kv_cache", "server"), CHOICE)).run_bytes == one.run_bytes


def test_bench_measures_it_beside_a_recipe_on_one_engine(server, monkeypatch, capsys):
    made = use(monkeypatch, lambda choice, engine: engine)
    server.streams(said("wx"), 0.02, said("yz"), ended(), usage(4), DONE)
    monkeypatch.setenv(addresses.URL, server.address)
    monkeypatch.setenv(addresses.MODEL, "there")
    monkeypatch.setenv(addresses.KEY, KEY)
    assert main((*SMALL, "--recipes", "kv_cache,server")) == 0
    out = capsys.readouterr().out
    report = json.loads(out.splitlines()[-1])
    assert len(made) == 1
    local, there = report["modes"]
    assert (there["new_tokens"], there["server_model"], there["dtype"]) == (8, "there", None)
    assert (there["kv_bytes"], there["forward_passes"], there["padding"]) == (None, None, None)
    assert there["spread"]["against"]["median"] > 0
    assert local["kv_bytes"] > 0
    assert report["identical_ids"] is True
    assert KEY not in out
    assert main((*SMALL, "--recipes", "server", "--check")) == 2
