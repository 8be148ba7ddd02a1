"""The sentences of `kv-cache`: what its numbers say, whichever way they fall, and where study B saw something
else."""

from __future__ import annotations

from statistics import median

import numpy as np

from kshipra.costs import kv_bytes_per_token
from kshipra.experiments.report.fits import Estimate
from kshipra.experiments.report.kv_numbers import PAST_FLOOR, Numbers, Samples, total_s
from kshipra.experiments.report.parts import middle
from kshipra.experiments.report.study import B_CONTEXTS, B_LOGIT_DIFFERENCE, B_SPEED_UP, B_TOTAL_S
from kshipra.experiments.results import Results
from kshipra.ui.show import count, digits, seconds, times

A_LINE = 0.02  # of a step's time: what is bent by less is called straight
FLAT = 0.05  # of a step's time: what grows by less than that in 1,000 tokens is called flat


def answers(results: Results, found: Numbers) -> tuple[str, ...]:
    said = [_correct(results)]
    if found.can_tell:
        said += [_uncached_growth(found), cached_growth(found), _gap(found)]
        if found.roofline is not None:
            said += [rates(found), _cause(found)]
        said += [_total(found), _in_generation(results, found)]
    return tuple(sentence for sentence in said if sentence)


def _correct(results: Results) -> str:
    logits, ids = results.of(kind="logits"), results.of(kind="ids")
    if not logits or not ids:
        return "The checks have not all been made yet."
    largest = max(logits[0].samples["difference"])
    verdict = ids[0].samples["comparison"]["verdict"]
    alike = verdict if verdict == "identical" else "alike up to a near-tie"
    tokens = len(ids[0].samples["token_ids"]["no_cache"])
    return (
        f"Logits lie within {largest:.2g} of transformers' (study B: {B_LOGIT_DIFFERENCE:.2g}); {tokens} "
        f"greedy tokens with and without cache are {alike}."
    )


def _uncached_growth(found: Numbers) -> str:
    contexts = sorted(found.whole)
    first, last = contexts[0], contexts[-1]
    floor = found.floor_tokens()
    grown = middle(found.whole[last]) / middle(found.whole[first])
    said = (
        f"Without cache a step takes {seconds(middle(found.whole[first]))} at {first} tokens and "
        f"{seconds(middle(found.whole[last]))} at {count(last)}, {times(grown)} as long; it stays within "
        f"{times(PAST_FLOOR)} of its least up to {count(floor)} tokens (study B: a floor up to about 200). "
    )
    share = found.square_share()
    if share is None:
        return said + "Too few contexts lie past that floor to tell a line from a parabola."
    computed = digits(100 * found.attention_share(last))
    return f"{said}{_shape(share, last)} The arithmetic says that attention is {computed} % there."


def _shape(share: Estimate, last: int) -> str:
    at = f"{_percent(share)} of the step at {count(last)}"
    if max(abs(share.low), abs(share.high)) <= A_LINE:
        return f"Past it a line will do: a t² term would be {at}."
    if not share.is_clear:
        return f"Past it these numbers do not tell a line from a parabola: a t² term of {at}."
    if share.value < 0:
        return f"Past it the step bends down (t² term: {at}): a token of a longer pass costs less."
    return f"Past it the step has a quadratic term, {at}; study B called it linear."


def _percent(share: Estimate) -> str:
    return f"{digits(100 * share.value)} % ({digits(100 * share.low)} to {digits(100 * share.high)} %)"


def cached_growth(found: Numbers) -> str:
    slope = found.cached_slope_s()
    if slope is None:
        return ""
    contexts = sorted(found.cached)
    first, last = contexts[0], contexts[-1]
    each = f"{seconds(slope.value)} ({seconds(slope.low)} to {seconds(slope.high)}) every 1,000 tokens"
    measured = (
        f"from {seconds(middle(found.cached[first]))} at {first} tokens to "
        f"{seconds(middle(found.cached[last]))} at {count(last)}"
    )
    step_s = median(middle(samples) for samples in found.cached.values())
    if max(abs(slope.low), abs(slope.high)) <= FLAT * step_s:
        said = f"With cache a step is flat, as in study B, {measured}: it grows by {each}."
    elif slope.is_clear:
        way = "grows" if slope.value > 0 else "falls"
        said = f"With cache a step is not flat, as it was in study B: it {way} by {each}, {measured}."
    else:
        said = f"Whether a cached step is flat these numbers do not say: {measured}, a slope of {each}."
    if found.roofline is not None:
        read_s = 1000 * kv_bytes_per_token(found.spec) / found.roofline["bytes_per_s"]
        said += f" Reading the keys and values of 1,000 tokens takes {seconds(read_s)} at the measured rate."
    return said


