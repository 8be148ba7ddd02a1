"""Fold a run's events into its result, and results into a comparison: every definition of a number stands
here once.

* new token: produced by the model, the end token included; pads and finished rows never.
* TTFT of a row: from the run's start to its first token, so a row that waits for its turn has a long one. A
  run's TTFT is its first row's: when something first appears.
* prefill: the passes that take prompt tokens for the first time. A pass without cache that runs the prompt
  again to get a later token counts as decode, so that rates compare like with like.
* decode rate: new tokens after each row's first / time of the decode passes. End-to-end: new tokens / wall
  time.
* largest gap: the longest time between two passes that gave one row its tokens, over all rows.
* own TTFT of a row: from the end of the pass before its first to its first token; what it would be for a
  request that finds nobody before it.
* padding: columns that were computed for nothing / all that were computed. Between passes: what of the wall
  time is in no forward pass and no choice of a token, which is who runs next, and moving rows.
* accepted: guesses that became tokens; those behind a token that ends their row are not.
  Acceptance, of a row or a run, is accepted / drafted; tokens a pass is new tokens / passes.
* a rate without a positive denominator is None.
* of a server, times are those at which its text came in here, the network included. Its tokens are those that
  it counts: there may be several in one piece of text, so pieces are never counted. Step latency is then the
  time between two pieces of one row, and where a row's text came in one piece there is no decode rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kshipra.types import FinishReason, Latency, NewToken, Request, RowResult, RunResult, StepEvent


def rate(amount: float | None, time_s: float) -> float | None:
    """`amount / time_s`, or None where that means nothing."""
    return amount / time_s if amount is not None and time_s > 0 and amount > 0 else None


def known_sum(amounts: Iterable[int | None]) -> int | None:
    """Their sum; None where one of them is not known."""
    every = list(amounts)
    return None if None in every else sum(every)


def latency(times_s: Sequence[float]) -> Latency:
    """Percentiles (linear between neighbours) of pass times in seconds."""
    if not times_s:
        return Latency(None, None, None)
    return Latency(*(float(value) for value in np.percentile(times_s, (50, 90, 99))))


def acceptance(figures: RowResult | RunResult) -> float | None:
    """The share of a row's or a run's guesses that became tokens; None where nothing was guessed."""
    return figures.accepted_tokens / figures.drafted_tokens if figures.drafted_tokens else None


def new_tokens_of(tokens: Sequence[NewToken]) -> int | None:
    """How many tokens those of a row are; None where the last of them leaves it open."""
    if tokens and tokens[-1].count is None:
        return None
    return sum(token.count or 0 for token in tokens)


def came(token: NewToken) -> bool:
    """Whether it is something that came, and not only the count of what had."""
    return token.id is not None or token.text != ""


def gaps_s(tokens: Sequence[tuple[float, NewToken]]) -> list[float]:
    """Seconds between one row's tokens, or pieces of text."""
    return [later - sooner for sooner, later in pairwise(at_s for at_s, token in tokens if came(token))]


def _row_result(
    request: Request, tokens: list[tuple[float, NewToken]], drafted: int, *, tells_ids: bool
) -> RowResult:
    reason: FinishReason | None = tokens[-1][1].finish_reason if tokens else None
    if reason is None:  # nothing said how it ended: nothing was asked for, or it was cut short
        reason = "length" if request.params.max_new_tokens == 0 else "cancelled"
    return RowResult(
        text="".join(token.text for _, token in tokens),
        token_ids=tuple(token.id for _, token in tokens if token.id is not None),
        prompt_tokens=len(request.prompt_ids) if tells_ids else None,
        new_tokens=new_tokens_of([token for _, token in tokens]),
        finish_reason=reason,
        ttft_s=next((at_s for at_s, token in tokens if came(token)), None),
        seed=request.params.seed if request.params.temperature > 0 else None,
        drafted_tokens=drafted,
        accepted_tokens=sum(token.guessed for _, token in tokens),
    )


