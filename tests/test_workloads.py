"""bench --workload: what it is for must show in its figures, and what is not the same text must not pass."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from conftest import byte_level_tokenizer, make_llama
from kshipra import bench, bench_tables, workloads
from kshipra.__main__ import main, parse
from kshipra.cases import CaseEngine, cases_of, references_of
from kshipra.engine import runner
from kshipra.engine.cache import KVCache
from kshipra.engine.runner import Engine
from kshipra.metrics import fold
from kshipra.types import Comparison, ModelChoice


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    """Workloads of the same kind that a tiny model gets through at once."""
    monkeypatch.setattr(workloads, "REQUESTS", 18)
    monkeypatch.setattr(workloads, "PROMPT_TOKENS", (3, 40))
    monkeypatch.setattr(workloads, "NEW_TOKENS", (1, 24))
    monkeypatch.setattr(workloads, "SHARERS", 6)
    monkeypatch.setattr(workloads, "SHARED_TOKENS", 40)
    monkeypatch.setattr(workloads, "OWN_TOKENS", 5)
    monkeypatch.setattr(workloads, "ANSWER_TOKENS", 3)
    monkeypatch.setattr(workloads, "COPIED_TOKENS", 12)
    monkeypatch.setattr(workloads, "TASKS", (("Repeat this:", 0), ("Quote from this:", 1)))


@pytest.fixture
def engine() -> Engine:
    return Engine(make_llama(max_position_embeddings=2048), byte_level_tokenizer())


@pytest.fixture(autouse=True)
def loaded(monkeypatch) -> list[ModelChoice]:
    """The choices that were loaded: all give the same model, in float64."""
    made: list[ModelChoice] = []

    def load_choice(choice: ModelChoice, **_) -> Engine:
        made.append(choice)
        model = make_llama(max_position_embeddings=2048)
        return Engine(model, byte_level_tokenizer(), implementation=choice.implementation)

    monkeypatch.setattr(runner, "load_choice", load_choice)
    return made


def run(capsys, workload: str, *arguments: str) -> tuple[int, str, dict]:
    """Status, stdout and its last line; the report's cases by their names."""
    status = main(("bench", "--workload", workload, "--repeats", "2", "--json", "-", *arguments))
    out = capsys.readouterr().out
    report = json.loads(out.splitlines()[-1])
    report["cases"] = {one["case"]: one for one in report["modes"]}
    return status, out, report


def test_ragged_requests_fill_the_batch_and_waste_less(capsys, loaded):
    status, out, report = run(capsys, "ragged")
    assert status == 0
    static, own, peer = report["cases"].values()
    assert list(report["cases"]) == ["static_batch", "continuous", "transformers_continuous"]
    assert [choice.implementation for choice in loaded] == ["auto", "transformers"]
    assert static["new_tokens"] == own["new_tokens"] == peer["new_tokens"]
    assert own["padding"] < 0.1 < 0.3 < static["padding"]
    decode = {name: one["forward_passes"] for name, one in report["cases"].items()}
    assert decode["continuous"] - 18 < 0.8 * decode["static_batch"]  # 18 prompts have a pass of their own
    assert report["identical_ids"] is True
    assert set(report["verdicts"]) == {"continuous", "transformers_continuous"}
    assert "continuous: ids against static_batch: identical in 18 rows" in out
    for one in (static, own, peer):
        assert one["ttft_p50_s"] > one["ttft_s"] > 0
        assert one["largest_gap_s"] > 0
        assert 0 <= one["between_passes_share"] < 1
    assert static["against"] == 1
    assert own["spread"]["against"]["min"] <= own["against"] <= own["spread"]["against"]["max"]


def test_no_more_rows_at_once_than_the_batch_of_those_it_is_held_against(engine):
    for case in cases_of(parse(["bench", "--workload", "ragged"]))[:2]:
        requests = workloads.ragged(engine)
        steps = list(CaseEngine(case, engine).run(requests, mode=case.mode))
        assert max(len(step.rows) for step in steps) == workloads.ROWS


def test_lengths_and_limits_lie_evenly_and_are_the_same_every_time(engine):
    requests = workloads.ragged(engine)
    lengths = [len(request.prompt_ids) for request in requests]
    assert sorted(lengths) == [round(3 + 37 * place / 17) for place in range(18)]
    assert lengths != sorted(lengths)
    assert {request.params.max_new_tokens for request in requests} >= {1, 24}
    assert workloads.ragged(engine) == requests
    assert len({request.prompt_ids for request in requests}) == 18


