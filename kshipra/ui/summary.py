"""What a run came to, as text: the table's rows, the speed-ups, and whether all ways gave the same ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kshipra import metrics
from kshipra.metrics import first_difference, speed_up
from kshipra.modes import kv_cache, mode_named
from kshipra.recipes import recipe_named
from kshipra.types import Failed, Recipe, RunResult
from kshipra.ui import show, words

MANY = 3  # ways of which each still has its clause at the end of a run
EXACT = ("float32", "float64")


@dataclass(frozen=True)
class Outcome:
    """How one way ended: its result, and why it cannot be compared, if it cannot."""

    recipe: Recipe
    result: RunResult
    excluded: str | None = None  # "stopped", "failed"


def _against(outcome: Outcome, reference: Outcome) -> str:
    if outcome is reference:
        return "reference"
    gain = speed_up(outcome.result, reference.result)
    return f"{show.times(gain)} {reference.recipe.letter}" if gain else show.DASH


def _cells(result: RunResult, gain: str) -> list[str]:
    step = result.step_latency_s
    return [
        gain,
        show.digits(result.end_to_end_tok_per_s),
        show.digits(result.decode_tok_per_s),
        show.seconds(result.ttft_s),
        show.seconds(step.p50),
        show.seconds(step.p99),
        show.count(result.forward_passes),
        show.count(result.new_tokens),
        show.size(result.peak_extra_bytes),
        show.size(result.kv_bytes),
        show.size(result.kv_held_bytes),
        show.seconds(result.wall_s if result.steps else None),
        show.seconds(result.largest_gap_s),
        show.percent(metrics.padding(result)),
        show.digits(metrics.tokens_per_pass(result)),
        show.part(result.accepted_tokens, result.drafted_tokens),
        _reused(result),
    ]


def _reused(result: RunResult) -> str:
    if not result.reused_tokens:
        return show.DASH
    return show.part(result.reused_tokens, sum(row.prompt_tokens for row in result.rows))


def _second_reference(whole: list[Outcome], place: int) -> Outcome:
    """What a way is told against beside the first: the first of its own mode, which it is another engine of,
    or of the cached mode, which a peer does its own way and guesses make better; else the one before it."""
    recipe = whole[place].recipe
    own = recipe.implementation == "auto" and not mode_named(recipe.mode).guesses
    mode = recipe.mode if own else kv_cache.MODE.name
    return next((other for other in whole[:place] if other.recipe.mode == mode), whole[place - 1])


def _speed_ups(whole: list[Outcome]) -> str:
    """ "B is 3× A; C is 6.4× A and 2.1× B, end to end." """
    clauses = []
    for place, outcome in enumerate(whole[1:], start=1):
        second = _second_reference(whole, place)
        against = [whole[0]] if second is whole[0] else [whole[0], second]
        gains = [(speed_up(outcome.result, other.result), other.recipe) for other in against]
        parts = [f"{show.times(gain)} {recipe.letter}" for gain, recipe in gains if gain]
        if parts:
            clauses.append(f"{outcome.recipe.letter} is {show.listing(parts)}")
    return f"{'; '.join(clauses)}, end to end." if clauses else ""


def did_not_run(message: Failed) -> str:
    """What is said of a way that could not run here at all."""
    assert message.recipe is not None
    recipe = recipe_named(message.recipe)
    said = words.DID_NOT_RUN if message.result is None else words.BROKE_OFF
    return said.format(letter=recipe.letter, label=recipe.label, sentence=message.sentence)


def closing_words(outcomes: list[Outcome], summary: dict[str, Any]) -> list[str]:
    """What the status says at the end, which is read aloud and has little room: of many ways the fastest."""
    whole = [outcome for outcome in outcomes if outcome.excluded is None]
    if len(whole) <= MANY:
        return [summary["headline"], summary["verdict"][0]]
    first, fastest = whole[0], max(whole, key=lambda each: each.result.end_to_end_tok_per_s or 0.0)
    gain = speed_up(fastest.result, first.result)
    if gain is None:
        return [summary["verdict"][0]]
    times = "" if fastest is first else f": {show.times(gain)} {first.recipe.letter}, end to end"
    return [f"{fastest.recipe.letter} {fastest.recipe.label} is the fastest{times}."]


def _seeds(result: RunResult) -> tuple[int | None, ...]:
    return tuple(row.seed for row in result.rows)


def _parting(first: Outcome, other: Outcome) -> str | None:
    """Where `other` leaves `first`, or None where all ids are identical."""
    one, two = first.recipe.letter, other.recipe.letter
    if _seeds(first.result) != _seeds(other.result):
        return f"{two} drew with other seeds than {one}, so their tokens are not compared."
    parting = first_difference(first.result, other.result)
    if parting is None:
        return None
    theirs = "the end" if parting.second_id is None else f"id {parting.second_id}"
    ours = "the end" if parting.first_id is None else parting.first_id
    return (
        f"{two} differs from {one} first in prompt {parting.row + 1} at new token {parting.position + 1}: "
        f"{theirs} against {ours}."
    )


def _texts_note(other: Outcome, reference: Outcome | None) -> str:
    """How the text of a server's way, of which no ids are known, compares; seeds draw otherwise there."""
    letter = other.recipe.letter
    if reference is None or any(_seeds(reference.result)):
        return words.SERVER["noIds"].format(letter=letter)
    pairs = list(zip(reference.result.rows, other.result.rows, strict=True))
    same = sum(one.text == two.text for one, two in pairs)
    return words.SERVER["texts"].format(
        letter=letter, first=reference.recipe.letter, same=same, all=show.counted(len(pairs), "prompt")
    )


