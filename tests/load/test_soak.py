"""The soak in short; `make soak` runs it in full. What stays of a request must be seen by it."""

from __future__ import annotations

import pytest

from conftest import Letters, make_llama
from kshipra.engine import job, slots
from kshipra.engine.cache import KVCache
from kshipra.engine.runner import Engine
from kshipra.types import SamplingParams
from load.soak_continuous import soak


def test_nothing_stays_of_three_hundred_requests():
    found = soak(300)
    assert list(found.faults()) == []
    assert found.compared == 3
    assert len(found.cancelled) > 2
    assert found.reused_tokens > 500
    assert found.tokens > 1000


def keep_every_row(monkeypatch) -> None:
    monkeypatch.setattr(job, "WeakValueDictionary", dict)


def keep_every_cache(monkeypatch) -> None:
    kept = []
    join = KVCache.join
    monkeypatch.setattr(
        KVCache, "join", lambda own, place, other: (kept.append(other), join(own, place, other))
    )


def never_drop_columns(monkeypatch) -> None:
    monkeypatch.setattr(slots, "SLACK_COLUMNS", 10**9)


def test_a_run_that_somebody_else_left_is_not_counted():
    engine = Engine(make_llama(), Letters())
    theirs = engine.run(engine.requests([[1, 2, 3]] * 40, [SamplingParams(4)] * 40), mode="static_batch")
    next(theirs)
    assert list(soak(200).faults()) == []
    theirs.close()


@pytest.mark.parametrize("plant", [keep_every_row, keep_every_cache, never_drop_columns])
def test_what_stays_is_seen(monkeypatch, plant):
    plant(monkeypatch)
    assert list(soak(250).faults())
