"""Rows that come and go, guesses and reused prefixes never change a token: every request equals its solo run
(cases A7 and A9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Letters, make_gpt2, make_llama
from kshipra import metrics
from kshipra.engine import cache, slots
from kshipra.engine.cache import KVCache
from kshipra.engine.prefix import PrefixCache, shared
from kshipra.engine.runner import Engine
from kshipra.modes.continuous import needed
from kshipra.types import Batching, RunResult, SamplingParams, StepEvent

SHARED = [(37 * place + 11) % 1000 for place in range(90)]  # what many prompts start with


@pytest.fixture(scope="module", params=[make_gpt2, make_llama])
def engine(request) -> Iterator[Engine]:
    """Caches that grow, and columns in front that are dropped, after a few tokens and not after a hundred:
    short texts, which are soon through, come to all of that many times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "GROWTH_COLUMNS", 16)
        patch.setattr(slots, "SLACK_COLUMNS", 8)
        yield Engine(request.param(), Letters())


@st.composite
def prompts(draw) -> list[int]:
    """A prompt that may start as others do, over few different ids or many."""
    start = SHARED[: draw(st.sampled_from([0, 0, 1, 12, 30]))]
    return start + draw(st.lists(st.integers(0, draw(st.sampled_from([1, 3, 999]))), min_size=1, max_size=20))


