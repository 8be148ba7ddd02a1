"""Study A's case in miniature: what is measured, a wrong mode that stops it, and sentences that follow "
"numbers."""

from __future__ import annotations

import copy
from dataclasses import replace
from statistics import linear_regression, median

import pytest

from conftest import byte_level_tokenizer, make_gpt2
from kshipra.engine.layout import FAULTS
from kshipra.engine.runner import Engine
from kshipra.errors import KshipraError
from kshipra.experiments import experiment_named
from kshipra.experiments import run as running
from kshipra.experiments.measure import cpu_study
from kshipra.experiments.report import report_of
from kshipra.experiments.report.parts import Figure
from kshipra.experiments.results import FILE, Results
from kshipra.experiments.rig import Rig
from kshipra.types import ModelChoice
from kshipra.ui import show

EXPERIMENT = experiment_named("cpu-study")


def told(*_) -> None:
    pass


@pytest.fixture(scope="module")
def rig():
    """A tiny model, and its processes all this one."""
    tiny = Engine(make_gpt2().float(), byte_level_tokenizer())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kshipra.experiments.rig.load_or_random", lambda choice, progress: (tiny, "random"))
        patch.setattr(running, "in_own_process", lambda e, rig, case: e.measuring().measure(rig, case))
        yield Rig(ModelChoice("gpt2", device="cpu"), quick=True)


@pytest.fixture(scope="module")
def results(rig, tmp_path_factory) -> Results:
    return running.run(EXPERIMENT, rig, tmp_path_factory.mktemp("results"), progress=told)


def answers(results: Results) -> str:
    return "\n".join(report_of(results).answers)


def changed(results: Results, change) -> Results:
    """`results` after `change(case name, samples)` of every case."""
    cases = []
    for case in results.cases:
        samples = copy.deepcopy(case.samples)
        change(case, samples)
        cases.append(replace(case, samples=samples))
    return replace(results, cases=tuple(cases))


def test_every_pass_of_every_mode_is_there(results):
    runs = {case.settings["mode"]: case.samples["runs"] for case in results.of(kind="speed")}
    assert {mode: run[0]["passes"] for mode, run in runs.items()} == {
        "no_cache": 32,
        "kv_cache": 32,
        "static_batch": 8,
    }
    assert {run["new_tokens"] for mode in runs.values() for run in mode} == {32}
    step = runs["kv_cache"][0]["steps"][9]  # the second prompt's second token
    lengths = results.of(kind="ids")[0].samples["prompt_tokens"]
    assert (step["number"], step["columns"], step["phase"]) == (2, lengths[1] + 1, "decode")
    assert runs["static_batch"][0]["steps"][-1]["columns"] == max(lengths) + 7


def test_a_wrong_position_of_padded_rows_stops_the_experiment(rig, tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_study, "HONEST", FAULTS["pads_counted"])
    with pytest.raises(KshipraError, match="static_batch writes other ids than no_cache"):
        running.run(EXPERIMENT, rig, tmp_path, progress=told)
    assert not (tmp_path / FILE).exists()


def test_numbers_in_sentences_are_those_of_the_samples(results):
    said = answers(results)
    rate = {
        case.settings["mode"]: median(run["new_tokens"] / run["wall_s"] for run in case.samples["runs"])
        for case in results.of(kind="speed")
    }
    for mode in ("no_cache", "kv_cache", "static_batch"):
        assert show.digits(rate[mode]) in said
    assert show.times(rate["static_batch"] / rate["no_cache"]) in said
    assert "study A: 2.14×" in said
    runs = results.of(kind="speed", mode="no_cache")[0].samples["runs"]
    slopes = []
    for run in runs:
        steps = [step for step in run["steps"] if step["phase"] == "decode"]
        fit = linear_regression([s["columns"] for s in steps], [s["elapsed_s"] for s in steps])
        slopes.append(fit.slope)
    assert f"{show.digits(median(slopes) * 1e6)} " in said
    peak = results.of(kind="memory", mode="static_batch")[0].samples["peak_extra_bytes"]
    assert f"{show.size(peak)} as a batch of four" in said


def test_figures_carry_the_studys_points_as_its_own(results):
    figures = {part.key: part for part in report_of(results).parts if isinstance(part, Figure)}
    assert set(figures) == {"steps", "rates", "memory"}
    named = {trace.name: trace for trace in figures["rates"].plot.data}
    assert list(named["study A"].y) == [5.52, 16.45, 35.17]
    assert 35.17 not in named["measured here"].y


def test_answers_follow_the_samples(results):
    def rising(case, samples):
        for run in samples.get("runs", ()):
            for step in run["steps"]:
                step["elapsed_s"] = 0.01 + 0.001 * step["columns"]

    said = answers(changed(results, rising))
    assert "No cache: the step is rising:" in said
    assert "KV cache: the step is rising, where study A saw it flat" in said

    def level(case, samples):
        for run in samples.get("runs", ()):
            for step in run["steps"]:
                step["elapsed_s"] = 0.05

    said = answers(changed(results, level))
    assert "No cache: the step is flat, as far as these runs show, where study A saw it rising" in said


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"kv_cache": 100, "static_batch": 50}, "peaks lower above the loaded model, as in study A"),
        ({"kv_cache": 50, "static_batch": 100}, "peaks higher above the loaded model, which contradicts"),
        ({"kv_cache": 70, "static_batch": 70}, "No difference in peaks"),
    ],
)
def test_memory_may_say_either(results, extra, sentence):
    def weighed(case, samples):
        if case.settings["kind"] == "memory" and case.settings["mode"] in extra:
            samples["peak_extra_bytes"] = extra[case.settings["mode"]] * 2**20

    assert sentence in answers(changed(results, weighed))


def test_a_slower_batch_is_called_slower(results):
    def slowed(case, samples):
        for run in samples.get("runs", ()):
            run["wall_s"] = 99.0 if case.settings["mode"] == "static_batch" else 1.0

    assert "The batch of four is slower than one prompt at a time" in answers(changed(results, slowed))


def test_an_unfinished_run_tells_what_there_is(results):
    for count in range(1, len(results.cases)):
        part = replace(results, cases=results.cases[:count], finished=False)
        assert report_of(part).answers
