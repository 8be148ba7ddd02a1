"""What sets the least time of a step: the verdict on study B's suspect, in sentences made of samples."""

from __future__ import annotations

from collections.abc import Sequence

from kshipra.experiments import experiment_named
from kshipra.experiments.report import study
from kshipra.experiments.report.floor_figures import (
    decode_figure,
    uncached_figure,
    ways_table,
    width_figure,
)
from kshipra.experiments.report.floor_numbers import (
    HEADS,
    WAYS,
    by_tokens,
    differ,
    least_s,
    nothing_to_do_s,
    step_s,
    widths,
)
from kshipra.experiments.report.floor_split import outside_s, split_figure, split_table
from kshipra.experiments.report.parts import Report, middle
from kshipra.experiments.results import CaseResult, Results
from kshipra.ui.show import count, digits, percent, seconds, times

MAIN, SMALL = 0.5, 0.25  # shares of a step: from here the main part, and below it not what sets the floor
REMOVED = ("compiled", "CUDA graph")  # the ways without the way from Python to each operation
FLAT = 1.25  # a step within this of the least one still is on the floor


def report(results: Results) -> Report:
    experiment = experiment_named(results.experiment)
    parts = [
        decode_figure(results),
        ways_table(results),
        uncached_figure(results),
        split_figure(results),
        split_table(results),
        width_figure(results),
    ]
    return Report(
        experiment.title,
        experiment.question,
        tuple(answers(results)),
        tuple(part for part in parts if part is not None),
    )


def answers(results: Results) -> list[str]:
    found = [
        verdict(results),
        roofline_answer(results),
        *removals(results),
        concatenation(results),
        head_answer(results),
        flatness(results),
    ]
    return [answer for answer in found if answer]


def verdict(results: Results) -> str | None:
    """Whether most of the least step is overhead, by two roads that share no measurement."""
    cases = by_tokens(results, "decode")
    if not cases:
        return None
    case = cases[0]
    step = middle(case.samples["ways"]["preallocated"]["step_s"])
    narrow, profiled = nothing_to_do_s(results), outside_s(results, case.settings["tokens"])
    roads = []
    if narrow is not None:
        roads.append(
            f"{seconds(narrow)} ({percent(narrow / step)}) by narrowing the model to nothing, "
            f"{len(widths(results))} widths"
        )
    if profiled is not None:
        roads.append(f"{seconds(profiled)} ({percent(profiled / step)}) by the profiler, outside kernels")
    if not roads:
        return None
    said = judged([part / step for part in (narrow, profiled) if part is not None], largest_drop(case))
    return (
        f"Study B suspects per-step overhead, Python and kernel launches. The step at "
        f"{count(case.settings['tokens'])} tokens takes {seconds(step)}; overhead is "
        f"{' and '.join(roads)}. {said}"
    )


def judged(shares: Sequence[float], drop: float) -> str:
    """What is to be said of the suspect: `shares` of the step are the overhead as one road or two found it,
    and by `drop` the step gets shorter where that is taken away."""
    if min(shares) >= MAIN:
        return "The suspect is confirmed here: overhead is the main part of the floor."
    if max(shares) >= MAIN:
        return "The two roads disagree, so this run settles nothing: repeat it while nothing else runs."
    if max(*shares, drop) >= SMALL:
        return "The suspect explains a part of the floor here, but not most of it."
    return "The numbers do not support the suspect here: the floor is the kernels' own work, not overhead."


def largest_drop(case: CaseResult) -> float:
    """The part of the eager step that the best way without overhead saves, 0 where none does."""
    eager = step_s(case, "preallocated")
    there = [taken for way in REMOVED if (taken := step_s(case, way)) and differ(eager, taken)]
    return max([0.0, *(1 - middle(taken) / middle(eager) for taken in there)])