params = st.builds(
    SamplingParams,
    max_new_tokens=st.sampled_from([0, 1, 2, 5, 12]),
    temperature=st.sampled_from([0.0, 0.0, 1.0]),
    top_k=st.sampled_from([0, 5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    seed=st.integers(0, 5),
    ignore_eos=st.booleans(),
)
schedules = st.lists(st.tuples(prompts(), params), min_size=1, max_size=8)
batchings = st.builds(
    Batching,
    rows=st.sampled_from([None, 1, 2, 3, 5]),
    cache_tokens=st.sampled_from([None, 70, 150]),
    chunk_tokens=st.sampled_from([1, 5, 64]),
)
many = settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
few = settings(many, max_examples=25)


def ended(result: RunResult) -> list[tuple]:
    return [(row.token_ids, row.finish_reason) for row in result.rows]


def run(engine: Engine, schedule, mode: str, **options) -> RunResult:
    requests = engine.requests([prompt for prompt, _ in schedule], [own for _, own in schedule])
    return metrics.fold(mode, requests, engine.run(requests, mode=mode, **options))


@many
@given(schedule=schedules, batching=batchings)
def test_every_schedule_gives_each_request_its_solo_tokens(engine, schedule, batching):
    solo = run(engine, schedule, "kv_cache")
    for mode in ("continuous", "speculative"):
        assert ended(run(engine, schedule, mode, batching=batching)) == ended(solo), mode


@few
@given(first=schedules, second=schedules, batching=batchings, budget=st.sampled_from([0, 20_000, 10**8]))
def test_what_is_reused_never_changes_an_answer(engine, first, second, batching, budget):
    """The third answer is the first (case A7), whatever ran between, and the budget holds."""
    prefixes = PrefixCache(budget)
    solo = {id(schedule): ended(run(engine, schedule, "kv_cache")) for schedule in (first, second)}
    for schedule in (first, second, first):
        for mode in ("kv_cache", "static_batch", "continuous", "speculative"):
            found = run(engine, schedule, mode, batching=batching, prefixes=prefixes)
            assert ended(found) == solo[id(schedule)], mode
            assert prefixes.used_bytes <= budget


@many
@given(schedule=schedules, batching=batchings, draw=st.data())
def test_requests_that_arrive_or_are_cancelled_in_mid_run_change_no_other(engine, schedule, batching, draw):
    """Whatever comes and goes when: what ran to its end is its solo run, what did not is the start of it."""
    solo = run(engine, schedule, "kv_cache")
    requests = engine.requests(*map(list, zip(*schedule, strict=True)))
    moments = st.lists(st.integers(0, 60), min_size=len(requests), max_size=len(requests))
    arrivals = sorted(draw.draw(moments))
    cancelled = draw.draw(st.dictionaries(st.integers(0, len(requests) - 1), st.integers(0, 80), max_size=4))
    events: list[StepEvent] = []
    left, passes = list(zip(arrivals, requests, strict=True)), 0

    def attend(job) -> None:
        nonlocal passes
        while left and left[0][0] <= passes:
            if (request := left.pop(0)[1]).params.max_new_tokens > 0:
                job.requests.append(request)
        for row, at in cancelled.items():
            if at == passes:
                job.cancel(row)
        passes += 1

    while left:  # a run ends when nobody is there; who comes later begins another
        _, first = left.pop(0)
        events += engine.run([first], mode="continuous", batching=batching, attend=attend)
    found = metrics.fold("continuous", requests, events)
    for row, (own, alone) in enumerate(zip(found.rows, solo.rows, strict=True)):
        assert own.token_ids == alone.token_ids[: own.new_tokens]
        assert own.new_tokens == alone.new_tokens or row in cancelled


def test_a_cancelled_row_gives_its_place_to_the_next_before_another_pass(engine):
    """And leaves nothing of itself there, though it was longer than who comes."""
    schedule = [(SHARED[:30], PLAIN), (SHARED[:9], PLAIN), (SHARED[:4], PLAIN)]
    asked = engine.requests([prompt for prompt, _ in schedule], PLAIN)
    events: list[StepEvent] = []

    def attend(job) -> None:
        if len(events) == 4:
            job.cancel(0)

    for event in engine.run(asked, mode="continuous", batching=Batching(rows=2), attend=attend):
        events.append(event)
    places = [event.rows for event in events]
    assert [0 in rows for rows in places[:4]].count(True) >= 2
    assert not any(0 in rows for rows in places[4:])
    assert any(rows == (1, 2) or rows == (2, 1) for rows in places[4:7])
    found = ended(metrics.fold("continuous", asked, events))
    assert found[1:] == ended(run(engine, schedule, "kv_cache"))[1:]


PLAIN = SamplingParams(12, ignore_eos=True)
RAGGED = [
    (SHARED[:length], replace(PLAIN, max_new_tokens=limit))
    for length, limit in [(3, 30), (80, 5), (9, 12), (40, 30), (2, 9)]
]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_no_more_rows_at_once_than_allowed_and_no_place_empty_while_somebody_waits(engine, rows):
    steps = run(engine, RAGGED, "continuous", batching=Batching(rows=rows, chunk_tokens=500)).steps
    decode = [step for step in steps if step.phase == "decode"]
    assert max(len(step.rows) for step in decode) == rows
    begun = [0] * len(decode)
    for place, step in enumerate(decode):
        begun[place] = len({token.row for s in steps[: step.index + 1] for token in s.new_tokens})
        if begun[place] < len(RAGGED):
            assert len(step.rows) == rows


def test_the_budget_of_cache_columns_bounds_the_rows(engine):
    budget = 2 * max(needed(request) for request in engine.requests(*map(list, zip(*RAGGED, strict=True))))
    steps = run(engine, RAGGED, "continuous", batching=Batching(rows=5, cache_tokens=budget)).steps
    token_bytes = engine.describe().kv_bytes_per_token
    assert 1 < max(len(step.rows) for step in steps) < 5
    assert max(step.kv_bytes for step in steps) <= (budget + 5 * slots.SLACK_COLUMNS) * token_bytes


def test_a_long_prompt_is_read_in_chunks_between_the_steps_of_others(engine):
    steps = run(engine, RAGGED, "continuous", batching=Batching(rows=2, chunk_tokens=16)).steps
    long = [step for step in steps if step.phase == "prefill" and step.rows == (1,)]
    assert [step.processed_tokens for step in long] == [16] * 5
    between = [step for step in steps[long[0].index : long[-1].index] if step.phase == "decode"]
    assert [step.rows for step in between] == [(0,)] * 4


def test_bytes_return_to_the_start(engine):
    prefixes = PrefixCache(10**8)
    run(engine, RAGGED, "continuous", prefixes=prefixes)
    before = prefixes.used_bytes
    for _ in range(3):
        run(engine, RAGGED, "continuous", prefixes=prefixes)
        assert prefixes.used_bytes == before


def test_only_the_last_token_of_a_known_prompt_is_read_again(engine):
    prefixes = PrefixCache(10**8)
    for fed in (80, 1):
        steps = run(engine, [(SHARED[:80], PLAIN)], "kv_cache", prefixes=prefixes).steps
        assert steps[0].processed_tokens == fed
        assert steps[0].reused_tokens == 80 - fed


def test_the_text_used_least_lately_goes_first():
    def text(bytes: int) -> KVCache:
        cache = KVCache()
        cache._layers = [(torch.zeros(bytes, dtype=torch.int8), torch.zeros(0))]
        return cache

    prefixes = PrefixCache(30)
    prefixes.keep([1, 2, 3], text(10))
    prefixes.keep([4, 5, 6], text(10))
    prefixes.keep([7, 8, 9], text(10))
    assert prefixes.longest([1, 2, 5])[0] == 2
    prefixes.keep([10, 11], text(10))
    assert prefixes.longest([4, 5, 6, 7])[0] == 0
    assert [prefixes.longest([*start, 0])[0] for start in ([1, 2, 3], [7, 8, 9], [10, 11])] == [3, 3, 2]
    prefixes.keep([7, 8, 9, 10], text(10))  # goes on from one that is there
    assert (len(prefixes), prefixes.used_bytes) == (3, 30)
    prefixes.keep([0], text(31))
    assert len(prefixes) == 3


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [((), (1,), 0), ((1, 2), (1, 2, 3), 2), ((1, 2, 3), (1, 5, 3), 1), ((2,), (1,), 0)],
)
def test_shared(first, second, both):
    assert shared(first, second) == both


def join_without_keys(_):
    return lambda cache, place, other: None


def forget_nothing(_):
    def shift(cache, columns):
        cache.columns -= columns

    return shift


def one_too_many(longest):
    def found(prefixes, ids, scope):
        length, cache = longest(prefixes, ids, scope)
        return min(length + 1, cache.columns if cache else 0, len(ids) - 1), cache

    return found


@pytest.mark.parametrize(
    ("owner", "name", "fault", "mode"),
    [
        (KVCache, "join", join_without_keys, "continuous"),
        (KVCache, "shift", forget_nothing, "continuous"),
        (PrefixCache, "longest", one_too_many, "kv_cache"),
    ],
)
def test_planted_faults_are_seen(engine, monkeypatch, owner, name, fault, mode):
    schedule = [([*prompt, row, 1, 2, 1, 2, 1], own) for row, (prompt, own) in enumerate(RAGGED)]
    solo = ended(run(engine, schedule, "kv_cache"))
    monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
    options = dict(batching=Batching(rows=2), prefixes=PrefixCache(10**8))
    try:
        seen = any(ended(run(engine, schedule, mode, **options)) != solo for _ in range(2))
    except (RuntimeError, AssertionError):
        seen = True  # the engine itself noticed
    assert seen
