"""What a plan asks for of a GPU that is lent: more for more, no more than one may ask for, and enough."""

from __future__ import annotations

import pytest

from fakes import spec
from kshipra.backends import lease
from kshipra.errors import InputError
from kshipra.types import ModelChoice, Plan, Request, SamplingParams

SMALL = spec(layers=30, width=576, vocabulary=49_152, parameters=135_000_000, block_parameters=106_000_000)
LARGE = spec(layers=32, width=4096, vocabulary=128_000, parameters=8 * 10**9, block_parameters=7 * 10**9)


def asked_s(
    shape=SMALL, *, rows=4, new_tokens=24, prompt_tokens=8, recipes=("kv_cache",), at_once=None
) -> int:
    requests = [Request(row, "", (1,) * prompt_tokens, SamplingParams(new_tokens)) for row in range(rows)]
    prompts = ("a",) * rows
    plan = Plan(ModelChoice("fake"), prompts, recipes, SamplingParams(new_tokens), rows=at_once)
    return lease.seconds(shape, requests, plan)


def test_what_the_page_starts_with_leaves_an_anonymous_visitor_most_of_his_day():
    assert 20 <= asked_s(recipes=("no_cache", "kv_cache", "static_batch")) <= 40


def test_more_work_asks_for_more_time():
    little = asked_s()
    assert asked_s(rows=12) > little
    assert asked_s(new_tokens=200) > little
    assert asked_s(recipes=("kv_cache", "no_cache")) > little
    assert asked_s(recipes=("int8",)) > little
    assert asked_s(LARGE) > little
    assert asked_s(recipes=("no_cache",), prompt_tokens=900, rows=2) > asked_s(prompt_tokens=900, rows=2)


def test_rows_that_share_passes_share_their_time():
    assert asked_s(rows=12, recipes=("static_batch",)) == asked_s(rows=1)
    assert asked_s(rows=12, recipes=("static_batch",), at_once=2) > asked_s(
        rows=12, recipes=("static_batch",)
    )


@pytest.mark.parametrize("recipe", ["no_cache", "kv_cache", "static_batch", "continuous", "speculative"])
def test_it_lies_within_its_bounds(recipe):
    assert lease.LEAST_S <= asked_s(rows=1, new_tokens=0, recipes=(recipe,)) <= lease.MOST_S


def test_too_much_is_refused_with_what_to_do():
    with pytest.raises(InputError, match="of a GPU that is lent for 120 s at most: ask for fewer prompts"):
        asked_s(rows=8, new_tokens=256, recipes=("no_cache", "kv_cache"))
