"""`scope` in miniature, and what its report says of numbers that are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conftest import byte_level_tokenizer, make_gpt2
from kshipra.engine import roofline
from kshipra.engine.runner import Engine
from kshipra.experiments import experiment_named, shapes
from kshipra.experiments import run as running
from kshipra.experiments.measure import scope as measuring
from kshipra.experiments.report import report_of
from kshipra.experiments.report.gap import step_of
from kshipra.experiments.report.parts import Table, middle
from kshipra.experiments.results import CaseResult, Results
from kshipra.experiments.rig import Rig
from kshipra.types import ModelChoice, Roofline
from kshipra.ui.show import digits, times

SCOPE = experiment_named("scope")
TINY = {"gpt2": (1, 2, 8), "gpt2-medium": (2, 2, 16), "gpt2-large": (3, 2, 32)}


@pytest.fixture
def rig(monkeypatch) -> Rig:
    tiny = Engine(make_gpt2().float(), byte_level_tokenizer())
    monkeypatch.setattr("kshipra.experiments.rig.load_or_random", lambda choice, progress: (tiny, "random"))
    monkeypatch.setattr(shapes, "SHAPES", TINY)
    seen = Roofline("cpu", "float32", 1, 1e10, 1e11, "2026-01-01")
    monkeypatch.setattr(roofline, "measure", lambda device, dtype, budget_s: seen)
    return Rig(ModelChoice("chosen-one", device="cpu"), quick=True)


def told(*_) -> None:
    pass


def test_a_miniature_run_and_its_report(rig, tmp_path):
    results = running.run(SCOPE, rig, tmp_path, progress=told)
    made = results.of(kind="steps")
    assert [case.settings["shape"] for case in made[::3]] == ["chosen", "gpt2", "gpt2-medium"]  # by model
    assert {case.settings["rows"] for case in made} == {1, 2, 4}
    for case in made:
        samples, context, rows = case.samples, case.settings["context"], case.settings["rows"]
        assert len(samples["cached_s"]) == 6
        assert len(samples["uncached_s"]) == 3
        assert all(own > 0 for own in samples["cached_s"] + samples["uncached_s"])
        one = next(other for other in made if other.settings == case.settings | {"rows": 1}).samples
        assert samples["uncached_flops"] == [rows * own for own in one["uncached_flops"]]
        assert 1 < samples["uncached_flops"][0] / samples["cached_flops"][0] <= context
    found = report_of(results)
    table = next(part for part in found.parts if isinstance(part, Table))
    case = made[1]
    speed_up = middle(case.samples["uncached_s"]) / middle(case.samples["cached_s"])
    ratio = middle(case.samples["uncached_flops"]) / middle(case.samples["cached_flops"])
    assert table.rows[1][5:8] == (times(speed_up), times(ratio), digits(ratio / speed_up))
    assert any("study B" in answer for answer in found.answers)


def test_a_cached_and_an_uncached_step_stand_at_the_context_asked_for(rig):
    (case,) = [case for case in measuring.cases(rig) if case.name == "chosen-one, 2 x 64 tokens"]
    engine, seen = rig.engine, []

    class Watched:
        def __getattr__(self, name):
            return getattr(engine.model, name)

        def forward(self, ids, positions, mask, cache, keep):
            seen.append((tuple(ids.shape), cache.columns if cache is not None else None, mask))
            return engine.model.forward(ids, positions, mask, cache, keep)

    rig.__dict__["_loaded"] = (replace_model(engine, Watched()), "random")
    measuring.measure(rig, case)
    assert seen[:3] == [((2, 62), 0, None), ((2, 1), 62, None), ((2, 1), 63, None)]
    assert seen[8:] == [((2, 64 + more), None, None) for more in range(3)]


def replace_model(engine, model):
    other = object.__new__(Engine)
    other.__dict__.update(engine.__dict__, model=model)
    return other


def test_one_random_model_is_in_memory_at_a_time(rig):
    first = rig.shaped("gpt2")
    assert rig.shaped("gpt2") is first
    rig.shaped("gpt2-medium")
    assert list(rig.made) == ["gpt2-medium"]


@pytest.mark.parametrize(("free", "part"), [(1000, "gpt2 needs about"), (1_700_000, "A step of 4 x 64")])
def test_what_does_not_fit_is_left_out_with_a_sentence(rig, tmp_path, monkeypatch, free, part):
    monkeypatch.setattr(measuring, "free_bytes", lambda device: free)
    results = running.run(SCOPE, rig, tmp_path, progress=told)
    skipped = [case.samples["skipped"] for case in results.cases if "skipped" in case.samples]
    assert any(part in sentence and "close other programs" in sentence for sentence in skipped)
    report_of(results)


def test_the_estimate_of_a_model_is_no_less_than_what_it_weighs(rig):
    for shape in TINY:
        engine = rig.shaped(shape)
        assert engine.model.spec.stored_bytes == pytest.approx(measuring.making_bytes(shape, 4), rel=0.05)
        assert engine.model.spec.block_parameters == measuring.block_parameters(shape)


# The report of numbers that are known


def known(gap_of, *, models=(("gpt2", 1e8), ("gpt2-medium", 4e8)), roofline=(1e11, 1e12)) -> Results:
    """Results whose gap at (parameters, rows) is `gap_of` it, at 100 tokens, with 2 % between samples."""
    cases = [result("roofline", {"kind": "roofline"}, bytes_per_s=roofline[0], flops_per_s=roofline[1])]
    for model, parameters in models:
        for rows in (1, 2, 4):
            cached_s = gap_of(parameters, rows) / 100
            samples = {
                "model": f"{model}, random weights",
                "parameters": parameters,
                "uncached_s": [0.99, 1.0, 1.01],
                "cached_s": [cached_s * 0.99, cached_s, cached_s * 1.01],
                "uncached_flops": [100 * parameters * rows] * 3,
                "cached_flops": [parameters * rows] * 3,
                "uncached_bytes": [4 * parameters] * 3,
                "cached_bytes": [4 * parameters] * 3,
            }
            settings = {"kind": "steps", "shape": model, "context": 100, "rows": rows}
            cases.append(result(f"{model} {rows}", settings, **samples))
    model = {"name": "gpt2", "weights_from": "random", "dtype": "float32", "device": "cpu", "threads": 2}
    machine = {"processor": "a processor"}
    return Results("scope", {"model": "gpt2"}, model, machine, {}, None, tuple(cases), finished=True)


def result(name, settings, **samples) -> CaseResult:
    return CaseResult(name, settings, samples, 1.0, "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("gap_of", "rows", "sizes", "study"),
    [
        (lambda size, rows: 40 / rows * (1e8 / size) ** 0.5, "moves toward", "moves toward", "support that."),
        (lambda size, rows: 40 / rows, "moves toward", "does not clearly", "only in part"),
        (lambda size, rows: 10 * rows, "moves away", "does not clearly", "do not support"),
        (lambda size, rows: 10 * size / 1e8, "does not clearly", "moves away", "do not support"),
        (lambda size, rows: 10 - rows * 0.01, "does not clearly", "does not clearly", "do not support"),
    ],
)  # fmt: skip
def test_answers_follow_the_numbers(gap_of, rows, sizes, study):
    answers = report_of(known(gap_of)).answers
    assert answers[0].startswith("With rows the speed-up " + rows)
    assert sizes in answers[1]
    assert study in answers[-1]


def test_the_gap_a_doubling_is_that_of_the_numbers():
    answers = report_of(known(lambda size, rows: 40 / rows * (1e8 / size) ** 0.5)).answers
    assert "a doubling multiplies it by 0.5." in answers[0]  # rows
    assert "a doubling multiplies it by 0.707." in answers[1]  # four times the size halves it
    assert any("goes from 2.5× to 10×, of 100× and 100× by FLOPs" in answer for answer in answers)


@pytest.mark.parametrize(
    ("bytes_per_s", "reason"), [(1e9, "reading the weights"), (1e13, "a step's overhead")]
)
def test_the_roofline_says_what_the_gap_is_made_of(bytes_per_s, reason):
    """With 1e8 weights of 4 bytes a slow memory needs 0.4 s a step, and the clock says 0.4."""
    found = report_of(known(lambda size, rows: 40, models=(("gpt2", 1e8),), roofline=(bytes_per_s, 1e12)))
    assert any(f"most of the gap is {reason}" in answer for answer in found.answers)


def test_the_gap_is_the_ratio_of_the_two_rates():
    step = step_of(known(lambda size, rows: 40 / rows).cases[2])
    rates = step.uncached_flops / 1.0 / (step.cached_flops / middle(step.cached_s))
    assert step.gap == pytest.approx(rates) == pytest.approx(20)
    assert step.gaps[0] < step.gap < step.gaps[2]


def test_an_unfinished_run_is_reported():
    whole = known(lambda size, rows: 40 / rows)
    for number in range(1, len(whole.cases)):
        assert report_of(replace(whole, cases=whole.cases[:number], finished=False)).answers
