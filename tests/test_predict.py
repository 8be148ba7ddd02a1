"""What a run should have taken beside what it took: cases worked out by hand, and the formula for keys and
values against the tensors of real runs."""

from __future__ import annotations

import dataclasses
import json

import pytest

from conftest import Letters, make_gpt2, make_llama
from fakes import spec
from kshipra.costs import pass_bytes, pass_flops
from kshipra.engine.runner import Engine
from kshipra.metrics import fold
from kshipra.predict import Prediction, Roofline, kv_formula_bytes, predict
from kshipra.types import NewToken, Phase, Request, RunResult, SamplingParams, StepEvent, plain
from kshipra.ui.predicted import sentence

MIB = 2**20
GPT2_BLOCKS = 12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072)
GPT2_SMALL = spec(
    layers=12,
    heads=12,
    kv_heads=12,
    head_size=64,
    width=768,
    vocabulary=50257,
    block_parameters=GPT2_BLOCKS,
)

# 1,000,000 weights of 4 bytes; 8 bytes of keys and values a token
SHAPE = spec(width=100, vocabulary=1000, block_parameters=900_000, head_size=1)
MACHINE = Roofline(
    "cpu", "float32", 2, bytes_per_s=4e9, flops_per_s=1e9, taken_at="2026-01-01T00:00:00+00:00"
)


def request(row: int = 0, prompt_tokens: int = 3) -> Request:
    return Request(row, "", tuple(range(prompt_tokens)), SamplingParams(64))


def step(
    phase: Phase, elapsed_s: float, *, flops: int, kv_bytes: int, rows: tuple[int, ...] = (0,), at: int = 0
) -> StepEvent:
    return StepEvent(
        index=at,
        phase=phase,
        rows=rows,
        new_tokens=tuple(NewToken(row, 5, "f") for row in rows),
        processed_tokens=1,
        pad_tokens=0,
        elapsed_s=elapsed_s,
        at_s=at + 1.0,
        kv_bytes=kv_bytes,
        kv_held_bytes=128 * 8 if kv_bytes else 0,
        resident_bytes=0,
        peak_extra_bytes=None,
        memory_method="by hand",
        flops=flops,
    )


def predicted(*steps: StepEvent, shape=SHAPE, machine: Roofline = MACHINE) -> Prediction:
    return predict(shape, [request()], fold("by hand", [request()], steps), machine)


PREFILL = step("prefill", 9.0, flops=10**12, kv_bytes=24)  # in no figure but the stored columns


# What a pass moves


def test_a_pass_reads_each_matrix_once_and_what_it_attends_over():
    assert pass_bytes(SHAPE, kv_bytes=0) == 4_000_000
    assert pass_bytes(SHAPE, kv_bytes=88) == 4_000_088
    half = dataclasses.replace(SHAPE, dtype_bytes=2)
    assert pass_bytes(half, kv_bytes=44) == 2_000_044


def test_gpt2_reads_the_paper_models_weights_and_does_its_arithmetic():
    """123.5 M linear weights; a cached step is 2 N + 4 L d t, an uncached one over t tokens but one head."""
    assert pass_bytes(GPT2_SMALL, kv_bytes=0) == 4 * 123_532_032
    cached = pass_flops(GPT2_SMALL, rows=1, columns=1, stored=500, kept=1)
    assert cached == 2 * 123_532_032 + 36_864 * 500


# What bounds a run


def test_weights_bound_a_run_that_waits_for_memory():
    """4,000,032 and 4,000,040 bytes at 4 GB/s are 1.000009 ms in the median; arithmetic would take 0.2."""
    steps = [step("decode", 0.00125, flops=200_000, kv_bytes=kv) for kv in (32, 40)]
    found = predicted(PREFILL, *steps)
    assert found.bound == "weights"
    assert (found.step_bytes, found.step_kv_bytes, found.step_flops) == (4_000_036, 36, 200_000)
    assert found.predicted_step_s == pytest.approx(4_000_036 / 4e9)
    assert found.measured_step_s == 0.00125
    assert found.bandwidth_share == pytest.approx(0.8, rel=1e-4)
    assert found.arithmetic_share == pytest.approx(0.16)
    assert sentence(found) == (
        "Reading the weights bounds this run: 3.81 MiB a step at 3.73 GiB/s take 1 ms of the 1.25 ms "
        "measured."
    )


