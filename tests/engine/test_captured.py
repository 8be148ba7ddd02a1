"""The steps of a GPU's graphs, recorded on a CPU: torch.fx keeps the operations and the tensors of a pass and
nothing of its Python, as a CUDA graph does."""

import pytest
import torch
from test_compiled import PROMPTS, ids, last_logits, native
from torch.fx.experimental.proxy_tensor import make_fx

from conftest import Letters, make_gpt2, make_llama
from kshipra.engine.cache import KVCache
from kshipra.engine.captured import CapturedModel, capacity_of
from kshipra.engine.runner import Engine
from kshipra.errors import InputError

MODELS = pytest.mark.parametrize("make", [make_gpt2, make_llama])


def recorder(run, device):
    """What replays the operations of `run` into one tensor."""
    graph = make_fx(run)()
    written = run().clone()
    return lambda: written.copy_(graph()), written


def captured(reference) -> CapturedModel:
    return CapturedModel(native(reference), recorder=recorder)


@MODELS
@pytest.mark.parametrize("mode", ["static_batch", "continuous"])
def test_ids_are_those_of_eager_across_capacities(make, mode):
    """90 + 60 tokens go from the capacity of 128 to that of 256; rows leave and join."""
    reference = make()
    expected = ids(Engine(native(reference), Letters()), mode, 60)
    assert ids(Engine(captured(reference), Letters()), mode, 60) == expected


@MODELS
def test_logits_are_those_of_eager_and_survive_the_next_step(make):
    reference = make()
    pairs = zip(last_logits(captured(reference)), last_logits(native(reference)), strict=True)
    for ours, expected in pairs:
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_caches_that_take_turns_keep_what_is_theirs():
    reference = make_gpt2()
    model, eager = captured(reference), native(reference)
    text = torch.arange(3, 43)

    def steps(of):
        caches = [KVCache(), KVCache()]
        with torch.inference_mode():
            for start, cache in zip((0, 20), caches, strict=True):
                of.forward(text[None, start : start + 10], torch.arange(10)[None], None, cache, 1)
                cache.advance(10)
            for place in range(10, 20):
                for start, cache in zip((0, 20), caches, strict=True):
                    new = text[None, start + place : start + place + 1]
                    yield of.forward(new, torch.tensor([[place]]), None, cache, 1)
                    cache.advance(1)

    for ours, expected in zip(steps(model), steps(eager), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_a_run_records_before_its_clock_starts_and_the_next_one_nothing():
    recorded = []

    def counting(run, device):
        recorded.append(1)
        return recorder(run, device)

    model = CapturedModel(native(make_gpt2()), recorder=counting)
    engine = Engine(model, Letters())
    first = engine.run(engine.requests(PROMPTS), mode="static_batch")
    assert not recorded
    next(first)
    before = len(recorded)
    for _ in first:
        pass
    assert len(recorded) == before == 2  # that of the warm-up's one row, and four rows at one capacity
    assert engine.compile_s > 0
    ids(engine, "static_batch", 8)
    assert len(recorded) == before


def test_a_gpu_that_refuses_is_one_sentence():
    def refusing(run, device):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    engine = Engine(CapturedModel(native(make_gpt2()), recorder=refusing), Letters())
    with pytest.raises(InputError, match=r"cannot be recorded here \(.*capturing.*\); choose eager\.$"):
        engine.generate(PROMPTS)


def test_capacities_double():
    assert [capacity_of(n) for n in (1, 128, 129, 256, 257)] == [128, 128, 256, 256, 512]
