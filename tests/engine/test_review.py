"""What is found out after a run: pairs compared, the logits where they part, and the checks that a fault
fails."""

from __future__ import annotations

import pytest
import torch

from checks import RAGGED
from conftest import Letters, make_gpt2, make_llama
from kshipra.engine.check import CHECKS, run_checks, tolerance
from kshipra.engine.layout import FAULTS, HONEST, layout_named
from kshipra.engine.review import _verdict, compare, logits_at, texts_of
from kshipra.engine.runner import Engine
from kshipra.recipes import BUGS, USUAL_KEYS, recipe_named
from kshipra.types import Recipe, SamplingParams

CPU = torch.device("cpu")


def results_of(engine: Engine, requests, recipes: list[Recipe]):
    from kshipra.metrics import fold

    return {
        recipe.key: (
            recipe,
            fold(
                recipe.mode,
                requests,
                engine.run(requests, mode=recipe.mode, layout=layout_named(recipe.fault)),
            ),
        )
        for recipe in recipes
    }


def test_honest_ways_are_identical_in_every_pair():
    engine = Engine(make_gpt2(), Letters())
    requests = engine.requests(RAGGED, SamplingParams(8, ignore_eos=True))
    found = compare(engine, requests, results_of(engine, requests, list(map(recipe_named, USUAL_KEYS))))
    assert len(found) == len(USUAL_KEYS) * (len(USUAL_KEYS) - 1) // 2
    assert {comparison.verdict for comparison in found} == {"identical"}


def test_a_fault_is_found_with_both_candidates_and_the_logits_there():
    engine = Engine(make_gpt2(), Letters())
    requests = engine.requests(RAGGED, SamplingParams(8, ignore_eos=True))
    (bug,) = (bug for bug in BUGS if bug.key == "pads-counted")
    results = results_of(engine, requests, [bug.healthy, bug.broken])
    (found,) = compare(engine, requests, results)
    assert (found.verdict, found.row) == ("fault", 0)  # the shortest row has the most pads
    healthy, broken = (result.rows[0].token_ids for _, result in results.values())
    assert healthy[: found.position] == broken[: found.position]
    assert (found.first_id, found.second_id) == (healthy[found.position], broken[found.position])
    step = [
        token for event in results[bug.healthy.key][1].steps for token in event.new_tokens if token.row == 0
    ][found.position]
    (_, best), (_, second) = step.best[:2]
    assert found.margin == pytest.approx(best - second, abs=1e-4)
    place = (0, found.position)
    one, other = (logits_at(engine, requests, recipe, {place})[place] for recipe in (bug.healthy, bug.broken))
    assert found.largest_difference == pytest.approx((one - other).abs().max().item())
    assert one.argmax() == found.first_id
    assert other.argmax() == found.second_id


def test_two_engines_are_compared_row_by_row_with_the_logits_of_each():
    """One matrix spoiled: rows part, and both logits come from the engine that chose by them."""
    engine, other = (Engine(make_gpt2(), Letters()) for _ in range(2))
    next(other.model.parameters()).data.view(-1)[::2].add_(0.5)
    requests = engine.requests(RAGGED, SamplingParams(8, ignore_eos=True))
    ways = {"own": Recipe("own", "", "", "", "kv_cache"), "other": Recipe("other", "", "", "", "no_cache")}
    engines = {"own": engine, "other": other}
    results = {
        key: (way, engines[key].generate(RAGGED, mode=way.mode, params=requests[0].params))
        for key, way in ways.items()
    }
    found = compare(engines, requests, results, every_row=True)
    assert [comparison.row for comparison in found] == [0, 1, 2]
    assert {comparison.verdict for comparison in found} == {"fault"}
    for comparison in found:
        place = (comparison.row, comparison.position)
        one, two = (logits_at(engines[key], requests, ways[key], {place})[place] for key in ways)
        assert (one.argmax(), two.argmax()) == (comparison.first_id, comparison.second_id)
        assert comparison.largest_difference == pytest.approx((one - two).abs().max().item(), rel=1e-5)


