"""transformers' own generate as a way of ours: the same ids and events, ended by us, in a thread that never
outlives its run."""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from transformers import GenerationConfig, MistralConfig, MistralForCausalLM

from checks import RAGGED, greedy_ids
from conftest import SMALL, Letters, loud, make_gpt2
from kshipra.engine.runner import Engine
from kshipra.errors import InputError
from kshipra.types import RunResult, SamplingParams, StepEvent

MODE = "transformers_generate"


@pytest.fixture
def peer(reference) -> Engine:
    return Engine(reference, Letters(), implementation="transformers")


def lasting(event: StepEvent) -> StepEvent:
    """`event` without what differs from run to run: times, memory, and how much room a cache has."""
    tokens = tuple(
        dataclasses.replace(token, log_probability=round(token.log_probability, 3), best=token.best[:0])
        for token in event.new_tokens
    )
    measured = dict(elapsed_s=0, at_s=0, kv_held_bytes=0, resident_bytes=0, peak_extra_bytes=0)
    return dataclasses.replace(event, new_tokens=tokens, **measured)


def both(engine: Engine, peer: Engine, params: SamplingParams | list[SamplingParams]) -> list[RunResult]:
    return [
        engine.generate(RAGGED, mode="kv_cache", params=params),
        peer.generate(RAGGED, mode=MODE, params=params),
    ]


def no_thread_is_left() -> bool:
    return not any(thread.name == "kshipra-generate" for thread in threading.enumerate())


@contextmanager
def watched(peer: Engine, during: Callable[[int], None]) -> Iterator[None]:
    """`during(pass number)` at the end of each of the model's passes, its warm-up over."""
    peer.generate([[1, 2]], mode=MODE, params=SamplingParams(1))
    passes = iter(range(1, 1000))
    hook = peer.model.model.register_forward_hook(lambda *_: during(next(passes)))
    try:
        yield
    finally:
        hook.remove()


def test_ids_and_events_are_those_of_the_cached_mode(engine, peer):
    ours, theirs = both(engine, peer, SamplingParams(24, ignore_eos=True))
    assert [lasting(step) for step in theirs.steps] == [lasting(step) for step in ours.steps]
    assert [step.phase for step in theirs.steps[:25]] == ["prefill"] + ["decode"] * 23 + ["prefill"]
    assert all(step.kv_held_bytes == step.kv_bytes > 0 for step in theirs.steps)
    assert theirs.rows == tuple(
        dataclasses.replace(row, ttft_s=own.ttft_s) for row, own in zip(ours.rows, theirs.rows, strict=True)
    )
    assert no_thread_is_left()


def test_rows_end_as_everywhere_by_text_by_token_by_length(engine, peer):
    solo = greedy_ids(engine, RAGGED, "no_cache")
    end = next(id for id in solo[1][3:] if id not in solo[1][:3] + solo[0] + solo[2])
    text = Letters().decode(solo[0])
    stop = next(text[at : at + 3] for at in range(5, 20) if text.find(text[at : at + 3]) == at)
    params = [SamplingParams(24, stop=(stop,)), SamplingParams(24), SamplingParams(7)]
    eos = engine.model.eos_ids, peer.model.eos_ids
    try:
        engine.model.eos_ids = peer.model.eos_ids = frozenset({end})
        ours, theirs = both(engine, peer, params)
        ignored = both(engine, peer, SamplingParams(24, ignore_eos=True))[1]
    finally:
        engine.model.eos_ids, peer.model.eos_ids = eos
    assert [row.finish_reason for row in theirs.rows] == ["stop", "stop", "length"]
    assert [lasting(step) for step in theirs.steps] == [lasting(step) for step in ours.steps]
    assert stop not in theirs.rows[0].text
    assert 5 < theirs.rows[0].new_tokens < 24
    assert theirs.rows[1].token_ids[-1] == end
    assert [row.token_ids for row in ignored.rows] == solo


def test_a_full_context_and_a_penalty_are_kept(engine, peer):
    prompt = [list(range(100, 350))]
    assert peer.generate(prompt, mode=MODE, params=SamplingParams(20)).rows[0].finish_reason == "context"
    assert greedy_ids(peer, prompt, MODE) == greedy_ids(engine, prompt, "kv_cache")
    ours, theirs = both(engine, peer, SamplingParams(24, repetition_penalty=1.5))
    assert [row.token_ids for row in theirs.rows] == [row.token_ids for row in ours.rows]
    assert theirs.rows[0].token_ids != greedy_ids(engine, RAGGED, "kv_cache")[0]


def test_what_the_model_would_do_of_its_own_accord_does_not_count():
    """End ids and penalties of its generation config are neither ours nor lost."""
    model = make_gpt2()
    plain = greedy_ids(Engine(model, Letters()), RAGGED, "kv_cache")
    brought = GenerationConfig(eos_token_id=[plain[0][4]], repetition_penalty=3.0, no_repeat_ngram_size=2)
    model.generation_config = brought
    peer = Engine(model, Letters(), implementation="transformers")
    assert greedy_ids(peer, RAGGED, MODE) == plain
    assert model.generation_config is brought


