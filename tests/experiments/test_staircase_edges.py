"""The staircase's verdict: a stair at tiles' ends is found under a larger drift, and nothing else is."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest

from kshipra.experiments.measure import staircase as measuring
from kshipra.experiments.report import report_of
from kshipra.experiments.report.edges import edges, estimate, ladder, median_within
from kshipra.experiments.report.edges_figures import limits
from kshipra.experiments.report.parts import Figure, Table
from kshipra.experiments.report.staircase_series import ALONE, PRODUCTS
from kshipra.experiments.results import CaseResult, Results
from kshipra.experiments.rig import Rig
from kshipra.types import ModelChoice
from kshipra.ui.show import percent

LAYERS = 12
WHEN = "2026-01-01T00:00:00+00:00"
SHARE = {"qkv": 0.2, "attention_out": 0.1, "mlp_in": 0.2, "mlp_out": 0.2, "attention": 0.1, "head": 0.3}


class Machine:
    """1 ms a token for a step, in which some ends of tiles cost a part of a step more. A clock that drifts by
    half within a minute scales all that it does, and other work lengthens a call now and then."""

    def __init__(self, step_rise: float, product_rise: float, *, tile: int = 64, noise: float = 0.02) -> None:
        self.step_rise, self.product_rise, self.tile, self.noise = step_rise, product_rise, tile, noise
        self.dice, self.now_s = random.Random(1), 0.0

    def taken_s(self, exact_s: float) -> float:
        drift = 1 + 0.5 * math.sin(self.now_s / 10)
        busy = self.dice.random() if self.dice.random() < self.noise else 0
        value = exact_s * drift * math.exp(self.dice.gauss(0, self.noise)) * (1 + busy)
        self.now_s += value
        return value

    def exact_s(self, name: str, tokens: int, here: int) -> float:
        """At `tokens`, of a pair that starts `here`: the stair is between the two."""
        over_edge = tokens > here and here % self.tile == 0
        if name == "step":
            return 1e-3 * (tokens + here * self.step_rise * over_edge)
        rise = self.product_rise / len(PRODUCTS) if name in PRODUCTS else 0
        of_step = SHARE[name] * tokens + here * rise * over_edge
        return 1e-3 * of_step / (1 if name == "head" else LAYERS)

    def pair(self, tokens: int, *, is_edge: bool) -> CaseResult:
        pairs_s = {}
        for name in (*ALONE, "step"):
            pairs_s[name] = []
            for number in range({"step": 6, "head": 2}.get(name, 16)):
                order = (tokens, tokens + 1)[:: -1 if number % 2 else 1]
                found = {t: self.taken_s(self.exact_s(name, t, tokens)) for t in order}
                pairs_s[name].append([found[tokens], found[tokens + 1]])
        flops = [10**9 * tokens, 10**9 * (tokens + 1)]
        samples = {"timed_layers": 1, "layers": LAYERS, "flops": flops, "pairs_s": pairs_s}
        settings = {"kind": "pair", "tokens": tokens, "is_edge": is_edge}
        return CaseResult(f"{tokens}", settings, samples, 1.0, WHEN)


def results_of(*cases: CaseResult) -> Results:
    """Those cases behind the sweeps of a step that grows evenly."""
    lengths = list(range(60, 1021, 60))
    even = {name: [[SHARE[name] * 1e-3 * n] for n in lengths] for name in ALONE}
    even["step"] = [[1e-3 * n] for n in lengths]
    sweep = CaseResult(
        "sweep 1",
        {"kind": "sweep", "sweep": 0, "step_tokens": 60, "lengths": lengths},
        {"timed_layers": 1, "layers": 1, "taken_s": even},
        1.0,
        WHEN,
    )
    model = {"name": "made", "weights_from": "random", "dtype": "float32", "device": "cpu", "threads": 2}
    return Results("staircase", {}, model, {"processor": "made"}, {}, None, (sweep, *cases), True)


def made(machine: Machine) -> Results:
    """The pairs of that machine."""
    places = sorted([*range(64, 1024, 64), *range(82, 1024, 320)])
    return results_of(*(machine.pair(tokens, is_edge=tokens % 64 == 0) for tokens in places))


def verdict(machine: Machine) -> str:
    return report_of(made(machine)).answers[0]


def test_a_stair_of_five_per_cent_is_found_under_drift():
    results = made(Machine(0.05, 0.05))
    found = edges(results)
    assert found.outcome == "supported"
    assert found.groups[0].step.low < 0.05 < found.groups[0].step.high
    assert found.groups[0].products.low < 0.05 < found.groups[0].products.high
    assert found.control.step.low < 0 < found.control.step.high
    assert "At multiples of 64 the products jump" in report_of(results).answers[0]
    assert "is supported here" in report_of(results).answers[0]


def test_a_stair_of_a_larger_tile_is_found_at_its_ends_alone():
    found = edges(made(Machine(0.08, 0.08, tile=128)))
    assert (found.outcome, [group.label for group in found.followed][:1]) == (
        "supported",
        ["multiples of 128"],
    )


def test_without_a_stair_none_is_found_and_the_bound_is_said():
    results = made(Machine(0.0, 0.0))
    found, said = edges(results), report_of(results).answers[0]
    assert found.outcome == "not supported"
    assert found.bound < 0.03
    assert f"is below {percent(found.bound)} of a step: the tile hypothesis is not supported here" in said


def test_a_step_that_jumps_alone_or_does_not_follow_is_no_support():
    assert "as there are no jumps to explain it with" in verdict(Machine(0.1, 0.0))
    assert "as the step does not follow its products" in verdict(Machine(0.0, 0.1))


def test_noise_leaves_it_open():
    results = made(Machine(0.0, 0.0, noise=0.5))
    found, said = edges(results), report_of(results).answers[0]
    assert found.outcome == "unsettled"
    assert f"below {percent(found.bound)} of a step: the tile hypothesis is unsettled here" in said


def test_what_rises_everywhere_is_no_edge():
    found = edges(made(Machine(0.05, 0.05, tile=1)))
    assert found.control.step.low > 0.02
    assert (found.jumping, found.outcome) == ([], "unsettled")


def test_pairs_are_taken_in_turns_and_told_apart(monkeypatch):
    order: list[str] = []
    clock = iter(range(1000))
    rig = Rig(ModelChoice("gpt2", device="cpu"))
    monkeypatch.setattr("kshipra.experiments.rig.time.perf_counter", lambda: next(clock))
    found = measuring.in_turns(rig, lambda: order.append("a"), lambda: (order.append("b"), next(clock)), 4)
    assert "".join(order) == "abbaabba"
    assert found == [[1, 2]] * 4


def test_the_median_lies_between_its_limits():
    """By the binomial table: of 6 samples the range, of 16 the 4th to the 13th; of 5 nothing."""
    assert median_within([6, 2, 3, 5, 4, 1]).low == 1
    assert median_within([6, 2, 3, 5, 4, 1]).high == 6
    found = median_within(list(range(1, 17)))
    assert (found.value, found.low, found.high) == (8.5, 4, 13)
    assert math.isinf(median_within([1, 2, 3, 4, 5]).high)
    dice = random.Random(0)
    sets = [median_within([dice.expovariate(1) for _ in range(16)]) for _ in range(1000)]
    held = sum(found.low < math.log(2) < found.high for found in sets)
    assert held >= 950


def test_numbers_said_are_those_of_the_samples():
    results = made(Machine(0.05, 0.05))
    case = next(case for case in results.of(kind="pair") if case.settings["tokens"] == 512)
    place = next(place for place in edges(results).at if place.tokens == 512)
    step = case.samples["pairs_s"]["step"]
    assert place.step == pytest.approx([b / a - 513 / 512 for a, b in step])
    first = sum(case.samples["pairs_s"][name][0][1] for name in PRODUCTS)
    first -= 513 / 512 * sum(case.samples["pairs_s"][name][0][0] for name in PRODUCTS)
    assert place.products[0] == pytest.approx(LAYERS * first / median(a for a, _ in step))
    report = report_of(results)
    tables = {part.title: part for part in report.parts if isinstance(part, Table)}
    row = next(row for row in tables["One token more"].rows if row[0] == "512 to 513")
    said = tuple(limits(estimate([place], name)) for name in ("step", "products"))
    assert row == ("512 to 513", "yes", *said, "no")
    assert len(tables["One token more"].rows) == 18
    figure = next(part for part in report.parts if isinstance(part, Figure) and part.key == "edges")
    assert f"the step {limits(edges(results).groups[0].step)}" in figure.caption


def test_a_sawtooth_of_the_products_shows_at_its_period():
    taken_s = [1e-3 * (n + 10 * ((n - 1) // 32)) for n in range(8, 257)]
    every = CaseResult(
        "every length",
        {"kind": "every length", "first": 8, "last": 256},
        {"timed_layers": 1, "layers": LAYERS, "taken_s": dict.fromkeys(PRODUCTS, taken_s)},
        1.0,
        WHEN,
    )
    cut = results_of(every)
    found = ladder(cut)
    assert median(found.after(32)) > 0.05
    assert median(found.elsewhere()) == pytest.approx(0, abs=0.01)
    assert {"ladder", "periods"} <= {part.key for part in report_of(cut).parts}
