"""What a plan takes of memory, before its model is fetched or loaded."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from model_folders import is_one_sentence, write_gpt2
from test_local import collect

from kshipra import memory
from kshipra.__main__ import main
from kshipra.backends.local import LocalBackend
from kshipra.engine import devices, runner
from kshipra.errors import DoesNotFit, ModelError
from kshipra.models import loading
from kshipra.models.catalogue import ENTRIES
from kshipra.models.outlook import shape_of
from kshipra.types import Failed, Finished, Loading, Message, ModelChoice, Plan, Ready, SamplingParams

GIB = 2**30
PLAN = Plan(
    ModelChoice("gpt2", device="cpu"), ("a b c", "d"), ("kv_cache", "static_batch"), SamplingParams(20)
)


@pytest.fixture
def backend(monkeypatch):
    """One where 4 GiB are free, and nothing may be loaded unless it is a folder."""
    monkeypatch.setattr(devices, "free_bytes", lambda _: 4 * GIB)
    one = LocalBackend()
    yield one
    one.close()


def all_of(run) -> list[Message]:
    return collect(run, limit_s=60.0)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_model_of_the_catalogue_has_a_shape_that_accounts_for_its_weights(entry):
    spec = shape_of(entry.name.upper(), torch.float32)
    per_layer = {"gpt2": 12 * spec.width**2, "llama": 3 * spec.width * 1536 + 2 * spec.width**2 * 4 // 3}
    counted = spec.vocabulary * spec.width + spec.layers * per_layer[spec.family]
    assert 0.98 < counted / spec.parameters < 1.0
    assert spec.parameters == entry.parameters


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_model_of_the_catalogue_is_estimated_and_refused_without_being_touched(backend, monkeypatch, entry):
    monkeypatch.setattr(loading, "locate", lambda *_, **__: pytest.fail("it was looked for"))
    plan = dataclasses.replace(PLAN, choice=ModelChoice(entry.name, device="cpu"))
    found = backend.estimate(plan)
    found.check()
    assert not found.is_loaded
    assert found.weight_bytes == int(1.25 * 4 * entry.parameters)
    monkeypatch.setattr(devices, "free_bytes", lambda _: found.weight_bytes - 1)
    with pytest.raises(ModelError, match="choose a smaller model") as refused:
        backend.estimate(plan).check()
    assert is_one_sentence(str(refused.value))
    monkeypatch.setattr(devices, "free_bytes", lambda _: found.needed_bytes - 1)
    with pytest.raises(DoesNotFit, match="lower Max new tokens or Rows at once") as refused:
        backend.estimate(plan).check()
    assert is_one_sentence(str(refused.value))


@pytest.mark.parametrize("draft", [None, "distilgpt2"])
def test_a_run_that_the_estimate_refuses_is_refused_before_its_model_is_looked_for(
    backend, monkeypatch, capsys, draft
):
    """The page's Run, a program's call and the shell: one sentence, whoever asks."""
    monkeypatch.setattr(loading, "locate", lambda *_, **__: pytest.fail("it was looked for"))
    params = SamplingParams(900)
    plan = dataclasses.replace(
        PLAN, choice=dataclasses.replace(PLAN.choice, draft=draft), recipes=("static_batch",), params=params
    )
    found = backend.estimate(plan)
    for module in (devices, runner):
        monkeypatch.setattr(module, "free_bytes", lambda _: found.needed_bytes - 1)
    with pytest.raises(DoesNotFit) as refused:
        backend.estimate(plan).check()
    (failed,) = [message for message in all_of(backend.submit(plan)) if isinstance(message, Failed)]
    assert failed.sentence == str(refused.value)
    assert backend.model() is None  # it says nothing of a model, and others see the header
    if draft is None:
        options = ("--mode", "static_batch", "--model", "gpt2", "--device", "cpu")
        assert main(("generate", *plan.prompts, "--max-new-tokens", "900", *options)) == 2
        assert failed.sentence in capsys.readouterr().err
    for module in (devices, runner):
        monkeypatch.setattr(module, "free_bytes", lambda _: found.needed_bytes)
    monkeypatch.setattr(loading, "locate", lambda *_, **__: 1 / 0)
    told = all_of(backend.submit(plan))
    assert "Kshipra itself" in next(message for message in told if isinstance(message, Failed)).sentence


def test_bench_is_refused_before_a_load_too(monkeypatch, capsys):
    monkeypatch.setattr(loading, "locate", lambda *_, **__: pytest.fail("it was looked for"))
    monkeypatch.setattr(runner, "free_bytes", lambda _: GIB)
    assert (
        main(("bench", "--model", "gpt2", "--rows", "16", "--prompt-tokens", "900", "--device", "cpu")) == 2
    )
    assert "16 prompts at once with all new tokens and the weights of gpt2 may" in capsys.readouterr().err


def test_keys_and_values_go_by_the_rows_and_the_context_of_the_form(backend):
    def bytes_of(**changes) -> int:
        return backend.estimate(dataclasses.replace(PLAN, **changes)).run_bytes

    one, both = bytes_of(recipes=("kv_cache",)), bytes_of()
    assert both == pytest.approx(2 * one, abs=1)
    assert bytes_of(rows=1) == one
    assert bytes_of(params=SamplingParams(2_000)) == bytes_of(params=SamplingParams(1_500))  # the context
    assert bytes_of(limits=(None, 500)) > both
    assert bytes_of(prompts=("word " * 100, "d")) > both
    per_token = 2 * 12 * 768 * 4
    activations = memory.VECTORS * 2 * 768 * 4
    assert one == int(1.25 * (memory.GROWTH * per_token * 22 + activations))


def test_a_model_that_guesses_counts_too(backend):
    choice = dataclasses.replace(PLAN.choice, draft="distilgpt2")
    alone, both = backend.estimate(PLAN), backend.estimate(dataclasses.replace(PLAN, choice=choice))
    assert both.parameters == 124_439_808 + 81_912_576
    assert both.run_bytes == pytest.approx(1.5 * alone.run_bytes, rel=0.02)  # it has half the layers


def test_what_is_loaded_needs_no_weights(backend, tmp_path):
    write_gpt2(tmp_path / "tiny")
    choice = ModelChoice(str(tmp_path / "tiny"), device="cpu")
    plan = dataclasses.replace(PLAN, choice=choice)
    before = backend.estimate(plan)
    assert not before.is_loaded
    all_of(backend.preload(choice))
    after = backend.estimate(plan)
    assert after.is_loaded
    assert (after.weight_bytes, after.run_bytes) == (0, before.run_bytes)
    assert backend.estimate(PLAN).is_loaded is False


def test_a_draft_that_is_there_and_not_asked_for_changes_nothing(backend, tmp_path):
    write_gpt2(tmp_path / "tiny")
    choice = ModelChoice(str(tmp_path / "tiny"), device="cpu")
    both = dataclasses.replace(choice, draft=choice.model)
    all_of(backend.preload(both))
    alone, guessed = (backend.estimate(dataclasses.replace(PLAN, choice=each)) for each in (choice, both))
    assert alone.is_loaded
    assert guessed.is_loaded
    assert guessed.run_bytes == pytest.approx(2 * alone.run_bytes, abs=2)


def test_a_form_that_asks_again_and_again_looks_a_model_up_once(backend, monkeypatch):
    looked = []
    known = shape_of("gpt2", torch.float32)
    monkeypatch.setattr("kshipra.models.outlook.shape_of", lambda *asked: looked.append(asked) or known)
    for most in (1, 2, 3):
        backend.estimate(dataclasses.replace(PLAN, params=SamplingParams(most)))
    backend.estimate(dataclasses.replace(PLAN, choice=ModelChoice("gpt2", device="cpu", dtype="bfloat16")))
    assert looked == [("gpt2", torch.float32), ("gpt2", torch.bfloat16)]


def test_the_same_engine_in_other_words_is_not_loaded_again(backend, tmp_path, monkeypatch):
    write_gpt2(tmp_path / "tiny")
    choice = ModelChoice(str(tmp_path / "tiny"))
    all_of(backend.preload(choice))
    monkeypatch.setattr(runner, "load", lambda *_, **__: pytest.fail("it was loaded again"))
    for words in ({"device": "cpu"}, {"dtype": "float32"}, {"device": "cpu", "dtype": "float32"}):
        plan = dataclasses.replace(PLAN, choice=dataclasses.replace(choice, **words))
        assert backend.estimate(plan).is_loaded
        told = all_of(backend.submit(plan))
        assert not any(isinstance(message, Loading) for message in told)
        assert sum(isinstance(message, Finished) for message in told) == 2
    told = all_of(
        backend.submit(dataclasses.replace(plan, choice=dataclasses.replace(choice, device="meta")))
    )
    (failed,) = [message for message in told if isinstance(message, Failed)]
    assert failed.sentence.endswith(", not 'meta'.")
    assert isinstance(backend.model(), Ready)
