"""The checks that planted faults must fail, as functions, so that a test can also expect them to fail."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from kshipra.engine import geometry
from kshipra.engine.layout import HONEST, Layout
from kshipra.engine.runner import Engine
from kshipra.models.base import CausalLM
from kshipra.modes import MODES
from kshipra.types import SamplingParams

RAGGED = [[7, 8, 9], [5, 4, 3, 2, 1], list(range(100, 130))]


def planted(engine: Engine, layout: Layout) -> Engine:
    """`engine` whose runs all go under `layout`."""
    other = copy.copy(engine)
    other.run = lambda requests, **options: engine.run(requests, **(options | {"layout": layout}))
    return other


def greedy_ids(
    engine: Engine, prompts: Sequence[Sequence[int]], mode: str, new_tokens: int = 24
) -> list[tuple[int, ...]]:
    result = engine.generate(prompts, mode=mode, params=SamplingParams(new_tokens, ignore_eos=True))
    return [row.token_ids for row in result.rows]


def all_modes_agree(engine: Engine, prompts: Sequence[Sequence[int]] = RAGGED, new_tokens: int = 24) -> None:
    """Every mode there is gives the ids of each prompt alone without cache."""
    solo = [greedy_ids(engine, [prompt], "no_cache", new_tokens)[0] for prompt in prompts]
    for mode in MODES:
        assert greedy_ids(engine, prompts, mode.name, new_tokens) == solo, mode.name


@torch.inference_mode()
def logits_in_pieces(
    model: CausalLM,
    rows: Sequence[Sequence[int]],
    cuts: Sequence[int],
    pad_id: int = 0,
    layout: Layout = HONEST,
) -> torch.Tensor:
    """(B, V): the last logits of left-padded `rows` that go through one cache in pieces ending at `cuts`."""
    ids, valid = geometry.left_pad(rows, pad_id, torch.device("cpu"))
    cache = layout.cache()
    for end in (*cuts, ids.shape[1]):
        start = cache.columns
        where = layout.positions(valid[:, :end], end - start)
        mask = layout.attention_mask(valid[:, :end], end - start)
        logits = model.forward(ids[:, start:end], where, mask, cache, 1)
        cache.advance(end - start)
    return logits[:, -1]


def pieces_agree(
    model: CausalLM,
    cuts: Sequence[int],
    length: int = 20,
    bound: float = 1e-4,
    layout: Layout = HONEST,
) -> None:
    """A cache filled in pieces gives the logits of one pass, alone and left-padded beside a longer row."""
    row = [(37 * place + 11) % model.spec.vocabulary for place in range(length)]
    whole = logits_in_pieces(model, [row], [])
    assert (logits_in_pieces(model, [row], cuts, layout=layout) - whole).abs().max() < bound
    padded = logits_in_pieces(model, [row[3:], row], [cut for cut in cuts if cut > 3], layout=layout)
    assert (padded[1] - whole[0]).abs().max() < bound
    assert (padded[0] - logits_in_pieces(model, [row[3:]], [])[0]).abs().max() < bound
