"""The floor: its samples on a tiny model, its numbers from the samples, and verdicts that follow them."""

from __future__ import annotations

import copy
from dataclasses import replace
from statistics import median

import pytest
import torch

from conftest import byte_level_tokenizer, make_gpt2, make_llama
from kshipra.engine.cache import KVCache
from kshipra.engine.layout import NewBeforeOld
from kshipra.engine.runner import Engine
from kshipra.errors import InputError, KshipraError
from kshipra.experiments import experiment_named
from kshipra.experiments import run as running
from kshipra.experiments import steps as doing
from kshipra.experiments.measure import floor as measuring
from kshipra.experiments.report import report_of
from kshipra.experiments.report.floor import judged
from kshipra.experiments.report.floor_split import split
from kshipra.experiments.report.parts import Figure
from kshipra.experiments.results import Results, from_document
from kshipra.experiments.rig import Case, Rig
from kshipra.profiling import traces
from kshipra.types import ModelChoice, Roofline, plain
from kshipra.ui.show import percent, seconds

FAST = Roofline("cpu", "float32", 1, 1e10, 1e11, "2026-01-01T00:00:00+00:00")


def rig_of(monkeypatch, make=make_gpt2) -> Rig:
    tiny = Engine(make().float(), byte_level_tokenizer())
    monkeypatch.setattr("kshipra.experiments.rig.load_or_random", lambda choice, progress: (tiny, "random"))
    monkeypatch.setattr(measuring.roofline, "measure", lambda *_, **__: FAST)
    return Rig(ModelChoice("gpt2", device="cpu"), quick=True)


@pytest.fixture(scope="module")
def taken(tmp_path_factory) -> Results:
    with pytest.MonkeyPatch.context() as patch:
        experiment = experiment_named("floor")
        return running.run(
            experiment, rig_of(patch), tmp_path_factory.mktemp("floor"), progress=lambda *_: None
        )


def steps(results: Results, case: str, way: str) -> list[float]:
    return results.case(case).samples["ways"][way]["step_s"]


def changed(results: Results, times: dict[str, float], way: str | None = None) -> Results:
    """A copy in which every step of the named cases (of one way) takes `times` seconds."""
    document = plain(copy.deepcopy(results))
    document |= {"format": "kshipra-experiment", "version": 1}
    for case in document["cases"]:
        if case["name"] in times:
            found = case["samples"].get("ways", {None: case["samples"]})
            for name, samples in found.items():
                if "step_s" in samples and way in (None, name):
                    samples["step_s"] = [times[case["name"]] * (1 + n / 1000) for n in range(5)]
    return from_document(document)


def test_every_way_is_timed_or_gives_its_reason(taken):
    assert taken.finished
    assert [case.name for case in taken.cases] == [
        "roofline", "decode, 10 tokens", "decode, 100 tokens", "no cache, 10 tokens", "no cache, 50 tokens",
        "no cache, 100 tokens", "no cache, 200 tokens", "profile, 10 tokens", "profile, 100 tokens",
        "width 16", "width 32",
    ]  # fmt: skip
    ways = taken.case("decode, 100 tokens").samples["ways"]
    for way in ("preallocated", "concatenated"):
        assert len(ways[way]["step_s"]) == 6
    assert "No CUDA here" in ways["CUDA graph"]["unavailable"]
    assert "step_s" in ways["compiled"] or "unavailable" in ways["compiled"]
    narrow = taken.case("width 16").samples
    assert narrow["width"] == 16
    assert len(narrow["traces"]) == len(narrow["step_s"]) == 3


def test_llama_is_shrunk_as_it_is(monkeypatch):
    rig = rig_of(monkeypatch, make_llama)
    spec = measuring.shrunk(rig, 4).model.spec
    assert (spec.layers, spec.heads, spec.kv_heads, spec.head_size) == (2, 4, 2, 4)
    assert spec.block_parameters < rig.spec.block_parameters


@pytest.mark.parametrize("make", [make_gpt2, make_llama])
def test_a_concatenated_cache_is_the_same_step_every_time(make):
    model = Engine(make(), byte_level_tokenizer()).model
    with torch.inference_mode():
        honest = doing.decode_way(model, doing.filled(model, 9, KVCache()))
        other = doing.decode_way(model, doing.filled(model, 9, doing.Concatenated()))
        for _ in range(3):
            other.before()
            assert torch.allclose(honest.logits(), other.logits(), atol=1e-12)


def test_a_way_that_computes_something_else_is_not_timed(monkeypatch):
    class Late(doing.Concatenated):
        def crop(self, columns: int) -> None:
            """Forgets to put the cache back: the second step sees a token twice."""

    monkeypatch.setattr(measuring, "Concatenated", Late)
    rig = rig_of(monkeypatch)
    case = Case("decode, 10 tokens", {"kind": "decode", "tokens": 10})
    measuring.measure(rig, case)  # the first step is still right
    with torch.inference_mode():
        model = rig.engine.model
        honest = doing.decode_way(model, doing.filled(model, 9, KVCache()))
        wrong = doing.decode_way(model, doing.filled(model, 8, KVCache()))
        with pytest.raises(KshipraError, match="computes something else"):
            doing.compared({"honest": honest, "short": wrong}, torch.float32)
    # New keys before old ones are the same step where one token goes in: nothing to refuse.
    monkeypatch.setattr(measuring, "Concatenated", NewBeforeOld)
    measuring.measure(rig, case)