def test_a_sliding_window_holds_what_transformers_holds():
    mistral = loud(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=8)))
    engine = Engine(mistral, Letters())
    assert greedy_ids(engine, RAGGED, MODE) == greedy_ids(engine, RAGGED, "no_cache")
    result = engine.generate(RAGGED, mode=MODE, params=SamplingParams(24, ignore_eos=True))
    column = 2 * 2 * 2 * 8 * 8  # K and V, layers, groups, head size, bytes
    assert result.kv_bytes <= 30 * column < (30 + 22) * column


def test_stop_ends_it_within_a_token_and_leaves_no_thread(peer):
    seen: list[int] = []
    with watched(peer, seen.append):
        asked = iter([False] * 3)
        result = peer.generate(
            RAGGED, mode=MODE, params=SamplingParams(24), stopped=lambda: next(asked, True)
        )
        assert [row.finish_reason for row in result.rows] == ["cancelled"] * 3
        assert (result.forward_passes, seen[-1]) == (3, 3)
        assert no_thread_is_left()
        abandoned = peer.stream(RAGGED, mode=MODE, params=SamplingParams(24))
        next(abandoned)
        assert not no_thread_is_left()  # it waits
        abandoned.close()
        assert no_thread_is_left()
        assert seen[-1] == 4
    before = greedy_ids(peer, RAGGED, MODE)
    assert before == greedy_ids(peer, RAGGED, "kv_cache")


def test_an_error_in_the_thread_reaches_whoever_waits(peer):
    def fail(number: int) -> None:
        if number == 5:
            raise MemoryError("boom")

    with watched(peer, fail):
        events = peer.stream(RAGGED, mode=MODE, params=SamplingParams(24, ignore_eos=True))
        assert [next(events).index for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(MemoryError, match="boom"):
            next(events)
        assert no_thread_is_left()
    assert greedy_ids(peer, RAGGED, MODE) == greedy_ids(peer, RAGGED, "kv_cache")


def test_an_error_of_whoever_consumes_ends_the_thread(peer):
    def look(row: int, place: int, logits: torch.Tensor) -> None:
        raise KeyError(place)

    requests = peer.requests(RAGGED, SamplingParams(24))
    with pytest.raises(KeyError):
        list(peer.run(requests, mode=MODE, observe=look))
    assert no_thread_is_left()


def test_the_thread_computes_as_the_run_does(peer):
    found: set[tuple] = set()

    def look(_: int) -> None:
        name = threading.current_thread().name
        found.add((name, torch.is_inference_mode_enabled(), torch.get_num_threads()))

    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with watched(peer, look):
            greedy_ids(peer, RAGGED[:1], MODE, 3)
    finally:
        torch.set_num_threads(threads)
    assert found == {("kshipra-generate", True, 3)}


def test_a_tokens_time_is_its_own(peer):
    """From being let go to the id: what the model takes is in it, what a consumer takes is not."""
    with watched(peer, lambda _: time.sleep(0.02)):
        events = peer.stream(RAGGED[:1], mode=MODE, params=SamplingParams(4, ignore_eos=True))
        steps = []
        for event in events:
            steps.append(event)
            time.sleep(0.3)
    assert all(0.02 <= step.elapsed_s < 0.3 for step in steps)
    assert sum(step.elapsed_s for step in steps) <= steps[-1].at_s < 0.9


def test_an_observer_is_shown_the_models_own_logits(engine, peer):
    def logits(of: Engine, mode: str) -> dict:
        found = {}
        requests = of.requests(RAGGED, SamplingParams(4, repetition_penalty=1.5, ignore_eos=True))

        def look(row: int, place: int, own: torch.Tensor) -> None:
            found[row, place] = own.clone()

        list(of.run(requests, mode=mode, observe=look))
        return found

    ours, theirs = logits(engine, "kv_cache"), logits(peer, MODE)
    assert list(ours) == list(theirs)
    for place, own in ours.items():
        assert theirs[place].dtype == own.dtype
        assert torch.allclose(theirs[place], own, atol=1e-4)


def test_what_it_cannot_do_is_one_sentence_before_the_first_event(engine, peer):
    with pytest.raises(InputError, match="choose temperature 0"):
        peer.stream(RAGGED, mode=MODE, params=SamplingParams(4, temperature=0.5))
    with pytest.raises(InputError, match="--implementation transformers"):
        engine.stream(RAGGED, mode=MODE)
    none = copy.copy(peer).generate(RAGGED, mode=MODE, params=SamplingParams(0))
    assert [row.finish_reason for row in none.rows] == ["length"] * 3
