"""transformers continuous batching: the same weights and prompts through Hugging Face transformers' own
server loop, as a peer to measure continuous batching against. Greedy only, and up to an end token or a limit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from kshipra.errors import InputError
from kshipra.modes.base import Mode
from kshipra.modes.continuous import ROWS
from kshipra.types import Request, StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Job


def transformers_continuous(job: Job) -> Generator[StepEvent, None, None]:
    """All passes at once, and then their events: that library tells of a pass when it is over, and runs on.
    A pass there takes prompts and running rows together; one that begins a row counts as prefill."""
    from kshipra.costs import kv_bytes_per_token, pass_flops
    from kshipra.engine.serving import Asked, serve

    spec = job.model.spec
    batch = job.batch(list(job.requests), cached=False)
    begun_s = job.clock_s()
    served = serve(
        job.model,
        [
            Asked(
                request.prompt_ids,
                most(request, spec.context),
                () if request.params.ignore_eos else sorted(job.model.eos_ids),
            )
            for request in job.requests
        ],
        rows=job.batching.rows or ROWS,
    )
    job.pause()
    resident_bytes, peak_extra_bytes = job.meter.read()
    kv_bytes = served.cache_tokens * kv_bytes_per_token(spec)
    before_s = served.started_s
    for index, own in enumerate(served.passes):
        rows = [batch.rows[number] for number, _ in own.tokens]
        starts = not rows or any(len(row.ids) == len(row.request.prompt_ids) for row in rows)
        tokens = tuple(
            row.take(id, (None, ()), guessed=False) for row, (_, id) in zip(rows, own.tokens, strict=True)
        )
        yield StepEvent(
            index=index,
            phase="prefill" if starts else "decode",
            rows=tuple(row.request.row for row in rows),
            new_tokens=tokens,
            processed_tokens=own.taken,
            pad_tokens=0,
            elapsed_s=own.end_s - before_s,
            at_s=begun_s + own.end_s - served.started_s,
            kv_bytes=kv_bytes,
            kv_held_bytes=kv_bytes,
            resident_bytes=resident_bytes,
            peak_extra_bytes=peak_extra_bytes,
            memory_method=job.meter.method,
            flops=pass_flops(spec, rows=1, columns=own.taken, stored=0, kept=len(rows)),
        )
        before_s = own.end_s


def most(request: Request, context: int | None) -> int:
    """New tokens that `request` may have."""
    limit = request.params.max_new_tokens
    return limit if context is None else min(limit, context - len(request.prompt_ids) + 1)


def check(requests: Sequence[Request]) -> None:
    for params in (request.params for request in requests):
        if params.temperature > 0 or params.repetition_penalty != 1 or params.stop:
            raise InputError(
                "transformers' continuous batching is compared greedy only: choose temperature 0, "
                "repetition penalty 1 and no stop text."
            )


MODE = Mode(
    "transformers_continuous",
    "transformers continuous",
    "As Continuous batch, but by Hugging Face transformers: its model, its pages, its own server loop.",
    transformers_continuous,
    check,
    implementation="transformers",
    rows=ROWS,
    caches=False,  # the cache is that library's own
)
