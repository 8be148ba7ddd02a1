"""A cache filled in pieces is one pass (case A8), and its bytes are those of its tensors."""

from __future__ import annotations

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from checks import logits_in_pieces, pieces_agree
from conftest import SMALL, Letters, loud
from kshipra.costs import kv_bytes_per_token
from kshipra.engine.cache import GROWTH_COLUMNS, KVCache
from kshipra.engine.runner import Engine


@pytest.mark.parametrize("cut", range(1, 20))
def test_every_split_point(engine, cut):
    pieces_agree(engine.model, [cut])


def test_two_tokens_at_a_time(engine):
    pieces_agree(engine.model, list(range(2, 20, 2)))


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 15, 19])
def test_split_points_under_a_window(cut):
    mistral = loud(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=8)))
    pieces_agree(Engine(mistral, Letters()).model, [cut])


def test_growth_keeps_what_was_stored(engine):
    length = GROWTH_COLUMNS + 5
    row = [(37 * place + 11) % 1000 for place in range(length)]
    cuts = [GROWTH_COLUMNS - 1, GROWTH_COLUMNS, GROWTH_COLUMNS + 1]
    whole = logits_in_pieces(engine.model, [row], [])
    assert (logits_in_pieces(engine.model, [row], cuts) - whole).abs().max() < 1e-4


@torch.inference_mode()
def test_cropping_back_and_going_on(engine):
    """What was cropped is as if it had never been there."""
    row = torch.tensor([[(37 * place + 11) % 1000 for place in range(20)]])
    wrong = row.flip(1)
    cache = KVCache()
    order = torch.ones(1, 1, 20, 20, dtype=torch.bool).tril()
    places = torch.arange(20)[None]
    whole = engine.model.forward(row, places, order, None, 1)
    engine.model.forward(torch.cat((row[:, :8], wrong[:, 8:]), 1), places, order, cache, 1)
    cache.advance(20)
    cache.crop(8)
    again = engine.model.forward(row[:, 8:], places[:, 8:], order[:, :, 8:], cache, 1)
    assert (again - whole).abs().max() < 1e-4


def test_bytes_are_those_of_the_tensors(engine):
    spec = engine.model.spec
    cache = KVCache()
    for _ in range(2):  # a prompt of 100 and then 60 more, so that the tensors have grown once
        columns = 60 if cache.columns else 100
        for layer in range(spec.layers):
            new = torch.zeros(3, spec.kv_heads, columns, spec.head_size, dtype=torch.float64)
            cache.append(layer, new, new)
        cache.advance(columns)
    assert cache.used_bytes == 3 * 160 * kv_bytes_per_token(spec)
    assert cache.held_bytes == 3 * 256 * kv_bytes_per_token(spec)
