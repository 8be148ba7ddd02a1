"""Proof that a model under a layout follows mask, positions and cache: one row goes in padded or in pieces,
and its last logits are held against one plain pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kshipra.engine.layout import HONEST, Layout
from kshipra.errors import ModelError
from kshipra.models.base import CausalLM
from kshipra.models.hf import TransformersModel
from kshipra.types import Check

TOKENS = 8
# name, label, pads in front, where the pieces end before the last
CHECKS: tuple[tuple[str, str, int, tuple[int, ...]], ...] = (
    ("padding", "A left-padded row gives the logits of the row alone.", 3, ()),
    ("one-token", "Tokens fed to the cache one by one give the logits of one pass.", 0, (5, 6, 7)),
    ("two-token", "Tokens fed to the cache two by two give the logits of one pass.", 0, (4, 6)),
)
ADAPTER = (3, (6,))  # pads, and a cut behind them


def tolerance(logits: torch.Tensor, *weights: str) -> float:
    """What rounding may change in `logits` between models that store their `weights` so.

    Of the logits' scale: a hundred-thousandth in fp64 (rotations are taken in fp32), a thousandth in fp32, a
    twentieth in 16 bits, which is also what matrices multiply in that are stored smaller than is computed.
    Between int8 and anything else a fifth: rounding the default model's matrices changes up to 0.07.
    """
    share = {torch.float64: 1e-5, torch.float32: 1e-3}.get(logits.dtype, 0.05)
    if set(weights) - {"native"}:
        share = 0.05
    if "int8" in weights and len(set(weights)) > 1:
        share = 0.2
    return share * max(1.0, logits.abs().max().item())


@torch.inference_mode()
def run_checks(model: CausalLM, layout: Layout, device: torch.device) -> tuple[Check, ...]:
    """Every check of CHECKS under `layout`, against one honest pass."""
    alone = _last_logits(model, HONEST, 0, (), device)
    allowed = tolerance(alone, model.spec.weights)
    results = []
    for name, label, pads, cuts in CHECKS:
        difference = (_last_logits(model, layout, pads, cuts, device) - alone).abs().max().item()
        results.append(Check(name, label, difference <= allowed, difference, allowed))
    return tuple(results)


@torch.inference_mode()
def check_adapter(model: TransformersModel) -> None:
    """Raise ModelError unless a left-padded row in two cached pieces gives the logits of a plain pass.

    A model that ignores our mask, positions or cache (ALiBi, recurrent state, ...) differs by far more than
    the bound, which leaves room for 16-bit rounding.
    """
    try:
        plain = model.plain_logits(_ids(model, 0, model.device))[0, -1].float()
        padded = _last_logits(model, HONEST, *ADAPTER, model.device).float()
    except Exception as error:  # a model of somebody else may fail in any way
        raise _refusal(model) from error
    worst = (padded - plain).abs().max().item()
    if not worst <= 0.05 * max(1.0, plain.abs().max().item()):
        raise _refusal(model)


def _ids(model: CausalLM, pads: int, device: torch.device) -> torch.Tensor:
    ids = (torch.arange(TOKENS, device=device)[None] * 7 + 3) % model.spec.vocabulary  # (1, T)
    return torch.cat((ids.new_zeros(1, pads), ids), dim=1)  # (1, S)


def _last_logits(
    model: CausalLM, layout: Layout, pads: int, cuts: Sequence[int], device: torch.device
) -> torch.Tensor:
    """(V): the row behind `pads`, through one cache in pieces that end at `cuts`, pads not counted, and at
    its end; without cuts in one pass and without a cache."""
    ids = _ids(model, pads, device)
    valid = torch.arange(pads + TOKENS, device=device)[None] >= pads
    cache = layout.cache() if cuts else None
    start = 0
    for end in (*(pads + cut for cut in cuts), pads + TOKENS):
        where = layout.positions(valid[:, :end], end - start)
        mask = layout.attention_mask(valid[:, :end], end - start)
        logits = model.forward(ids[:, start:end], where, mask, cache, 1)
        if cache is not None:
            cache.advance(end - start)
        start = end
    return logits[0, -1]


def _refusal(model: TransformersModel) -> ModelError:
    return ModelError(
        f"{model.spec.name} ({model.spec.family}) does not follow the mask and positions that padding needs: "
        "choose another model."
    )