def _weights_note(whole: list[Outcome]) -> str:
    """Why ways that store their weights unlike the first may part from it; "" where none that does parts."""
    first, *others = whole
    letters = [
        other.recipe.letter
        for other in others
        if other.recipe.weights != first.recipe.weights and _parting(first, other)
    ]
    if not letters:
        return ""
    store = "stores its" if len(letters) == 1 else "store their"
    return f"{show.listing(letters)} {store} weights differently, which changes logits, so tokens may part."


def verdict(outcomes: list[Outcome], dtype: str | None) -> tuple[bool | None, list[str]]:
    """Whether all whole runs gave the same ids (None: nothing to compare), and the sentences that say so."""
    ended = [outcome for outcome in outcomes if outcome.excluded is None]
    whole = [outcome for outcome in ended if outcome.result.tells_ids]
    left_out = [f"{o.recipe.letter} ({o.excluded})" for o in outcomes if o.excluded]
    lines: list[str] = []
    same: bool | None = None
    if len(whole) < 2:
        lines.append("Tokens are compared when two ways or more have run to their end.")
    elif not any(outcome.result.new_tokens for outcome in whole):
        lines.append("No tokens were generated, so there is nothing to compare.")
    else:
        lines = [text for other in whole[1:] if (text := _parting(whole[0], other))]
        same = not lines
        if same:
            letters = ", ".join(outcome.recipe.letter for outcome in whole)
            lines = [f"All {whole[0].result.new_tokens:,} tokens identical across {letters}."]
        if not same and (note := _weights_note(whole)):
            lines.append(note)
        if not same and dtype and dtype not in EXACT:
            lines.append(f"In {dtype} near-ties may part; compare in float32 for a proof.")
    lines += [_texts_note(other, whole[0] if whole else None) for other in ended if other not in whole]
    if left_out and len(outcomes) > 1:
        lines.append(f"Not compared: {show.listing(left_out)}.")
    return same, lines


def _drawn_seeds(outcomes: list[Outcome]) -> str:
    seeds = [seed for seed in _seeds(outcomes[0].result) if seed is not None] if outcomes else []
    if not seeds:
        return ""
    return f"Seed{'s' if len(set(seeds)) > 1 else ''}: {', '.join(map(str, dict.fromkeys(seeds)))}."


def summarize(outcomes: list[Outcome], dtype: str | None, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The end of the page as plain strings: `same`, `headline`, `verdict` with `notes` in it, `rows`."""
    whole = [outcome for outcome in outcomes if outcome.excluded is None]
    same, sentences = verdict(outcomes, dtype)
    rows = []
    for outcome in outcomes:
        compared = outcome.excluded is None
        gain = _against(outcome, whole[0]) if compared else show.DASH
        rows.append([outcome.recipe.key, outcome.excluded or "", _cells(outcome.result, gain)])
    seeds = _drawn_seeds(outcomes)
    return {
        "same": same,
        "headline": _speed_ups(whole),
        "verdict": [*sentences, *notes, *([seeds] if seeds else [])],
        "rows": rows,
    }
