"""What one token more costs where a tile ends, and where none does: pairs of samples as rises.

A rise is what the second of a pair takes beyond the first and beyond the growth that its arithmetic explains
(the step by its FLOPs, a product by 1/L). Where a step is bound by memory it grows by less, and then a rise
is up to 1/L too low, beside a tile's end as well as at it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from kshipra.experiments.report import study
from kshipra.experiments.report.fits import Estimate
from kshipra.experiments.report.jumps import LEAST_JUMP
from kshipra.experiments.report.staircase_series import ALONE, PRODUCTS
from kshipra.experiments.results import CaseResult, Results

DOUBT = 0.05
COARSE = 0.05  # of a step: what a bound must be below. A tile of 64 rows is 64/L of a step, 6.7 % at 960
TOGETHER = 0.5  # of the products' rise: what the step must follow by
TILES = (64, 128, 256)  # rows: larger ones would end at two contexts or one
PERIODS = (16, 32, 64, 128)  # tokens
POWER = {"attention": 2}  # of the length, that a part grows with; others with the first


@dataclass(frozen=True)
class Place:
    """The rises from `tokens` to one more, one a pair. `step` and `products` are parts of a step, those in
    `own` of the part's own time."""

    tokens: int
    is_edge: bool
    step_s: float  # at `tokens`
    step: list[float]
    products: list[float]
    own: dict[str, list[float]]


@dataclass(frozen=True)
class Group:
    """Places whose pairs count together."""

    label: str
    places: list[Place]

    @cached_property
    def step(self) -> Estimate:
        return estimate(self.places, "step")

    @cached_property
    def products(self) -> Estimate:
        return estimate(self.places, "products")


@dataclass(frozen=True)
class Edges:
    """All places that were measured, shortest first."""

    at: list[Place]  # where a tile ends
    beside: list[Place]  # where none ends

    @cached_property
    def control(self) -> Group | None:
        return Group("where no tile ends", self.beside) if self.beside else None

    @cached_property
    def groups(self) -> list[Group]:
        """The ends of a tile of so many rows, which come at all its multiples, and the study's contexts."""
        found = [
            Group(f"multiples of {tile}", [p for p in self.at if p.tokens % tile == 0]) for tile in TILES
        ]
        found.append(Group("study B's contexts", [p for p in self.at if p.tokens in study.B_JUMPS]))
        return [group for group in found if group.places]

    @cached_property
    def jumping(self) -> list[Group]:
        """Those whose products rise by LEAST_JUMP of a step, clearly more than where no tile ends."""
        usual = clear_rise(self.control and self.control.products)
        return [g for g in self.groups if g.products.value >= LEAST_JUMP and g.products.low > usual]

    @cached_property
    def followed(self) -> list[Group]:
        """Those of `jumping` in which the step rises with its products."""
        usual = clear_rise(self.control and self.control.step)
        return [
            group
            for group in self.jumping
            if group.step.low > usual and group.step.value >= TOGETHER * group.products.value
        ]

    @cached_property
    def bound(self) -> float:
        """What the products' rise lies below in every group."""
        return max(group.products.high for group in self.groups)

    @property
    def outcome(self) -> str:
        """Whether jumps of the products make jumps of the step. This rule is older than the first sample.

        "supported": at the ends of some tile (a group) the products rise by LEAST_JUMP or more and the step
        by at least TOGETHER of that, and both by their lower limits by more than nothing, and by more than
        the control's upper limit if the control, where no tile ends, rises clearly itself.
        "not supported": in no group they jump, and in each their upper limit is below COARSE; or in the
        first where they jump, the step by its upper limit rises by less than TOGETHER of it.
        "unsettled": anything else."""
        if self.followed:
            return "supported"
        if not self.jumping:
            return "not supported" if self.bound < COARSE else "unsettled"
        first = self.jumping[0]
        return "not supported" if first.step.high < TOGETHER * first.products.value else "unsettled"


