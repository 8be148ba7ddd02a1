"""The next id (cases C1 and C2): known values, every edge of the filters, draws from a row's own seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import Letters, byte_level_tokenizer, make_gpt2
from fakes import FakeModel
from kshipra.engine import sampling
from kshipra.engine.runner import Engine
from kshipra.engine.sampling import allowed_probabilities, draw, next_ids, penalise
from kshipra.types import RunResult, SamplingParams

INF = math.inf
steady = settings(max_examples=100, deadline=None, derandomize=True)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def allowed(probabilities: Sequence[float], **params) -> list[float]:
    """The probabilities that filters leave of logits with exactly these probabilities."""
    logits = torch.tensor(probabilities).log()
    settings = SamplingParams(**({"temperature": 1.0} | params))
    return [round(value, 4) for value in allowed_probabilities(logits, settings).tolist()]


def chosen(logits: torch.Tensor, seed: int = 0, seen: Sequence[int] = (0,), **params) -> int:
    """The next id of one row."""
    return next_ids(logits[None], [(SamplingParams(**params), seen, seeded(seed))]).item()


# C1: known values


def test_top_p_keeps_the_shortest_run_that_reaches_it():
    assert allowed([0.5, 0.3, 0.1, 0.1], top_p=0.8) == [
        0.625,
        0.375,
        0,
        0,
    ]  # .5 + .3 is .8: two ids, not three
    assert allowed([0.1, 0.3, 0.1, 0.5], top_p=0.8) == [0, 0.375, 0, 0.625]
    assert allowed([0.5, 0.3, 0.1, 0.1], top_p=0.5) == [1, 0, 0, 0]
    assert allowed([0.5, 0.3, 0.1, 0.1], top_p=0.51) == [0.625, 0.375, 0, 0]
    assert allowed([0.5, 0.3, 0.2], top_p=0.81) == [0.5, 0.3, 0.2]


def test_top_k_keeps_exactly_k():
    assert allowed([0.5, 0.3, 0.1, 0.1], top_k=2) == [0.625, 0.375, 0, 0]
    assert allowed([0.1, 0.4, 0.2, 0.3], top_k=3) == [0, 0.4444, 0.2222, 0.3333]
    assert sum(value > 0 for value in allowed([0.25] * 4, top_k=3)) == 3


def test_top_k_goes_before_top_p_and_temperature_before_both():
    assert allowed([0.4, 0.3, 0.2, 0.1], top_k=2, top_p=0.55) == [1, 0, 0, 0]  # .4 of the kept .7 is .571
    squares = [0.16, 0.09, 0.04, 0.01]
    assert allowed([0.4, 0.3, 0.2, 0.1], temperature=0.5) == [round(value / 0.3, 4) for value in squares]
    assert allowed([0.4, 0.3, 0.2, 0.1], temperature=0.5, top_p=0.83) == [0.64, 0.36, 0, 0]
    roots = [value**0.5 for value in (0.4, 0.3, 0.2, 0.1)]
    assert allowed([0.4, 0.3, 0.2, 0.1], temperature=2) == [round(root / sum(roots), 4) for root in roots]


@pytest.mark.parametrize("off", [{"top_k": 0}, {"top_k": 4}, {"top_k": 5}, {"top_k": 10**9}, {"top_p": 1.0}])
def test_what_is_off_changes_nothing(off):
    assert allowed([0.4, 0.3, 0.2, 0.1], **off) == [0.4, 0.3, 0.2, 0.1]


probability_lists = st.lists(st.floats(1e-4, 1), min_size=1, max_size=30)


@steady
@given(probability_lists, st.floats(1e-3, 1))
def test_any_top_p_keeps_the_likeliest_ids_that_reach_it(weights, top_p):
    whole = torch.tensor(weights).double()
    whole /= whole.sum()
    left = allowed_probabilities(whole.log(), SamplingParams(temperature=1.0, top_p=top_p)).double()
    kept = left > 0
    assert left.sum().item() == pytest.approx(1)
    assert whole[kept].sum() >= top_p - 1e-4
    assert whole[kept].sum() - whole[kept].min() < top_p + 1e-4  # one fewer would not reach it
    assert kept.all() or whole[kept].min() >= whole[~kept].max() - 1e-6
    assert torch.allclose(left[kept], whole[kept] / whole[kept].sum(), atol=1e-5)


# C1: edges

LOGITS = torch.tensor([-3.0, 1.5, 0.2, 4.0, 3.9, -8.0])


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 1e-12},
        {"temperature": 1e-7},
        {"temperature": 1e-4},
        {"temperature": 2.0, "top_k": 1},
        {"temperature": 2.0, "top_p": 0.0},
        {"temperature": 2.0, "top_p": 1e-8},
        {"temperature": 2.0, "top_p": 1e-3},
        {"temperature": 100.0, "top_k": 1, "top_p": 0.0},
        {"temperature": 1e-12, "top_k": 3, "top_p": 0.5, "repetition_penalty": 1.0001},
        {"temperature": 1.0, "top_p": 1e-8, "repetition_penalty": 1.0001},
        {"temperature": 1.0, "top_k": 1, "repetition_penalty": 1.0001},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_narrowest_settings_are_the_best_id(params, dtype):
    for seed in range(20):
        assert chosen(LOGITS.to(dtype), seed, **params) == 3


temperatures = [1e-12, 1e-6, 1e-4, 1.0, 100.0]


@pytest.mark.parametrize("temperature", temperatures)
@pytest.mark.parametrize("top_k", [0, 1, 7, 8, 10**9])
@pytest.mark.parametrize("top_p", [0.0, 1e-8, 1e-3, 0.5, 1.0])
def test_a_row_with_one_finite_logit_gives_that_id(temperature, top_k, top_p):
    params = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for dtype in (torch.float32, torch.bfloat16):
        for place in (0, 3, 7):
            logits = torch.full((8,), -INF, dtype=dtype)
            logits[place] = -5.0
            assert chosen(logits, **params) == place
            assert chosen(logits, seen=[place, 1], repetition_penalty=1.5, **params) == place


@pytest.mark.parametrize("temperature", temperatures)
@pytest.mark.parametrize("logits", [[1e38, -1e38, 0], [3e38, 3e38, -3e38], [-1e38, -2e38, -3e38], [0, 0, 0]])
def test_huge_logits_give_probabilities(temperature, logits):
    values = torch.tensor(logits)
    left = allowed_probabilities(values, SamplingParams(temperature=temperature, top_p=0.9))
    assert left.isfinite().all()
    assert left.sum().item() == pytest.approx(1)
    assert left.argmax() == values.argmax()


def test_filters_run_in_float32_whatever_the_logits_are():
    """In bfloat16 the sum of many small probabilities stands still, and top-p keeps everything."""
    logits = torch.randn(50_000, generator=seeded(1)).bfloat16()
    params = SamplingParams(temperature=1.0, top_p=0.9)
    exact = logits.double().softmax(0).sort(descending=True).values.cumsum(0)
    wanted = int((exact < 0.9).sum()) + 1
    left = allowed_probabilities(logits, params)
    assert left.dtype == torch.float32
    assert abs(int((left > 0).sum()) - wanted) <= 20
    assert chosen(logits, 3, temperature=1.0, top_p=0.9) == chosen(
        logits.float(), 3, temperature=1.0, top_p=0.9
    )


def test_repetition_penalty_makes_seen_ids_smaller_once_each():
    logits = torch.tensor([2.0, -2.0, 1.0, 0.0])
    assert penalise(logits, [0, 1, 1, 3, 0], 2.0).tolist() == [1.0, -4.0, 1.0, 0.0]
    assert penalise(logits, [0, 1], 0.5).tolist() == [4.0, -1.0, 1.0, 0.0]  # below 1 it encourages
    assert logits.tolist() == [2.0, -2.0, 1.0, 0.0]  # a copy
    assert chosen(logits, seen=[0], repetition_penalty=1.9) == 0  # 1.05 is still the best
    assert chosen(logits, seen=[0], repetition_penalty=2.1) == 2
    assert chosen(logits, seen=[0], repetition_penalty=2.1, temperature=1.0, top_k=1) == 2


def test_repetition_penalty_is_applied_in_float32():
    """4 / 1.003 is 3.988: still the best, but in bfloat16 it would be rounded to its rival."""
    logits = torch.tensor([3.984375, 4.0]).bfloat16()
    assert chosen(logits, seen=[1], repetition_penalty=1.003) == 1


def test_rows_of_one_batch_are_filtered_by_their_own_parameters():
    logits = torch.tensor([[1.0, 2.0, 0.0]] * 4)
    rows = [
        (SamplingParams(), [1], seeded()),
        (SamplingParams(repetition_penalty=9.0), [1], seeded()),
        (SamplingParams(repetition_penalty=9.0), [0], seeded()),
        (SamplingParams(temperature=5.0, top_k=1), [1], seeded()),
    ]
    assert next_ids(logits, rows).tolist() == [1, 0, 1, 1]
    assert logits.tolist() == [[1.0, 2.0, 0.0]] * 4


class Constant(FakeModel):
    """A model of one opinion, whatever it reads."""

    def __init__(self, logits: Sequence[float]) -> None:
        super().__init__([0], vocabulary=len(logits))
        self.logits = torch.tensor(logits)

    def forward(self, ids, positions, mask, cache, keep):
        super().forward(ids, positions, mask, cache, keep)
        return self.logits.expand(ids.shape[0], keep, -1)


def test_pads_of_a_batch_are_not_repetitions():
    """The pad id is the best id here: counted as seen, it would lose to 5."""
    engine = Engine(Constant([2.0, 0.0, 0.0, 0.0, 0.0, 1.5]), Letters())
    assert engine.tokenizer.pad_id == 0
    params = SamplingParams(2, repetition_penalty=2.0)
    result = engine.generate([[1], [1, 2, 3, 4]], mode="static_batch", params=params)
    assert [row.token_ids for row in result.rows] == [(0, 5), (0, 5)]


def test_a_neighbour_that_went_on_does_not_make_repetitions():
    """Columns that a finished row is padded with count neither for it nor for the others."""
    engine = Engine(Constant([2.0, 1.9, 1.8, 1.7, 1.6]), Letters())
    params = [SamplingParams(limit, repetition_penalty=1.3) for limit in (1, 4)]
    result = engine.generate([[4], [4]], mode="static_batch", params=params)
    assert [row.token_ids for row in result.rows] == [(0,), (0, 1, 2, 3)]


@pytest.mark.parametrize("limit", [0, 1, 2, 7])
@pytest.mark.parametrize("mode", ["no_cache", "kv_cache", "static_batch"])
def test_a_limit_is_exact(limit, mode):
    engine = Engine(FakeModel([5]), Letters())
    row = engine.generate([[1]], mode=mode, params=SamplingParams(limit)).rows[0]
    assert (row.new_tokens, row.finish_reason) == (limit, "length")


def test_ids_beyond_the_tokenizer_crash_nothing():
    """An output layer that is wider than the vocabulary, with its extra logits the highest."""
    engine = Engine(Constant([0.0] * 260 + [9.0] * 64), byte_level_tokenizer())
    row = engine.generate([[1]], params=SamplingParams(5, temperature=1.0, seed=1)).rows[0]
    assert (row.text, row.new_tokens, min(row.token_ids) >= 260) == ("", 5, True)


# C2: draws


def test_draws_follow_the_distribution():
    probabilities = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.15, 0.1, 0.0])
    generator, counts, total = seeded(5), [0] * 7, 8000
    for _ in range(total):
        counts[draw(probabilities, generator)] += 1
    assert [counts[0], counts[2], counts[6]] == [0, 0, 0]
    wanted = [(counts[id], p * total) for id, p in enumerate(probabilities.tolist()) if p]
    assert sum((seen - p) ** 2 / p for seen, p in wanted) < 16.3  # chi-square, 3 degrees of freedom, p = .001


@pytest.mark.parametrize(
    ("point", "id"), [(0.0, 1), (0.4999, 1), (0.5, 3), (0.74, 3), (1 - 2**-24, 4), (1.0, 4)]
)
def test_every_point_finds_an_id_that_may_be_drawn(monkeypatch, point, id):
    monkeypatch.setattr(sampling.torch, "rand", lambda *_, **__: torch.tensor([point]))
    assert draw(torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0]), seeded()) == id


def test_a_seed_means_the_same_in_every_process():
    """The first numbers of torch's CPU generator for seed 42 are .8823, .9150, .3829, .9593."""
    generator, tenths = seeded(42), torch.full((10,), 0.1)
    assert [draw(tenths, generator).item() for _ in range(4)] == [8, 9, 3, 9]


