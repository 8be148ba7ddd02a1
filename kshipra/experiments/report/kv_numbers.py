"""The numbers of `kv-cache` from its raw samples: times by context, totals, arithmetic and what it was worth.
No words, no figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kshipra.costs import kv_bytes_per_token, pass_bytes, pass_flops
from kshipra.experiments.report.fits import Estimate, fitted
from kshipra.experiments.report.parts import middle
from kshipra.experiments.results import Results
from kshipra.types import ModelSpec

Samples = dict[int, list[float]]  # context to the seconds of every repeat
PAST_FLOOR = 1.5  # a step that takes so many times the least one has left the floor


@dataclass(frozen=True)
class Numbers:
    spec: ModelSpec
    whole: Samples
    cached: Samples
    roofline: dict[str, Any] | None  # None where the run stopped before it

    @cached_property
    def contexts(self) -> list[int]:
        """Those measured both ways."""
        return sorted(self.whole.keys() & self.cached.keys())

    @property
    def can_tell(self) -> bool:
        """Whether there is anything between two contexts."""
        return len(self.contexts) > 1

    def speed_up(self, context: int) -> float:
        return middle(self.whole[context]) / middle(self.cached[context])

    def flops(self, context: int, *, cached: bool, as_study: bool) -> int:
        """Of one step. The study's model has logits of every column (2Nt + 4Ldt^2), the engine of the last
        only."""
        columns = 1 if cached else context
        kept = columns if as_study else 1
        return pass_flops(self.spec, rows=1, columns=columns, stored=context, kept=kept)

    def flop_ratio(self, context: int, *, as_study: bool) -> float:
        whole, cached = (self.flops(context, cached=way, as_study=as_study) for way in (False, True))
        return whole / cached

    def gap(self, context: int, *, as_study: bool) -> float:
        """How much of the arithmetic's speed-up the clock does not show."""
        return self.flop_ratio(context, as_study=as_study) / self.speed_up(context)

    def flops_per_s(self, context: int, *, cached: bool, as_study: bool) -> float:
        samples = self.cached if cached else self.whole
        return self.flops(context, cached=cached, as_study=as_study) / middle(samples[context])

    def read_s(self, context: int) -> float:
        """What reading the weights and the stored columns once takes at the measured memory rate."""
        assert self.roofline is not None
        stored_bytes = kv_bytes_per_token(self.spec) * context
        return pass_bytes(self.spec, kv_bytes=stored_bytes) / self.roofline["bytes_per_s"]

    def floor_tokens(self) -> int:
        """The longest context up to which no uncached step has left the floor."""
        least = min(middle(samples) for samples in self.whole.values())
        beyond = [c for c in sorted(self.whole) if middle(self.whole[c]) > PAST_FLOOR * least]
        within = [c for c in self.whole if not beyond or c < beyond[0]]
        return max(within, default=min(self.whole))

    def attention_share(self, context: int) -> float:
        """Of the arithmetic of an uncached step."""
        spec = self.spec
        attention = 4 * spec.layers * spec.heads * spec.head_size * context**2
        return attention / self.flops(context, cached=False, as_study=False)

    def past_floor(self) -> list[int]:
        return [context for context in sorted(self.whole) if context > self.floor_tokens()]

    def square_share(self) -> Estimate | None:
        """The part of the longest uncached step that the t^2 term of a fit past the floor is."""
        contexts = self.past_floor()
        if not contexts:
            return None
        return self._fit(self.whole, contexts, 2, lambda terms: terms[2] / terms.sum(), scale=contexts[-1])

    def cached_slope_s(self) -> Estimate | None:
        """Seconds that a cached step gains with every 1,000 tokens of context."""
        return self._fit(self.cached, sorted(self.cached), 1, lambda terms: float(terms[1]), scale=1000)

    def _fit(
        self,
        samples: Samples,
        contexts: list[int],
        degree: int,
        value: Callable[[np.ndarray], float],
        *,
        scale: float,
    ) -> Estimate | None:
        places = [context / scale for context in contexts]
        return fitted(places, [middle(samples[context]) for context in contexts], degree, value)


def numbers(results: Results) -> Numbers:
    spec = ModelSpec(**{field.name: results.model[field.name] for field in dataclasses.fields(ModelSpec)})
    rates = results.case("roofline")
    return Numbers(spec, _samples(results, False), _samples(results, True), rates and rates.samples)


def _samples(results: Results, cached: bool) -> Samples:
    return {
        context: taken
        for case in results.of(kind="steps", cached=cached)
        for context, taken in zip(case.samples["contexts"], case.samples["step_s"], strict=True)
    }


def total_s(samples: Samples, last: int, of: Callable[[list[float]], float] = middle) -> float:
    """Seconds of all steps at contexts from the first measured to one short of `last`; between measured ones
    the straight line."""
    contexts = sorted(samples)
    every = np.arange(contexts[0], last)
    return float(np.interp(every, contexts, [of(samples[context]) for context in contexts]).sum())
