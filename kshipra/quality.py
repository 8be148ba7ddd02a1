"""Whether an engine still says what the model says: its tokens and its reading of a text, held against the
plainest engine of the same model (float32, native weights, eager). Pure functions over engines; refuses to
know tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from kshipra.engine.review import compare
from kshipra.engine.runner import Engine
from kshipra.metrics import fold
from kshipra.types import Comparison, Recipe, Request, RunResult, SamplingParams, Verdict

PROMPTS = (
    "The sea is",
    "Once upon a time there was a baker who",
    "Water boils at one hundred degrees because",
    "def mean(values):\n    ",
    "To mend a broken chair you need glue, two clamps and a little patience. First",
    "Question: Which planet is the largest of all that go around the Sun? Answer:",
)
NEW_TOKENS = 32
TEXT = Path(__file__).parents[1] / "assets" / "held_text.txt"
REFERENCE = Recipe(
    "reference", "", "Reference", "float32, native weights, eager, nothing cached.", "no_cache"
)


class Bounds(NamedTuple):
    """What a case may cost: `perplexity` by which its own may lie above or below the reference's, as a
    factor, and the least share of next tokens that must agree, where its logits differ by more than
    rounding."""

    perplexity: float
    agreement: float | None = None


@dataclass(frozen=True)
class Reading:
    """A text read token by token: how likely its tokens were, and what the model would have said instead."""

    tokens: int  # that were predicted: all but the first
    perplexity: float | None  # None where a logit was no number, or the result is none
    best_ids: tuple[int, ...]  # the likeliest at each of them


@dataclass(frozen=True)
class Quality:
    """One case against the reference. `parted` has a Comparison of each of `rows` whose ids differ."""

    case: str
    verdict: Verdict  # identical, near-tie or fault
    rows: int
    parted: tuple[Comparison, ...]
    text_tokens: int
    reference_perplexity: float | None
    perplexity: float | None
    perplexity_ratio: float | None
    perplexity_bound: float
    agreement: float  # share of the text's next tokens for which both have the same likeliest id
    agreement_bound: float | None
    passed: bool


def bounds(engine: Engine, weights: str) -> Bounds:
    """What storing `weights` in fewer bits, or computing in 16, may cost; anything else costs nothing but
    the order of sums."""
    if weights == "int8":
        return Bounds(1.02, 0.9)
    if weights == "bfloat16" or engine.dtype in (torch.bfloat16, torch.float16):
        return Bounds(1.01)
    return Bounds(1.0001)


def read_text(engine: Engine, ids: Sequence[int]) -> Reading:
    """`ids` (at least 2) through the engine's own decode path: prefill of the first id, then one pass over
    the cache a token as in generation, but the next id is the text's, whatever the logits say."""
    ids = list(ids)
    requests = engine.requests([ids[:1]], SamplingParams(len(ids) - 1, ignore_eos=True))
    surprises: list[float] = []  # in nats
    best_ids: list[int] = []

    def choose(logits: torch.Tensor, rows: Sequence[tuple]) -> torch.Tensor:
        next_id = ids[len(rows[0][1])]  # the one row's ids so far
        surprises.append(-logits[0].double().log_softmax(dim=-1)[next_id].item())
        best_ids.append(int(logits[0].argmax()))
        return torch.tensor([next_id], device=logits.device)

    for _ in engine.run(requests, mode="kv_cache", choose=choose):
        pass
    return Reading(len(surprises), _perplexity(surprises), tuple(best_ids))


def check(
    reference: Engine,
    cases: Mapping[str, tuple[Recipe, Engine]],
    *,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Quality]:
    """Each case, a mode of an engine, against `reference`, which runs every prompt again for each token.

    `progress` is called after each run and each reading of the text: 2 + the cases + the engines other than
    the reference.
    """
    requests = reference.requests(PROMPTS, SamplingParams(NEW_TOKENS, ignore_eos=True))
    ids = reference.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[: reference.model.spec.context]
    plain = _run(reference, requests, REFERENCE)
    progress()
    readings: dict[int, Reading] = {id(reference): read_text(reference, ids)}
    progress()
    found = {}
    for key, (recipe, engine) in cases.items():
        result = _run(engine, requests, recipe)
        progress()
        if id(engine) not in readings:
            readings[id(engine)] = read_text(engine, ids)
            progress()
        comparisons = compare(
            {REFERENCE.key: reference, recipe.key: engine},
            requests,
            {REFERENCE.key: (REFERENCE, plain), recipe.key: (recipe, result)},
            every_row=True,
        )
        allowed = bounds(engine, recipe.weights)
        found[key] = judge(key, comparisons, readings[id(reference)], readings[id(engine)], allowed)
    return found


def judge(
    case: str, comparisons: Sequence[Comparison], expected: Reading, own: Reading, allowed: Bounds
) -> Quality:
    """All that is known of a case, and whether it keeps within `allowed`."""
    parted = tuple(one for one in comparisons if one.verdict != "identical")
    verdict: Verdict = "near-tie" if parted else "identical"
    if any(one.verdict != "near-tie" for one in parted):
        verdict = "fault"
    ratio = own.perplexity / expected.perplexity if own.perplexity and expected.perplexity else None
    same = sum(one == other for one, other in zip(expected.best_ids, own.best_ids, strict=True))
    agreement = same / own.tokens
    return Quality(
        case=case,
        verdict=verdict,
        rows=len(PROMPTS),
        parted=parted,
        text_tokens=own.tokens,
        reference_perplexity=expected.perplexity,
        perplexity=own.perplexity,
        perplexity_ratio=ratio,
        perplexity_bound=allowed.perplexity,
        agreement=agreement,
        agreement_bound=allowed.agreement,
        passed=verdict != "fault"
        and ratio is not None
        and 1 / allowed.perplexity <= ratio <= allowed.perplexity
        and (allowed.agreement is None or agreement >= allowed.agreement),
    )


def _run(engine: Engine, requests: Sequence[Request], recipe: Recipe) -> RunResult:
    return fold(recipe.mode, requests, engine.run(requests, mode=recipe.mode))


def _perplexity(surprises: Sequence[float]) -> float | None:
    mean = sum(surprises) / len(surprises)
    return math.exp(mean) if mean < 700 else None  # NaN is not below either
