"""The staircase: jumps that are there are found and others are not, and what is said follows the samples. Its
verdict, by pairs of neighbours, is test_staircase_edges's."""

from __future__ import annotations

import random

import pytest

from conftest import byte_level_tokenizer, make_gpt2, make_llama
from kshipra.engine.runner import Engine
from kshipra.errors import InputError
from kshipra.experiments import experiment_named
from kshipra.experiments import run as running
from kshipra.experiments.measure import staircase as measuring
from kshipra.experiments.report import report_of
from kshipra.experiments.report.edges import ladder
from kshipra.experiments.report.jumps import by_chance, jumps, near
from kshipra.experiments.report.parts import Figure, Table
from kshipra.experiments.report.staircase_series import ALONE, PRODUCTS, series
from kshipra.experiments.results import CaseResult, Results
from kshipra.experiments.rig import Rig
from kshipra.types import ModelChoice
from kshipra.ui.show import digits, percent, seconds

LENGTHS = list(range(20, 1021, 20))
LENGTHS_TAKEN = range(60, 257, 60)


def rig_of(monkeypatch, make, implementation="auto") -> Rig:
    tiny = Engine(make().float(), byte_level_tokenizer(), implementation=implementation)
    monkeypatch.setattr("kshipra.experiments.rig.load_or_random", lambda choice, progress: (tiny, "random"))
    return Rig(ModelChoice("gpt2", device="cpu"))


@pytest.fixture(scope="module", params=[make_gpt2, make_llama])
def taken(request, tmp_path_factory) -> Results:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kshipra.machine.threads", lambda: 1)  # many tiny calls: threads would wait for cores
        rig = rig_of(patch, request.param)
        folder = tmp_path_factory.mktemp("staircase")
        return running.run(experiment_named("staircase"), rig, folder, progress=lambda *_: None)


def noisy(value: float, noise: float, dice: random.Random) -> list[float]:
    """Three samples that other work made longer."""
    return [value * (1 + noise * dice.random()) for _ in range(3)]


def made(
    taken: Results, step_jumps: dict[int, float], product_jumps: dict[int, float], noise: float = 0.01
) -> Results:
    """Samples of one piece a sweep: 1 ms a token for the step and 0.8 for its products, and the jumps'
    seconds from each length on. QKV has the products' jumps."""
    dice = random.Random(0)

    def risen(tokens: int, found: dict[int, float]) -> float:
        return sum(height for start, height in found.items() if tokens >= start)

    each = {name: [noisy(0.2e-3 * t, noise, dice) for t in LENGTHS] for name in PRODUCTS}
    each["qkv"] = [noisy(0.2e-3 * t + risen(t, product_jumps), noise, dice) for t in LENGTHS]
    each["attention"] = [noisy(0.1e-3 * t, noise, dice) for t in LENGTHS]
    each["head"] = [noisy(0.3e-3 * t, noise, dice) for t in LENGTHS]
    each["step"] = [noisy(1e-3 * t + risen(t, step_jumps), noise, dice) for t in LENGTHS]
    cases = tuple(
        CaseResult(
            f"sweep {sweep}",
            {"sweep": sweep, "step_tokens": 20, "lengths": LENGTHS},
            {
                "timed_layers": 1,
                "layers": 1,
                "taken_s": {name: [[v[sweep]] for v in values] for name, values in each.items()},
            },
            1.0,
            "2026-01-01T00:00:00+00:00",
        )
        for sweep in range(3)
    )
    return Results("staircase", taken.settings, taken.model, taken.machine, taken.versions, None, cases, True)


STAIRS = {260: 0.05, 460: 0.08, 640: 0.12, 780: 0.15}


def test_every_sweep_takes_every_length_in_its_own_order(taken):
    sweeps = range(measuring.SWEEPS)
    orders = [[t for case in taken.of(sweep=sweep) for t in case.settings["lengths"]] for sweep in sweeps]
    assert [sorted(order) for order in orders] == [list(LENGTHS_TAKEN)] * len(sweeps)
    assert len({tuple(order) for order in orders}) == len(sweeps)
    for case in taken.of(kind="sweep"):
        assert {len(values) for values in case.samples["taken_s"].values()} == {len(case.settings["lengths"])}
        assert set(case.samples["taken_s"]) == {*ALONE, "step"}


def test_a_run_has_every_edge_its_controls_and_every_length(taken):
    pairs = taken.of(kind="pair")
    assert [case.settings["tokens"] for case in pairs if case.settings["is_edge"]] == [64, 128, 192]
    assert [case.settings["tokens"] for case in pairs if not case.settings["is_edge"]] == [82]
    for case in pairs:
        counts = {name: len(found) for name, found in case.samples["pairs_s"].items()}
        assert counts == dict.fromkeys(ALONE, 16) | {"head": 2, "step": 6}
        assert case.samples["flops"][0] < case.samples["flops"][1]
    assert ladder(taken).lengths == list(range(8, 257))


@pytest.mark.parametrize("make", [make_gpt2, make_llama])
def test_the_products_are_the_models(monkeypatch, make):
    rig, seen = rig_of(monkeypatch, make), []
    for block in rig.engine.model.blocks:
        for name in PRODUCTS:
            getattr(block, name).register_forward_hook(lambda module, *_: seen.append(module.weight))
    for call in list(measuring.parts(rig, 20, 2).values())[: len(PRODUCTS)]:
        call()
    expected = [getattr(block, name).weight for name in PRODUCTS for block in rig.engine.model.blocks]
    assert [id(weight) for weight in seen] == [id(weight) for weight in expected]


