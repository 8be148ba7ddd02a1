"""A step's time at every context, with and without cache; before it, proof that all of them compute what
transformers computes. What does not stops the experiment: the time of a wrong model says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kshipra.engine import review, roofline
from kshipra.engine.check import tolerance
from kshipra.engine.layout import HONEST
from kshipra.engine.runner import Engine
from kshipra.errors import KshipraError
from kshipra.experiments.report.study import B_CONTEXTS, B_PROMPT
from kshipra.experiments.rig import Case, Rig
from kshipra.metrics import fold
from kshipra.recipes import recipe_named
from kshipra.types import SamplingParams, plain

FIRST, STUDIED, LONGEST = 8, 1024, 8192  # tokens; a pass over more than LONGEST takes minutes on a processor
BLOCKS = 64  # cases of a dense grid: results are written after each
LIMIT_S = 6.0  # for all repeats of one context
PIECES = (1, 2, 3)


def contexts(rig: Rig) -> list[int]:
    """Every context up to the study's limit on CUDA, and every 32nd beyond; elsewhere a grid that minutes
    suffice for. The study's four are always there."""
    limit = min(rig.spec.context or LONGEST, LONGEST)
    if rig.quick:
        grid = {FIRST, 32, 64, min(limit, max(B_CONTEXTS))}
    elif rig.device.type == "cuda":
        grid = {*range(FIRST, STUDIED), *range(STUDIED, limit, 32), limit}
    else:
        doubled = {STUDIED * 2**power for power in range(4)}
        grid = {FIRST, *range(16, 256, 16), *range(256, STUDIED, 64), *doubled, limit}
    return sorted(context for context in grid | {*B_CONTEXTS} if FIRST <= context <= limit)