def clear_rise(found: Estimate | None) -> float:
    """What a control that rises beyond doubt rises by at most, else nothing."""
    return found.high if found and found.low > 0 else 0.0


def median_within(samples: list[float]) -> Estimate:
    """The median. `low` and `high` are those samples between which the true one lies in 95 of 100 such sets
    whatever their distribution (the sign test turned round: Conover, Practical Nonparametric Statistics,
    3.2); infinite of fewer than six, whose range does not suffice."""
    ordered, many = sorted(samples), len(samples)
    outside, below = 0, 0.0  # samples on either side, and the chance that so few lie on one of them
    while (below := below + math.comb(many, outside) / 2**many) <= DOUBT / 2:
        outside += 1
    if not outside:
        return Estimate(median(ordered), -math.inf, math.inf)
    return Estimate(median(ordered), ordered[outside - 1], ordered[many - outside])


def estimate(places: list[Place], name: str) -> Estimate:
    """Of all pairs of `places` together: "step", "products", or a part of its own time."""
    return median_within(
        [
            rise
            for place in places
            for rise in (getattr(place, name) if name in ("step", "products") else place.own[name])
        ]
    )


def edges(results: Results) -> Edges | None:
    """None where no tile's end has been measured yet, or was when the file was made."""
    found = sorted((place_of(case) for case in results.of(kind="pair")), key=lambda place: place.tokens)
    at = [place for place in found if place.is_edge]
    return Edges(at, [place for place in found if not place.is_edge]) if at else None


def place_of(case: CaseResult) -> Place:
    samples, tokens = case.samples, case.settings["tokens"]
    pairs_s = samples["pairs_s"]
    step_s = median(first for first, _ in pairs_s["step"])
    first_flops, second_flops = samples["flops"]
    growth = {name: (1 + 1 / tokens) ** POWER.get(name, 1) for name in ALONE}
    growth["step"] = second_flops / first_flops
    own = {
        name: [second / first - growth[name] for first, second in pairs] for name, pairs in pairs_s.items()
    }
    beyond_s = [
        [second - first * growth[name] for first, second in pairs_s[name]] for name in PRODUCTS
    ]  # of the timed layers, by product and pair
    scale = samples["layers"] / samples["timed_layers"] / step_s
    products = [sum(rises) * scale for rises in zip(*beyond_s, strict=True)]
    return Place(tokens, case.settings["is_edge"], step_s, own["step"], products, own)


@dataclass(frozen=True)
class Ladder:
    """Seconds of each product in all layers, at every length from the first."""

    lengths: list[int]
    taken_s: dict[str, list[float]]

    @cached_property
    def products_s(self) -> list[float]:
        return [sum(values) for values in zip(*(self.taken_s[name] for name in PRODUCTS), strict=True)]

    @cached_property
    def rises(self) -> dict[int, float]:
        """From each length to the next, beyond 1/L, as a part of the products' time."""
        times = zip(self.lengths, self.products_s, self.products_s[1:], strict=False)
        return {tokens: second / first - 1 - 1 / tokens for tokens, first, second in times}

    def after(self, period: int) -> list[float]:
        """The rises from multiples of `period` on."""
        return [rise for tokens, rise in self.rises.items() if tokens % period == 0]

    def elsewhere(self) -> list[float]:
        """The rises from multiples of no period."""
        return [rise for tokens, rise in self.rises.items() if tokens % min(PERIODS)]


def ladder(results: Results) -> Ladder | None:
    found = results.of(kind="every length")
    if not found:
        return None
    lengths = [n for case in found for n in range(case.settings["first"], case.settings["last"] + 1)]
    taken_s = {
        name: [
            value * case.samples["layers"] / case.samples["timed_layers"]
            for case in found
            for value in case.samples["taken_s"][name]
        ]
        for name in PRODUCTS
    }
    return Ladder(lengths, taken_s)
