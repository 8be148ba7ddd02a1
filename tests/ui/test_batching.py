"""Ragged prompts, guesses and reuse, from the form to the lines and documents of a run: no browser here."""

from __future__ import annotations

from dataclasses import replace

import gradio as gr
import pytest
from page_fake import READY, FakeBackend, events, make_plan, requests_of
from record_fake import document
from test_endpoint import answer
from test_links import FIRST, opened
from test_page_view import of_kind, strict

from kshipra.errors import InputError
from kshipra.limits import check_plan, public
from kshipra.metrics import fold
from kshipra.modes import mode_named
from kshipra.predict import kv_formula_bytes
from kshipra.recipes import BUGS, RECIPE_KEYS, recipe_named
from kshipra.types import Kept, Plan, Started, Stepped
from kshipra.ui import words
from kshipra.ui.fields import presets
from kshipra.ui.form import plan_of
from kshipra.ui.lab import with_bug
from kshipra.ui.summary import Outcome, summarize
from kshipra.ui.view import RunView, kept_text

PROMPTS = ("One", "Two two", "Three three three", "Four")


def ragged(*recipes: str, rows: int | None = 2, reuse: bool = False) -> Plan:
    return replace(make_plan(PROMPTS, recipes), limits=(2, 9, None, 4), rows=rows, reuse=reuse)


def test_a_prompt_may_bring_its_own_limit():
    form = replace(FIRST, prompts=["a", ["b", 3], ["c", None]], max_new_tokens=24, rows=2.0, reuse=True)
    plan = plan_of(form, READY and make_plan().choice)
    assert (plan.prompts, plan.limits, plan.rows, plan.reuse) == (("a", "b", "c"), (None, 3, None), 2, True)
    assert [params.max_new_tokens for params in plan.each] == [24, 3, 24]
    plain = plan_of(FIRST, plan.choice)
    assert (plain.limits, plain.rows, plain.reuse) == ((), None, False)
    assert [params.max_new_tokens for params in plain.each] == [24]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompts": [["a", 1.5]]}, "Limit of prompt 1: give a whole number from 0 to 2,048."),
        ({"prompts": ["a", ["b", "many"]]}, "Limit of prompt 2: give a whole number from 0 to 2,048."),
        ({"prompts": [["a", 4096]]}, "Max new tokens must be from 0 to 2,048, not 4,096."),
        ({"prompts": [["a", -1]]}, "Max new tokens must be from 0 to 2,048, not -1."),
        ({"prompts": [["a", 1, 2]]}, "Prompts must be a list of texts."),
        ({"prompts": [[]]}, "Prompts must be a list of texts."),
        ({"prompts": [[None, 1]]}, "Prompts must be a list of texts."),
        ({"rows": 0}, "Rows at once must be from 1 to 16, not 0."),
        ({"rows": 17}, "Rows at once must be from 1 to 16, not 17."),
        ({"rows": 2.5}, "Rows at once: give a whole number from 1 to 16."),
        ({"rows": "four"}, "Rows at once: give a whole number from 1 to 16."),
    ],
)
def test_what_cannot_be_a_limit_or_rows_is_one_sentence(change, sentence):
    with pytest.raises(InputError) as refused:
        check_plan(plan_of(replace(FIRST, **change), make_plan().choice), RECIPE_KEYS)
    assert str(refused.value) == sentence


def test_only_true_is_reuse_and_a_planted_fault_runs_cold():
    choice = make_plan().choice
    assert not any(plan_of(replace(FIRST, reuse=said), choice).reuse for said in (None, "true", 1, [], False))
    assert not with_bug(replace(FIRST, reuse=True), BUGS[0].key).reuse


def test_strangers_reuse_nothing_of_each_other():
    """Reused tokens and their times would tell what somebody else has asked."""
    backend = FakeBackend(limits=public(make_plan().choice.model))
    with pytest.raises(gr.Error, match="Cache reuse: leave it out on a public page"):
        answer(backend, ["One"], ["kv_cache"], 4, reuse=True)
    assert answer(backend, ["One"], ["kv_cache"], 4)["settings"]["reuse"] is False


def test_a_link_keeps_limits_rows_and_reuse():
    form = opened(prompts=["a", "b"], limits=["", "7"], rows="2", reuse="true")
    assert (form.prompts, form.rows, form.reuse) == ([["a", None], ["b", 7]], 2, True)
    assert opened(prompts=["a"], reuse="false").reuse is False
    with pytest.raises(InputError, match="Limits: give one a prompt or none, not 1"):
        opened(prompts=["a", "b"], limits=["7"])
    with pytest.raises(InputError, match="limits must be a number, not 'x'"):
        opened(prompts=["a"], limits=["x"])
    with pytest.raises(InputError, match="Rows at once must be from 1 to 16"):
        opened(rows="99")


