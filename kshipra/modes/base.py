"""What a mode is: a short generator over `job.step`, with the words that present it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kshipra.types import Request, StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Job


def anything(requests: Sequence[Request]) -> None:
    """The check of a mode that can serve all requests."""


@dataclass(frozen=True)
class Mode:
    """`run(job)` yields one StepEvent a forward pass until every row has ended; closing it ends the run.

    `rows` prompts share a pass where a run does not say how many (None: all of them).
    `check` raises InputError, with what to do, for requests that the mode cannot serve. A mode that has an
    `implementation` of its own drives that kind of model past `job.step`; one that `drafts` needs an engine
    with a second model that guesses.
    `caches`: it keeps keys and values, so that those of earlier prompts can be reused. `guesses`: it checks
    guesses of several tokens. `elsewhere`: its passes are those of another machine.
    """

    name: str
    label: str
    sentence: str  # what a student understands, shown under the label
    run: Callable[[Job], Generator[StepEvent, None, None]]
    check: Callable[[Sequence[Request]], None] = anything
    implementation: str = "auto"
    rows: int | None = 1
    drafts: bool = False
    caches: bool = True
    guesses: bool = False
    elsewhere: bool = False

    @property
    def batches(self) -> bool:
        """Whether rows share passes, as many as `Batching.rows` says."""
        return self.rows != 1

    def together(self, prompts: int, rows: int | None = None) -> int:
        """The most of `prompts` that share a pass here, where a run allows `rows`."""
        return 0 if self.elsewhere else min(rows or self.rows or prompts, prompts)
