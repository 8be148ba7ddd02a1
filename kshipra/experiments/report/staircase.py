"""Whether the uncached step jumps where a tile of its products ends: the verdict on study B's hypothesis."""

from __future__ import annotations

from kshipra.experiments import experiment_named
from kshipra.experiments.report import study
from kshipra.experiments.report.edges import Edges, Ladder, edges, estimate, ladder
from kshipra.experiments.report.edges_figures import (
    edges_figure,
    edges_table,
    groups_table,
    ladder_figure,
    limits,
    periods_table,
    products_table,
)
from kshipra.experiments.report.jumps import FEWEST, by_chance, jumps, near
from kshipra.experiments.report.parts import Report
from kshipra.experiments.report.staircase_figures import (
    excess_figure,
    jumps_table,
    parts_figure,
    parts_table,
    step_figure,
)
from kshipra.experiments.report.staircase_series import PRODUCTS, Series, at, series
from kshipra.experiments.results import Results
from kshipra.ui.show import count, digits, listing, percent, seconds

MOST_NAMED = 8  # jumps, in a sentence


def report(results: Results) -> Report:
    experiment = experiment_named(results.experiment)
    taken, paired, every = series(results), edges(results), ladder(results)
    parts = [
        paired and edges_figure(paired, results),
        paired and groups_table(paired),
        paired and edges_table(paired),
        paired and products_table(paired),
        every and ladder_figure(every, results),
        every and periods_table(every),
        step_figure(taken, results),
        excess_figure(taken, results),
        parts_figure(taken, results),
        jumps_table(taken),
        parts_table(taken),
    ]
    answers = [*at_edges(paired), every and at_every_length(every), *over_sweeps(taken)]
    return Report(
        experiment.title,
        experiment.question,
        tuple(answer for answer in answers if answer),
        tuple(part for part in parts if part is not None),
    )


def at_edges(paired: Edges | None) -> list[str | None]:
    if paired is None:
        return [
            "No step was timed in turns with one a token longer, and sweeps alone scatter too much to settle "
            "anything about tiles: run the experiment again."
        ]
    return [verdict(paired), control(paired), beside_heights(paired)]


def verdict(paired: Edges) -> str:
    every = paired.groups[0]
    found = (
        f"From the end of a tile ({count(len(paired.at))} multiples of 64, {count(paired.at[0].tokens)} to "
        f"{count(paired.at[-1].tokens)} tokens) to one token more, the uncached step rises by "
        f"{limits(every.step)} beyond that token's arithmetic, and its products by "
        f"{limits(every.products)} of a step."
    )
    tiles = listing([group.label for group in paired.groups])
    if not paired.jumping:
        known = f"{found} Taken by {tiles}, the products' rise is below {percent(paired.bound)} of a step"
        if paired.outcome == "unsettled":
            return f"{known}: the tile hypothesis is unsettled here below that."
        return (
            f"{known}: the tile hypothesis is not supported here, as there are no jumps to explain it with."
        )
    told = (paired.followed or paired.jumping)[0]
    jump = (
        f"{found} At {told.label} the products jump by {limits(told.products)} of a step, and the step rises "
        f"by {limits(told.step)}"
    )
    conclusion = {
        "supported": "is supported here, as the products jump where a tile ends, and the step with them",
        "not supported": "is not supported here, as the step does not follow its products",
        "unsettled": f"is unsettled here below {percent(max(told.step.high, told.products.high))}, as "
        "whether the step follows drowns in its scatter",
    }
    return f"{jump}: the tile hypothesis {conclusion[paired.outcome]}."


def control(paired: Edges) -> str | None:
    beside = paired.control
    if beside is None:
        return None
    return (
        f"The control, {beside.label} (at {at(tuple(place.tokens for place in beside.places))}): the step "
        f"rises by {limits(beside.step)}, its products by {limits(beside.products)} of a step."
    )