def test_arithmetic_bounds_a_run_that_computes_more_than_it_reads():
    """4 MFLOP at 1 GFLOP/s are 4 ms, reading 1 ms."""
    found = predicted(PREFILL, step("decode", 0.005, flops=4_000_000, kv_bytes=40))
    assert found.bound == "arithmetic"
    assert found.predicted_step_s == pytest.approx(0.004)
    assert (found.bandwidth_share, found.arithmetic_share) == pytest.approx((0.2, 0.8), rel=1e-4)
    assert sentence(found) == (
        "Arithmetic bounds this run: 4 MFLOP a step at 1 GFLOP/s take 4 ms of the 5 ms measured."
    )


def test_overhead_bounds_a_run_of_more_than_twice_the_predicted_time():
    at_twice = predicted(PREFILL, step("decode", 0.002001, flops=1, kv_bytes=4000))
    above = predicted(PREFILL, step("decode", 0.002003, flops=1, kv_bytes=4000))
    assert at_twice.predicted_step_s == above.predicted_step_s == pytest.approx(0.001001)
    assert (at_twice.bound, above.bound) == ("weights", "overhead")
    said = sentence(predicted(PREFILL, step("decode", 0.008, flops=1, kv_bytes=40)))
    assert said.startswith(
        "Per-step overhead bounds this run: reading and arithmetic explain 1 ms of the 8 ms measured; "
    )


def test_a_run_without_cache_computes_its_growing_text():
    """0.5 ms, 2 ms, 3 ms of arithmetic against 1 ms of reading: each pass takes its own longer one."""
    steps = [step("decode", 0.003, flops=flops, kv_bytes=0) for flops in (500_000, 2_000_000, 3_000_000)]
    first = step("prefill", 9.0, flops=400_000, kv_bytes=0)
    found = predicted(first, *steps)
    assert (found.bound, found.predicted_step_s) == ("arithmetic", pytest.approx(0.002))
    assert (found.step_bytes, found.step_kv_bytes) == (4_000_000, 0)
    assert (found.kv_formula_bytes, found.kv_real_bytes) == (0, 0)
    assert predicted(first, steps[0]).predicted_step_s == pytest.approx(0.001)
    assert predicted(first, steps[0]).bound == "overhead"


def test_many_stored_columns_are_named():
    found = predicted(PREFILL, step("decode", 0.004, flops=1, kv_bytes=6_000_000))
    assert (found.bound, found.predicted_step_s) == ("weights", pytest.approx(0.0025))
    assert sentence(found).startswith("Reading the weights, and even more the keys and values, bounds")


def test_a_run_faster_than_the_roofline_is_said_to_be():
    found = predicted(PREFILL, step("decode", 0.0005, flops=1, kv_bytes=40))
    assert found.bandwidth_share == pytest.approx(2, rel=1e-4)
    assert " would take 1 ms, and 0.5 ms was measured: " in sentence(found)


def test_without_a_decode_pass_nothing_is_predicted():
    unknown = predicted(PREFILL)
    names = "step_bytes step_kv_bytes step_flops predicted_step_s measured_step_s bandwidth_share"
    for name in (*names.split(), "arithmetic_share", "bound"):
        assert getattr(unknown, name) is None, name
    assert (unknown.kv_formula_bytes, unknown.kv_real_bytes) == (3 * 8, 24)
    assert "at least two new tokens" in sentence(unknown)
    assert predicted().kv_formula_bytes == 0  # no pass at all


def test_a_pass_that_took_no_time_has_no_share():
    found = predicted(PREFILL, step("decode", 0.0, flops=1, kv_bytes=40))
    assert (found.bandwidth_share, found.arithmetic_share, found.measured_step_s) == (None, None, 0.0)
    json.dumps(plain(found), allow_nan=False)


