"""What a mode is: a short generator over `job.step`, with the words that present it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kshipra.types import StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Job


@dataclass(frozen=True)
class Mode:
    """`run(job)` yields one StepEvent a forward pass until every row has ended."""

    name: str
    label: str
    sentence: str  # what a student understands, shown under the label
    run: Callable[[Job], Iterator[StepEvent]]