def _gap(found: Numbers) -> str:
    studied = [context for context in B_CONTEXTS if context in found.contexts]
    context = studied[-1] if studied else found.contexts[-1]
    said = (
        f"At {count(context)} tokens the cache makes a step {times(found.speed_up(context))} as fast; the "
        f"study's arithmetic says {times(found.flop_ratio(context, as_study=True))}, a gap of "
        f"{digits(found.gap(context, as_study=True))}, and what is really computed "
        f"{times(found.flop_ratio(context, as_study=False))}, a gap of "
        f"{digits(found.gap(context, as_study=False))}"
    )
    if not studied:
        return f"{said}."
    theirs = B_SPEED_UP[B_CONTEXTS.index(context)]
    return f"{said}; study B saw {times(theirs)}, a gap of {digits(context / theirs)}."


def rates(found: Numbers) -> str:
    assert found.roofline is not None
    context, peak = found.contexts[-1], found.roofline["flops_per_s"]
    whole, cached = (found.flops_per_s(context, cached=way, as_study=False) for way in (False, True))
    return (
        f"At {count(context)} tokens an uncached step reaches {digits(whole * 1e-9)} GFLOP/s, "
        f"{digits(100 * whole / peak)} % of the measured peak, and a cached one {digits(cached * 1e-9)}, "
        f"{digits(100 * cached / peak)} %: the gap, {digits(whole / cached)}, is the quotient of the two."
    )


def _cause(found: Numbers) -> str:
    """The gap as a product: memory instead of arithmetic, more time than memory takes, and what an uncached
    step makes of the peak."""
    assert found.roofline is not None
    context, peak = found.contexts[-1], found.roofline["flops_per_s"]
    read_s = found.read_s(context)
    memory = read_s * peak / found.flops(context, cached=True, as_study=False)
    overhead = middle(found.cached[context]) / read_s
    reached = found.flops_per_s(context, cached=False, as_study=False) / peak
    main = "memory, more than overhead," if memory > overhead else "overhead, more than memory,"
    return (
        f"That gap is the product of three factors: reading weights and cache takes {digits(memory)} times "
        f"as long as a cached step's arithmetic would at the peak, the step takes {digits(overhead)} times "
        f"as long as that reading, and an uncached step reaches {digits(reached)} of the peak: {main} "
        "explains it."
    )


def _total(found: Numbers) -> str:
    first, longest = found.contexts[0], found.contexts[-1]
    last = min(longest, 1024)
    whole, cached = total_s(found.whole, last), total_s(found.cached, last)
    theirs = B_TOTAL_S["no_cache"] / B_TOTAL_S["cache"]
    return (
        f"All {count(last - first)} tokens up to {count(last)} take {seconds(whole)} without and "
        f"{seconds(cached)} with cache, {times(whole / cached)} (study B: {times(theirs)} for 1,016)."
    )


def _in_generation(results: Results, found: Numbers) -> str:
    """Steps of generation against those of the grid: whether a filled cache is as good as a grown one."""
    if not (ids := results.of(kind="ids")):
        return ""
    samples = ids[0].samples
    first, taken_s = samples["prompt_tokens"], samples["step_s"]
    whole = _quotient(taken_s["no_cache"], first, found.whole)
    cached = _quotient(taken_s["kv_cache"][1:], first + 1, found.cached)  # its first step read the prompt
    return (
        f"In generation itself, with its sampling and growing cache, steps took {digits(whole)} (no cache) "
        f"and {digits(cached)} (cache) times what was measured at single contexts (medians)."
    )


def _quotient(taken_s: list[float], first: int, grid: Samples) -> float:
    """Median of steps at contexts from `first` on, over those of the grid."""
    contexts, at = sorted(grid), first + np.arange(len(taken_s))
    return median(taken_s / np.interp(at, contexts, [middle(grid[context]) for context in contexts]))
