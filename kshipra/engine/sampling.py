"""From logits to the next id of each row. A row's draw depends on its own logits, parameters and seed
only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kshipra.types import SamplingParams

# Relative room for rounding in a cumulative sum of fp32 probabilities, so that .5 + .3 reaches a top_p of .8.
ROUNDING = 1e-6


def allowed_probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """(V) probabilities after temperature, top-k and top-p, in fp32; the best id always stays.

    Temperature divides the distance to the best logit, so that a tiny one cannot overflow. top-p keeps the
    shortest run of likeliest ids whose sum reaches it (Holtzman et al. 2020).
    """
    scaled = (logits.float() - logits.max().float()) / params.temperature
    if 0 < params.top_k < scaled.numel():
        kept = torch.full_like(scaled, -torch.inf)
        best = scaled.topk(params.top_k).indices
        scaled = kept.scatter(0, best, scaled[best])
    probabilities = scaled.softmax(dim=0)
    if params.top_p < 1.0:
        # All ids below this bound together are less than what may be left out, so only some thousand of a
        # large vocabulary are put in order: sorting 49,152 takes 4 ms, more than all else here.
        likely = (probabilities >= (1 - params.top_p) / (2 * probabilities.numel())).nonzero()[:, 0]
        ordered, order = probabilities[likely].sort(descending=True, stable=True)
        ids = likely[order]
        before = ordered.cumsum(dim=0) - ordered
        beyond = before >= params.top_p * (1 - ROUNDING)
        beyond[0] = False
        probabilities = torch.zeros_like(probabilities).scatter(0, ids, ordered.masked_fill(beyond, 0.0))
    return probabilities / probabilities.sum()


def penalise(logits: Tensor, seen: Sequence[int], penalty: float) -> Tensor:
    """(V) logits with those of ids in the row's own prompt and text made smaller (Keskar et al. 2019)."""
    ids = torch.tensor(sorted(set(seen)), device=logits.device)
    values = logits[ids]
    return logits.scatter(0, ids, torch.where(values > 0, values / penalty, values * penalty))


def draw(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """One id by inverse transform: a single uniform number a token, drawn on the CPU whatever the device."""
    point = torch.rand(1, generator=generator).to(probabilities.device)
    reached = probabilities.cumsum(dim=0)
    choice = torch.searchsorted(reached, point * reached[-1], right=True)
    last = torch.searchsorted(reached, reached[-1:])  # of the ids that have any probability
    return torch.minimum(choice, last)[0]


# The chosen id's log-probability, and the best ids with theirs.
Candidates = tuple[float, tuple[tuple[int, float], ...]]
SHOWN = 5


def candidates(logits: Tensor, ids: Tensor) -> list[Candidates]:
    """For each row of (B, V) logits what the model itself made of the chosen ids (B) and of the SHOWN best.

    Before temperature, penalty and cut-offs. The difference of two log-probabilities is that of their logits.
    """
    logits = logits.float()
    everything = logits.logsumexp(dim=-1, keepdim=True)  # (B, 1)
    best, best_ids = logits.topk(min(SHOWN, logits.shape[-1]), dim=-1)
    chosen = logits.gather(1, ids[:, None])
    values = torch.cat((chosen, best), dim=1) - everything  # (B, 1 + SHOWN)
    return [
        (round(own, 6), tuple((id, round(value, 6)) for id, value in zip(row_ids, rest, strict=True)))
        for (own, *rest), row_ids in zip(values.tolist(), best_ids.tolist(), strict=True)
    ]


def is_plain_greedy(params: SamplingParams) -> bool:
    """Whether the best logit as it stands decides; a temperature below 1e-6 cannot be told from 0 in fp32."""
    return (
        params.temperature < 1e-6 or params.top_k == 1 or params.top_p < 1e-6
    ) and params.repetition_penalty == 1


def next_ids(
    logits: Tensor,
    rows: Sequence[tuple[SamplingParams, Sequence[int], torch.Generator]],
) -> Tensor:
    """(B, V) logits to (B) ids on the same device. `rows` has each row's parameters, its ids so far, its
    generator."""
    best = logits.argmax(dim=-1)
    for row, (params, seen, generator) in enumerate(rows):
        if is_plain_greedy(params):
            continue
        own = logits[row].float()
        if params.repetition_penalty != 1:
            own = penalise(own, seen, params.repetition_penalty)
        if params.temperature < 1e-6:
            best[row] = own.argmax()
        else:
            best[row] = draw(allowed_probabilities(own, params), generator)
    return best
