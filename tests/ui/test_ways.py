"""Ways on other engines, as the page and its endpoint show them: more columns, other weights, and what cannot
run here."""

from __future__ import annotations

import json
import re

import gradio as gr
import pytest
from page_fake import READY, FakeBackend, make_plan, requests_of, spec_of
from record_fake import document
from test_endpoint import answer
from test_links import opened

from kshipra.costs import pass_bytes
from kshipra.recipes import recipe_named
from kshipra.types import Comparison, Ended, Failed, Finished, Loading, Plan, Reviewed, Started
from kshipra.ui.fields import _ways_info
from kshipra.ui.record import Recording
from kshipra.ui.view import RunView

WHY = "Compiled execution is unavailable: it is made for the CPU; choose eager."
NO_COMPILER = "this machine has no C++ compiler"


def test_the_endpoint_takes_other_engines_and_predicts_from_what_each_stores():
    found = answer(FakeBackend(), ["One"], ["kv_cache", "compiled_int8"], 5)
    plain, int8 = found["ways"]
    assert [way["spec"]["weights"] for way in (plain, int8)] == ["native", "int8"]
    assert (int8["execution"], plain["execution"]) == ("compiled", "eager")
    assert found["model"]["spec"]["weights"] == "native"
    for way in (plain, int8):  # a document that took the loaded model's bytes for all would be wrong by four
        step_kv = way["prediction"]["step_kv_bytes"]
        assert way["prediction"]["step_bytes"] == pass_bytes(spec_of(way["key"]), kv_bytes=step_kv)


def test_an_unavailable_way_is_named_and_the_others_are_answered():
    backend = FakeBackend(impossible={"compiled": WHY})
    found = answer(backend, ["One"], ["kv_cache", "compiled", "int8"], 4)
    assert [way["key"] for way in found["ways"]] == ["kv_cache", "int8"]
    assert f"F Compiled did not run. {WHY}" in found["summary"]["verdict"]
    with pytest.raises(gr.Error) as refused:
        answer(backend, ["One"], ["compiled"], 4)
    assert refused.value.message == WHY


def test_what_this_machine_cannot_do_is_said_and_refused_before_a_run():
    missing = dict.fromkeys(("compiled", "compiled_int8"), NO_COMPILER)
    assert _ways_info(missing) == f"Not on this machine: F and H, because {NO_COMPILER}."
    assert _ways_info({}) is None
    backend = FakeBackend(missing=missing)
    with pytest.raises(gr.Error, match="leave out compiled, because this machine"):
        answer(backend, ["One"], ["compiled"], 4)
    assert not backend.runs


def test_a_link_keeps_other_engines_in_the_pages_order():
    assert opened(recipes=["int8", "kv_cache"]).recipes == ["kv_cache", "int8"]


def sentence_of(verdict: str, *recipes: str) -> tuple[bool, str]:
    """What the record says of two ways that part with that verdict."""
    plan = make_plan(recipes=recipes)
    recording = Recording(plan)
    recording.add(READY)
    from kshipra.metrics import fold

    for key in recipes:
        recording.add(Started(key, requests_of(plan), spec_of(key)))
        recording.add(Finished(key, fold(key, requests_of(plan), ()), False))
    recording.add(Reviewed((Comparison(*recipes, verdict, 0, 1, 2, 3, 0.1, 0.2),), {}, None, {}))
    (found,) = recording.document()["comparisons"]
    return found["other_weights"], found["sentence"]


@pytest.mark.parametrize("verdict", ["near-tie", "fault"])
def test_only_ways_of_the_same_weights_differ_by_rounding_alone(verdict):
    for pair in (("kv_cache", "compiled"), ("int8", "compiled_int8")):
        other, sentence = sentence_of(verdict, *pair)
        assert not other
        assert "rounding" in sentence
    for pair in (("kv_cache", "int8"), ("int8", "compiled_bf16")):
        other, sentence = sentence_of(verdict, *pair)
        assert other
        assert "rounding" not in sentence
        assert "storing weights differently" in sentence


