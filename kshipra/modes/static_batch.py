"""Static batch: several prompts in one left-padded tensor, so that a step reads the weights once for all."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from kshipra.modes.base import Mode
from kshipra.types import StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Job


def static_batch(job: Job) -> Generator[StepEvent, None, None]:
    for requests in job.batching.groups(job.requests, rows=len(job.requests)):
        batch = job.batch(requests, cached=True)
        while batch.running:
            yield job.step(batch)


MODE = Mode(
    "static_batch",
    "Batched",
    "Several prompts at once, padded on the left to one length; a step reads the weights once for all rows.",
    static_batch,
    rows=None,
)
