"""`positions` in miniature: the faults' known signs on both kinds of positions, and answers that follow the
samples."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from conftest import byte_level_tokenizer, make_gpt2, make_llama
from kshipra.engine.runner import Engine
from kshipra.experiments import experiment_named
from kshipra.experiments import run as running
from kshipra.experiments.report import report_of
from kshipra.experiments.report.positions import CHECKS, found
from kshipra.experiments.rig import Rig
from kshipra.types import ModelChoice

BY_KEY = {check.key: check for check in CHECKS}


@pytest.fixture(scope="module", params=[make_gpt2, make_llama], ids=["gpt2", "llama"])
def measured(request, tmp_path_factory):
    engine = Engine(request.param().float(), byte_level_tokenizer())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kshipra.machine.threads", lambda: 1)  # shared cores: two threads wait for each other
        patch.setattr("kshipra.experiments.rig.load_or_random", lambda choice, progress: (engine, "random"))
        rig, folder = Rig(ModelChoice("gpt2", device="cpu"), quick=True), tmp_path_factory.mktemp("positions")
        return running.run(experiment_named("positions"), rig, folder, progress=lambda *_: None)


def by_kind(results):
    return {case.settings["family"]: case for case in results.cases}


def caught(case, fault) -> set[str]:
    return {key for key, check in BY_KEY.items() if found(case, fault, check).caught}


def test_each_fault_has_its_known_signs(measured):
    learned, rotary = by_kind(measured)["gpt2"], by_kind(measured)["llama"]
    for case in (learned, rotary):
        assert caught(case, "none") == set()
        assert not {"prompt", "first"} & caught(case, "restarted")
        assert {"greedy", "one-token"} <= caught(case, "restarted")
        assert "two-token" in caught(case, "new_before_old")
        assert not {"one-token", "greedy"} & caught(case, "new_before_old")
        assert "padding" in caught(case, "pads_visible")
    assert "padding" in caught(learned, "pads_counted")
    assert caught(rotary, "pads_counted") == set()


def test_numbers_are_the_raw_samples(measured):
    for case in measured.cases:
        own = case.samples["faults"]["restarted"]
        rows = own["runs"]["kv_cache"]
        finding = found(case, "restarted", BY_KEY["greedy"])
        assert finding.difference == max(value for row in rows for value in row["difference"])
        assert finding.parted == 1 + min(row["parted"] for row in rows)
        first = rows[0]["ids"], rows[0]["right_ids"]
        place = rows[0]["parted"]
        assert first[0][:place] == first[1][:place]
        assert first[0][place] != first[1][place]
        check = next(each for each in own["checks"] if each["name"] == "one-token")
        assert found(case, "restarted", BY_KEY["one-token"]).difference == check["largest_difference"]


def test_answers_name_what_is_missed_and_forgiven(measured):
    said = report_of(measured).answers
    missed = [sentence for sentence in said if "one-token steps miss" in sentence]
    assert len(missed) == 2
    assert all("new keys before old" in sentence for sentence in missed)
    assert any(sentence.startswith("Rotary positions forgive positions count pads") for sentence in said)


def test_answers_turn_with_the_samples(measured):
    """Opposite samples: a healthy run that alarms, a cache order that shows at once, and nothing forgiven."""
    cases = copy.deepcopy(measured.cases)
    for case in cases:
        for fault, name in (
            ("none", "padding"),
            ("new_before_old", "one-token"),
            ("pads_counted", "padding"),
        ):
            own = case.samples["faults"][fault]["checks"]
            next(check for check in own if check["name"] == name)["largest_difference"] = 9.0
    said = " ".join(report_of(replace(measured, cases=cases)).answers)
    assert "what they catch is no evidence" in said
    assert "unlike study B" in said
    assert "as in study B" not in said
    assert "forgive none of these faults" in said


def test_a_near_tie_is_no_catch(measured):
    case = copy.deepcopy(measured.cases[0])
    row = case.samples["faults"]["none"]["runs"]["kv_cache"][0]
    row["parted"] = 4
    finding = found(case, "none", BY_KEY["greedy"])
    assert not finding.caught
    assert finding.parted == 5
    row["difference"][4] = 1.0
    assert found(case, "none", BY_KEY["greedy"]).caught


def test_an_unfinished_run_is_drawn_as_far_as_it_got(measured):
    assert len(report_of(replace(measured, cases=measured.cases[:1], finished=False)).parts) == 2