def roofline_answer(results: Results) -> str | None:
    """How much of the step the shape asks for, and what neither that nor overhead explains."""
    cases = by_tokens(results, "decode")
    if not cases or (least := least_s(cases[0].samples, results)) is None:
        return None
    samples, roof = cases[0].samples, results.case("roofline").samples
    step = middle(step_s(cases[0], "preallocated"))
    rest = step - least - (nothing_to_do_s(results) or 0.0)
    if rest >= 0:
        left = f"What overhead and this leave is {seconds(rest)} ({percent(rest / step)})."
    else:
        left = (
            f"Overhead and this are {seconds(-rest)} more than the step takes: they overlap, or some weights "
            "are read from the processor's caches."
        )
    return (
        f"The least possible for that step is {seconds(least)} ({percent(least / step)}): "
        f"{digits(samples['bytes'] / 1e6)} MB to read at this machine's best, "
        f"{digits(max(roof['bytes_per_s']) / 1e9)} GB/s. {left}"
    )


def removals(results: Results) -> list[str]:
    """The study's own test: take the overhead away and see whether the floor drops."""
    cases = by_tokens(results, "decode")
    if not cases:
        return []
    case, found = cases[0], []
    eager = step_s(case, "preallocated")
    for way in REMOVED:
        taken = step_s(case, way)
        if taken is None:
            found.append(f"{WAYS[way]}: not taken. {case.samples['ways'][way]['unavailable']}")
            continue
        change = middle(taken) / middle(eager) - 1
        if not differ(eager, taken):
            outcome = "the same within the spread, so the floor does not drop with it"
        elif change < 0:
            outcome = f"{percent(-change)} less, so the floor drops with it"
            overhead = nothing_to_do_s(results)
            if overhead is not None and middle(eager) - middle(taken) > overhead:
                outcome += "; that is more than all the overhead, so its kernels are faster too"
        else:
            outcome = f"{percent(change)} more, so the floor does not drop with it"
        found.append(
            f"Without the way from Python to each operation ({WAYS[way]}), the step at "
            f"{count(case.settings['tokens'])} tokens takes {seconds(middle(taken))} against "
            f"{seconds(middle(eager))} eager: {outcome}."
        )
    return found


def concatenation(results: Results) -> str | None:
    cases = by_tokens(results, "decode")
    if not cases:
        return None
    said = []
    for case in cases if len(cases) == 1 else (cases[0], cases[-1]):
        one, other = step_s(case, "preallocated"), step_s(case, "concatenated")
        change = middle(other) / middle(one) - 1
        if differ(one, other):
            cost = f"{percent(abs(change))} {'longer' if change > 0 else 'shorter'}"
        else:
            cost = "the same within the spread"
        said.append(f"{cost} at {count(case.settings['tokens'])} tokens")
    return f"With a concatenated cache instead of a preallocated one the step is {' and '.join(said)}."


def head_answer(results: Results) -> str | None:
    cases = by_tokens(results, "no cache")
    if not cases:
        return None
    case = cases[-1]
    last, every = (middle(case.samples["ways"][way]["step_s"]) for way in HEADS)
    by_flops = 1 - case.samples["flops"] / case.samples["all_positions_flops"]
    return (
        f"Without cache at {count(case.settings['tokens'])} tokens, the head on the last position alone "
        f"saves {percent(1 - last / every)} of the step; by FLOPs it is {percent(by_flops)} (study B counts "
        f"{percent(study.B_HEAD_SHARE)})."
    )


def flatness(results: Results) -> str | None:
    """Where the uncached step leaves its floor, and whether the cached one stays on it."""
    uncached, cached = by_tokens(results, "no cache"), by_tokens(results, "decode")
    if len(uncached) < 2 or len(cached) < 2:
        return None
    taken = [(case.settings["tokens"], middle(step_s(case, "last position"))) for case in uncached]
    on_floor = [tokens for tokens, step in taken if step <= FLAT * min(step for _, step in taken)]
    first, last = (middle(step_s(case, "preallocated")) for case in (cached[0], cached[-1]))
    return (
        f"The uncached step stays within {percent(FLAT - 1)} of its least up to {count(max(on_floor))} "
        f"tokens (study B: about {count(study.B_FLAT_TO)}), and the cached one takes "
        f"{times(last / first)} as long at {count(cached[-1].settings['tokens'])} tokens as at "
        f"{count(cached[0].settings['tokens'])} (study B: the same at every length)."
    )