def test_the_endpoint_takes_them_and_the_document_names_them():
    backend = FakeBackend(reused=2)
    ways = ["no_cache", "static_batch", "continuous", "speculative"]
    found = answer(backend, list(PROMPTS), ways, 8, limits=[2, 9, 8, 4], rows=2, reuse=True)
    settings = found["settings"]
    assert (settings["limits"], settings["rows"], settings["reuse"]) == ([2, 9, 8, 4], 2, True)
    no_cache, *others = (way["result"] for way in found["ways"])
    assert [row["new_tokens"] for row in no_cache["rows"]] == [2, 9, 8, 4]
    assert no_cache["reused_tokens"] == 0
    assert {result["reused_tokens"] for result in others} == {8}
    with pytest.raises(gr.Error, match="Limits: give one a prompt or none, not 3"):
        answer(backend, list(PROMPTS), ways, 8, limits=[1, 2, 3])


# What is told while it runs


def lines_of(plan: Plan) -> list[list]:
    messages = [(0.0, READY)]
    view = RunView(
        "run", tuple(map(recipe_named, plan.recipes)), plan.prompts, ragged=plan.ragged, reuse=plan.reuse
    )
    for key in plan.recipes:
        requests = requests_of(plan)
        messages.append((0.0, Started(key, requests)))
        messages += [(0.0, Stepped(key, event)) for event in events(key, requests, at_once=plan.rows)]
    view.add(message for _, message in messages)
    return strict(view.lines(0.0))


def test_guesses_that_came_true_are_told_apart_and_nothing_else_is():
    lines = of_kind(lines_of(make_plan(recipes=("kv_cache", "speculative"))), "t")
    pieces = [[line[2:] for line in lines if line[0] == way and line[1] == 0] for way in (0, 1)]
    assert "".join(piece for piece, *_ in pieces[0]) == "".join(piece for piece, *_ in pieces[1])
    assert [guessed for _, *guessed in pieces[0]] == [[]]
    # one from the prompt, then two guesses and the model's own, again and again
    assert [guessed for _, *guessed in pieces[1]] == [[], [1], [], [1], [], [1]][: len(pieces[1])]
    tokens = [
        token.text for event in events("kv_cache", requests_of(make_plan())) for token in event.new_tokens
    ]
    assert pieces[1][1][0] == tokens[1] + tokens[2]


def test_a_column_has_the_figures_that_its_way_has():
    plan = ragged("no_cache", "kv_cache", "continuous", "speculative", reuse=True)
    lines = lines_of(plan)
    [(_, facts)] = of_kind(lines, "run")
    guesses = ["accepted", "acceptance", "per_pass"]
    assert facts["figures"] == [[], ["reused"], ["reused"], ["reused", *guesses]]
    assert of_kind(lines, "note") == [[0, words.REUSE["none"]]]
    cold = of_kind(lines_of(replace(plan, reuse=False)), "run")[0][1]
    assert cold["figures"] == [[], [], [], guesses]
    assert not of_kind(lines_of(replace(plan, reuse=False)), "note")
    last = dict(of_kind(lines, "f"))
    accepted, acceptance, per_pass = last[3][-3:]
    assert (accepted, acceptance, per_pass) == ("11 of 19", "57.9 %", "1.92")
    assert last[0][-3:] == ["–", "–", "1"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"limits": ()}, True),
        ({"limits": (), "rows": 4}, False),
        ({"limits": (), "rows": None}, False),
    ],
)
def test_rows_have_a_chart_where_they_come_and_go(change, expected):
    plan = replace(ragged("static_batch"), **change)
    assert plan.ragged is expected
    assert of_kind(lines_of(plan), "run")[0][1]["ragged"] is expected


def test_points_tell_the_rows_that_run_and_the_places_that_were_computed():
    plan = ragged("static_batch", "continuous")
    points = of_kind(lines_of(plan), "p")
    static, continuous = ([point[-2:] for point in told_points] for _, told_points in points)
    assert static[:3] == [
        [None, None],
        [2, 2],
        [1, 2],
    ]  # the prompt, both, and one beside a place that has ended
    assert next(rows for rows in continuous if rows[0]) == [2, 2]
    assert sum(places - rows for rows, places in static if rows) == 7 + 4
    assert all(rows == places for rows, places in continuous[:6] if rows)


