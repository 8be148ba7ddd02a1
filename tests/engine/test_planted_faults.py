"""The classic faults (facts A4 and B7), planted on purpose: the checks of this project must catch each one.

Without a fault every check passes; that is asserted by the tests that use them, and here once more.
"""

from __future__ import annotations

import pytest
import torch

from checks import RAGGED, all_modes_agree, greedy_ids, pieces_agree
from conftest import Letters, make_gpt2, make_llama
from kshipra.engine import cache, geometry
from kshipra.engine.runner import Engine

MODELS = {"gpt2": make_gpt2, "llama": make_llama}
honest_positions, honest_mask, honest_append = (
    geometry.positions,
    geometry.attention_mask,
    cache.KVCache.append,
)


def pads_counted(valid):
    """A4: positions 0..S-1 whatever is padding."""
    return torch.arange(valid.shape[1]).expand(valid.shape)


def restart_at_zero(valid):
    """B7: a decoded token always stands at 0, as arange(T) gives for one new token."""
    where = honest_positions(valid)
    where[:, -1] = 0
    return where


def off_by_one(valid):
    """Decode positions from the sum of the mask, forgetting to subtract one."""
    where = honest_positions(valid)
    where[:, -1] += 1
    return where


def shared_decode_position(valid):
    """A1, the rotary form: prompts are right, but all rows decode at the longest row's position."""
    where = honest_positions(valid)
    where[:, -1] = where[:, -1].max()
    return where


def pads_visible(valid, columns):
    """A2: the mask forgets which columns are pads."""
    return honest_mask(torch.ones_like(valid), columns)


def pads_visible_in_decode(valid, columns):
    """A2: the mask is right for the prompt and dropped after it."""
    return honest_mask(valid if columns > 1 else torch.ones_like(valid), columns)


def everything_visible(valid, columns):
    """No causal order among the new columns."""
    return valid[:, None, None, :].expand(-1, 1, columns, -1)


def new_before_old(self, layer, k, v):
    """B7: the cache hands out new keys before old ones."""
    k_all, v_all = honest_append(self, layer, k, v)
    columns = k.shape[2]
    return k_all.roll(columns, dims=2), v_all.roll(columns, dims=2)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_no_fault_no_alarm(make):
    engine = Engine(make(), Letters())
    all_modes_agree(engine)
    pieces_agree(engine.model, [6, 8])
    for ids in greedy_ids(engine, RAGGED, "no_cache"):
        assert len(set(ids)) > 12  # a model that repeats itself would let every fault pass


@pytest.mark.parametrize("fault", [pads_counted, restart_at_zero, off_by_one, shared_decode_position])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_wrong_positions_are_caught(make, fault, monkeypatch):
    engine = Engine(make(), Letters())
    monkeypatch.setattr(geometry, "positions", fault)
    if fault is pads_counted and make is make_llama:
        all_modes_agree(engine)  # rotary positions are relative: they forgive a shift of the whole row
        return
    with pytest.raises(AssertionError):
        all_modes_agree(engine)


@pytest.mark.parametrize("fault", [pads_visible, pads_visible_in_decode, everything_visible])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_wrong_masks_are_caught(make, fault, monkeypatch):
    engine = Engine(make(), Letters())
    monkeypatch.setattr(geometry, "attention_mask", fault)
    with pytest.raises(AssertionError):
        all_modes_agree(engine)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_cache_order_passes_one_token_steps_and_is_caught_by_two(make, monkeypatch):
    """Attention does not care for the order of keys while nothing is masked: why the one-token test is not
    enough."""
    engine = Engine(make(), Letters())
    monkeypatch.setattr(cache.KVCache, "append", new_before_old)
    pieces_agree_alone_one_by_one(engine)
    with pytest.raises(AssertionError):
        pieces_agree(engine.model, [6, 8])


def pieces_agree_alone_one_by_one(engine):
    prompt = [[7, 8, 9]]
    assert greedy_ids(engine, prompt, "kv_cache", 8) == greedy_ids(engine, prompt, "no_cache", 8)
