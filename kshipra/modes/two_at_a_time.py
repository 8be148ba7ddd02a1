"""Two at a time: the prompt goes into the cache in pieces of two. For the bug lab, which needs steps of
more than one token onto a cache: there, and only there, the order of keys matters.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from kshipra.modes.base import Mode
from kshipra.types import StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Job

PIECE = 2


def two_at_a_time(job: Job) -> Generator[StepEvent, None, None]:
    for request in job.requests:
        batch = job.batch([request], cached=True)
        while batch.stored + PIECE < batch.ids.shape[1]:
            yield job.read(batch, PIECE)
        while batch.running:
            yield job.step(batch)


MODE = Mode(
    "two_at_a_time",
    "Prompt in pairs",
    "One prompt after another, read into the cache two tokens at a time.",
    two_at_a_time,
)