def test_a_model_behind_the_adapter_is_refused(monkeypatch):
    rig = rig_of(monkeypatch, make_gpt2, "transformers")
    with pytest.raises(InputError, match="not those of the adapter"):
        measuring.cases(rig)


def test_the_samples_are_put_together_by_length(taken):
    found = series(taken)
    assert found.lengths == list(LENGTHS_TAKEN)
    case = next(case for case in taken.of(sweep=1) if 180 in case.settings["lengths"])
    place = case.settings["lengths"].index(180)
    own = {name: values[place] for name, values in case.samples["taken_s"].items()}
    assert (len(own["step"]), len(own["qkv"])) == (1, 3)
    assert found.taken_s["step"][2][1] == own["step"][0]
    assert found.taken_s["qkv"][2][3:6] == [2 * value for value in own["qkv"]]  # layers
    assert found.taken_s["head"][2][1] == own["head"][0]


def test_jumps_are_found_where_they_are_and_nowhere_else():
    dice = random.Random(1)
    line = [1e-3 * t * (1 + 0.01 * dice.random()) for t in LENGTHS]
    assert jumps(LENGTHS, line).at == ()
    stairs = [value + 0.1 * (t >= 500) for value, t in zip(line, LENGTHS, strict=True)]
    assert jumps(LENGTHS, stairs).at == (500,)
    curved = [1e-3 * t + 1e-6 * t * t for t in LENGTHS]
    assert jumps(LENGTHS, curved).at == ()
    outlier = [value * (2 if t == 500 else 1) for value, t in zip(line, LENGTHS, strict=True)]
    assert jumps(LENGTHS, outlier).at == ()
    falling = [value - 0.1 * (t >= 500) for value, t in zip(line, LENGTHS, strict=True)]
    assert (jumps(LENGTHS, falling).at, jumps(LENGTHS, falling).drops) == ((), 1)
    assert jumps(LENGTHS[:5], line[:5]) is None


def test_a_jump_from_one_length_to_the_next_is_found_on_a_dense_grid():
    every = list(range(8, 1025))
    level = [5e-3 + 4e-3 * sum(t > edge for edge in (256, 448, 640)) for t in every]
    assert jumps(every, level).at == (257, 449, 641)


def test_nearness_and_chance():
    assert near((100, 300), (110, 500), 20) == (100,)
    assert by_chance(2, [20, 40, 60, 80], (40,), 20) == pytest.approx(2 * 3 / 4)


def swept(results: Results) -> str:
    """What is said of the sweeps, behind the verdict that takes pairs."""
    no_pairs, said = report_of(results).answers[:2]
    assert "run the experiment again" in no_pairs
    return said


def test_jumps_of_the_products_go_with_those_of_the_step(taken):
    results = made(taken, STAIRS, STAIRS)
    report = report_of(results)
    assert "jumps at 260, 460, 640 and 780 (by" in swept(results)
    assert "4 of 4 jumps coincide" in swept(results)
    assert any("at 256, 448, 640 and 768 the swept step jumps too" in answer for answer in report.answers)
    table = next(part for part in report.parts if isinstance(part, Table) and part.key == "jumps")
    assert [row[0] for row in table.rows] == ["260", "460", "640", "780"]
    assert {row[4] for row in table.rows} == {"QKV"}


def test_jumps_elsewhere_or_none_do_not(taken):
    assert "0 of 4 jumps coincide" in swept(made(taken, STAIRS, {360: 0.05, 560: 0.08, 700: 0.12}))
    assert "has no jump of more than 3 %" in swept(made(taken, {}, {}))
    noisy = made(taken, {}, {}, noise=2.0)
    assert f"more than {percent(series(noisy).whole.threshold)}" in swept(noisy)
    assert series(noisy).whole.threshold > 0.1


def test_the_answers_numbers_are_the_samples(taken):
    results = made(taken, STAIRS, STAIRS)
    found, report = series(results), report_of(results)
    step = [min(values) for values in found.taken_s["step"]]
    products = [sum(min(found.taken_s[name][place]) for name in PRODUCTS) for place in range(len(LENGTHS))]
    said = " ".join(report.answers)
    assert f"{percent(products[-1] / step[-1])} and attention" in said
    height = jumps(LENGTHS, products).seconds[12 - 1] / jumps(LENGTHS, step).seconds[12 - 1]
    assert height == pytest.approx(1, abs=0.1)
    figures = {part.key: part for part in report.parts if isinstance(part, Figure)}
    assert set(figures) == {"step", "excess", "parts"}
    middle = sorted(found.taken_s["step"][-1])[1]
    assert f"{seconds(middle)} at 1,020" in figures["step"].caption
    assert f"Above {percent(found.whole.threshold)} it is a jump" in figures["excess"].caption
    per_token = digits(min(found.taken_s["mlp_in"][0]) / 20 * 1e6)
    assert f"at best {per_token} µs at 20 tokens" in figures["parts"].caption


def test_an_unfinished_run_gives_what_there_is(taken):
    for many in range(1, len(taken.cases) + 1):
        cut = Results(
            taken.experiment, taken.settings, taken.model, taken.machine, taken.versions, None,
            taken.cases[:many], False,
        )  # fmt: skip
        assert report_of(cut).answers
