"""The classic faults (facts A4 and B7), planted on purpose: the checks of this project must catch each one.

Without a fault every check passes; that is asserted by the tests that use them, and here once more.
"""

from __future__ import annotations

import pytest
import torch

from checks import RAGGED, all_modes_agree, greedy_ids, pieces_agree, planted
from conftest import Letters, make_gpt2, make_llama
from kshipra.engine.layout import FAULTS, HONEST
from kshipra.engine.runner import Engine
from kshipra.types import SamplingParams

MODELS = {"gpt2": make_gpt2, "llama": make_llama}


def off_by_one(valid, columns):
    """Decode positions from the sum of the mask, forgetting to subtract one."""
    where = HONEST.positions(valid, columns)
    where[:, -1] += 1
    return where


def shared_decode_position(valid, columns):
    """A1, the rotary form: prompts are right, but all rows decode at the longest row's position."""
    where = HONEST.positions(valid, columns)
    where[:, -1] = where[:, -1].max()
    return where


def pads_visible_in_decode(valid, columns):
    """A2: the mask is right for the prompt and dropped after it."""
    return HONEST.attention_mask(valid if columns > 1 else torch.ones_like(valid), columns)


def everything_visible(valid, columns):
    """No causal order among the new columns."""
    return valid[:, None, None, :].expand(-1, 1, columns, -1)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_no_fault_no_alarm(make):
    engine = Engine(make(), Letters())
    all_modes_agree(engine)
    pieces_agree(engine.model, [6, 8])
    for ids in greedy_ids(engine, RAGGED, "no_cache"):
        assert len(set(ids)) > 12  # a model that repeats itself would let every fault pass


POSITIONS = [
    FAULTS["pads_counted"].positions,
    FAULTS["restarted"].positions,
    off_by_one,
    shared_decode_position,
]


@pytest.mark.parametrize("fault", POSITIONS)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_wrong_positions_are_caught(make, fault):
    engine = planted(Engine(make(), Letters()), HONEST._replace(positions=fault))
    if fault is FAULTS["pads_counted"].positions and make is make_llama:
        # Rotary positions are relative: they forgive a shift of the whole row. Only a row that joins a longer
        # batch has read its prompt without pads and goes on behind them, which moves prompt and text apart.
        with pytest.raises(AssertionError, match="continuous"):
            all_modes_agree(engine)
        return
    with pytest.raises(AssertionError):
        all_modes_agree(engine)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_positions_that_restart_leave_the_first_token_right(make):
    """B7: what makes the fault easy to miss."""
    engine = Engine(make(), Letters())
    right = greedy_ids(engine, RAGGED, "kv_cache", 6)
    wrong = greedy_ids(planted(engine, FAULTS["restarted"]), RAGGED, "kv_cache", 6)
    assert [ids[0] for ids in wrong] == [ids[0] for ids in right]
    assert all(one != other for one, other in zip(right, wrong, strict=True))


MASKS = [FAULTS["pads_visible"].attention_mask, pads_visible_in_decode, everything_visible]


@pytest.mark.parametrize("fault", MASKS)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_wrong_masks_are_caught(make, fault):
    engine = planted(Engine(make(), Letters()), HONEST._replace(attention_mask=fault))
    with pytest.raises(AssertionError):
        all_modes_agree(engine)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_cache_order_passes_one_token_steps_and_is_caught_by_two(make):
    """Attention does not care for the order of keys while nothing is masked: why the one-token test is not
    enough."""
    engine = Engine(make(), Letters())
    faulty = planted(engine, FAULTS["new_before_old"])
    prompt = [[7, 8, 9]]
    assert greedy_ids(faulty, prompt, "kv_cache", 8) == greedy_ids(engine, prompt, "no_cache", 8)
    with pytest.raises(AssertionError):
        pieces_agree(engine.model, [6, 8], layout=FAULTS["new_before_old"])
    assert first_log_probability(faulty, "two_at_a_time") != pytest.approx(
        first_log_probability(engine, "kv_cache"), abs=1e-3
    )
    assert first_log_probability(engine, "two_at_a_time") == pytest.approx(
        first_log_probability(engine, "kv_cache"), abs=1e-5
    )


def first_log_probability(engine, mode):
    (*_, last) = engine.stream([RAGGED[2]], mode=mode, params=SamplingParams(1, ignore_eos=True))
    return last.new_tokens[0].log_probability
