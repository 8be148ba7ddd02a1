"""Prompt lookup (Saxena 2023): what followed the last few tokens where they stood before is guessed to follow
again, and one pass checks the whole guess. Pays where a text repeats parts of its prompt."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from kshipra.modes.base import Mode
from kshipra.types import StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Job, Row

LONGEST_MATCH = 3
MOST_GUESSED = 8


def speculative(job: Job) -> Generator[StepEvent, None, None]:
    for requests in job.batching.groups(job.requests, rows=1):
        batch = job.batch(requests, cached=True)
        yield job.step(batch)
        while batch.running:
            yield job.step(batch, [draft(row, job.model.spec.context) for row in batch.rows])


def draft(row: Row, context: int | None) -> list[int]:
    """What may follow: nothing for a row that has ended, and never past its limit or the model's context."""
    if row.finish_reason is not None:
        return []
    left = row.params.max_new_tokens - (len(row.ids) - len(row.request.prompt_ids)) - 1
    if context is not None:
        left = min(left, context - len(row.ids))
    return looked_up(row.ids, min(MOST_GUESSED, left))


def looked_up(ids: Sequence[int], most: int) -> list[int]:
    """`most` ids that would follow if the text went on as it did at the latest earlier place of the longest
    run of last ids found there; as in LZ77 the copy may run on into itself, so that a loop stays a loop."""
    for size in range(LONGEST_MATCH, 0, -1):
        tail = ids[-size:]
        for start in range(len(ids) - size - 1, -1, -1):
            if ids[start : start + size] == tail:
                period = len(ids) - size - start
                return [ids[len(ids) - period + place % period] for place in range(most)]
    return []


MODE = Mode(
    "speculative",
    "Prompt lookup",
    "What followed the same words before is guessed to follow again, and one pass checks several guesses.",
    speculative,
    guesses=True,
)
