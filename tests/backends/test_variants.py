"""Recipes of other weights and executions: which engine each runs on, how long that is kept, and what one
that cannot be had costs the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from test_local import ROOFLINE, collect, of_kind, wait_for

from conftest import Letters, make_gpt2, make_llama
from fakes import FakeModel
from kshipra.backends.local import LocalBackend
from kshipra.engine import compiled, decode, roofline, runner, variants
from kshipra.engine.compiled import CompiledModel
from kshipra.engine.runner import Engine
from kshipra.engine.variants import moved, variant
from kshipra.errors import InputError, KshipraError
from kshipra.models.hf import TransformersModel
from kshipra.modes import mode_named
from kshipra.recipes import RECIPE_KEYS, RECIPES, USUAL_KEYS, recipe_named
from kshipra.types import (
    Ended,
    Failed,
    Finished,
    Loading,
    ModelChoice,
    Plan,
    Reviewed,
    SamplingParams,
    Started,
)

needs_compiler = pytest.mark.skipif(decode.compiler() is None, reason="no C++ compiler")


def plan(*recipes: str, model: str = "tiny") -> Plan:
    choice = ModelChoice(model, draft="tiny" if "draft_model" in recipes else None)
    return Plan(choice, ("ab", "a longer one"), recipes, SamplingParams(6, ignore_eos=True))


def native(implementation: str = "native") -> Engine:
    return Engine(make_gpt2().float(), Letters(), implementation=implementation)


@pytest.fixture
def backend(monkeypatch) -> Iterator[LocalBackend]:
    """One whose models are tiny: "tiny" and "other" our own, "adapted" behind the adapter, "fake" no model
    with matrices at all."""
    makers = {
        "tiny": native,
        "other": lambda _: Engine(make_llama().float(), Letters(), implementation="native"),
        "adapted": lambda _: native("transformers"),
        "fake": lambda _: Engine(FakeModel([5], prompt_tokens=2), Letters()),
    }

    def load(name: str, **asked) -> Engine:
        engine = makers[name](asked["implementation"])
        if asked["draft"] is not None:
            engine.draft = makers[asked["draft"]](asked["implementation"])
        return engine

    monkeypatch.setattr(runner, "load", load)
    monkeypatch.setattr(roofline, "cached_roofline", lambda *_, **__: ROOFLINE)
    made = LocalBackend()
    yield made
    made.close()


def told(backend: LocalBackend, *recipes: str, model: str = "tiny") -> list:
    return collect(backend.submit(plan(*recipes, model=model)), limit_s=60)


def said(messages: list) -> list[str]:
    """What was being made, the loading of models aside."""
    return [m.what for m in of_kind(Loading, messages) if not m.what.startswith("Loading ")]


def test_the_usual_ways_come_first_and_ask_for_the_choice_as_it_is():
    assert USUAL_KEYS == ("no_cache", "kv_cache", "static_batch") == RECIPE_KEYS[:3]
    assert {(recipe_named(key).weights, recipe_named(key).execution) for key in USUAL_KEYS} == {
        ("native", "eager")
    }
    assert "".join(recipe.letter for recipe in RECIPES) == "ABCDEFGHIJKL"
    assert len(set(RECIPE_KEYS)) == len(RECIPES)


@needs_compiler
def test_every_recipe_runs_on_its_own_engine_and_tells_of_it_first(backend):
    here = [recipe for recipe in RECIPES if not mode_named(recipe.mode).elsewhere]
    messages = told(backend, *(recipe.key for recipe in here))
    assert not of_kind(Failed, messages)
    stored = {message.recipe: message.spec.weights for message in of_kind(Started, messages)}
    assert stored == {recipe.key: recipe.weights for recipe in here}
    reads = {message.recipe: message.spec.pass_weight_bytes for message in of_kind(Started, messages)}
    assert reads["int8"] < reads["compiled_bf16"] < reads["compiled"] == reads["kv_cache"]
    whats = [m.what for m in messages if isinstance(m, Loading)]
    assert "Storing weights in int8" in whats
    assert messages.index(Loading("Storing weights in int8")) < messages.index(
        next(m for m in of_kind(Started, messages) if m.recipe == "int8")
    )
    ids = {m.recipe: [row.token_ids for row in m.result.rows] for m in of_kind(Finished, messages)}
    assert ids["compiled"] == ids["draft_model"] == ids["kv_cache"]
    (reviewed,) = of_kind(Reviewed, messages)
    pairs = {(found.first, found.second): found for found in reviewed.comparisons}
    assert pairs["kv_cache", "compiled"].verdict == "identical"
    for found in pairs.values():  # logits of another engine than the recipe's own would not give its ids
        assert found.verdict in ("identical", "near-tie"), found


def test_a_draft_is_loaded_for_who_wants_it_and_stays_for_who_does_not(backend):
    (finished,) = of_kind(Finished, told(backend, "draft_model"))
    assert finished.result.accepted_tokens > 0
    assert not of_kind(Loading, told(backend, "kv_cache"))
    (finished,) = of_kind(Finished, told(backend, "draft_model"))
    assert finished.result.accepted_tokens > 0
    assert "Loading other" in [m.what for m in of_kind(Loading, told(backend, "kv_cache", model="other"))]


def test_the_peer_is_loaded_once_and_has_the_ids_of_our_own(backend):
    messages = told(backend, "kv_cache", "transformers_generate")
    assert not of_kind(Failed, messages)
    again = Loading("Loading the weights again for transformers")
    assert again in messages
    ids = {m.recipe: [row.token_ids for row in m.result.rows] for m in of_kind(Finished, messages)}
    assert ids["transformers_generate"] == ids["kv_cache"]
    (reviewed,) = of_kind(Reviewed, messages)
    assert [found.verdict for found in reviewed.comparisons] == ["identical"]
    peer = backend._variants["native", "eager", "transformers"]
    assert isinstance(peer.model, TransformersModel)
    assert again not in told(backend, "transformers_generate")
    assert backend._variants["native", "eager", "transformers"] is peer


def test_a_model_of_transformers_is_its_own_peer(backend):
    messages = told(backend, "kv_cache", "transformers_generate", model="adapted")
    assert len(of_kind(Finished, messages)) == 2
    assert Loading("Loading the weights again for transformers") not in messages
    assert len({id(engine) for engine in backend._variants.values()}) == 1


def test_the_peer_keeps_what_the_choice_stores_and_starts_nothing_compiled(monkeypatch):
    asked = []
    monkeypatch.setattr(runner, "load_choice", lambda choice, **_: asked.append(choice))
    base = Engine(native().model, Letters(), weights="int8")
    chosen = ModelChoice("tiny", weights="int8", execution="compiled", implementation="native")
    variant(base, chosen, "native", "eager", "transformers")
    assert asked == [ModelChoice("tiny", weights="int8", implementation="transformers")]


def test_drawn_tokens_leave_the_peer_out_before_it_is_loaded(backend):
    drawn = Plan(
        ModelChoice("tiny"), ("ab",), ("transformers_generate", "kv_cache"), SamplingParams(3, temperature=1)
    )
    messages = collect(backend.submit(drawn), limit_s=60)
    (failed,) = of_kind(Failed, messages)
    assert failed.unavailable
    assert failed.sentence.endswith("choose temperature 0 to compare with it.")
    assert Loading("Loading the weights again for transformers") not in messages
    assert [message.recipe for message in of_kind(Finished, messages)] == ["kv_cache"]


def test_a_model_that_cannot_be_loaded_again_has_no_peer(backend, monkeypatch):
    told(backend, "kv_cache")

    def gone(name, **_):
        raise KshipraError("There is no model of that name any more: choose another.")

    monkeypatch.setattr(runner, "load", gone)
    messages = told(backend, "transformers_generate", "kv_cache")
    (failed,) = of_kind(Failed, messages)
    assert (failed.recipe, failed.unavailable) == ("transformers_generate", True)
    assert failed.sentence.startswith("There is no model")
    assert [message.recipe for message in of_kind(Finished, messages)] == ["kv_cache"]


@needs_compiler
def test_what_compiling_took_is_told_with_the_start(backend):
    started = {m.recipe: m.compile_s for m in of_kind(Started, told(backend, "kv_cache", "compiled"))}
    assert started["kv_cache"] is None
    assert started["compiled"] >= 0


@needs_compiler
def test_engines_are_made_once_and_kept_until_the_choice_changes(backend):
    first = told(backend, "kv_cache", "int8", "compiled_int8")
    assert said(first).count("Storing weights in int8") == 1  # the compiled one reads the same tensors
    kept = dict(backend._variants)
    assert said(told(backend, "compiled_int8", "int8")) == []
    assert dict(backend._variants) == kept
    eager, step = (kept["int8", execution, "auto"].model for execution in ("eager", "compiled"))
    assert isinstance(step, CompiledModel)
    assert step.model.head.weight.data_ptr() == eager.head.weight.data_ptr()
    told(backend, "kv_cache", model="other")
    assert not set(kept.values()) & set(backend._variants.values())
    assert said(told(backend, "int8", model="other")) == ["Storing weights in int8"]


def logits(engine: Engine) -> torch.Tensor:
    ids = torch.arange(12)[None] * 7 % 90
    with torch.inference_mode():
        return engine.model.forward(ids, torch.arange(12)[None], None, None, 12)


@needs_compiler
@pytest.mark.parametrize("model", [make_gpt2, make_llama])
def test_the_loaded_engine_stays_as_it_is_to_the_last_bit(model):
    base = Engine(model().float(), Letters(), implementation="native")
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in base.model.state_dict().items()}
    kinds, expected, spec = [type(m) for m in base.model.modules()], logits(base), base.model.spec
    for recipe in RECIPES[:-1]:  # the last is read from disk again
        made = variant(base, ModelChoice("tiny"), recipe.weights, recipe.execution)
        made.generate(["ab"], params=SamplingParams(3, ignore_eos=True))
        assert made.model.spec.weights == recipe.weights
        assert isinstance(made.model, CompiledModel) == (recipe.execution == "compiled")
    assert [type(m) for m in base.model.modules()] == kinds
    assert torch.equal(logits(base), expected)
    assert base.model.spec == spec
    for name, tensor in base.model.state_dict().items():
        pointer, values = before[name]
        assert tensor.data_ptr() == pointer
        assert torch.equal(tensor, values)


@needs_compiler
def test_a_variant_of_a_compiled_or_stored_engine_keeps_what_was_chosen(monkeypatch):
    """A choice that is compiled or int8 itself: "native" and "eager" mean as it is, never back to less."""
    base = Engine(CompiledModel(native().model), Letters())
    assert variant(base, ModelChoice("tiny"), "native", "eager") is base
    assert variant(base, ModelChoice("tiny"), "native", "compiled") is base
    stored = variant(base, ModelChoice("tiny"), "int8", "eager")
    assert isinstance(stored.model, CompiledModel)
    assert stored.model.spec.weights == "int8"
    asked = []
    monkeypatch.setattr(runner, "load_choice", lambda choice, **_: asked.append(choice))
    variant(stored, ModelChoice("tiny", weights="int8", execution="compiled"), "bfloat16", "eager")
    assert [(choice.weights, choice.execution) for choice in asked] == [("bfloat16", "compiled")]


def test_what_the_model_cannot_do_costs_the_other_ways_nothing(backend):
    messages = told(backend, "compiled", "kv_cache", "int8", "compiled_int8", model="adapted")
    failed = {message.recipe: message for message in of_kind(Failed, messages)}
    assert set(failed) == {"compiled", "compiled_int8"}
    for message in failed.values():
        assert message.unavailable
        assert message.sentence.startswith("Compiled execution is unavailable")
    assert [message.recipe for message in of_kind(Finished, messages)] == ["kv_cache", "int8"]
    (reviewed,) = of_kind(Reviewed, messages)
    assert [(found.first, found.second) for found in reviewed.comparisons] == [("kv_cache", "int8")]
    assert messages[-1] == Ended()
    assert {message.recipe for message in of_kind(Started, messages)} == {"kv_cache", "int8"}  # none eager


def test_a_run_of_unavailable_ways_alone_ends_with_their_sentences(backend):
    messages = told(backend, "compiled", model="fake")
    assert [message.recipe for message in of_kind(Failed, messages)] == ["compiled"]
    assert not of_kind(Reviewed, messages)
    assert messages[-1] == Ended()


def test_a_compiler_that_fails_is_a_sentence_and_the_run_goes_on(backend, monkeypatch):
    def broken(progress):
        raise InputError("Compiled execution is unavailable: c++ could not make it (boom); choose eager.")

    monkeypatch.setattr(compiled.decode, "library", broken)
    monkeypatch.setattr(compiled.decode, "compiler", lambda: "/usr/bin/c++")
    messages = told(backend, "compiled", "kv_cache")
    (failed,) = of_kind(Failed, messages)
    assert "boom" in failed.sentence
    assert [message.recipe for message in of_kind(Finished, messages)] == ["kv_cache"]


def test_a_real_failure_while_an_engine_is_made_ends_the_run(backend, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(variants, "variant", fail)
    messages = told(backend, "int8", "kv_cache")
    (failed,) = of_kind(Failed, messages)
    assert "more memory than there is" in failed.sentence
    assert not failed.unavailable
    assert not of_kind(Started, messages)


def test_without_a_compiler_a_plan_that_needs_one_is_refused_at_once(backend, monkeypatch):
    monkeypatch.setattr(decode, "compiler", lambda: None)
    assert set(backend.unavailable()) == {"compiled", "compiled_int8", "compiled_bf16"}
    with pytest.raises(KshipraError, match=r"Ways to compare: leave out compiled_int8, because .* compiler"):
        backend.submit(plan("kv_cache", "compiled_int8"))
    assert of_kind(Finished, told(backend, "int8"))


def test_stop_holds_while_an_engine_is_made(backend, monkeypatch):
    told(backend, "kv_cache")
    inside = threading.Event()

    def slow(engine, choice, *asked, progress):
        for _ in range(1000):
            progress("Storing weights in int8", None, None)
            inside.set()
            time.sleep(0.01)

    monkeypatch.setattr(variants, "variant", slow)
    run = backend.submit(plan("int8", "kv_cache"))
    wait_for(inside.is_set)
    run.stop()
    messages = collect(run, limit_s=5)
    assert not of_kind(Failed, messages)
    assert not of_kind(Started, messages)
    assert messages[-1] == Ended(stopped=True)
    assert ("int8", "eager", "auto") not in backend._variants  # nothing half made is kept
    monkeypatch.undo()


def test_a_stop_that_comes_while_weights_are_converted_is_no_start(backend, monkeypatch):
    told(backend, "kv_cache")
    run = None
    real = variants.variant

    def stopped_meanwhile(*args, progress):
        run.stop()
        return real(*args)

    monkeypatch.setattr(variants, "variant", stopped_meanwhile)
    run = backend.submit(plan("kv_cache", "int8"))
    messages = collect(run)
    assert [message.recipe for message in of_kind(Started, messages)] == ["kv_cache"]
    assert messages[-1] == Ended(stopped=True)


def test_an_engine_is_moved_with_its_draft_and_what_it_shares_stays_shared():
    engine = Engine(make_gpt2(), Letters(), draft=Engine(make_gpt2(n_layer=1), Letters()))
    there = moved(engine, "meta")
    for each in (there, there.draft):
        assert {tensor.device.type for tensor in each.model.parameters()} == {"meta"}
        assert each.device.type == "meta"
        assert (
            each.model.head.weight.untyped_storage()._cdata
            == each.model.tokens.weight.untyped_storage()._cdata
        )
    assert moved(Engine(make_gpt2(), Letters(), weights="int8"), "meta") is None
    assert (
        moved(Engine(make_gpt2(), Letters(), draft=Engine(make_gpt2(), Letters(), weights="int8")), "meta")
        is None
    )
