"""What a run should have taken by the model's shape and the machine's roofline (Williams et al. 2009), beside
what it took. Knows nothing of torch, of how the roofline was measured, or of the words that a page uses.

A pass has to read its weights and stored keys and values, and has to do its arithmetic; the two overlap, so
it takes at least the longer of both. Medians are over decode passes, as step latency's are: prefill is
another regime, in which one pass does the arithmetic of the whole prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from kshipra.costs import kv_bytes_per_token, pass_bytes
from kshipra.types import ModelSpec, Request, Roofline, RunResult

Bound = Literal["weights", "arithmetic", "overhead"]

# Above twice the predicted time, most of a step went to something that the shape does not ask for.
OVERHEAD_TIMES = 2.0


@dataclass(frozen=True)
class Prediction:
    """Medians over a run's decode passes, None where there was none.

    `step_bytes`, of which `step_kv_bytes` are keys and values, and `step_flops` are what the shape asks for;
    the shares are these over the measured time, as a part of the roofline. A share above 1 says that the
    model ran from the processor's caches, or that the machine was busier when the roofline was taken.
    """

    roofline: Roofline
    step_bytes: float | None
    step_kv_bytes: float | None
    step_flops: float | None
    predicted_step_s: float | None
    measured_step_s: float | None
    bandwidth_share: float | None
    arithmetic_share: float | None
    bound: Bound | None
    kv_formula_bytes: int | None
    kv_real_bytes: int


def kv_formula_bytes(spec: ModelSpec, requests: Sequence[Request], result: RunResult) -> int | None:
    """Keys and values at the fullest moment, by the shape: bytes a token x rows x stored columns.

    Rows that were prefilled together share a tensor, padded to the longest prompt, and every pass adds a
    column to all of them, those that have ended included. The last new id is never fed, so a batch ends with
    (longest prompt + most new tokens - 1) columns. Rows one after another are batches of one, of which only
    the fullest counts. A pass over guesses stores them too, until it is known which are right. 0 where the
    run had no cache. None where the columns do not follow from lengths: a row joined others that had begun,
    or several together reused columns or were guessed for.
    """
    if result.kv_held_bytes == 0:
        return 0
    prompt_tokens = {request.row: len(request.prompt_ids) for request in requests}
    had: Counter[int] = Counter()  # new tokens of each row before the pass
    together, cells = frozenset[int](), 0
    for step in result.steps:
        together = frozenset(step.rows) if step.phase == "prefill" else together
        irregular = len(together) > 1 and (step.reused_tokens or step.drafted_tokens)
        if irregular or not together.issuperset(step.rows):
            return None
        longest = max((prompt_tokens[row] for row in together), default=0)
        columns = longest + max((had[row] for row in together), default=0) + step.drafted_tokens
        cells = max(cells, len(together) * columns)
        had.update(token.row for token in step.new_tokens)
    return kv_bytes_per_token(spec) * cells


def _bound(bytes_s: float, flops_s: float, predicted_s: float, measured_s: float) -> Bound:
    if measured_s > OVERHEAD_TIMES * predicted_s:
        return "overhead"
    return "weights" if bytes_s >= flops_s else "arithmetic"


def predict(
    spec: ModelSpec, requests: Sequence[Request], result: RunResult, roofline: Roofline
) -> Prediction:
    """`result` of `requests` on a model of shape `spec`, held against `roofline`.

    A pass's bytes and FLOPs follow from its event: without cache the whole text is computed again, so
    `flops` grow and `kv_bytes` are 0; with one, the other way round.
    """
    formula_bytes = kv_formula_bytes(spec, requests, result)
    steps = [step for step in result.steps if step.phase == "decode"]
    if not steps:
        return Prediction(roofline, *[None] * 8, formula_bytes, result.kv_bytes)
    moved = [pass_bytes(spec, kv_bytes=step.kv_bytes) for step in steps]
    bytes_s = [amount / roofline.bytes_per_s for amount in moved]
    flops_s = [step.flops / roofline.flops_per_s for step in steps]
    predicted_s = median(map(max, bytes_s, flops_s))
    measured_s = median(step.elapsed_s for step in steps)

    def share(ideal_s: Sequence[float]) -> float | None:
        timed = [ideal / step.elapsed_s for ideal, step in zip(ideal_s, steps, strict=True) if step.elapsed_s]
        return median(timed) if timed else None

    return Prediction(
        roofline=roofline,
        step_bytes=median(moved),
        step_kv_bytes=median(step.kv_bytes for step in steps),
        step_flops=median(step.flops for step in steps),
        predicted_step_s=predicted_s,
        measured_step_s=measured_s,
        bandwidth_share=share(bytes_s),
        arithmetic_share=share(flops_s),
        bound=_bound(median(bytes_s), median(flops_s), predicted_s, measured_s),
        kv_formula_bytes=formula_bytes,
        kv_real_bytes=result.kv_bytes,
    )