def test_every_run_with_reuse_starts_cold(capsys):
    status, _, report = run(capsys, "shared-prefix")
    cold, warm = report["cases"].values()
    assert (status, list(report["cases"])) == (0, ["kv_cache", "kv_cache reuse"])
    assert cold["reused_tokens"] == 0
    spread = warm["spread"]["reused_tokens"]
    assert 5 * 40 <= spread["min"] == spread["max"] < 6 * 40  # all but the first
    assert report["identical_ids"] is True
    assert cold["own_ttft_p50_s"] < cold["ttft_p50_s"]


def test_another_text_is_said_and_ends_with_status_1(capsys, monkeypatch):
    join = KVCache.join

    def spoiled(cache: KVCache, place: int, other: KVCache) -> None:
        join(cache, place, other)
        for keys, _ in cache._layers:
            keys[place] *= -3

    monkeypatch.setattr(KVCache, "join", spoiled)
    status, out, report = run(capsys, "ragged")
    assert status == 1
    assert "continuous: ids against static_batch: fault in " in out
    assert "transformers_continuous: ids against static_batch: identical" in out
    assert {one["verdict"] for one in report["verdicts"]["continuous"]} >= {"fault"}


def test_a_peer_that_says_something_else_is_judged_by_the_logits_of_its_model(engine):
    static, _, peer = cases_of(parse(["bench", "--workload", "ragged"]))
    other = Engine(
        make_llama(max_position_embeddings=2048), byte_level_tokenizer(), implementation="transformers"
    )
    weight = next(weight for weight in other.model.model.parameters() if weight.dim() == 2)
    weight.data[::2] *= 1.5
    engines = {static: engine, peer: other}
    requests = workloads.ragged(engine)
    results = bench.measure(engines, requests, repeats=1, progress=lambda: None)
    [found] = bench.verdicts(engines, requests, results).values()
    assert {one.verdict for one in found} == {"fault"}


def test_each_engine_is_held_against_itself_and_a_peer_against_the_first():
    settings = parse(["bench", "--workload", "ragged", "--execution", "eager", "compiled"])
    names = {case.name: against.name for case, against in references_of(cases_of(settings)).items()}
    assert names == {
        "static_batch": "static_batch",
        "continuous": "static_batch",
        "transformers_continuous": "static_batch",
        "static_batch compiled": "static_batch compiled",
        "continuous compiled": "static_batch compiled",
    }


def test_a_draft_guesses_where_one_is_named():
    plain = cases_of(parse(["bench", "--workload", "copy"]))
    drafted = cases_of(parse(["bench", "--workload", "copy", "--draft", "smaller"]))
    assert [case.mode for case in plain] == ["kv_cache", "speculative"]
    assert [case.mode for case in drafted] == ["kv_cache", "speculative", "draft_model"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("nonsense",), "Workload 'nonsense' is not one of ragged, shared-prefix, copy."),
        (("copy", "--mode", "kv_cache"), "--workload says what --mode would say"),
        (("copy", "--rows", "3", "--new-tokens", "5"), "--workload says what --rows and --new-tokens would"),
        (("copy", "--recipes", "int8"), "--workload says what --recipes would say"),
        (("copy", "--check"), "--workload compares ids itself"),
        (("copy", "--profile"), "--workload compares ids itself"),
        (("ragged", "--draft", "smaller"), "--draft guesses in --mode draft_model only"),
        (("ragged", "--repeats", "0"), "--repeats must be at least 1."),
    ],
)
def test_what_does_not_go_together_is_one_sentence(capsys, loaded, options, sentence):
    assert main(("bench", "--workload", *options)) == 2
    assert capsys.readouterr().err.startswith(f"kshipra: {sentence}")
    assert not loaded


def test_more_a_second_is_better_and_less_time_is(engine):
    [case, *_] = cases_of(parse(["bench", "--workload", "copy"]))
    requests = engine.requests([[1, 2, 3]])
    one = fold("kv_cache", requests, engine.run(requests, mode="kv_cache"))
    other = replace(one, end_to_end_tok_per_s=2 * one.end_to_end_tok_per_s, ttft_s=one.ttft_s / 4)
    for judged, times in (("end_to_end_tok_per_s", 2), ("ttft_s", 4)):
        assert bench.summarise(case, engine, [other], [one], judged)["against"] == pytest.approx(times)


def test_the_worst_of_what_parts_is_named():
    tie = Comparison("a", "b", "near-tie", 2, 4, 7, 8, 1e-6, 1e-5)
    fault = Comparison("a", "b", "ended", 3, 0, None, 8)
    verdicts = {"b": (Comparison("a", "b", "identical"),), "c": (tie,), "d": (tie, fault)}
    assert bench_tables.verdict_lines("a", verdicts, 9) == [
        "b: ids against a: identical in 9 rows",
        "c: ids against a: near-tie in 1 of 9 rows: row 3 at token 5",
        "d: ids against a: ended in 2 of 9 rows: row 3 at token 5, row 4 at token 1",
    ]