# What it came to


def outcomes(plan: Plan) -> list[Outcome]:
    requests = requests_of(plan)
    return [
        Outcome(recipe_named(key), fold(key, requests, events(key, requests, at_once=plan.rows)))
        for key in plan.recipes
    ]


def test_a_way_is_told_against_the_one_that_it_improves():
    said = summarize(
        outcomes(ragged("no_cache", "kv_cache", "static_batch", "continuous", "speculative")), None
    )
    clauses = [clause.split(" × ")[0] for clause in said["headline"].split("; ")]
    against = [
        [part[-1] for part in clause.removesuffix(", end to end.").split(" and ")] for clause in clauses
    ]
    assert against == [["A"], ["A", "B"], ["A", "C"], ["A", "B"]]  # D against C, E against B


def test_the_table_has_padding_gaps_and_guesses():
    plan = ragged("static_batch", "continuous", "speculative")
    said = summarize(outcomes(plan), None)
    assert len(words.SUMMARY) == 1 + len(said["rows"][0][2])
    assert sorted(words.SUMMARY_SHOWN) == sorted(label for label, _ in words.SUMMARY[1:])
    labels = [label for label, _ in words.SUMMARY[1:]]
    static, continuous, guessed = (dict(zip(labels, cells, strict=True)) for _, _, cells in said["rows"])
    assert float(static["padding"].removesuffix(" %")) > float(continuous["padding"].removesuffix(" %"))
    assert (static["accepted"], guessed["accepted"], guessed["tokens/pass"]) == ("–", "11 of 19", "1.92")
    assert {static["reused"], guessed["reused"]} == {"–"}
    gap_s = max(event.elapsed_s for event in events("static_batch", requests_of(plan), at_once=2))
    assert 0 < float(static["largest gap"].split()[0]) < 1000 * gap_s


def test_a_prediction_says_that_a_pass_gives_several_tokens():
    _, way = document(make_plan(recipes=("kv_cache", "speculative")))["ways"]
    assert "made it 2 new tokens a pass" in way["prediction"]["sentence"]


def test_the_formula_is_silent_where_columns_do_not_follow_from_lengths():
    plan = ragged("continuous")
    requests = requests_of(plan)
    (outcome,) = outcomes(plan)
    assert kv_formula_bytes(READY.spec, requests, outcome.result) is None
    (way,) = document(plan, change=lambda key, steps: list(events(key, requests, at_once=2)))["ways"]
    assert way["prediction"]["kv_formula_bytes"] is None


def test_a_draft_is_asked_for_only_by_the_way_that_guesses_with_it():
    form = replace(FIRST, recipes=["kv_cache", "draft_model"])
    with pytest.raises(InputError, match=r"name a smaller model .* or leave out way K"):
        plan_of(form, make_plan().choice)
    assert plan_of(replace(form, draft=" distilgpt2 "), make_plan().choice).choice.draft == "distilgpt2"
    assert plan_of(replace(FIRST, draft="distilgpt2"), make_plan().choice).choice.draft is None
    strangers = plan_of(replace(form, model="gpt2", draft="somebody/else"), make_plan().choice)
    with pytest.raises(InputError, match=r"^Draft model: this page offers"):
        check_plan(strangers, RECIPE_KEYS, limits=public("gpt2"))


def test_what_is_kept_is_said():
    assert kept_text(Kept(0, 0, 2**28)) == "Nothing is kept yet."
    assert kept_text(Kept(1, 2**20, 2**28)) == "Kept: 1 text, 1 MiB of 256 MiB."
    assert kept_text(Kept(3, 5 * 2**19, 2**28)) == "Kept: 3 texts, 2.5 MiB of 256 MiB."


def test_every_new_way_is_explained_and_every_preset_can_be_run():
    assert set(words.WHY) <= set(RECIPE_KEYS)
    assert {key for key in RECIPE_KEYS if mode_named(recipe_named(key).mode).name == key} - {
        "transformers_generate"
    } <= set(words.WHY)
    for preset in presets():
        form = replace(FIRST, prompts=preset["prompts"], recipes=preset.get("ways", FIRST.recipes), rows=4)
        check_plan(plan_of(form, make_plan().choice), RECIPE_KEYS)
    by_name = {preset["name"]: preset for preset in presets()}
    ragged_plan = plan_of(replace(FIRST, prompts=by_name["Ragged"]["prompts"], rows=4), make_plan().choice)
    assert len(ragged_plan.prompts) > 4  # some wait
    assert len(set(ragged_plan.limits)) > 4