# Keys and values, by the formula and in the tensors


def test_a_padded_batch_stores_its_longest_prompt_in_every_row():
    """Prompts of 3 and 7: 2 rows x (7 + 3 - 1) columns x 8 bytes, though row 0 ended after one token."""
    requests = [request(0, 3), request(1, 7)]
    steps = [
        step("prefill", 0.1, flops=1, kv_bytes=2 * 7 * 8, rows=(0, 1)),
        step("decode", 0.1, flops=1, kv_bytes=2 * 8 * 8, rows=(1,), at=1),
        step("decode", 0.1, flops=1, kv_bytes=2 * 9 * 8, rows=(1,), at=2),
    ]
    found = predict(SHAPE, requests, fold("by hand", requests, steps), MACHINE)
    assert found.kv_formula_bytes == 144 == found.kv_real_bytes


def run(engine: Engine, mode: str, new_tokens: tuple[int, ...], passes: int = 1000) -> Prediction:
    """A run of prompts of 9, 4 and 6 tokens, cut short after `passes`."""
    prompts = [list(range(1, 1 + length)) for length in (9, 4, 6)]
    requests = engine.requests(prompts, [SamplingParams(limit, ignore_eos=True) for limit in new_tokens])
    events = engine.run(requests, mode=mode)
    steps = [event for _, event in zip(range(passes), events, strict=False)]
    return predict(engine.model.spec, requests, fold(mode, requests, steps), MACHINE)


@pytest.mark.parametrize("make", [make_gpt2, make_llama])
def test_the_formula_gives_the_bytes_of_real_tensors(make):
    engine = Engine(make(), Letters(), implementation="native")
    token_bytes = 2 * 2 * engine.model.spec.kv_heads * 8 * 8  # K and V, layers, G, D, float64
    alone = {(5, 30, 2): 4 + 29, (5, 2, 3): 9 + 4, (1, 1, 1): 9, (0, 0, 4): 6 + 3}
    batched = {(5, 30, 2): 3 * (9 + 29), (5, 2, 3): 3 * (9 + 4), (1, 1, 1): 3 * 9, (0, 0, 4): 6 + 3}
    for mode, cells in (("kv_cache", alone), ("static_batch", batched)):
        for new_tokens, most in cells.items():
            found = run(engine, mode, new_tokens)
            assert found.kv_formula_bytes == found.kv_real_bytes == most * token_bytes, (mode, new_tokens)
    assert run(engine, "no_cache", (5, 30, 2)).kv_formula_bytes == 0


@pytest.mark.parametrize(("mode", "cells"), [("kv_cache", 9 + 4), ("static_batch", 3 * (9 + 6))])
def test_the_formula_holds_for_a_run_that_was_stopped(mode, cells):
    """Seven passes: all five of row 0 and two of row 1 alone; prefill and six decode passes together."""
    engine = Engine(make_gpt2(), Letters())
    found = run(engine, mode, (5, 30, 2), passes=7)
    assert found.kv_formula_bytes == found.kv_real_bytes == cells * 2 * 2 * 4 * 8 * 8


def test_a_real_runs_bytes_and_flops_are_those_of_its_shape():
    engine = Engine(make_gpt2(), Letters())
    found = run(engine, "kv_cache", (4, 0, 0))  # decode passes over 10, 11 and 12 columns
    weights = 2 * (32 * 96 + 32 * 32 + 2 * 32 * 128) + 32 * 1000
    assert found.step_bytes == 8 * weights + 11 * 2 * 2 * 32 * 8
    assert found.step_flops == 2 * weights + 4 * 2 * 32 * 11
    assert found.predicted_step_s == pytest.approx(found.step_bytes / 4e9)
    result: RunResult = engine.generate([[1] * 9], mode="no_cache", params=SamplingParams(4))
    assert kv_formula_bytes(engine.model.spec, engine.requests([[1] * 9]), result) == 0
