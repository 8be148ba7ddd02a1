"""`kv-cache` in miniature: a wrong model is never timed, and the report says what the samples say."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
import torch

from conftest import byte_level_tokenizer, make_gpt2
from kshipra.costs import pass_flops
from kshipra.engine import roofline
from kshipra.engine.layout import FAULTS
from kshipra.engine.runner import Engine
from kshipra.errors import KshipraError
from kshipra.experiments import experiment_named
from kshipra.experiments import run as running
from kshipra.experiments.measure import kv_cache as measuring
from kshipra.experiments.report import report_of
from kshipra.experiments.report.kv_numbers import numbers, total_s
from kshipra.experiments.results import FILE, CaseResult, read
from kshipra.experiments.rig import Rig
from kshipra.types import ModelChoice, Roofline
from kshipra.ui.show import digits, seconds, times

EXPERIMENT = experiment_named("kv-cache")
PEAK = Roofline("cpu", "float32", 1, bytes_per_s=1e10, flops_per_s=1e11, taken_at="2026-01-01T00:00:00+00:00")


def load(choice, progress):
    return Engine(make_gpt2().float(), byte_level_tokenizer(), implementation=choice.implementation), "random"


@pytest.fixture
def rig(monkeypatch) -> Rig:
    monkeypatch.setattr("kshipra.experiments.rig.load_or_random", load)
    monkeypatch.setattr("kshipra.machine.threads", lambda: 1)  # shared cores: two threads wait for each other
    monkeypatch.setattr(roofline, "cached_roofline", lambda *_, **__: PEAK)
    return Rig(ModelChoice("gpt2", device="cpu"), quick=True)


@pytest.fixture
def measured(rig, tmp_path):
    return running.run(EXPERIMENT, rig, tmp_path, progress=lambda *_: None)


def text_of(results) -> str:
    return " ".join(report_of(results).answers)


def test_sentences_and_tables_come_from_the_raw_samples(measured):
    report = report_of(measured)
    whole, cached = (
        {
            case.samples["contexts"][0]: case.samples["step_s"][0]
            for case in measured.of(kind="steps", cached=way)
        }
        for way in (False, True)
    )
    assert sorted(whole) == sorted(cached) == [8, 10, 32, 64, 100, 256]
    assert all(len(taken) == 3 for taken in whole.values())
    spec = numbers(measured).spec
    speed_up = median(whole[100]) / median(cached[100])
    computed = pass_flops(spec, rows=1, columns=100, stored=100, kept=1)
    ratio = computed / pass_flops(spec, rows=1, columns=1, stored=100, kept=1)
    row = next(row for row in table(report, "clock").rows if row[0] == "100")
    assert row[3:8] == (
        times(speed_up), times(100), times(ratio), digits(100 / speed_up), digits(ratio / speed_up)
    )  # fmt: skip
    said = " ".join(report.answers)
    assert f"a gap of {digits(100 / speed_up)}, and what is really computed {times(ratio)}" in said
    rate = pass_flops(spec, rows=1, columns=256, stored=256, kept=1) / median(whole[256])
    assert f"reaches {digits(rate * 1e-9)} GFLOP/s, {digits(100 * rate / PEAK.flops_per_s)} %" in said
    straight, middles = 0.0, {context: median(taken) for context, taken in whole.items()}
    for low, high in zip(sorted(middles), sorted(middles)[1:], strict=False):
        step = (middles[high] - middles[low]) / (high - low)
        straight += sum(middles[low] + step * at for at in range(high - low))
    assert total_s(whole, 256) == pytest.approx(straight)
    assert f"take {seconds(straight)} without" in said


def table(report, key):
    return next(part for part in report.parts if part.key == key)


def test_the_cached_step_of_the_grid_is_one_token_at_that_context(rig):
    seen = []
    forward = rig.engine.model.forward
    rig.engine.model.forward = lambda ids, where, mask, cache, keep: (
        seen.append((ids.shape[1], where.item(), cache.columns)) or forward(ids, where, mask, cache, keep)
    )
    step = measuring.cached_step(rig.engine, 100)
    assert step() == step()
    assert seen == [(1, 99, 99)] * 2


def test_a_wrong_cache_order_stops_the_experiment(rig, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "HONEST", FAULTS["new_before_old"])
    with pytest.raises(KshipraError, match="one pass when 2 tokens go in at a time"):
        running.run(EXPERIMENT, rig, tmp_path, progress=lambda *_: None)
    assert not read(tmp_path / FILE).of(kind="steps")


def test_a_model_that_is_not_transformers_stops_the_experiment(rig, tmp_path):
    with torch.no_grad():
        rig.engine.model.blocks[1].mlp_out.bias[0] += 0.5
    with pytest.raises(KshipraError, match="differ from the logits of transformers"):
        running.run(EXPERIMENT, rig, tmp_path, progress=lambda *_: None)
    assert not (tmp_path / FILE).exists()


def test_cached_ids_that_part_stop_the_experiment(rig, tmp_path, monkeypatch):
    run = rig.engine.run
    monkeypatch.setattr(
        rig.engine,
        "run",
        lambda requests, *, mode, layout=None, **rest: run(
            requests, mode=mode, layout=FAULTS["restarted"], **rest
        ),
    )
    with pytest.raises(KshipraError, match=r"part at token \d+ by more than rounding"):
        running.run(EXPERIMENT, rig, tmp_path, progress=lambda *_: None)


@pytest.mark.parametrize(
    ("whole", "cached", "sentences"),
    [
        (lambda t: 1e-3 * t, lambda t: 5e-3, ("a line will do", "is flat, as in study B", "overhead, more")),
        (
            lambda t: 1e-3 * t + 1e-6 * t * t,
            lambda t: 5e-3 + 5e-6 * t,
            ("has a quadratic term, 50", "not flat, as it was in study B: it grows by 5 ms"),
        ),
        (
            lambda t: 1e-3 * t - 3e-7 * t * t,
            lambda t: 5e-3 - 2e-6 * t,
            ("bends down", "it falls by -2 ms"),
        ),
    ],
)
def test_answers_follow_the_samples(measured, whole, cached, sentences):
    """Steps made up by formula, with one sample in a hundred off."""
    grid = (8, 10, 32, 64, 100, *range(128, 1001, 64), 1000)

    def steps(way, time_s):
        taken = [[time_s(t), 1.002 * time_s(t), 0.998 * time_s(t)] for t in grid]
        settings = {"kind": "steps", "cached": way, "contexts": grid}
        return CaseResult(str(way), settings, {"contexts": grid, "step_s": taken}, 1.0, "2026-01-01")

    others = tuple(case for case in measured.cases if case.settings["kind"] != "steps")
    said = text_of(replace(measured, cases=(*others, steps(False, whole), steps(True, cached))))
    for sentence in sentences:
        assert sentence in said


@pytest.mark.parametrize(
    ("bytes_per_s", "main"), [(1e6, "memory, more than overhead"), (1e15, "overhead, more than memory")]
)
def test_the_cause_of_the_gap_is_the_larger_factor(measured, bytes_per_s, main):
    cases = tuple(
        replace(case, samples=case.samples | {"bytes_per_s": bytes_per_s})
        if case.name == "roofline"
        else case
        for case in measured.cases
    )
    assert f"{main}, explains it" in text_of(replace(measured, cases=cases))


def test_an_unfinished_run_is_drawn_as_far_as_it_got(measured):
    for cases in range(1, len(measured.cases)):
        report_of(replace(measured, cases=measured.cases[:cases], finished=False))
