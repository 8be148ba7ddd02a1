"""Whether the uncached step jumps where its single products do: the verdict on study B's tile hypothesis."""

from __future__ import annotations

from statistics import StatisticsError, correlation

from kshipra.experiments import experiment_named
from kshipra.experiments.report import study
from kshipra.experiments.report.jumps import FEWEST, SIDE, by_chance, near
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
from kshipra.ui.show import count, digits, percent

COARSE = 0.1  # of a step: a rule that sees nothing smaller may miss a staircase
TOGETHER = 0.5  # of the jumps, and of their height: from here the products explain them


def report(results: Results) -> Report:
    experiment = experiment_named(results.experiment)
    taken = series(results)
    parts = [
        step_figure(taken, results),
        excess_figure(taken, results),
        parts_figure(taken, results),
        jumps_table(taken),
        parts_table(taken),
    ]
    return Report(
        experiment.title,
        experiment.question,
        tuple(answer for answer in answers(taken) if answer),
        tuple(part for part in parts if part is not None),
    )


def answers(taken: Series) -> list[str | None]:
    if taken.whole is None:
        return [f"{count(len(taken.lengths))} lengths are too few to find jumps: it takes {FEWEST}."]
    return [verdict(taken), explained_time(taken), together(taken), beside_study(taken), grid(taken)]


def height_explained(taken: Series) -> float:
    """The products' rises beyond their line at the whole step's jumps, as a part of its own."""
    places = [taken.whole.lengths.index(tokens) for tokens in taken.whole.at]
    return sum(taken.products.seconds[p] for p in places) / sum(taken.whole.seconds[p] for p in places)


def verdict(taken: Series) -> str:
    whole, products = taken.whole, taken.products
    over = f"From {count(taken.lengths[0])} to {count(taken.lengths[-1])} tokens"
    settles_nothing = (
        f"Jumps of less than {percent(whole.threshold)} would drown in this run's scatter, so it settles "
        "nothing about tiles."
    )
    if not whole.at:
        none = f"{over} the uncached step has no jump of more than {percent(whole.threshold)}"
        if whole.threshold > COARSE:
            return f"{none}. {settles_nothing}"
        return (
            f"{none}: there is no staircase here for tiles to explain. Its products alone jump at "
            f"{at(products.at)}."
        )
    matched = near(whole.at, products.at, taken.within)
    chance = by_chance(len(whole.at), whole.lengths, products.at, taken.within)
    height = height_explained(taken)
    found = (
        f"{over} the uncached step jumps at {at(whole.at)} (by more than {percent(whole.threshold)}); "
        f"{count(len(matched))} of {count(len(whole.at))} coincide with jumps of its single products (by "
        f"chance {digits(chance)}), whose rises there make {percent(height)} of their height."
    )
    if whole.drops >= len(whole.at):
        return (
            f"{found} The same rule upside down finds {count(whole.drops)} drops, no fewer, so these jumps "
            "are no staircase and the tile hypothesis stays open here."
        )
    if len(matched) >= TOGETHER * len(whole.at) and len(matched) > chance and height >= TOGETHER:
        return f"{found} The tile hypothesis is supported here: the products jump, and the step with them."
    if whole.threshold > COARSE:
        return f"{found} {settles_nothing}"
    return f"{found} The tile hypothesis is not supported here: most of this is not the products' doing."


def explained_time(taken: Series) -> str:
    """How much of the step is its single products and attention, at both ends."""
    step, products, attention = (taken.least(*names) for names in (("step",), PRODUCTS, ("attention",)))
    said = [
        f"{percent(products[place] / step[place])} and attention {percent(attention[place] / step[place])} "
        f"at {count(taken.lengths[place])} tokens"
        for place in (0, len(step) - 1)
    ]
    return f"Timed alone, the products of all layers take {said[0]}, and {said[1]}, of the whole step."


def together(taken: Series) -> str | None:
    """Whether the two series move together at all, without a rule for jumps. Each rise is told by SIDE
    lengths on either side, so that a SIDEth of them are independent."""
    try:
        moved = correlation(taken.whole.excess, taken.products.excess)
    except StatisticsError:  # one of them is a straight line
        return None
    scatter = 2 / (len(taken.whole.excess) / SIDE) ** 0.5
    outcome = "move together" if moved > scatter else "do not move together"
    return (
        f"Over all {count(len(taken.whole.excess))} lengths, the rises of the step and of its products "
        f"beyond their lines {outcome}: their correlation is {digits(moved)}, and unrelated ones stay within "
        f"±{digits(scatter)} in 19 of 20 cases."
    )


def beside_study(taken: Series) -> str:
    reached = tuple(t for t in study.B_JUMPS if t <= taken.lengths[-1])
    same = near(reached, taken.whole.at, taken.within)
    if not reached:
        return f"Study B's jumps, from {study.B_JUMPS[0]} tokens on, lie beyond what was measured."
    outcome = f"at {at(same)} this step jumps too" if same else "this step jumps at none of them"
    beyond = "" if len(reached) == len(study.B_JUMPS) else f" (of those up to {count(taken.lengths[-1])})"
    return f"Study B saw jumps near {at(study.B_JUMPS)} tokens on an A40: {outcome}{beyond}."


def grid(taken: Series) -> str | None:
    if taken.step_tokens == 1:
        return None
    return (
        f"One length in {count(taken.step_tokens)} was taken: a staircase with shorter steps shows as "
        "scatter only."
    )