def beside_heights(paired: Edges) -> str:
    """Study B names contexts and no heights: how high its jumps can have been, from its table."""
    (low_s, middle_s, high_s), contexts = study.B_NO_CACHE_S[1:], study.B_CONTEXTS[1:]
    height_s = (high_s - low_s) / len(study.B_JUMPS)
    told = (
        f"Study B gives no heights. Were all its rise from {count(contexts[0])} to {count(contexts[2])} "
        f"tokens in its {count(len(study.B_JUMPS))} jumps, each would be {seconds(height_s)}, "
        f"{percent(height_s / high_s)} of its step at {count(contexts[2])} tokens and "
        f"{percent(height_s / middle_s)} at {count(contexts[1])}"
    )
    same = [place for place in paired.at if place.tokens in study.B_JUMPS]
    if not same:
        return f"{told}; its contexts lie beyond what was measured here."
    where = at(tuple(place.tokens for place in same))
    return f"{told}. Here, at {where} together, the step rises by {limits(estimate(same, 'step'))}."


def at_every_length(every: Ladder) -> str:
    found = jumps(every.lengths, every.products_s)
    said = f"At every length from {count(every.lengths[0])} to {count(every.lengths[-1])} tokens"
    if found is None:
        return f"{said} there are too few to find jumps of the products."
    named = f", at {at(found.at)}" if 0 < len(found.at) <= MOST_NAMED else ""
    return (
        f"{said} one call of each product gives {count(len(found.at))} jumps of more than "
        f"{percent(found.threshold)} of the products' time{named}, and {count(found.drops)} drops by the "
        "same rule upside down."
    )


def over_sweeps(taken: Series) -> list[str | None]:
    if taken.whole is None:
        return [f"{count(len(taken.lengths))} lengths are too few to find jumps: it takes {FEWEST}."]
    return [swept(taken), explained_time(taken), beside_study(taken), grid(taken)]


def height_explained(taken: Series) -> float:
    """The products' rises beyond their line at the whole step's jumps, as a part of its own."""
    places = [taken.whole.lengths.index(tokens) for tokens in taken.whole.at]
    return sum(taken.products.seconds[p] for p in places) / sum(taken.whole.seconds[p] for p in places)


def swept(taken: Series) -> str:
    """What sweeps show of jumps anywhere: no verdict, because lengths are visited minutes apart."""
    whole, products = taken.whole, taken.products
    over = f"In the sweeps from {count(taken.lengths[0])} to {count(taken.lengths[-1])} tokens"
    if not whole.at:
        return (
            f"{over} the uncached step has no jump of more than {percent(whole.threshold)}, what their "
            f"scatter lets show; its products alone jump at {at(products.at)}."
        )
    matched = near(whole.at, products.at, taken.within)
    chance = by_chance(len(whole.at), whole.lengths, products.at, taken.within)
    return (
        f"{over} the uncached step jumps at {at(whole.at)} (by more than {percent(whole.threshold)}) and "
        f"drops by the same rule {count(whole.drops)} times; {count(len(matched))} of "
        f"{count(len(whole.at))} jumps coincide with jumps of its single products (by chance "
        f"{digits(chance)}), whose rises there make {percent(height_explained(taken))} of their height."
    )


def explained_time(taken: Series) -> str:
    """How much of the step is its single products and attention, at both ends."""
    step, products, attention = (taken.least(*names) for names in (("step",), PRODUCTS, ("attention",)))
    said = [
        f"{percent(products[place] / step[place])} and attention {percent(attention[place] / step[place])} "
        f"at {count(taken.lengths[place])} tokens"
        for place in (0, len(step) - 1)
    ]
    return f"Timed alone, the products of all layers take {said[0]}, and {said[1]}, of the whole step."


def beside_study(taken: Series) -> str:
    reached = tuple(t for t in study.B_JUMPS if t <= taken.lengths[-1])
    same = near(reached, taken.whole.at, taken.within)
    if not reached:
        return f"Study B's jumps, from {study.B_JUMPS[0]} tokens on, lie beyond what was measured."
    outcome = f"at {at(same)} the swept step jumps too" if same else "the swept step jumps at none of them"
    beyond = "" if len(reached) == len(study.B_JUMPS) else f" (of those up to {count(taken.lengths[-1])})"
    return f"Study B saw jumps near {at(study.B_JUMPS)} tokens on an A40: {outcome}{beyond}."


def grid(taken: Series) -> str | None:
    if taken.step_tokens == 1:
        return None
    return (
        f"One length in {count(taken.step_tokens)} was taken: a staircase with shorter steps shows as "
        "scatter only."
    )
