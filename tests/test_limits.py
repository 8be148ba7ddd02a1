"""What may be asked for (case F5): a refusal names the field and its range, at once, before any pass."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import byte_level_tokenizer
from fakes import FakeModel
from kshipra import limits
from kshipra.backends.local import sentence_for
from kshipra.engine.runner import Engine
from kshipra.errors import InputError, ModelError
from kshipra.types import ModelChoice, Plan, SamplingParams

RECIPES = ("no-cache", "kv-cache", "batch")
GOOD = Plan(ModelChoice("gpt2"), ("Hello",), ("kv-cache",), SamplingParams(8))


def changed(**changes: Any) -> Plan:
    """A good plan with one thing wrong."""
    return dataclasses.replace(GOOD, **changes)


def refused(action: Callable[[], Any], *words: str) -> str:
    """The sentence that `action` is refused with, in less than a second and not as long as what was given."""
    started_s = time.perf_counter()
    with pytest.raises(InputError) as error:
        action()
    assert time.perf_counter() - started_s < 1
    sentence = str(error.value)
    assert all(word in sentence for word in words), sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 250
    return sentence


# Sampling parameters

NAN, INF = math.nan, math.inf
LONG = "9" * 10**6
WRONG = {
    "max_new_tokens": (-1, 10**6 + 1, 10**7, NAN, INF, 2.5, 3.0, True, None, "8", LONG, [8], {}),
    "temperature": (-1, -1e-9, 100.1, NAN, INF, -INF, True, None, "1", [1.0]),
    "top_k": (-1, 2.0, NAN, INF, False, None, "1", [1]),
    "top_p": (-0.1, 1.5, NAN, INF, True, None, "1", [0.5], (0.5,)),
    "repetition_penalty": (0, -1, 101, NAN, INF, True, None, "1", [1.0]),
    "seed": (-1, 2**63, 1.0, NAN, INF, True, "42", LONG, [42]),
    "stop": ("", ("",), ("a", ""), (1,), (None,), [["a"]], None, 5, 1.5, True),
    "ignore_eos": (None, "no", [True]),
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(name, value) for name, wrong in WRONG.items() for value in wrong],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_parameter_is_refused_by_name(field, value):
    sentence = refused(lambda: SamplingParams(**{field: value}), field)
    if field not in ("stop", "ignore_eos"):
        assert " from " in sentence or " of at least " in sentence


@pytest.mark.parametrize("field", ["max_new_tokens", "temperature", "top_k", "top_p", "seed"])
def test_a_number_of_many_digits_is_refused_without_writing_it_out(field):
    refused(lambda: SamplingParams(**{field: -(10**5000)}), field)


def test_ranges_are_stated():
    refused(lambda: SamplingParams(top_p=1.5), "top_p must be a number from 0 to 1, not 1.5.")
    refused(lambda: SamplingParams(top_k=-1), "top_k must be a whole number of at least 0, not -1.")
    refused(lambda: SamplingParams(temperature=-1), "from 0 to 100")


@pytest.mark.parametrize(
    "params",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": 10**6},
        {"temperature": 0},
        {"temperature": 100},
        {"top_k": 10**9},
        {"top_p": 0},
        {"top_p": 1},
        {"repetition_penalty": 0.01},
        {"seed": 0},
        {"seed": 2**63 - 1},
        {"stop": ()},
        {"stop": ["a", "b"]},
    ],
    ids=str,
)
def test_the_ends_of_every_range_are_allowed(params):
    kept = SamplingParams(**params)
    for name, value in params.items():
        assert getattr(kept, name) == (tuple(value) if name == "stop" else value)


def test_one_stop_text_may_stand_alone():
    assert SamplingParams(stop="END").stop == ("END",)


# Plans


def test_a_good_plan_passes_and_so_do_the_ends_of_its_ranges():
    limits.check_plan(GOOD, RECIPES)
    limits.check_plan(
        changed(
            prompts=("x" * limits.OWN.prompt_chars,) * limits.OWN.prompts,
            recipes=RECIPES,
            choice=ModelChoice("m" * limits.MODEL_CHARS),
            params=SamplingParams(limits.OWN.new_tokens, stop=("s" * limits.STOP_CHARS,) * limits.STOPS),
        ),
        RECIPES,
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": ()}, ("Prompts", "1 to 16", "0")),
        ({"prompts": ("x",) * 1000}, ("Prompts", "1 to 16", "1000")),
        ({"prompts": ("x", "")}, ("Prompt 2", "empty")),
        ({"prompts": ("x" * 5_000_000,)}, ("Prompt 1", "5,000,000", "20,000")),
        ({"prompts": ("a" * 200_000,)}, ("Prompt 1", "200,000", "20,000")),
        ({"prompts": ("x" * 20_001,)}, ("Prompt 1", "20,000")),
        ({"prompts": ("x", None)}, ("Prompt 2", "text", "NoneType")),
        ({"prompts": (["x"],)}, ("Prompt 1", "text", "list")),
        ({"prompts": (5,)}, ("Prompt 1", "text", "int")),
        ({"prompts": None}, ("Prompts", "1 to 16")),
        ({"prompts": "Hello"}, ("Prompts",)),
        ({"recipes": ()}, ("Ways to compare", "at least one")),
        ({"recipes": None}, ("Ways to compare", "at least one")),
        (
            {"recipes": ("kv-cache", "nonsense")},
            ("Ways to compare", "'nonsense'", "no-cache, kv-cache, batch"),
        ),
        ({"recipes": (None,)}, ("Ways to compare", "None")),
        ({"recipes": ("x" * 10**6,)}, ("Ways to compare",)),
        ({"choice": ModelChoice("")}, ("Model", "1 to 200")),
        ({"choice": ModelChoice("   ")}, ("Model", "1 to 200")),
        ({"choice": ModelChoice("m" * 201)}, ("Model", "1 to 200")),
        ({"choice": ModelChoice(None)}, ("Model", "1 to 200")),
        ({"params": SamplingParams(2049)}, ("Max new tokens", "0 to 2,048", "2,049")),
        ({"params": SamplingParams(stop=("x",) * 9)}, ("Stop", "8", "100")),
        ({"params": SamplingParams(stop=("x" * 101,))}, ("Stop", "8", "100")),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_plan_beyond_the_limits_is_refused_by_field_and_range(changes, words):
    refused(lambda: limits.check_plan(changed(**changes), RECIPES), *words)


def test_what_this_machine_cannot_run_is_refused_with_the_reason_and_nothing_else_is():
    missing = {"batch": "there is no compiler"}
    plan = changed(recipes=("kv-cache", "batch"))
    refused(lambda: limits.check_plan(plan, RECIPES, unavailable=missing), "batch", "there is no compiler")
    limits.check_plan(changed(recipes=("kv-cache",)), RECIPES, unavailable=missing)


def test_the_first_wrong_thing_is_named_alone():
    sentence = refused(lambda: limits.check_plan(changed(prompts=("", "")), RECIPES))
    assert sentence.startswith("Prompt 1 ")


# Odd characters


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("\ud83d", "\N{REPLACEMENT CHARACTER}"),
        ("a\ude00b\ud83d", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"),
        ("a\0b\0", "ab"),
        ("\0", ""),
        ("😀 é\n\t\x7f\u202e", "😀 é\n\t\x7f\u202e"),
        ("", ""),
    ],
)
def test_cleaned_text_is_what_a_tokenizer_takes(text, clean):
    assert limits.clean_text(text) == clean
    tokenizer = byte_level_tokenizer()
    assert tokenizer.decode(tokenizer.encode(limits.clean_text(text))) == clean


# The engine's own


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(FakeModel([5]), byte_level_tokenizer())


@pytest.fixture
def no_passes(engine) -> Iterator[None]:
    """Whatever is refused is refused before any pass."""
    before = engine.model.passes
    yield
    assert engine.model.passes == before


@pytest.mark.usefixtures("no_passes")
@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([], ("Prompts", "at least one")),
        ("Hello", ("Prompts", "list")),
        (None, ("Prompts", "list")),
        (["Hello", ""], ("Prompt 2", "empty")),
        ([[]], ("Prompt 1", "empty")),
        ([[1, -1]], ("Prompt 1", "0 to 299")),
        ([[1, 300]], ("Prompt 1", "0 to 299")),
        ([[1.0]], ("Prompt 1", "0 to 299")),
        ([[None]], ("Prompt 1", "0 to 299")),
        ([["a"]], ("Prompt 1", "0 to 299")),
        (["a" * 5000], ("Prompt 1", "5,000", "4,096")),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_the_engine_refuses_prompts_that_no_model_takes(engine, prompts, words):
    refused(lambda: engine.stream(prompts), *words)


@pytest.mark.usefixtures("no_passes")
def test_the_engine_refuses_unknown_modes_and_the_wrong_number_of_parameters(engine):
    refused(lambda: engine.stream(["a"], mode="nonsense"), "Mode 'nonsense'", "no_cache", "static_batch")
    refused(lambda: engine.stream(["a"], mode="x" * 10**6), "Mode")
    refused(lambda: engine.stream(["a"], params=[SamplingParams()] * 2), "2 for 1 prompts")


def test_odd_characters_reach_the_model_as_text(engine):
    row = engine.generate(["a\0b\u202e\x7f"], params=SamplingParams(1)).rows[0]
    assert row.prompt_tokens == 7


def test_half_a_character_is_replaced(engine):
    row = engine.generate(["a\ud83d"], params=SamplingParams(1)).rows[0]
    assert row.prompt_tokens == 1 + len("\N{REPLACEMENT CHARACTER}".encode())


# A page for strangers


STRANGERS = limits.public("my/own")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": ("x",) * 9}, ("Prompts", "1 to 8")),
        ({"prompts": ("x" * 4_001,)}, ("Prompt 1", "4,000")),
        ({"params": SamplingParams(257)}, ("Max new tokens", "0 to 256")),
        ({"choice": ModelChoice("/etc")}, ("Model", "my/own", "smollm2-135m-instruct")),
        ({"choice": ModelChoice("../x.gguf")}, ("Model",)),
        ({"choice": ModelChoice("other/model")}, ("Model",)),
        ({"choice": ModelChoice("m" * 200)}, ("Model",)),
    ],
)
def test_strangers_may_ask_for_less(changes, words):
    limits.check_plan(changed(**changes), RECIPES)
    refused(lambda: limits.check_plan(changed(**changes), RECIPES, limits=STRANGERS), *words)


@pytest.mark.parametrize("name", ["my/own", "gpt2", "GPT2"])
def test_strangers_may_ask_for_what_is_offered(name):
    limits.check_plan(changed(choice=ModelChoice(name)), RECIPES, limits=STRANGERS)


def test_what_names_this_machine_is_not_told_to_strangers(caplog):
    error = ModelError("It cannot be kept in /home/me.", in_public="It cannot be kept.")
    assert sentence_for(error) == "It cannot be kept in /home/me."
    assert sentence_for(error, public=True) == "It cannot be kept."
    assert "/home/me" in caplog.text  # who runs the server reads it there
    assert sentence_for(InputError("Prompt 1 is empty."), public=True) == "Prompt 1 is empty."