MODES = ("kv_cache", "no_cache", "static_batch")
PROMPTS = ([1, 2, 3], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], [50])


@pytest.fixture(scope="module")
def lively() -> Engine:
    """A tiny GPT-2 whose ids at temperature 20 are all but never alike by chance."""
    return Engine(make_gpt2(), Letters(), implementation="native")


def hot(seed: int | None = None, tokens: int = 12, **changes) -> SamplingParams:
    return SamplingParams(tokens, **({"temperature": 20.0, "seed": seed} | changes))


def ids(result: RunResult) -> list[tuple[int, ...]]:
    return [row.token_ids for row in result.rows]


def test_one_seed_gives_one_text_whatever_ran_in_between(lively):
    first = lively.generate(PROMPTS, params=hot(42))
    between = lively.generate(PROMPTS, params=hot(7))
    torch.manual_seed(123)
    again = lively.generate(PROMPTS, params=hot(42))
    assert ids(first) == ids(again)
    assert not set(ids(first)) & set(ids(between))
    assert [row.seed for row in first.rows] == [42, 42, 42]


@pytest.mark.parametrize("filters", [{}, {"top_k": 50}, {"top_p": 0.9}, {"repetition_penalty": 1.3}], ids=str)
def test_a_seeded_row_is_the_same_in_every_mode_and_beside_any_neighbour(lively, filters):
    solo = [
        ids(lively.generate([prompt], params=hot(42 + n, **filters)))[0] for n, prompt in enumerate(PROMPTS)
    ]
    each = [hot(42 + n, **filters) for n in range(3)]
    for mode in MODES:
        assert ids(lively.generate(PROMPTS, mode=mode, params=each)) == solo, mode
    others = [hot(1), each[1], SamplingParams(3)]
    assert ids(lively.generate(PROMPTS, mode="static_batch", params=others))[1] == solo[1]
    turned = lively.generate(PROMPTS[::-1], mode="static_batch", params=each[::-1])
    assert ids(turned) == solo[::-1]


