"""The memory puzzle in miniature: readings that can be checked against what was allocated, and verdicts that
follow the samples."""

from __future__ import annotations

import copy
import ctypes
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from conftest import byte_level_tokenizer, make_gpt2, make_llama
from kshipra.engine.layout import HONEST
from kshipra.engine.runner import Engine
from kshipra.errors import KshipraError
from kshipra.experiments import experiment_named
from kshipra.experiments import run as running
from kshipra.experiments.measure import memory, memory_puzzle, workload
from kshipra.experiments.report import report_of
from kshipra.experiments.results import Results
from kshipra.experiments.rig import Rig
from kshipra.experiments.steps import Concatenated
from kshipra.types import ModelChoice
from kshipra.ui import show

EXPERIMENT = experiment_named("memory-puzzle")
MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="glibc's books")


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


def test_live_bytes_are_those_of_the_tensors_alive_at_once():
    def call():
        first = torch.empty(3 * MIB, dtype=torch.uint8)
        del first
        second, third = (torch.empty(2 * MIB, dtype=torch.uint8) for _ in range(2))
        return second, third

    found = memory.tensor_bytes(call)
    assert found == {"live_peak_bytes": 4 * MIB, "allocated_bytes": 7 * MIB, "allocations": 3}


@linux
def test_the_allocators_books_see_a_block():
    before = memory.mallinfo2()
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    block = libc.malloc(64 * MIB)
    after = memory.mallinfo2()
    libc.free(block)
    grown = after["hblkhd"] + after["uordblks"] - before["hblkhd"] - before["uordblks"]
    assert grown == pytest.approx(64 * MIB, rel=0.01)


