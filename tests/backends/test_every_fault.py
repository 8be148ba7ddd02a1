"""A fault at every pass of a run in turn: the run ends with one sentence and what it had, and the next one is
as if nothing had been."""

from __future__ import annotations

import time

import pytest
from model_folders import is_one_sentence

from conftest import Letters, make_gpt2
from kshipra.backends.local import LocalBackend
from kshipra.engine import roofline, runner
from kshipra.engine.runner import Engine
from kshipra.types import Ended, Failed, Finished, ModelChoice, Plan, Roofline, SamplingParams, Stepped

WAYS = ("no_cache", "kv_cache", "static_batch", "continuous", "speculative")
PLAN = Plan(ModelChoice("tiny"), ("abcabcab", "xy"), WAYS, SamplingParams(4))


class Faulty:
    """A model whose pass number `at` raises `error`."""

    def __init__(self, model) -> None:
        self._model, self.passes, self.at, self.error = model, 0, None, None

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, *arguments):
        self.passes += 1
        if self.passes == self.at:
            raise self.error
        return self._model.forward(*arguments)


@pytest.fixture
def served(monkeypatch):
    engine = Engine(make_gpt2(), Letters())
    engine.model = model = Faulty(engine.model)
    monkeypatch.setattr(runner, "load", lambda *_, **__: engine)
    speed = Roofline("cpu", "float32", 2, 1e10, 1e11, "2026-01-01T00:00:00+00:00")
    monkeypatch.setattr(roofline, "cached_roofline", lambda *_, **__: speed)
    backend = LocalBackend()
    yield backend, model
    backend.close()


def messages_of(backend: LocalBackend) -> list:
    run, found, end_s = backend.submit(PLAN), [], time.monotonic() + 30
    while not (found and isinstance(found[-1], Ended)):
        assert time.monotonic() < end_s
        found += run.messages(0.1)
    return found


def ids(messages: list) -> dict[str, list[tuple[int, ...]]]:
    return {m.recipe: [row.token_ids for row in m.result.rows] for m in messages if isinstance(m, Finished)}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("a kernel broke at /home/me"), "in Kshipra itself"),
        (MemoryError(), "more memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "more memory"),
    ],
)
def test_a_fault_in_any_pass_costs_that_run_alone(served, error, said):
    backend, model = served
    messages_of(backend)  # warm: later runs take the same passes
    model.passes = 0
    healthy = ids(messages_of(backend))
    passes, model.error = model.passes, error
    assert list(healthy) == list(WAYS)
    for at in range(1, passes + 1):
        model.passes, model.at = 0, at
        messages = messages_of(backend)
        (failed,) = [message for message in messages if isinstance(message, Failed)]
        assert said in failed.sentence
        assert is_one_sentence(failed.sentence)
        assert "/home" not in failed.sentence
        if failed.result is not None:  # in the middle of a way: what there was is kept, and is right
            stepped = [m for m in messages if isinstance(m, Stepped) and m.recipe == failed.recipe]
            assert len(failed.result.steps) == len(stepped)
            for row, whole in zip(failed.result.rows, healthy[failed.recipe], strict=True):
                assert row.token_ids == whole[: row.new_tokens]
        assert all(rows == healthy[way] for way, rows in ids(messages).items())
        model.at = None
        if at % 5 == 0 or at == passes:
            assert ids(messages_of(backend)) == healthy
