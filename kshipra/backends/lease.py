"""For how many seconds a plan asks for a GPU that is lent by the run, as ZeroGPU does. No torch.

A lease that is too short is taken back in the middle of a run, and one that is too long waits behind shorter
ones and may be more than is left of a visitor's day; so the rates here are those of a slow case, and the sum
is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kshipra.costs import pass_bytes
from kshipra.errors import InputError
from kshipra.modes import mode_named
from kshipra.recipes import recipe_named
from kshipra.types import Batching, ModelSpec, Plan, Recipe, Request

START_S = 8.0  # CUDA's own start, the weights' way to the GPU, the warm-up passes
REVIEW_S = 4.0  # comparing the ways, and the roofline where it is not known yet
ENGINE_S = 4.0  # an engine of its own: the weights in another form, or read again
LAYER_S = 1e-3  # of a pass, a dozen operations that Python starts one by one
READ_BYTES_PER_S = 4e11  # a quarter of what such a GPU's memory gives
FLOPS_PER_S = 1e13  # float32 without tensor cores, and not at its best
DRAFT_PASSES = 2  # of the smaller model, for each token that comes out
SLACK = 1.5
LEAST_S, MOST_S = 15, 120  # an anonymous visitor has two minutes a day


def seconds(spec: ModelSpec, requests: Sequence[Request], plan: Plan) -> int:
    """SLACK x (start + review + the ways, one after another), at least LEAST_S.

    A way: passes x (layers x LAYER_S + bytes that a pass reads / READ_BYTES_PER_S) + FLOPs / FLOPS_PER_S.
    Rows that share passes share their time; every row is taken to use all its new tokens. Raises InputError
    where that comes to more than MOST_S.
    """
    ways = sum(_way_s(spec, requests, recipe_named(key), plan.rows) for key in plan.recipes)
    asked = max(LEAST_S, math.ceil(SLACK * (START_S + REVIEW_S + ways)))
    if asked > MOST_S:
        raise InputError(
            f"This run may take {asked} s of a GPU that is lent for {MOST_S} s at most: ask for fewer "
            "prompts, new tokens or ways, or choose cpu as the device."
        )
    return asked


def _way_s(spec: ModelSpec, requests: Sequence[Request], recipe: Recipe, rows: int | None) -> float:
    mode = mode_named(recipe.mode)
    at_once = mode.together(len(requests), rows if mode.batches else None)
    groups = Batching(rows=at_once).groups(requests, at_once)
    passes = sum(max(request.params.max_new_tokens for request in group) for group in groups)
    flops = 2 * spec.parameters * sum(_processed_tokens(request, caches=mode.caches) for request in requests)
    pass_s = spec.layers * LAYER_S + pass_bytes(spec, kv_bytes=0) / READ_BYTES_PER_S
    passes += passes * DRAFT_PASSES * mode.drafts
    is_own = recipe.weights != "native" or recipe.implementation != "auto"
    return passes * pass_s + flops / FLOPS_PER_S + ENGINE_S * is_own


def _processed_tokens(request: Request, *, caches: bool) -> int:
    """Each token once, or without a cache the whole text in every pass."""
    prompt, new = len(request.prompt_ids), request.params.max_new_tokens
    return prompt + new if caches else new * prompt + new * (new + 1) // 2
