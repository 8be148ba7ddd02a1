"""What earlier runs leave for later ones, and how rows share passes: the plan's choices on a real engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from test_local import ROOFLINE, collect, of_kind

from conftest import Letters, make_gpt2, make_llama
from kshipra.backends import kept
from kshipra.backends.local import LocalBackend
from kshipra.engine import devices, prefix, review, roofline, runner
from kshipra.engine.runner import Engine
from kshipra.recipes import BUGS
from kshipra.types import Failed, Finished, ModelChoice, Plan, Reviewed, RunResult, SamplingParams

PROMPTS = ("a long prompt that goes on for a while", "a long prompt that ends", "zebra", "one more")
WAYS = ("no_cache", "kv_cache", "static_batch", "continuous", "speculative")


@pytest.fixture
def backend(monkeypatch) -> Iterator[LocalBackend]:
    makers = {
        "tiny": lambda: Engine(make_gpt2().float(), Letters(), implementation="native"),
        "other": lambda: Engine(make_llama().float(), Letters(), implementation="native"),
    }
    monkeypatch.setattr(runner, "load", lambda name, **_: makers[name]())
    monkeypatch.setattr(roofline, "cached_roofline", lambda *_, **__: ROOFLINE)
    made = LocalBackend()
    yield made
    made.close()


def plan(*ways: str, reuse: bool = True, model: str = "tiny", **changes) -> Plan:
    params = SamplingParams(6, ignore_eos=True)
    return replace(Plan(ModelChoice(model), PROMPTS, ways or WAYS, params, reuse=reuse), **changes)


def results(backend: LocalBackend, asked: Plan) -> dict[str, RunResult]:
    messages = collect(backend.submit(asked), limit_s=60)
    assert not of_kind(Failed, messages)
    for reviewed in of_kind(Reviewed, messages):
        assert {found.verdict for found in reviewed.comparisons} <= {"identical"}
    return {message.recipe: message.result for message in of_kind(Finished, messages)}


def ids(found: dict[str, RunResult]) -> set[tuple]:
    return {tuple(row.token_ids for row in result.rows) for result in found.values()}


def test_a_run_finds_what_earlier_ones_left_and_nothing_of_its_own_other_ways(backend):
    cold = results(backend, plan(reuse=False))
    assert {result.reused_tokens for result in cold.values()} == {0}
    assert backend.kept().texts == 0
    first, second = (results(backend, plan()) for _ in range(2))
    shared = len("a long prompt that ")  # by two prompts: known to the second within its own run
    assert {key: result.reused_tokens for key, result in first.items()} == {
        "no_cache": 0,
        "kv_cache": shared,
        "static_batch": 0,  # all at once
        "continuous": shared,
        "speculative": shared,
    }
    most = sum(len(prompt) - 1 for prompt in PROMPTS)  # the last token is always read
    assert {key: result.reused_tokens for key, result in second.items()} == dict.fromkeys(WAYS, most) | {
        "no_cache": 0
    }
    assert ids(cold) == ids(first) == ids(second)
    assert len(ids(cold)) == 1
    assert backend.kept().texts == len(PROMPTS)
    assert 0 < backend.kept().used_bytes <= backend.kept().budget_bytes


def test_without_reuse_what_is_kept_is_neither_used_nor_changed(backend):
    results(backend, plan("kv_cache"))
    before = backend.kept()
    found = results(backend, plan("kv_cache", reuse=False, prompts=("a long prompt that is new",)))
    assert found["kv_cache"].reused_tokens == 0
    assert backend.kept() == before


def test_each_engine_keeps_its_own(backend):
    """Keys and values of other weights are others."""
    results(backend, plan("kv_cache"))
    assert results(backend, plan("int8"))["int8"].reused_tokens == len("a long prompt that ")
    assert backend.kept().texts == 2 * len(PROMPTS)
    assert backend.kept().budget_bytes == 2 * backend._kept._budget_bytes


def test_forgetting_gives_everything_up_and_another_model_too(backend):
    results(backend, plan("kv_cache"))
    backend.forget()
    assert (backend.kept().texts, backend.kept().used_bytes) == (0, 0)
    assert results(backend, plan("kv_cache"))["kv_cache"].reused_tokens == len("a long prompt that ")
    results(backend, plan("kv_cache", model="other", reuse=False))
    assert backend.kept().texts == 0


def test_who_forgets_while_a_run_goes_on_is_not_undone_by_its_end(backend, monkeypatch):
    results(backend, plan("kv_cache"))
    inside, go = threading.Event(), threading.Event()
    run = prefix.PrefixCache.longest

    def held(*args):
        inside.set()
        go.wait(10)
        return run(*args)

    monkeypatch.setattr(prefix.PrefixCache, "longest", held)
    running = backend.submit(plan("kv_cache"))
    assert inside.wait(10)
    backend.forget()
    go.set()
    (finished,) = of_kind(Finished, collect(running))
    assert finished.result.reused_tokens > len("a long prompt that ")  # it has what it began with
    assert backend.kept().texts == 0


def test_the_budget_is_a_share_of_what_is_free(backend, monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 16 * 3_000)
    results(backend, plan("kv_cache"))
    assert backend.kept().budget_bytes == 3_000
    assert backend.kept().used_bytes <= 3_000
    monkeypatch.setattr(devices, "free_bytes", lambda device: 2**50)
    results(backend, plan("kv_cache", model="other"))
    assert backend.kept().budget_bytes == kept.MOST_BYTES


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.key)
def test_a_planted_fault_neither_finds_nor_leaves_anything(backend, bug):
    results(backend, plan("kv_cache"))
    before = backend.kept()
    messages = collect(backend.submit(plan(bug.broken.key)))
    (finished,) = of_kind(Finished, messages)
    assert finished.result.reused_tokens == 0
    assert backend.kept() == before


def test_rows_at_once_are_for_ways_that_share_passes_and_limits_for_all(backend):
    asked = plan(*WAYS, reuse=False, limits=(2, 9, None, 4), rows=2)
    found = results(backend, asked)
    for result in found.values():
        assert [row.new_tokens for row in result.rows] == [2, 9, 6, 4]
    most = {key: max(len(step.rows) for step in result.steps) for key, result in found.items()}
    assert most == {"no_cache": 1, "kv_cache": 1, "static_batch": 2, "continuous": 2, "speculative": 1}
    assert found["static_batch"].forward_passes == 9 + 6
    assert found["continuous"].pad_tokens < found["static_batch"].pad_tokens
    wider = results(backend, replace(asked, rows=None))
    assert wider["static_batch"].forward_passes == 9


def test_the_review_runs_a_way_again_from_what_it_began_with(backend, monkeypatch):
    """Else it may come to another place by other rounding, where the logits are not those of the run."""
    results(backend, plan("kv_cache"))
    told = {}
    monkeypatch.setattr(review, "review", lambda *_, options, **__: told.update(options))
    collect(backend.submit(plan("kv_cache", "static_batch", prompts=("quite new", "and this"), rows=1)))
    assert [len(options["prefixes"]) for options in told.values()] == [len(PROMPTS)] * 2
    assert [options["batching"].rows for options in told.values()] == [None, 1]
    assert backend.kept().texts == len(PROMPTS) + 2