@linux
def test_the_high_water_mark_stays_where_memory_goes():
    """In a process of its own: other tests may have told this one's allocator to keep what is freed."""
    code = (
        "import json, torch; from kshipra.experiments.measure import memory\n"
        "before = memory.reading(); block = torch.ones(2**26, dtype=torch.uint8); del block\n"
        "print(json.dumps([before, memory.reading()]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = json.loads(ran.stdout)
    assert after["high_water_bytes"] - before["resident_bytes"] > 60 * MIB
    assert after["resident_bytes"] - before["resident_bytes"] < 20 * MIB


@pytest.mark.parametrize("make", [make_gpt2, make_llama])
def test_a_concatenated_cache_writes_the_same_ids(make):
    engine = Engine(make(), byte_level_tokenizer())
    requests = engine.requests([[5, 6, 7], [8, 9, 10, 11, 12]], workload.greedy(12))

    def ids(layout):
        events = engine.run(requests, mode="static_batch", layout=layout)
        return [token.id for event in events for token in event.new_tokens]

    assert ids(HONEST._replace(cache=Concatenated)) == ids(HONEST)


def test_rows_at_once_divide_the_passes(results):
    runs = {case.name: case.samples for case in results.of(kind="run")}
    assert len(runs["1 at once, as it is, process 1"]["steps"]) == 8 * 4
    assert len(runs["4 at once, as it is, process 1"]["steps"]) == 2 * 4
    assert {step["rows"] for step in runs["4 at once, as it is, process 1"]["steps"]} == {4}


def test_live_tensors_hold_at_least_the_cache(results):
    for case in results.of(kind="run", change="as it is"):
        held = max(step["kv_held_bytes"] for step in case.samples["steps"])
        assert held <= case.samples["tensors"]["live_peak_bytes"] < held + 8 * MIB


def test_an_allocator_that_did_not_load_is_not_measured(rig):
    case = next(case for case in memory_puzzle.cases(rig) if case.settings["kind"] == "run")
    with pytest.raises(KshipraError, match="jemalloc did not take"):
        memory_puzzle.measure(rig, replace(case, settings=case.settings | {"allocator": "jemalloc"}))


def test_every_installed_allocator_has_its_cases(rig, monkeypatch):
    monkeypatch.setattr(memory.Allocator, "library", lambda self: f"lib{self.libraries[0]}.so")
    found = memory_puzzle.cases(replace(rig, quick=False))
    preloads = {case.settings["change"]: case.environment for case in found if "allocator" in case.settings}
    assert preloads["jemalloc"] == {"LD_PRELOAD": "libjemalloc.so"}
    assert set(preloads) == set(memory.ALLOCATORS)
    arena = [case for case in found if case.settings.get("change") == "one arena"]
    assert {case.settings["rows"] for case in arena} == {1}
    assert all(case.environment == {"MALLOC_ARENA_MAX": "1"} for case in arena)
    assert len({case.name for case in found}) == len(found)


def test_the_studys_figure_is_checked_against_formula_and_tensors(results, rig):
    cache = results.of(kind="cache")[0].samples
    spec = rig.spec
    assert cache["used_bytes"] == 30 * 2 * spec.layers * spec.width * 4 == cache["formula_bytes"]
    said = answers(results)
    assert f"{show.size(cache['used_bytes'])} in its real tensors, as the formula says" in said
    assert "0.66 MB is not that of 30 tokens but of 9" in said
    assert "72 KiB a token, 2.21 MB for 30" in said


def told_so(results: Results, peaks: dict[tuple[int, str], float], **others: float) -> str:
    """The answers where the peaks (MiB, by rows and change) and other numbers were these."""
    template = results.of(kind="run", change="as it is", rows=1)[0]
    cases = [*results.of(kind="cache")]
    for (rows, change), peak in peaks.items():
        samples = copy.deepcopy(template.samples)
        samples["steps"][-1]["peak_extra_bytes"] = peak * MIB
        samples["tensors"]["live_peak_bytes"] = others.get("live", 10) * MIB
        samples["returned"]["resident_bytes"] = samples["ended"]["resident_bytes"] - int(
            others.get("kept", 5) * MIB * (rows == 1)
        )
        settings = template.settings | {"rows": rows, "change": change}
        cases.append(replace(template, name=f"{rows} {change}", settings=settings, samples=samples))
    return answers(replace(results, cases=tuple(cases)))


RETURNED = "freed memory returned after each pass"


def test_churn_is_supported_only_where_its_traces_and_a_cure_are_seen(results):
    said = told_so(results, {(1, "as it is"): 80, (4, "as it is"): 20, (1, RETURNED): 15})
    assert "Batching peaks lower here too" in said
    assert (
        "The numbers support churn and fragmentation; 3 of its 3 predictions hold: one at a time peaks"
        in said
    )
    said = told_so(results, {(1, "as it is"): 80, (4, "as it is"): 20, (1, RETURNED): 80})
    assert "do not support churn and fragmentation: the higher peak is there, but not a change that" in said
    assert "2 of its 3 predictions hold" in said


def test_churn_is_not_supported_where_batching_peaks_higher(results):
    said = told_so(results, {(1, "as it is"): 20, (4, "as it is"): 80, (1, RETURNED): 20}, kept=0)
    assert "does not peak lower here but higher, which contradicts study A" in said
    assert "do not support churn and fragmentation: there is no higher peak for it to explain; 0 of" in said


def test_the_order_of_prompts_may_matter_or_not(results):
    plain = {(1, "as it is"): 20, (4, "as it is"): 80}
    assert "first instead of last lowers the peak with 1 at once" in told_so(
        results, plain | {(1, "longest prompt first"): 10}
    )
    assert "changes nothing beyond the spread with 1 at once" in told_so(
        results, plain | {(1, "longest prompt first"): 20}
    )


def test_whole_life_peaks_are_held_against_loading(results):
    def answer(loaded: int, ended: int) -> str:
        cases = []
        for case in results.cases:
            samples = copy.deepcopy(case.samples)
            if case.settings["kind"] == "run":
                samples["loaded"]["high_water_bytes"] = samples["warm"]["high_water_bytes"] = loaded * MIB
                samples["ended"]["high_water_bytes"] = ended * MIB
            cases.append(replace(case, samples=samples))
        return answers(replace(results, cases=tuple(cases)))

    assert "says nothing about batching" in answer(900, 500)
    assert "over 2 processes, and set by loading in 0 of them" in answer(500, 900)


def test_an_unfinished_run_tells_what_there_is(results):
    for count in range(1, len(results.cases) + 1):
        assert report_of(replace(results, cases=results.cases[:count], finished=False)).answers
