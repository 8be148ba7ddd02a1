"""Speculative decoding: somebody guesses the next few tokens, and one pass of the model checks them all.

Prompt lookup (Saxena 2023) guesses that what followed the last few tokens where they stood before follows
again, which pays where a text repeats parts of its prompt; a draft model guesses what it would say itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from kshipra.modes.base import Mode
from kshipra.types import StepEvent

if TYPE_CHECKING:
    from kshipra.engine.drafts import Drafter
    from kshipra.engine.job import Batch, Job, Row

MATCHED = 3  # ids that must stand at the other place too; a match of fewer seldom goes on alike
MOST_GUESSED = 16  # a pass of 17 columns costs what one of 9 does


def checked(job: Job, drafter: Callable[[], Drafter]) -> Generator[StepEvent, None, None]:
    """Groups of `job.batching.rows`, by itself one row after another; each with a drafter of its own."""
    for requests in job.batching.groups(job.requests, rows=1):
        batch = job.batch(requests, cached=True, drafter=drafter())
        while batch.running:
            yield job.step(batch)


def speculative(job: Job) -> Generator[StepEvent, None, None]:
    return checked(job, PromptLookup)


def draft_model(job: Job) -> Generator[StepEvent, None, None]:
    from kshipra.engine.drafts import DraftModel

    return checked(job, lambda: DraftModel(job.draft, job.model.spec.vocabulary))


class PromptLookup:
    """A Drafter that only needs the text so far."""

    cache = None

    def guess(self, batch: Batch) -> list[list[int]]:
        return [up_to_end(row, looked_up(row.ids, min(MOST_GUESSED, row.room))) for row in batch.rows]


def looked_up(ids: Sequence[int], most: int) -> list[int]:
    """`most` ids that would follow if the text went on as it did behind the latest earlier place of its last
    MATCHED ids; as in LZ77 the copy may run on into itself, so that a loop stays a loop."""
    tail = ids[-MATCHED:]
    for start in range(len(ids) - MATCHED - 1 if most else -1, -1, -1):
        if ids[start : start + MATCHED] == tail:
            period = len(ids) - MATCHED - start
            return [ids[len(ids) - period + place % period] for place in range(most)]
    return []


def up_to_end(row: Row, ids: Sequence[int]) -> list[int]:
    """`ids` up to the first that would end the row."""
    end = next((place for place, id in enumerate(ids) if row.ends_with(id)), len(ids))
    return list(ids[: end + 1])


MODE = Mode(
    "speculative",
    "Prompt lookup",
    "What followed the same words before is guessed to follow again, and one pass checks several guesses.",
    speculative,
    guesses=True,
)
DRAFT_MODEL = Mode(
    "draft_model",
    "Draft model",
    "A smaller model with the same tokenizer guesses the next tokens, and one pass checks several guesses.",
    draft_model,
    drafts=True,
    guesses=True,
)
