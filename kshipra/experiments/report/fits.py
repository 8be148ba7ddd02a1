"""Polynomials through medians, and how far they can be trusted: each number is fitted again to contexts drawn
anew from those measured, so that steps of the curve count as doubt just as noise does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import polynomial

DRAWS = 1000


@dataclass(frozen=True)
class Estimate:
    """`low` and `high` enclose 95 % of the values that the draws gave."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether its sign is known."""
        return self.low > 0 or self.high < 0


def fitted(
    x: Sequence[float],
    y: Sequence[float],
    degree: int,
    value: Callable[[np.ndarray], float] = lambda terms: float(terms[-1]),
) -> Estimate | None:
    """`value` of the polynomial's terms, lowest power first; None of fewer points than it takes to doubt it.

    Least squares of the relative error: a slow step is not worth more than a fast one."""
    if len(x) < degree + 3:
        return None
    places, heights = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS):
        chosen = random.integers(len(places), size=len(places))
        if len(set(chosen)) > degree:
            drawn.append(value(_terms(places[chosen], heights[chosen], degree)))
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Estimate(value(_terms(places, heights, degree)), float(low), float(high))


def _terms(x: np.ndarray, y: np.ndarray, degree: int) -> np.ndarray:
    return polynomial.polyfit(x, y, degree, w=1 / y)
