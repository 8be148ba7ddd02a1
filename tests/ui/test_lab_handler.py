"""The bug lab on the server: which ways a planted fault runs, and that it is a run like any other."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from bench import Bench, last_status, lines, until
from page_fake import FakeBackend

from kshipra.recipes import BUGS


@pytest.fixture
def lab() -> Iterator[Bench]:
    backend = FakeBackend(pace=0.1, in_real_time=True)
    yield Bench(backend)
    backend.close()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.key)
def test_healthy_runs_before_broken_with_the_rest_of_the_form(lab, bug):
    (*_, text) = lab.plant(bug.key, prompts=["Mine", "Two"], max_new_tokens=5, recipes=["no_cache"])
    [run] = lab.backend.runs
    assert run.plan.recipes == (f"{bug.key}-healthy", f"{bug.key}-broken")
    assert run.plan.prompts == ("Mine", "Two")
    assert run.plan.params.max_new_tokens == 5
    assert last_status(text)[0] == "done"
    record = json.loads(lab.record)
    assert [way["letter"] for way in record["ways"]] == ["H", "X"]
    assert record["bug"]["label"] == bug.label
    assert set(record["checks"]) == set(run.plan.recipes)


def test_the_picked_ways_do_not_matter(lab):
    (*_, text) = lab.plant("order-one", recipes=[])
    assert last_status(text)[0] == "done"


@pytest.mark.parametrize("bug", ["nonsense", "", None, 7, ["order-one"], "order-one-broken", "x" * 10_000])
def test_an_unknown_bug_is_refused_in_one_sentence(lab, bug):
    [text] = lab.plant(bug)
    [[kind, _, sentence]] = lines(text)
    assert kind == "refused"
    assert sentence.startswith("Bug lab: ")
    assert sentence.endswith(f"is not one of {', '.join(bug.key for bug in BUGS)}.")
    assert len(sentence) < 250
    assert lab.backend.runs == []


def test_odd_fields_are_refused_as_with_run(lab):
    [text] = lab.plant("order-one", prompts=["fine", ""])
    assert lines(text)[0][2] == "Prompt 2 is empty: write something or remove it."


def test_stop_ends_a_planted_run_of_that_session_only(lab):
    mine = lab.plant("order-two", "me", max_new_tokens=2000)
    theirs = lab.plant("order-two", "them", max_new_tokens=4)
    until(mine, '["t",0,0')
    next(theirs)
    lab.sessions.stop("me")
    assert last_status(list(mine)[-1])[0] == "stopped"
    assert last_status(list(theirs)[-1])[0] == "done"


def test_a_closed_tab_stops_a_planted_run(lab):
    run = lab.plant("order-two", max_new_tokens=2000)
    until(run, '["t",0,0')
    run.close()
    assert lab.backend.runs[0].over.wait(2)
    assert lab.sessions._runs == {}


def test_a_planted_run_stops_the_sessions_earlier_one(lab):
    first = lab.plant("order-two", max_new_tokens=2000)
    until(first, '["t",0,0')
    assert last_status(list(lab.plant("pads-visible"))[-1])[0] == "done"
    assert last_status(list(first)[-1])[0] == "stopped"


def test_lab_ways_posted_to_run_come_in_order_and_once(lab):
    keys = ["order-two-broken", "order-two-healthy", "kv_cache", "order-two-broken"]
    next(lab.run(recipes=keys))
    assert lab.backend.runs[0].plan.recipes == ("kv_cache", "order-two-healthy", "order-two-broken")