def test_a_document_without_the_new_parts_is_what_older_ones_were():
    """Started without a spec, as older backends tell it: the loaded model's is used."""
    (way, *_) = document(make_plan(recipes=("kv_cache",)))["ways"]
    assert way["spec"] == document(make_plan(recipes=("kv_cache",)))["model"]["spec"]


def told(plan: Plan, *messages) -> list[list]:
    view = RunView("run-1", tuple(map(recipe_named, plan.recipes)), plan.prompts)
    view.add(messages)
    return [json.loads(text) for text in view.lines(0.0).splitlines()]


def test_making_an_engine_is_told_and_leaves_the_header_alone():
    lines = told(make_plan(recipes=("int8", "kv_cache")), READY, Loading("Storing weights in int8"))
    assert ["status", "loading", "Storing weights in int8"] in lines
    assert ["state", 0, "loading", "preparing"] in lines
    assert [line for line in lines if line[0] == "model"][-1][1].startswith(READY.spec.name)


def test_a_peer_is_told_against_the_cached_mode():
    ways = ["no_cache", "kv_cache", "static_batch", "compiled_int8", "transformers_generate"]
    headline = answer(FakeBackend(pace=0.1), ["One", "Two"], ways, 6)["summary"]["headline"]
    assert re.search(r"J is [\d.]+× A and [\d.]+× B, end to end", headline), headline


@pytest.mark.parametrize(
    ("compile_s", "said"),
    [
        (3.14, "Compiled in 3.14 s, which is in no figure here."),
        (0.0, "It had been compiled before."),
        (None, None),
    ],
)
def test_what_compiling_took_is_said_in_its_column(compile_s, said):
    plan = make_plan(recipes=("kv_cache", "compiled"))
    start = Started("compiled", requests_of(plan), spec_of("compiled"), compile_s)
    notes = [line for line in told(plan, READY, start) if line[0] == "note"]
    assert notes == ([["note", 1, said]] if said else [])


def test_a_run_of_nothing_but_unavailable_ways_failed():
    lines = told(make_plan(recipes=("compiled",)), READY, Failed(WHY, "compiled", unavailable=True), Ended())
    assert [line for line in lines if line[0] == "status"][-1][1:] == [
        "failed",
        f"F Compiled did not run. {WHY}",
    ]
    assert ["why", 0, WHY] in lines


@pytest.mark.slow
def test_five_ways_in_a_browser(open_page):
    """Columns in even rows, the one that cannot run says why, and the proof does not speak of rounding."""
    backend = FakeBackend(odd="int8", impossible={"compiled_bf16": WHY})
    page = open_page(backend)
    for label in ("A No cache", "C Batched"):
        page.locator("#recipes").get_by_label(label).uncheck()
    for label in ("F Compiled", "G INT8", "H Compiled + INT8", "I Compiled + bf16"):
        page.locator("#recipes").get_by_label(label, exact=True).check()
    page.wait_for_function("document.querySelectorAll('.k-column').length === 5")
    boxes = [column.bounding_box() for column in page.locator(".k-column").all()]
    assert len({box["y"] for box in boxes}) == 2
    assert [box["x"] for box in boxes[3:]] == [box["x"] for box in boxes[:2]]
    page.fill("#max-new-tokens input", "8")
    page.click("#run")
    page.wait_for_selector("#status[data-state='done']")
    assert backend.runs[0].plan.recipes == ("kv_cache", "compiled", "int8", "compiled_int8", "compiled_bf16")
    assert page.get_attribute("#column-compiled_bf16", "data-state") == "unavailable"
    assert page.inner_text("#column-compiled_bf16 .k-sentence") == WHY
    status = page.inner_text("#status")
    assert "Done. H Compiled + INT8 is the fastest" in status
    assert "I Compiled + bf16 did not run." in status
    assert "G stores its weights differently" in page.inner_text("#summary")
    assert page.locator("#summary tbody tr").count() == 4
    page.wait_for_selector(".k-study.k-filled")
    page.click("#tab-proof")
    assert " ".join(page.inner_text(".k-proof-badge").split()) == "≠ beyond other weights"
    assert "rounding" not in page.inner_text(".k-proof-verdict")