def cases(rig: Rig) -> list[Case]:
    grid = contexts(rig)
    size = -(-len(grid) // BLOCKS)
    blocks = [grid[start : start + size] for start in range(0, len(grid), size)]
    return [
        Case("logits against transformers", {"kind": "logits"}),
        Case("cached against uncached ids", {"kind": "ids"}),
        Case("pieces against one pass", {"kind": "pieces"}),
        Case("roofline", {"kind": "roofline"}),
        *(
            Case(f"{name}, {_span(block)} tokens", {"kind": "steps", "cached": cached, "contexts": block})
            for block in blocks
            for name, cached in (("no cache", False), ("cache", True))
        ),
    ]


@torch.inference_mode()
def measure(rig: Rig, case: Case) -> dict[str, Any]:
    return {"logits": logits, "ids": ids, "pieces": pieces, "roofline": rates, "steps": steps}[
        case.settings["kind"]
    ](rig, case)


def logits(rig: Rig, case: Case) -> dict[str, Any]:
    """The largest difference to transformers' own pass in each column of prompt and random ids behind it."""
    ours = rig.engine
    prompt = torch.tensor([ours.tokenizer.encode(B_PROMPT)], device=ours.device)
    columns = min(rig.spec.context or 256, 64 if rig.quick else 256)
    tokens = torch.cat((prompt, _ids(ours, columns)), dim=1)[:, :columns]  # (1, T)
    expected = rig.reference().model.plain_logits(tokens)[0]  # (T, V)
    found = ours.model.forward(tokens, torch.arange(columns, device=ours.device)[None], None, None, columns)
    return _compared(found[0], expected, "the logits of transformers' implementation")


def ids(rig: Rig, case: Case) -> dict[str, Any]:
    """Greedy ids of both ways from the study's prompt, and what each of their steps took."""
    engine = rig.engine
    prompt = engine.tokenizer.encode(B_PROMPT)
    room = (rig.spec.context or LONGEST) - len(prompt)
    params = SamplingParams(min(room, 32 if rig.quick else 200), ignore_eos=True)
    requests = engine.requests([prompt], params)
    results = {
        mode: (recipe_named(mode), fold(mode, requests, engine.run(requests, mode=mode)))
        for mode in ("no_cache", "kv_cache")
    }
    (found,) = review.compare(engine, requests, results)
    if found.verdict not in ("identical", "near-tie"):
        raise KshipraError(
            f"Cached and uncached greedy ids part at token {found.position + 1} by more than rounding: mend "
            "the cache before its time is taken."
        )
    return {
        "prompt_tokens": len(prompt),
        "comparison": plain(found),
        "token_ids": {mode: result.rows[0].token_ids for mode, (_, result) in results.items()},
        "step_s": {mode: [step.elapsed_s for step in result.steps] for mode, (_, result) in results.items()},
    }


def pieces(rig: Rig, case: Case) -> dict[str, Any]:
    """The largest difference to one pass in each column of a text that goes into a cache piece by piece."""
    engine, columns = rig.engine, 24
    tokens = _ids(engine, columns)
    expected = _in_pieces(engine, tokens, columns)
    return {
        str(size): _compared(
            _in_pieces(engine, tokens, size), expected, f"one pass when {size} tokens go in at a time"
        )
        for size in PIECES
    }


def _in_pieces(engine: Engine, tokens: Tensor, size: int) -> Tensor:
    """(T, V): logits of every column of `tokens` (1, T), `size` of them a pass, onto one cache."""
    cache, parts = HONEST.cache(), []
    for start in range(0, tokens.shape[1], size):
        piece = tokens[:, start : start + size]
        columns = piece.shape[1]
        valid = torch.ones(1, start + columns, dtype=torch.bool, device=engine.device)
        mask = HONEST.attention_mask(valid, columns)
        parts.append(engine.model.forward(piece, HONEST.positions(valid, columns), mask, cache, columns)[0])
        cache.advance(columns)
    return torch.cat(parts)


def _compared(found: Tensor, expected: Tensor, what: str) -> dict[str, Any]:
    """Both (T, V). Raises KshipraError where they differ by more than rounding may."""
    allowed = tolerance(expected)
    differences = (found - expected).abs().amax(dim=-1)  # (T)
    largest = differences.max().item()
    if not largest <= allowed:
        raise KshipraError(
            f"The logits differ from {what} by {largest:.3g}, where rounding may change {allowed:.3g}: mend "
            "the model before its time is taken."
        )
    return {
        "difference": differences.tolist(),
        "tolerance": allowed,
        "largest_logit": expected.abs().max().item(),
    }


def rates(rig: Rig, case: Case) -> dict[str, Any]:
    """What this machine was seen to do at best."""
    return plain(roofline.cached_roofline(rig.engine.device, rig.engine.dtype, progress=rig.progress))


def steps(rig: Rig, case: Case) -> dict[str, Any]:
    """Seconds of every repeat at each context, until the new id is on the host."""
    prepared = cached_step if case.settings["cached"] else whole_step
    taken = [
        rig.timed_s(prepared(rig.engine, context), limit_s=LIMIT_S) for context in case.settings["contexts"]
    ]
    return {"contexts": case.settings["contexts"], "step_s": taken}


def whole_step(engine: Engine, context: int) -> Callable[[], list[int]]:
    """One pass over all `context` tokens."""
    tokens, positions = _ids(engine, context), torch.arange(context, device=engine.device)[None]
    return lambda: engine.model.forward(tokens, positions, None, None, 1)[:, -1].argmax(-1).tolist()


def cached_step(engine: Engine, context: int) -> Callable[[], list[int]]:
    """One token onto `context` - 1 stored columns of random keys and values, which take as long as true ones.

    The cache is never told that a pass is over, so every call finds it as it was."""
    spec, cache = engine.model.spec, HONEST.cache()
    shape = (2, 1, spec.kv_heads, context - 1, spec.head_size)
    random = torch.Generator(engine.device).manual_seed(0)
    for layer in range(spec.layers):
        keys, values = torch.randn(shape, generator=random, dtype=engine.dtype, device=engine.device)
        cache.append(layer, keys, values)
    cache.advance(context - 1)
    token, position = _ids(engine, 1), torch.tensor([[context - 1]], device=engine.device)
    return lambda: engine.model.forward(token, position, None, cache, 1)[:, -1].argmax(-1).tolist()


def _ids(engine: Engine, columns: int) -> Tensor:
    """(1, T) random ids, the same ones every time on every device."""
    drawn = torch.randint(
        engine.model.spec.vocabulary, (1, columns), generator=torch.Generator().manual_seed(0)
    )
    return drawn.to(engine.device)


def _span(block: list[int]) -> str:
    return f"{block[0]:,}" if len(block) == 1 else f"{block[0]:,} to {block[-1]:,}"
