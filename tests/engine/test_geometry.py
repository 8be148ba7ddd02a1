"""Positions and masks of small matrices, written out by hand."""

from __future__ import annotations

import torch

from kshipra.engine.geometry import attention_mask, left_pad, positions

CPU = torch.device("cpu")


def test_left_pad_aligns_last_tokens_and_knows_pads_by_place():
    ids, valid = left_pad([[5, 6], [0, 0, 7, 8]], 0, CPU)  # real zeros, and zero as the pad
    assert ids.tolist() == [[0, 0, 5, 6], [0, 0, 7, 8]]
    assert valid.tolist() == [[False, False, True, True], [True, True, True, True]]


def test_positions_count_real_tokens_only():
    valid = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
    assert positions(valid, 5).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0]]


def test_the_decoded_token_stands_at_the_number_of_tokens_before_it():
    """For every pad count: prompt of length n, t-th new token at n + t - 1, never at the padded width."""
    for length in range(1, 6):
        _, valid = left_pad([[1] * length, [1] * 8], 0, CPU)
        for new in range(1, 5):
            valid = torch.nn.functional.pad(valid, (0, 1), value=True)
            assert positions(valid, 1)[0, -1] == length + new - 1


def test_mask_of_a_padded_prefill():
    mask = attention_mask(torch.tensor([[False, True, True]]), 3)
    assert mask.shape == (1, 1, 3, 3)
    assert mask[0, 0].tolist() == [[True, False, False], [False, True, False], [False, True, True]]


def test_mask_of_two_new_columns_on_a_cache():
    mask = attention_mask(torch.tensor([[False, True, True, True]]), 2)
    assert mask[0, 0].tolist() == [[False, True, True, False], [False, True, True, True]]


def test_no_query_is_without_a_key():
    """A row of pads alone would give NaN."""
    mask = attention_mask(torch.zeros(2, 5, dtype=torch.bool), 3)
    assert mask.any(dim=-1).all()
    scores = torch.zeros(2, 1, 3, 5).masked_fill(~mask, -torch.inf)
    assert scores.softmax(-1).isfinite().all()
