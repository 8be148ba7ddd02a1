"""Continuous batching (Yu et al. 2022): a row that ends gives its place at once to a prompt that waits, and
long prompts are read in chunks between the steps of the rows that run (Agrawal et al. 2023)."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from kshipra.modes.base import Mode
from kshipra.types import Batching, Request, StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Batch, Job

ROWS = 8


def continuous(job: Job) -> Generator[StepEvent, None, None]:
    batch, reading = None, None
    while job.requests or reading or batch is not None:
        allowance = job.batching.chunk_tokens  # prompt tokens before the running rows get their next step
        while reading or (job.requests and admits(job.batching, batch, job.requests[0])):
            reading = reading or job.batch([job.requests.popleft()], cached=True)
            columns = reading.unread
            if batch is not None:  # else nobody waits for the next step
                columns = min(columns, job.batching.chunk_tokens)
                if columns > allowance:  # a pass costs much whatever it holds: few full ones, no pieces
                    break
                allowance -= columns
            if columns < reading.unread:
                yield job.read(reading, columns)
            else:
                yield job.step(reading)
                batch, reading = joined(job, batch, reading), None
            if reading and not reading.running:  # cancelled
                reading = None
        if batch is not None and batch.running:
            yield job.step(batch)
        if batch is not None and not job.requests:
            job.leave(batch)
        if batch is not None and not batch.running:
            batch = None


def joined(job: Job, batch: Batch | None, read: Batch) -> Batch | None:
    """`batch` with the only row of `read`, if that has not ended with its first token."""
    if not read.running or batch is None:
        return read if read.running else batch
    job.join(batch, read)
    return batch


def admits(batching: Batching, batch: Batch | None, request: Request) -> bool:
    """Whether the rows that run leave a place for `request`, and the cache columns for all it may become."""
    running = [row.request for row in batch.running] if batch is not None else []
    longest = max(needed(row) for row in (*running, request))
    fits = batching.cache_tokens is None or (len(running) + 1) * longest <= batching.cache_tokens
    return len(running) < (batching.rows or ROWS) and fits


def needed(request: Request) -> int:
    """Columns of the cache when the last token has been chosen, which itself is never stored."""
    return len(request.prompt_ids) + request.params.max_new_tokens - 1


MODE = Mode(
    "continuous",
    "Continuous batch",
    "A row that ends gives its place to the next prompt at once, so that the batch stays full.",
    continuous,
    rows=ROWS,
)
