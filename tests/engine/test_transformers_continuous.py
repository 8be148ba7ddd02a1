"""transformers' continuous batching as a way of ours: the same ids, ended by the same rules, and nothing
of it left."""

from __future__ import annotations

import threading

import pytest

from conftest import Letters, make_gpt2, make_llama
from kshipra import metrics
from kshipra.engine.runner import Engine
from kshipra.errors import InputError, ModelError
from kshipra.types import Batching, RunResult, SamplingParams

MODE = "transformers_continuous"
PROMPTS = [[(37 * place + 11 * row) % 1000 for place in range(3 + 9 * row % 40)] for row in range(9)]
PARAMS = [SamplingParams(2 + 5 * row % 17, ignore_eos=row % 2 == 0) for row in range(9)]


@pytest.fixture(params=[make_gpt2, make_llama])
def both(request) -> tuple[Engine, Engine]:
    """Ours, and the peer on the same weights, for which an id that comes up ends a row."""
    made = request.param
    ours, peer = Engine(made(), Letters()), Engine(made(), Letters(), implementation="transformers")
    end = ours.generate(PROMPTS[1:2], params=SamplingParams(9)).rows[0].token_ids[2]
    ours.model.eos_ids = peer.model.eos_ids = frozenset({end})
    return ours, peer


def run(engine: Engine, mode: str) -> RunResult:
    requests = engine.requests(PROMPTS, PARAMS)
    return metrics.fold(mode, requests, engine.run(requests, mode=mode, batching=Batching(rows=3)))


def test_rows_are_those_of_continuous_batching(both):
    ours, theirs = (run(engine, mode) for engine, mode in zip(both, ("continuous", MODE), strict=True))
    assert "stop" in {row.finish_reason for row in ours.rows}
    for own, other in zip(ours.rows, theirs.rows, strict=True):
        assert (own.token_ids, own.text, own.finish_reason) == (
            other.token_ids,
            other.text,
            other.finish_reason,
        )
    assert max(len(step.rows) for step in theirs.steps) == 3
    assert sum(step.processed_tokens for step in theirs.steps) == sum(
        step.processed_tokens for step in ours.steps
    )
    times_s = [step.at_s for step in theirs.steps]
    assert times_s == sorted(times_s)
    assert all(step.elapsed_s > 0 for step in theirs.steps)
    assert theirs.steps[0].phase == "prefill"
    assert theirs.kv_held_bytes == 3 * 256 * both[1].describe().kv_bytes_per_token


def test_nothing_of_it_is_left(both):
    _, peer = both
    before = set(threading.enumerate())
    model = peer.model.model
    run(peer, MODE)
    assert set(threading.enumerate()) <= before
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert model.config._attn_implementation == "sdpa"


def test_what_it_would_do_otherwise_is_refused(both):
    ours, peer = both
    for params in (
        SamplingParams(2, temperature=1.0),
        SamplingParams(2, stop=("a",)),
        SamplingParams(2, repetition_penalty=1.2),
    ):
        with pytest.raises(InputError, match="compared greedy only"):
            peer.generate([[1, 2]], mode=MODE, params=params)
    with pytest.raises(InputError, match="--implementation transformers"):
        ours.generate([[1, 2]], mode=MODE)


def test_a_library_that_gives_up_is_one_sentence(both):
    _, peer = both
    run(peer, MODE)

    def fail(*_):
        raise ValueError("no such page")

    hook = peer.model.model.register_forward_pre_hook(fail)
    try:
        with pytest.raises(ModelError, match="no such page"):
            run(peer, MODE)
    finally:
        hook.remove()
