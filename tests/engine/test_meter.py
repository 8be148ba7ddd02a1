"""Memory figures (case D4): the formula, the real tensors, the peak of one run alone, nothing kept."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from transformers import GPT2Config, LlamaConfig

from checks import planted
from conftest import Letters, make_gpt2, make_llama
from fakes import FakeModel, spec
from kshipra import machine
from kshipra.costs import kv_bytes_per_token
from kshipra.engine import meter
from kshipra.engine.cache import GROWTH_COLUMNS, KVCache
from kshipra.engine.layout import HONEST, Layout
from kshipra.engine.meter import MemoryMeter
from kshipra.engine.runner import Engine
from kshipra.models.loading import describe
from kshipra.types import RunResult, SamplingParams

MIB = 2**20
GPT2_SMALL = spec(layers=12, heads=12, kv_heads=12, head_size=64, dtype_bytes=4)
SMOLLM2 = spec(layers=30, heads=9, kv_heads=3, head_size=64, dtype_bytes=4)


# The formula


def test_bytes_per_token_are_those_of_the_published_shapes():
    assert kv_bytes_per_token(GPT2_SMALL) == 72 * 1024
    assert kv_bytes_per_token(SMOLLM2) == 45 * 1024  # 135 KiB would be of the query heads
    assert 250 * kv_bytes_per_token(GPT2_SMALL) / MIB == pytest.approx(17.6, abs=0.05)
    half = spec(layers=30, heads=9, kv_heads=3, head_size=64, dtype_bytes=2)
    assert kv_bytes_per_token(half) == 45 * 1024 // 2


def test_the_shape_comes_from_the_config():
    assert kv_bytes_per_token(describe(GPT2Config(), "gpt2", torch.float32)) == 72 * 1024
    shape = dict(num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, hidden_size=576)
    assert kv_bytes_per_token(describe(LlamaConfig(**shape), "smollm2", torch.float32)) == 45 * 1024
    assert kv_bytes_per_token(describe(LlamaConfig(**shape), "smollm2", torch.bfloat16)) == 45 * 512
    wide = describe(LlamaConfig(**shape, head_dim=100), "wide", torch.float32)
    assert kv_bytes_per_token(wide) == 2 * 30 * 3 * 100 * 4  # a head's size need not be width / heads


# The real tensors


@pytest.fixture
def caches() -> tuple[list[KVCache], Layout]:
    """A layout, and all caches that runs under it make."""
    made: list[KVCache] = []

    class Noted(KVCache):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    return made, HONEST._replace(cache=Noted)


@pytest.mark.parametrize("implementation", ["native", "transformers"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("make", [make_gpt2, make_llama])
def test_kv_bytes_are_the_formula_and_the_tensors(caches, make, dtype, implementation):
    made, layout = caches
    engine = planted(Engine(make().to(dtype), Letters(), implementation=implementation), layout)
    for rows in (1, 4):
        prompts = [list(range(1, 91 + row)) for row in range(rows)]
        steps = []
        for event in engine.stream(prompts, mode="static_batch", params=SamplingParams(60, ignore_eos=True)):
            columns = event.index + 90 + rows - 1
            tensors = [tensor for layer in made[-1]._layers for tensor in layer]
            assert event.kv_bytes == kv_bytes_per_token(engine.model.spec) * columns * rows
            assert event.kv_bytes == sum(tensor[:, :, :columns].nbytes for tensor in tensors)
            assert event.kv_held_bytes == sum(tensor.untyped_storage().nbytes() for tensor in tensors)
            assert (
                0
                <= event.kv_held_bytes - event.kv_bytes
                < kv_bytes_per_token(engine.model.spec) * rows * GROWTH_COLUMNS
            )
            steps.append(event)
        assert len(steps) == 60  # past a growth of the cache


def test_a_run_reports_the_most_that_its_cache_took():
    engine = Engine(make_gpt2(), Letters())
    per_token = kv_bytes_per_token(engine.model.spec)
    result = engine.generate([[1] * 9, [1] * 4], mode="kv_cache", params=SamplingParams(6))
    assert result.kv_bytes == per_token * (9 + 5)  # one row at a time; the last id is never fed
    assert result.kv_held_bytes == per_token * GROWTH_COLUMNS
    bare = engine.generate([[1] * 9], mode="no_cache", params=SamplingParams(6))
    assert (bare.kv_bytes, bare.kv_held_bytes) == (0, 0)


# The peak


class Hungry(FakeModel):
    """Takes `take_bytes` of memory within a pass and gives it back."""

    take_bytes = 0

    def forward(self, ids, positions, mask, cache, keep):
        room = torch.ones(self.take_bytes, dtype=torch.uint8)
        del room
        return super().forward(ids, positions, mask, cache, keep)


def hungry_run(engine: Engine, take_bytes: int) -> RunResult:
    engine.model.take_bytes = take_bytes
    return engine.generate([[1]], params=SamplingParams(3))


def test_a_small_run_behind_a_big_one_has_a_small_peak():
    engine = Engine(Hungry([5]), Letters())
    big, small = hungry_run(engine, 200 * MIB), hungry_run(engine, 1 * MIB)
    if big.memory_method.startswith(
        "kernel"
    ):  # samples after a pass cannot see what was given back within it
        assert 190 * MIB <= big.peak_extra_bytes <= 230 * MIB
    assert small.peak_extra_bytes < 20 * MIB
    assert big.steps[0].resident_bytes == pytest.approx(small.steps[0].resident_bytes, abs=50 * MIB)


def test_the_method_is_named_and_on_linux_it_is_the_kernels(monkeypatch, tmp_path):
    cpu = torch.device("cpu")
    assert MemoryMeter(cpu).method in (
        "kernel's resident high-water mark",
        "resident memory, sampled after each pass",
    )
    monkeypatch.setattr(meter, "CLEAR_REFS", tmp_path / "none" / "clear_refs")  # a system without it
    sampled = MemoryMeter(cpu)
    assert sampled.method == "resident memory, sampled after each pass"
    held = torch.ones(60 * MIB, dtype=torch.uint8)
    now, peak = sampled.read()
    assert peak >= 55 * MIB
    del held
    machine.release_free_memory()
    assert sampled.read()[1] == peak  # the highest so far
    assert sampled.read()[0] < now - 50 * MIB
    assert MemoryMeter(cpu).read()[1] < 20 * MIB  # of a new run


def test_the_method_is_sampled_where_the_kernel_shows_no_mark(monkeypatch, tmp_path):
    (tmp_path / "clear_refs").touch()
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t100 kB\n")
    monkeypatch.setattr(meter, "CLEAR_REFS", tmp_path / "clear_refs")
    monkeypatch.setattr(meter, "STATUS", tmp_path / "status")
    assert MemoryMeter(torch.device("cpu")).method == "resident memory, sampled after each pass"


def test_the_kernels_figure_is_in_kilobytes(monkeypatch, tmp_path):
    (tmp_path / "status").write_text("VmPeak:\t9 kB\nVmHWM:\t   1000 kB\nVmRSS:\t 7 kB\n")
    monkeypatch.setattr(meter, "STATUS", tmp_path / "status")
    monkeypatch.setattr(meter, "CLEAR_REFS", tmp_path / "clear_refs")
    watched = MemoryMeter(torch.device("cpu"))
    assert watched.baseline_bytes == 1_024_000
    (tmp_path / "status").write_text("VmHWM:\t1500 kB\n")
    assert watched.read()[1] == 512_000
    assert (tmp_path / "clear_refs").read_text() == "5"


def test_events_carry_resident_bytes_and_a_peak_that_never_falls():
    result = Engine(make_gpt2(), Letters()).generate([[1, 2]], params=SamplingParams(20))
    peaks = [event.peak_extra_bytes for event in result.steps]
    assert peaks == sorted(peaks)
    assert result.peak_extra_bytes == peaks[-1]
    assert all(event.resident_bytes > 50 * MIB for event in result.steps)
    assert result.steps[-1].resident_bytes == pytest.approx(machine.resident_bytes(), rel=0.2)


# Nothing stays


def settled_bytes() -> int:
    gc.collect()
    machine.release_free_memory()
    return machine.resident_bytes()


def test_memory_does_not_grow_with_runs_nor_with_cancelled_ones():
    engine = Engine(FakeModel([5], prompt_tokens=500, head_size=1024), Letters())
    params, prompts = SamplingParams(4), [[1] * 500] * 2
    for _ in range(2):
        whole = engine.generate(prompts, mode="static_batch", params=params)
    assert whole.kv_held_bytes >= 8 * MIB  # three of them would show
    before = settled_bytes()
    for _ in range(10):
        engine.generate(prompts, mode="static_batch", params=params)
    assert settled_bytes() - before < 20 * MIB
    for count in range(10):
        events = engine.stream(prompts, mode="static_batch", params=params)
        next(events)  # and nobody asks for the rest
        asked = iter(range(99))
        cut = engine.generate(prompts, params=params, stopped=lambda a=asked, n=count: next(a) >= n % 3)
        assert cut.rows[1].finish_reason == "cancelled"
    del events
    assert settled_bytes() - before < 20 * MIB


@pytest.mark.parametrize("ending", ["end", "stopped", "dropped", "failed"])
def test_the_cache_goes_with_its_run(caches, ending):
    def fail(number: int) -> None:
        if ending == "failed" and number == 5:  # two passes of warm-up, then the run's third
            raise RuntimeError("out of memory")

    made, layout = caches
    engine = planted(Engine(FakeModel([5], during=fail), Letters()), layout)
    events = engine.stream(
        [[1]], params=SamplingParams(9), stopped=lambda: ending == "stopped" and len(seen) > 3
    )
    seen = []
    try:
        for event in events:
            seen.append(event)
            if ending == "dropped":
                break
    except RuntimeError:
        assert ending == "failed"
    assert len(seen) == {"end": 9, "stopped": 4, "dropped": 1, "failed": 2}[ending]
    events.close()
    left = weakref.ref(made.pop())
    made.clear()
    gc.collect()
    assert left() is None
