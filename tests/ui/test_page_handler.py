"""Run and Stop on the server: runs end when they should, sessions do not mix, odd input is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from bench import FIELDS, Bench, last_status, lines, until
from page_fake import CHOICE, FakeBackend

from kshipra.errors import InputError
from kshipra.ui import handlers, words
from kshipra.ui.form import Form, plan_of


@pytest.fixture
def bench() -> Iterator[Bench]:
    backend = FakeBackend(pace=0.2, in_real_time=True)
    yield Bench(backend)
    backend.close()


def test_a_run_appends_to_one_text_and_ends_with_its_summary(bench):
    texts = list(bench.run())
    assert all(later.startswith(sooner) for sooner, later in pairwise(texts))
    assert lines(texts[0])[0][0] == "run"
    assert [line[0] for line in lines(texts[-1])][-2:] == ["summary", "over"]
    assert last_status(texts[-1])[0] == "done"
    assert len(texts) > 3


def test_the_handler_wakes_at_most_ten_times_a_second(bench):
    bench.backend.pace = 0.02  # a step a millisecond
    began, count = time.monotonic(), 0
    for _ in bench.run(max_new_tokens=400):
        count += 1
    seconds = time.monotonic() - began
    assert count <= 10 * seconds + 2
    assert bench.backend.runs[0].wakes <= 10 * seconds + 2


def test_stop_ends_the_run_and_keeps_what_there_is(bench):
    run = bench.run(max_new_tokens=2000)
    until(run, '["t",0,0')
    bench.sessions.stop("tab")
    bench.sessions.stop("tab")  # twice is as good as once
    at_stop = bench.backend.runs[0].steps
    text = list(run)[-1]
    assert last_status(text)[0] == "stopped"
    assert ["state", 0, "stopped", "stopped"] in lines(text)
    assert any(line[0] == "t" for line in lines(text))
    assert bench.backend.runs[0].steps <= at_stop + 2
    assert last_status(list(bench.run())[-1])[0] == "done"  # and the next starts from nothing


def test_a_closed_tab_stops_the_run_and_forgets_it(bench):
    run = bench.run(max_new_tokens=2000)
    until(run, '["t",0,0')
    run.close()  # what Gradio does with the generator of a tab that is gone
    [fake] = bench.backend.runs
    assert fake.over.wait(2)
    assert bench.sessions._runs == {}


def test_two_sessions_do_not_mix(bench):
    mine, theirs = bench.run("me", prompts=["Mine"], max_new_tokens=40), bench.run("them", prompts=["Theirs"])
    next(mine)
    next(theirs)
    bench.sessions.stop("them")
    stopped, done = list(theirs)[-1], list(mine)[-1]
    assert (last_status(stopped)[0], last_status(done)[0]) == ("stopped", "done")
    assert "Theirs" in stopped
    assert "Theirs" not in done


def test_stop_before_any_run_is_harmless(bench):
    bench.sessions.stop("tab")


def test_a_failing_step_is_one_sentence_and_the_next_run_works(bench):
    bench.backend.fail_at = 5
    text = list(bench.run())[-1]
    assert last_status(text) == ["failed", bench.backend.failure]
    assert ["state", 0, "failed", "failed"] in lines(text)
    assert lines(text)[-1] == ["over"]
    bench.backend.fail_at = None
    assert last_status(list(bench.run())[-1])[0] == "done"


def test_what_the_backend_refuses_is_said_and_nothing_is_run(bench):
    bench.backend.refuse = "Ten runs wait already: try again in a minute."
    [text] = bench.run()
    assert lines(text)[0][0::2] == ["refused", bench.backend.refuse]
    assert bench.backend.runs == []


def test_a_fault_of_ours_is_admitted_logged_and_stops_the_run(bench, monkeypatch, caplog):
    run = bench.run(max_new_tokens=2000)
    next(run)
    monkeypatch.setattr("kshipra.ui.view.RunView.lines", lambda *_: 1 / 0)
    text = list(run)[-1]
    assert last_status(text) == ["failed", words.BUG]
    assert lines(text)[-1] == ["over"]
    assert "ZeroDivisionError" in caplog.text
    assert bench.backend.runs[0].over.wait(2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prompts": None}, "Prompts"),
        ({"prompts": "text"}, "Prompts"),
        ({"prompts": [["a"]]}, "Prompts"),
        ({"prompts": []}, "Prompts"),
        ({"prompts": ["a"] * 1000}, "Prompts"),
        ({"prompts": ["fine", ""]}, "Prompt 2"),
        ({"prompts": ["a" * 5_000_000]}, "Prompt 1"),
        ({"recipes": []}, "Ways to compare"),
        ({"recipes": ["nonsense"]}, "Ways to compare"),
        ({"recipes": None}, "Ways to compare"),
        ({"model": None}, "Model"),
        ({"model": " "}, "Model"),
        ({"max_new_tokens": None}, "Max new tokens"),
        ({"max_new_tokens": 2.5}, "Max new tokens"),
        ({"max_new_tokens": 10**7}, "max_new_tokens"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"max_new_tokens": float("inf")}, "Max new tokens"),
        ({"temperature": float("nan")}, "Temperature"),
        ({"temperature": "hot"}, "Temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 2}, "top_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": "abc"}, "Seed"),
        ({"seed": "9" * 400}, "Seed"),
        ({"seed": True}, "Seed"),
        (
            {"seed": str(2**53)},
            "Seed: give a whole number from 0 to 9,007,199,254,740,991, or leave it blank.",
        ),
        ({"seed": 2**53}, "Seed"),
        ({"top_k": 2**53}, "Top-k"),
    ],
)
def test_odd_input_is_refused_by_the_server_and_named(bench, changes, named):
    began = time.monotonic()
    [text] = bench.run(**changes)
    [[kind, _, sentence]] = lines(text)
    assert kind == "refused"
    assert named in sentence
    assert sentence != words.BUG
    assert time.monotonic() - began < 1
    assert bench.backend.runs == []


def test_lone_surrogates_and_nuls_are_cleaned_not_refused():
    plan = plan_of(Form(**{**vars(FIELDS), "prompts": ["a\ud83d", "b\0c"]}), CHOICE)
    assert plan.prompts == ("a\ufffd", "bc")


@pytest.mark.parametrize(
    ("seed", "kept"),
    [("", None), (" ", None), (None, None), ("17", 17), (17, 17), (17.0, 17), (str(2**53 - 1), 2**53 - 1)],
)
def test_a_blank_seed_draws_one(seed, kept):
    assert plan_of(Form(**{**vars(FIELDS), "seed": seed}), CHOICE).params.seed == kept


def test_a_negative_seed_is_refused():
    with pytest.raises(InputError, match="seed"):
        plan_of(Form(**{**vars(FIELDS), "seed": -1}), CHOICE)


def test_ways_run_in_the_order_of_the_page(bench):
    until(bench.run(recipes=["kv_cache", "no_cache", "kv_cache"]), '"run"')
    assert bench.backend.runs[0].plan.recipes == ("no_cache", "kv_cache")


def test_the_page_needs_no_torch():
    code = (
        "import sys; sys.path.insert(0, 'tests/ui'); from page_fake import CHOICE, FakeBackend;"
        "from kshipra.ui.build import build_page, launch_options; build_page(FakeBackend(), CHOICE);"
        "launch_options(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_finished_run_gives_its_whole_record_as_strict_json(bench):
    (*_,) = bench.run(recipes=["no_cache", "kv_cache"], max_new_tokens=4)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    record = json.loads(bench.record, parse_constant=refuse)
    assert (record["format"], record["version"]) == ("kshipra-run", 1)
    assert [way["key"] for way in record["ways"]] == ["no_cache", "kv_cache"]
    assert [way["ended"] for way in record["ways"]] == ["done", "done"]
    for way in record["ways"]:
        assert len(way["result"]["steps"]) == 8
        assert len(way["prompt_ids"]) == 2
        assert way["prediction"]["sentence"]
        named = {id for s in way["result"]["steps"] for t in s["new_tokens"] for id, _ in t["best"]}
        assert {str(id) for id in named} <= set(record["texts"])
    assert record["settings"]["prompts"] == ["One", "Two"]
    assert record["settings"]["params"]["max_new_tokens"] == 4
    (comparison,) = record["comparisons"]
    assert comparison["sentence"] == "A and B: every token is identical."
    assert record["bug"] is None
    assert record["model"]["spec"]["dtype"] == "float32"
    assert record["summary"]["rows"]


def test_a_stopped_run_has_a_record_of_what_there_is(bench):
    run = bench.run(max_new_tokens=200)
    until(run, '["t",')
    bench.sessions.stop("tab")
    list(run)
    record = json.loads(bench.record)
    assert [way["ended"] for way in record["ways"]] == ["stopped"]
    assert record["comparisons"] == []


def test_a_difference_is_a_sentence_with_both_candidates(bench):
    bench.backend.odd = "kv_cache"
    list(bench.run(max_new_tokens=6))
    (comparison,) = json.loads(bench.record)["comparisons"]
    assert comparison["verdict"] == "fault"
    assert comparison["sentence"] == (
        'A and B part in prompt 2 at new token 5: "." against " odd"; the two best logits of A lie 1.25 '
        "apart, and the ways' logits differ by up to 3.5. That is more than rounding explains: a real fault."
    )


def test_what_was_refused_has_no_record(bench):
    list(bench.run(prompts=[]))
    assert bench.record == ""


def test_a_run_too_long_for_a_browser_says_so_in_its_record(bench, monkeypatch):
    monkeypatch.setattr(handlers, "MOST_STEPS", 31)
    list(bench.run(max_new_tokens=4))  # two ways of two prompts: 16 passes and 16 tokens
    assert json.loads(bench.record) == {
        "left_out": "This run has 32 passes and tokens, more than the 31 that can be studied on the page: "
        "take fewer new tokens, fewer prompts or fewer ways."
    }