def test_rows_with_one_seed_and_one_prompt_give_one_text(lively):
    for mode in MODES:
        assert len(set(ids(lively.generate([PROMPTS[0]] * 3, mode=mode, params=hot(5))))) == 1


def test_without_a_seed_every_row_and_run_differs_and_its_seed_repeats_it(lively):
    torch.manual_seed(0)
    first = lively.generate([PROMPTS[0]] * 2, params=hot())
    torch.manual_seed(0)
    second = lively.generate([PROMPTS[0]] * 2, params=hot())
    assert len(set(ids(first) + ids(second))) == 4
    shown = [row.seed for row in first.rows]
    assert None not in shown
    assert ids(lively.generate([PROMPTS[0]] * 2, params=[hot(seed) for seed in shown])) == ids(first)


def test_a_greedy_row_shows_no_seed(lively):
    assert lively.generate([[1]], params=SamplingParams(2, seed=3)).rows[0].seed is None
    assert lively.generate([[1]], params=SamplingParams(2)).rows[0].seed is None


@pytest.mark.parametrize("seed", [42, None])
def test_the_global_random_state_is_left_alone(lively, seed):
    before = torch.get_rng_state()
    lively.generate(PROMPTS, mode="static_batch", params=hot(seed))
    assert torch.equal(before, torch.get_rng_state())


def test_runs_side_by_side_do_not_share_a_stream(lively):
    alone = lively.generate(PROMPTS, params=hot(42))
    streams = [lively.stream(PROMPTS, params=hot(42)) for _ in range(2)]
    seen: list[list[int]] = [[], []]
    for events in zip(*streams, strict=True):
        for own, event in zip(seen, events, strict=True):
            own += [token.id for token in event.new_tokens]
    flat = [id for row in ids(alone) for id in row]
    assert seen == [flat, flat]


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1])
def test_every_seed_in_range_works(lively, seed):
    assert lively.generate([[1]], params=hot(seed, 2)).rows[0].seed == seed