def fold(mode: str, requests: Sequence[Request], events: Iterable[StepEvent]) -> RunResult:
    """The RunResult of all `events` so far; a row without a last token was cancelled."""
    steps = tuple(events)
    tokens: dict[int, list[tuple[float, NewToken]]] = {request.row: [] for request in requests}
    drafted = Counter[int]()
    for step in steps:
        for token in step.new_tokens:
            tokens[token.row].append((step.at_s, token))
        drafted.update(dict(zip(step.rows, step.row_drafted_tokens, strict=False)))
    tells_ids = all(step.is_pass for step in steps)
    rows = tuple(
        _row_result(request, tokens[request.row], drafted[request.row], tells_ids=tells_ids)
        for request in requests
    )
    decode_s = [step.elapsed_s for step in steps if step.phase == "decode"]
    prefill_s = [step.elapsed_s for step in steps if step.phase == "prefill"]
    new_tokens = known_sum(row.new_tokens for row in rows)
    later_tokens = known_sum(
        row.new_tokens and row.new_tokens - 1 if gaps_s(tokens[request.row]) else 0
        for request, row in zip(requests, rows, strict=True)
    )
    firsts = [row.ttft_s for row in rows if row.ttft_s is not None]
    peaks = [step.peak_extra_bytes for step in steps if step.peak_extra_bytes is not None]
    gaps = [gap_s for own in tokens.values() for gap_s in gaps_s(own)]
    wall_s = steps[-1].at_s if steps else 0.0
    return RunResult(
        mode=mode,
        rows=rows,
        wall_s=wall_s,
        ttft_s=min(firsts) if firsts else None,
        prefill_s=sum(prefill_s) if prefill_s and tells_ids else None,
        decode_tok_per_s=rate(later_tokens, sum(decode_s)),
        end_to_end_tok_per_s=rate(new_tokens, wall_s),
        step_latency_s=latency(decode_s if tells_ids else gaps),
        forward_passes=len(steps) if tells_ids else None,
        new_tokens=new_tokens,
        pad_tokens=known_sum(step.pad_tokens for step in steps),
        kv_bytes=max((step.kv_bytes for step in steps), default=0) if tells_ids else None,
        kv_held_bytes=max((step.kv_held_bytes for step in steps), default=0) if tells_ids else None,
        peak_extra_bytes=max(peaks) if peaks else None,
        memory_method=steps[-1].memory_method if steps else "",
        steps=steps,
        largest_gap_s=max(gaps, default=None),
        reused_tokens=sum(step.reused_tokens for step in steps),
        drafted_tokens=sum(step.drafted_tokens for step in steps),
        accepted_tokens=sum(row.accepted_tokens for row in rows),
        draft_s=sum(step.draft_s for step in steps),
    )


def ttft_p50_s(result: RunResult) -> float | None:
    """Median over the rows, those that wait included."""
    return _median(row.ttft_s for row in result.rows)


def own_ttft_p50_s(result: RunResult) -> float | None:
    if not result.tells_ids:
        return None
    first_at_s: dict[int, float] = {}
    turn_at_s: dict[int, float] = {}
    before_s = 0.0
    for step in result.steps:
        for row in step.rows:
            turn_at_s.setdefault(row, before_s)
        for token in step.new_tokens:
            first_at_s.setdefault(token.row, step.at_s)
        before_s = step.at_s
    return _median(at_s - turn_at_s[row] for row, at_s in first_at_s.items())


def padding(result: RunResult) -> float | None:
    """The share of computed positions that were padding; None where nothing was computed."""
    if result.pad_tokens is None:
        return None
    return share(result.pad_tokens, result.pad_tokens + sum(step.processed_tokens for step in result.steps))


def between_passes_share(result: RunResult) -> float | None:
    if not result.tells_ids:
        return None
    return share(result.wall_s - sum(step.elapsed_s for step in result.steps), result.wall_s)


def tokens_per_pass(result: RunResult) -> float | None:
    if result.new_tokens is None or result.forward_passes is None:
        return None
    return share(result.new_tokens, result.forward_passes)


def share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


@dataclass(frozen=True)
class Difference:
    """Where two runs of the same prompts first part: the row, the position among its new tokens, and both ids
    (None where one run ended earlier)."""

    row: int
    position: int
    first_id: int | None
    second_id: int | None


def differences(first: RunResult, second: RunResult) -> Iterator[Difference]:
    """The earliest differing new token of every row that differs, row by row."""
    for row, (one, other) in enumerate(zip(first.rows, second.rows, strict=True)):
        if one.token_ids == other.token_ids:
            continue
        shared = min(len(one.token_ids), len(other.token_ids))
        position = next((i for i in range(shared) if one.token_ids[i] != other.token_ids[i]), shared)

        def at(ids: tuple[int, ...], position: int = position) -> int | None:
            return ids[position] if position < len(ids) else None

        yield Difference(row, position, at(one.token_ids), at(other.token_ids))


def first_difference(first: RunResult, second: RunResult) -> Difference | None:
    """The earliest differing new token of the first row that differs, or None where all ids are identical."""
    return next(differences(first, second), None)


def speed_up(result: RunResult, reference: RunResult) -> float | None:
    """How many times the reference's end-to-end rate; None where either is undefined."""
    ours, theirs = result.end_to_end_tok_per_s, reference.end_to_end_tok_per_s
    return ours / theirs if ours and theirs else None
