"""The staircase's samples as series over the length, and where they jump.

Jumps are sought in the least of the sweeps at each length: other work on the machine can only add to a call,
and what a length costs is in every sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kshipra.experiments.report.jumps import Jumps, jumps
from kshipra.experiments.results import Results
from kshipra.ui.show import count, listing

NEAR_TOKENS = 8  # jumps so near are one, or a step of the grid where that is more
PRODUCTS = {"qkv": "QKV", "attention_out": "attention out", "mlp_in": "MLP in", "mlp_out": "MLP out"}
PARTS = PRODUCTS | {"attention": "attention (SDPA)"}
ALONE = PARTS | {"head": "head, all positions"}


@dataclass(frozen=True)
class Series:
    """Samples of all lengths that every sweep so far has visited, shortest first."""

    lengths: list[int]
    step_tokens: int
    taken_s: dict[str, list[list[float]]]  # by name: a list a length, scaled to all layers

    @property
    def within(self) -> int:
        return max(self.step_tokens, NEAR_TOKENS)

    def least(self, *names: str) -> list[float]:
        """Seconds at each length, of all `names` together."""
        return [sum(min(self.taken_s[name][place]) for name in names) for place in range(len(self.lengths))]

    def jumps(self, *names: str) -> Jumps | None:
        return jumps(self.lengths, self.least(*names))

    @cached_property
    def whole(self) -> Jumps | None:
        return self.jumps("step")

    @cached_property
    def products(self) -> Jumps | None:
        return self.jumps(*PRODUCTS)


def series(results: Results) -> Series:
    """The samples by length, those of one layer times the layers. Lengths that a sweep has not come to yet
    are left out while there are others."""
    found: dict[int, dict[str, list[float]]] = {}
    swept = [case for case in results.cases if "sweep" in case.settings]
    for case in swept:
        scale = case.samples["layers"] / case.samples["timed_layers"]
        for name, taken in case.samples["taken_s"].items():
            times = scale if name in PARTS else 1
            for tokens, values in zip(case.settings["lengths"], taken, strict=True):
                found.setdefault(tokens, {}).setdefault(name, []).extend(value * times for value in values)
    sweeps = max(len(samples["step"]) for samples in found.values())
    lengths = sorted(tokens for tokens, samples in found.items() if len(samples["step"]) == sweeps)
    taken_s = {name: [found[tokens][name] for tokens in lengths] for name in (*ALONE, "step")}
    return Series(lengths, swept[0].settings["step_tokens"], taken_s)


def at(lengths: tuple[int, ...]) -> str:
    return listing([count(tokens) for tokens in lengths]) if lengths else "no length"
