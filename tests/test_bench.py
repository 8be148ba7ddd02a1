"""bench over several engines, its profile and its check: each must show what it is for, and fail what is
spoiled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch

from checks import planted
from conftest import Letters, byte_level_tokenizer, make_gpt2
from fakes import FakeModel
from kshipra import machine, quality
from kshipra.__main__ import main, parse
from kshipra.cases import Case, cases_of
from kshipra.engine import runner
from kshipra.engine.layout import FAULTS
from kshipra.engine.runner import Engine
from kshipra.errors import InputError
from kshipra.models import catalogue
from kshipra.profiling import profile
from kshipra.quality import Bounds, Reading, bounds, judge, read_text
from kshipra.types import Comparison, ModelChoice, SamplingParams

SMALL = ("bench", "--rows", "2", "--prompt-tokens", "5", "--new-tokens", "4", "--repeats", "2", "--json", "-")
Spoil = Callable[[ModelChoice, Engine], Engine]


def tiny(choice: ModelChoice) -> Engine:
    """What every choice would load if rounding and compiling changed nothing."""
    return Engine(make_gpt2().float(), byte_level_tokenizer())


@pytest.fixture
def makes(monkeypatch) -> list[ModelChoice]:
    """The choices that were loaded; all options exist."""
    return use(monkeypatch, lambda choice, engine: engine)


def use(monkeypatch, spoil: Spoil) -> list[ModelChoice]:
    made: list[ModelChoice] = []

    def load_choice(choice: ModelChoice, **_) -> Engine:
        made.append(choice)
        return spoil(choice, tiny(choice))

    monkeypatch.setattr(runner, "load_choice", load_choice)
    return made


def spoiled(engine: Engine) -> Engine:
    """One matrix with half of its numbers wrong."""
    next(weight for weight in engine.model.parameters() if weight.dim() == 2).data.view(-1)[::2] += 0.5
    return engine


def run(capsys, *arguments: str) -> tuple[int, str, dict]:
    """Status, stdout and its last line."""
    status = main((*SMALL, *arguments))
    out = capsys.readouterr().out
    return status, out, json.loads(out.splitlines()[-1])


# Several engines


def test_one_value_of_each_option_is_one_case(capsys, makes):
    status, _, report = run(
        capsys, "--mode", "kv_cache", "--weights", "int8", "--execution", "compiled", "--dtype", "bfloat16"
    )
    assert status == 0
    assert len(makes) == len(report["modes"]) == 1
    assert (makes[0].dtype, makes[0].weights, makes[0].execution) == ("bfloat16", "int8", "compiled")
    assert (report["mode"], report["weights"], report["execution"]) == ("kv_cache", "int8", "compiled")
    assert report["settings"]["weights"] == "int8"


def test_engines_are_measured_in_turns_and_named_by_what_differs(capsys, monkeypatch):
    turns: list[str] = []

    def watched(choice: ModelChoice, engine: Engine) -> Engine:
        inner = engine.run

        def run(requests, *, mode, **options):
            turns.append(f"{choice.weights} {choice.execution}")
            return inner(requests, mode=mode, **options)

        engine.run = run
        return engine

    use(monkeypatch, watched)
    options = ("--mode", "kv_cache", "--weights", "native", "int8", "--execution", "eager", "compiled")
    status, out, report = run(capsys, *options)
    four = ["native eager", "native compiled", "int8 eager", "int8 compiled"]
    assert (status, turns) == (0, four * 3)  # a warm-up and two repeats
    names = ["kv_cache", "kv_cache compiled", "kv_cache int8", "kv_cache int8 compiled"]
    assert [one["case"] for one in report["modes"]] == names
    lines = [line for line in out.splitlines() if line.startswith("kv_cache")]
    assert [line.split("  ")[0] for line in lines] == names
    assert "1.00x" in lines[0]
    keys = ("mode", "dtype", "weights", "execution")
    assert [report[key] for key in keys] == ["kv_cache", "float32", "int8", "compiled"]
    assert report["identical_ids"] is True


def cases(*arguments: str) -> list[Case]:
    return cases_of(parse(["bench", *arguments]))


def test_engines_are_made_once_and_modes_share_them():
    found = cases("--mode", "no_cache,kv_cache", "--dtype", "auto", "float32", "bfloat16")
    assert [case.name for case in found] == [
        "no_cache",
        "kv_cache",
        "no_cache bfloat16",
        "kv_cache bfloat16",
    ]
    assert len({case.choice for case in found}) == 2
    (stored,) = cases("--mode", "kv_cache", "--weights", "bfloat16")
    assert stored.name == "kv_cache bfloat16 weights"
    with pytest.raises(InputError, match="nonsense"):
        cases("--mode", "kv_cache,nonsense")


def test_a_combination_that_cannot_be_had_is_one_sentence(capsys, monkeypatch):
    def refuse(choice: ModelChoice, engine: Engine) -> Engine:
        if choice.weights == "int8":
            raise InputError("int8 is not to be had here.")
        return engine

    use(monkeypatch, refuse)
    assert main((*SMALL, "--weights", "native", "int8")) == 2
    out, err = capsys.readouterr()
    assert (out, err.strip()) == ("", "kshipra: int8 is not to be had here.")


# Recipes


def test_recipes_are_measured_in_turns_under_their_keys(capsys, monkeypatch):
    turns: list[str] = []

    def peer(choice: ModelChoice, engine: Engine) -> Engine:
        made = Engine(make_gpt2().float(), engine.tokenizer, implementation=choice.implementation)
        inner = made.run

        def run(requests, *, mode, **options):
            turns.append(mode)
            return inner(requests, mode=mode, **options)

        made.run = run
        return made

    made = use(monkeypatch, peer)
    status, out, report = run(capsys, "--recipes", "kv_cache,int8,transformers_generate", "--check")
    assert status == 0
    assert turns[:9] == ["kv_cache", "kv_cache", "transformers_generate"] * 3
    assert [(choice.weights, choice.implementation) for choice in made] == [
        ("native", "auto"),
        ("int8", "auto"),
        ("native", "transformers"),
    ]
    keys = ["kv_cache", "int8", "transformers_generate"]
    assert [one["recipe"] for one in report["modes"]] == keys
    assert [line.split()[0] for line in out.splitlines() if line.startswith(tuple(keys))][:3] == keys
    assert [one["verdict"] for one in report["check"]] == ["identical"] * 3
    assert report["settings"]["recipes"] == ",".join(keys)
    assert report["settings"]["mode"] is report["settings"]["weights"] is None


def test_recipes_go_with_several_dtypes_only():
    found = cases("--recipes", "no_cache,compiled_bf16", "--dtype", "auto", "bfloat16")
    assert [case.name for case in found] == [
        "no_cache",
        "compiled_bf16",
        "no_cache bfloat16",
        "compiled_bf16 bfloat16",
    ]
    assert found[1].choice == ModelChoice(catalogue.DEFAULT, weights="bfloat16", execution="compiled")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--mode", "kv_cache"), "--recipes says what --mode would say: give one or the other."),
        (
            ("--weights", "int8", "--execution", "eager"),
            "--recipes says what --weights and --execution would say: give one or the other.",
        ),
        (("--recipes", "int9"), "--recipes: 'int9' is not one of no_cache, "),
        (("--recipes", "transformers_generate", "--profile"), "--profile sees Kshipra's own step only"),
    ],
)
def test_what_recipes_do_not_go_with_is_one_sentence(capsys, makes, options, sentence):
    assert main((*SMALL, "--recipes", "int8", *options)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"kshipra: {sentence}")
    assert not makes


def test_what_compiling_took_is_below_the_table_and_in_the_report(capsys, monkeypatch):
    took = {"float32": 3.14, "bfloat16": 0.0}
    monkeypatch.setattr(Engine, "compile_s", property(lambda self: self.took_s), raising=False)

    def timed(choice: ModelChoice, engine: Engine) -> Engine:
        engine.took_s = took[choice.dtype] if choice.execution == "compiled" else None
        return engine

    use(monkeypatch, timed)
    options = ("--mode", "kv_cache", "--dtype", *took, "--execution", "eager", "compiled")
    _, out, report = run(capsys, *options)
    assert [one["compile_s"] for one in report["modes"]] == [None, 3.14, None, 0.0]
    assert "kv_cache compiled: compiled in 3.1 s\n" in out
    assert "kv_cache bfloat16 compiled: compiled code taken from disk\n" in out
    assert out.count("compiled in") + out.count("taken from disk") == 2


# Profile


def test_the_profile_names_the_operations_of_each_case(capsys, makes):
    _, out, report = run(capsys, "--mode", "no_cache,kv_cache", "--profile")
    assert list(report["profile"]) == ["no_cache", "kv_cache"]
    for name, found in report["profile"].items():
        assert f"{name}: 6 decode passes" in out
        assert found["passes"] == 2 * 3
        assert 0 < found["outside_share"] < 1
        shown = {one["name"]: one for one in found["operations"]}
        assert len(shown) == 12
        assert shown["aten::addmm"]["calls"] == 6 * 2 * 4  # passes, layers, matrices of a layer
        assert sum(one["share"] for one in shown.values()) <= 1 - found["outside_share"] + 1e-9
        times = [one["self_s"] for one in found["operations"]]
        assert times == sorted(times, reverse=True)


def test_waiting_is_outside_kernels_and_working_is_not():
    def outside(during: Callable[[int], object], step_s: float) -> float:
        engine = Engine(FakeModel([5], during=during, step_s=step_s), Letters())
        requests = engine.requests([[1]], SamplingParams(4, ignore_eos=True))
        return profile(engine, requests, mode="kv_cache").outside_share

    big = torch.ones(600, 600)
    assert outside(lambda _: None, 0.03) > 0.9
    assert outside(lambda _: [big @ big for _ in range(5)], 0.0) < 0.5


def test_without_a_decode_pass_there_is_no_share():
    engine = tiny(ModelChoice("tiny"))
    requests = engine.requests(["Hello"], SamplingParams(1))
    found = profile(engine, requests, mode="kv_cache")
    assert (found.passes, found.outside_share, found.operations) == (0, None, ())


# Check


def test_honest_engines_pass_the_check(capsys, makes):
    options = ("--mode", "kv_cache,static_batch", "--execution", "eager", "compiled", "--check")
    status, out, report = run(capsys, *options)
    assert status == 0
    assert len(makes) == 2  # the first is the reference too
    assert [one["verdict"] for one in report["check"]] == ["identical"] * 4
    assert all(one["passed"] and one["agreement"] == 1 for one in report["check"])
    assert all(one["perplexity_ratio"] == pytest.approx(1, abs=1e-4) for one in report["check"])
    assert out.count("identical in 6 rows") == 4


@pytest.mark.parametrize("option", [("--weights", "int8"), ("--execution", "compiled")])
def test_a_spoiled_matrix_breaks_the_check(capsys, monkeypatch, option):
    usual = ("native", "eager")
    made = use(
        monkeypatch,
        lambda choice, engine: engine if (choice.weights, choice.execution) == usual else spoiled(engine),
    )
    status, out, report = run(capsys, "--mode", "kv_cache", *option, "--check")
    (found,) = report["check"]
    assert (status, len(made)) == (1, 2)  # a reference was made for it
    assert made[1] == ModelChoice(catalogue.DEFAULT, dtype="float32")
    assert (found["verdict"], found["passed"]) == ("fault", False)
    assert len(found["parted"]) == 6
    assert not 1 / 1.02 <= found["perplexity_ratio"] <= 1.02
    assert found["agreement"] < 0.9
    assert "fault in 6 of 6 rows: row 1 at token" in out


def test_shifted_positions_break_the_check_where_they_matter(capsys, monkeypatch):
    def faulty(name: str) -> Spoil:
        return lambda choice, engine: (
            planted(engine, FAULTS[name]) if choice.execution == "compiled" else engine
        )

    options = ("--mode", "kv_cache,static_batch", "--execution", "compiled", "--check")
    use(monkeypatch, faulty("restarted"))
    status, _, report = run(capsys, *options)
    assert status == 1
    assert [one["verdict"] for one in report["check"]] == ["fault", "fault"]
    for one in report["check"]:  # the text is read by the decode path
        assert not 1 / 1.0001 <= one["perplexity_ratio"] <= 1.0001
    use(monkeypatch, faulty("pads_counted"))
    status, _, report = run(capsys, *options)
    assert status == 1
    assert [one["verdict"] for one in report["check"]] == ["identical", "fault"]
    assert all(one["perplexity_ratio"] == pytest.approx(1) for one in report["check"])  # no pads there


def test_a_text_read_token_by_token_has_the_perplexity_of_one_pass():
    engine = Engine(make_gpt2(), Letters())
    ids = [(37 * place + 11) % 1000 for place in range(150)]  # beyond the cache's first growth
    found = read_text(engine, ids)
    logits = engine.model.forward(torch.tensor([ids]), torch.arange(150)[None], None, None, 150)[0]
    likely = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean().item()
    assert found.tokens == 149
    assert found.perplexity == pytest.approx(math.exp(-likely), rel=1e-6)
    assert found.best_ids == tuple(logits[:-1].argmax(-1).tolist())


TIE = Comparison("reference", "case", "near-tie", 2, 5, 7, 8, 1e-6, 1e-5)
FAULT = Comparison("reference", "case", "fault", 2, 5, 7, 8, 1.0, 3.0)
SAME = Comparison("reference", "case", "identical")


@pytest.mark.parametrize(
    ("comparisons", "perplexity", "best_ids", "allowed", "passed"),
    [
        ([SAME], 20.2, (1,) * 10, Bounds(1.02), True),
        ([TIE], 20.2, (1,) * 10, Bounds(1.02), True),
        ([TIE, FAULT], 20.2, (1,) * 10, Bounds(1.02), False),
        ([SAME], 20.5, (1,) * 10, Bounds(1.02), False),
        ([SAME], 19.5, (1,) * 10, Bounds(1.02), False),  # better than the model is another model
        ([SAME], None, (1,) * 10, Bounds(1.02), False),
        ([SAME], 20.0, (1,) * 9 + (2,), Bounds(1.02, 0.9), True),
        ([SAME], 20.0, (1,) * 8 + (2, 2), Bounds(1.02, 0.9), False),
        ([SAME], 20.0, (1,) * 8 + (2, 2), Bounds(1.02), True),
    ],
)
def test_what_a_case_must_keep(comparisons, perplexity, best_ids, allowed, passed):
    found = judge(
        "case", comparisons, Reading(10, 20.0, (1,) * 10), Reading(10, perplexity, best_ids), allowed
    )
    assert found.passed is passed


def test_bounds_follow_from_what_is_stored_and_computed_in():
    half, full = (Engine(make_gpt2().to(dtype), Letters()) for dtype in (torch.bfloat16, torch.float32))
    assert bounds(full, "native") == (1.0001, None)
    assert bounds(half, "native") == bounds(full, "bfloat16") == (1.01, None)
    assert bounds(full, "int8") == bounds(half, "int8") == (1.02, 0.9)


@pytest.mark.slow
def test_the_default_model_in_bfloat16_keeps_its_bounds_and_spoiled_does_not(capsys, monkeypatch, tmp_path):
    """On one thread: two of them wait for each other in bfloat16 where cores are shared."""
    monkeypatch.setattr(machine, "threads", lambda: 1)
    start = tmp_path / "text.txt"
    start.write_text(quality.TEXT.read_text()[:1000])  # of 300 the ratio is 1.006 to 1.010, by chance
    monkeypatch.setattr(quality, "TEXT", start)
    monkeypatch.setattr(quality, "NEW_TOKENS", 8)
    engines: dict[str, Engine] = {}
    load_choice = runner.load_choice

    def once(choice: ModelChoice, **options) -> Engine:
        if choice.weights not in engines:
            engines[choice.weights] = load_choice(choice, **options)
        return engines[choice.weights]

    monkeypatch.setattr(runner, "load_choice", once)
    options = ("--mode", "static_batch", "--weights", "bfloat16", "--check")
    status, _, report = run(capsys, *options)
    (found,) = report["check"]
    assert (status, found["passed"]) == (0, True)
    assert found["verdict"] in ("identical", "near-tie")
    assert 1 / 1.01 < found["perplexity_ratio"] < 1.01
    assert found["perplexity_ratio"] != 1
    assert 5 < found["reference_perplexity"] < 80
    blocks = [
        weight
        for name, weight in engines["bfloat16"].model.named_parameters()
        if weight.dim() == 2 and len(weight) != 49152 and weight.shape[1] != 49152
    ]
    blocks[len(blocks) // 2].data[:, ::8] *= -1  # an eighth of one of 120 matrices
    status, _, report = run(capsys, *options)
    (found,) = report["check"]
    assert (status, found["passed"]) == (1, False)