def test_a_row_that_ended_elsewhere_is_no_fault_of_logits():
    engine = Engine(make_gpt2(), Letters())
    long, short = (engine.requests(RAGGED, SamplingParams(n, ignore_eos=True)) for n in (8, 5))
    results = results_of(engine, long, [recipe_named("kv_cache")])
    results |= results_of(engine, short, [recipe_named("static_batch")])
    (found,) = compare(engine, long, results)
    assert (found.verdict, found.row, found.position, found.second_id) == ("ended", 0, 5, None)
    assert found.margin is None


@pytest.mark.parametrize(
    ("margin", "largest", "verdict"),
    [
        (1e-6, 1e-5, "near-tie"),
        (1.9e-5, 1e-5, "near-tie"),
        (2.1e-5, 1e-5, "fault"),  # such a difference cannot have turned the choice
        (0.5, 3.0, "fault"),  # it can, but it is no rounding
        (0.0, 0.0, "fault"),  # equal logits and another token: not the logits' doing
    ],
)
def test_the_near_tie_rule_of_case_a4(margin, largest, verdict):
    assert _verdict(margin, largest, tolerance(torch.tensor([1.0, -2.0]))) == verdict


def test_what_is_stored_coarser_may_differ_by_more():
    logits = torch.tensor([1.0, -2.0])
    pairs = (("native", "native"), ("native", "bfloat16"), ("int8", "int8"), ("native", "int8"))
    assert [tolerance(logits, *pair) for pair in pairs] == pytest.approx([0.002, 0.1, 0.1, 0.4])
    assert tolerance(logits.bfloat16()) == pytest.approx(0.1)


# Which check of padding, one-token and two-token steps each fault fails
CAUGHT = {
    ("gpt2", "pads_counted"): ["padding"],
    ("llama", "pads_counted"): [],  # rotary positions forgive
    ("gpt2", "restarted"): ["one-token", "two-token"],
    ("llama", "restarted"): ["one-token", "two-token"],
    ("gpt2", "new_before_old"): ["two-token"],
    ("llama", "new_before_old"): ["two-token"],
    ("gpt2", "pads_visible"): ["padding"],
    ("llama", "pads_visible"): ["padding"],
}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_each_fault_fails_its_check_and_no_other(family):
    model = Engine({"gpt2": make_gpt2, "llama": make_llama}[family](), Letters()).model
    assert all(check.passed for check in run_checks(model, HONEST, CPU))
    for name, layout in FAULTS.items():
        failed = [check.name for check in run_checks(model, layout, CPU) if not check.passed]
        assert failed == CAUGHT[family, name], name
    assert {name for names in CAUGHT.values() for name in names} == {name for name, *_ in CHECKS}


def test_texts_cover_every_id_that_a_result_names():
    engine = Engine(make_gpt2(), Letters())
    result = engine.generate(RAGGED, params=SamplingParams(3, ignore_eos=True))
    named = {id for step in result.steps for token in step.new_tokens for id, _ in token.best}
    texts = texts_of(engine, [result])
    assert set(texts) >= named
    assert all(texts[id] == engine.tokenizer.decode([id]) for id in named)


def test_a_token_carries_its_own_probability_and_the_five_best():
    engine = Engine(make_gpt2(), Letters())
    for temperature in (0.0, 5.0):
        params = SamplingParams(6, temperature=temperature, seed=3, ignore_eos=True)
        for event in engine.stream([RAGGED[0]], params=params):
            (token,) = event.new_tokens
            values = [value for _, value in token.best]
            assert values == sorted(values, reverse=True)
            assert len(values) == 5
            assert token.log_probability <= values[0] + 1e-6
            if temperature == 0:
                assert token.best[0] == (token.id, token.log_probability)
    ids = torch.tensor([RAGGED[0]])
    whole = engine.model.forward(ids, torch.arange(3)[None], None, None, 1)[0, -1].log_softmax(-1)
    (first, *_) = engine.stream([RAGGED[0]], params=SamplingParams(1))
    assert first.new_tokens[0].best[1][1] == pytest.approx(
        whole.sort(descending=True).values[1].item(), abs=1e-5
    )
