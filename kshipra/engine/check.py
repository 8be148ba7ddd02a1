"""Proof, before an adapted model is used, that it follows our mask, positions and cache."""

from __future__ import annotations

import torch

from kshipra.engine.cache import KVCache
from kshipra.engine.geometry import attention_mask, positions
from kshipra.errors import ModelError
from kshipra.models.hf import TransformersModel

PADS, TOKENS, CUT = 3, 8, 6  # a padded row of eleven columns, whose first six go in before the rest


@torch.inference_mode()
def check_adapter(model: TransformersModel) -> None:
    """Raise ModelError unless a left-padded row in two cached pieces gives the logits of a plain pass.

    A model that ignores our mask, positions or cache (ALiBi, recurrent state, ...) differs by far more than
    the bound, which leaves room for 16-bit rounding.
    """
    try:
        plain, padded = _both_ways(model)
    except Exception as error:  # a model of somebody else may fail in any way
        raise _refusal(model) from error
    worst = (padded - plain).abs().max().item()
    if not worst <= 0.05 * max(1.0, plain.abs().max().item()):
        raise _refusal(model)


def _both_ways(model: TransformersModel) -> tuple[torch.Tensor, torch.Tensor]:
    """2 x (1, V): the last logits of one row, by transformers alone and padded and cut through our cache."""
    ids = (torch.arange(TOKENS, device=model.device)[None] * 7 + 3) % model.spec.vocabulary  # (1, T)
    plain = model.plain_logits(ids)[:, -1].float()
    padded = torch.cat((ids.new_zeros(1, PADS), ids), dim=1)  # (1, S)
    valid = torch.arange(PADS + TOKENS, device=model.device)[None] >= PADS
    cache = KVCache()
    for end in (CUT, PADS + TOKENS):
        start = cache.columns
        where = positions(valid[:, :end], end - start)
        mask = attention_mask(valid[:, :end], end - start)
        logits = model.forward(padded[:, start:end], where, mask, cache, 1)
        cache.advance(end - start)
    return plain, logits[:, -1].float()


def _refusal(model: TransformersModel) -> ModelError:
    return ModelError(
        f"{model.spec.name} ({model.spec.family}) does not follow the mask and positions that padding needs: "
        "choose another model."
    )