def test_graphs_need_cuda(monkeypatch):
    model = rig_of(monkeypatch).engine.model
    with pytest.raises(InputError, match="No CUDA here"):
        doing.graph_way(model, KVCache())


def test_the_parts_of_a_trace_are_its_wall_time(taken):
    for case in taken.of(kind="profile"):
        for trace in case.samples["preallocated"]["traces"]:
            parts = split(trace)
            assert sum(parts.values()) == pytest.approx(trace["wall_s"])
            assert min(parts.values()) > 0
            own = sum(own for _, own in trace["operations"].values())
            assert parts["Python"] == pytest.approx(trace["wall_s"] - own)


def test_work_is_kernels_and_waiting_is_python():
    big = torch.ones(700, 700)

    def parts(call) -> dict[str, float]:
        return split(plain(traces(call, torch.device("cpu"), repeats=1)[0]))

    busy = parts(lambda: [big @ big for _ in range(4)])
    assert busy["kernels"] > 0.8 * sum(busy.values())
    viewing = parts(lambda: [big.view(-1).view(700, 700) for _ in range(500)])
    assert viewing["kernels"] < 0.1 * sum(viewing.values())
    assert viewing["framework"] > 0


def test_on_a_gpu_kernels_are_the_time_in_which_it_worked():
    trace = {
        "wall_s": 10.0,
        "device_s": 4.0,
        "operations": {"aten::mm": [1, 3.0], "cudaStreamSynchronize": [1, 5.0]},
    }
    # 2 s of Python and 3 s of operations on the host, waiting left out, share the 6 s without the GPU.
    assert split(trace) == pytest.approx({"kernels": 4.0, "framework": 3.6, "Python": 2.4})


def test_the_answers_numbers_are_the_samples(taken):
    report = report_of(taken)
    said = " ".join(report.answers)
    step = median(steps(taken, "decode, 10 tokens", "preallocated"))
    assert f"takes {seconds(step)}; overhead is" in said
    asked = taken.case("decode, 10 tokens").samples
    least = max(asked["bytes"] / 1e10, asked["flops"] / 1e11)
    assert f"The least possible for that step is {seconds(least)} ({percent(least / step)})" in said
    last, every = (
        median(steps(taken, "no cache, 200 tokens", way)) for way in ("last position", "all positions")
    )
    assert f"saves {percent(1 - last / every)} of the step" in said
    profile = taken.case("profile, 10 tokens").samples["preallocated"]
    pairs = zip(profile["step_s"], profile["traces"], strict=True)
    outside = max(0.0, median(bare - split(trace)["kernels"] for bare, trace in pairs))
    assert f"{seconds(outside)} ({percent(outside / step)}) by the profiler" in said
    figures = {part.key: part for part in report.parts if isinstance(part, Figure)}
    assert set(figures) == {"ways", "no-cache", "split", "width"}
    assert f"{seconds(step)} at 10 tokens" in figures["ways"].caption
    ours = next(trace for trace in figures["ways"].plot.data if trace.name == "eager, preallocated cache")
    assert ours.y[0] == pytest.approx(step * 1e3)


WIDTHS = {"width 16": 1e-3, "width 32": 1e-3}  # as long whatever there is to do: 1 ms of overhead


@pytest.mark.parametrize(
    ("step", "sentence"),
    [(1.1e-3, "is confirmed"), (2.5e-3, "a part of the floor"), (20e-3, "do not support the suspect")],
)
def test_the_verdict_follows_the_narrow_models(taken, step, sentence):
    results = changed(taken, WIDTHS | {"decode, 10 tokens": step})
    cases = tuple(case for case in results.cases if case.settings["kind"] != "profile")
    answer = report_of(replace(results, cases=cases)).answers[0]
    assert sentence in answer
    assert f"1 ms ({percent(1e-3 / step)[:2]}" in answer


def test_two_roads_that_disagree_settle_nothing():
    assert "confirmed" in judged([0.6, 0.9], 0.0)
    assert "settles nothing" in judged([0.2, 0.9], 0.0)
    assert "a part" in judged([0.1, 0.3], 0.0)
    assert "a part" in judged([0.1, 0.2], 0.3)
    assert "do not support" in judged([0.1, 0.2], 0.1)


def test_whether_the_floor_drops_follows_the_compiled_step(taken):
    if "unavailable" in taken.case("decode, 10 tokens").samples["ways"]["compiled"]:
        pytest.skip("no compiler here")
    slow = changed(taken, {"decode, 10 tokens": 10e-3})
    for compiled, sentence in (
        (5e-3, "49.9 % less, so the floor drops"),
        (10e-3, "the same within"),
        (20e-3, "more, so"),
    ):
        report = report_of(changed(slow, {"decode, 10 tokens": compiled}, "compiled"))
        answer = next(answer for answer in report.answers if "(compiled)" in answer)
        assert sentence.replace("49.9", "50") in answer


def test_an_unfinished_run_gives_what_there_is(taken):
    document = plain(taken) | {"format": "kshipra-experiment", "version": 1, "finished": False}
    for many in range(1, len(taken.cases)):
        report = report_of(from_document(document | {"cases": document["cases"][:many]}))
        assert all(isinstance(answer, str) for answer in report.answers)
