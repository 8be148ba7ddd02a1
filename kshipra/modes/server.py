"""Server: the same prompts to a server that speaks OpenAI's interface. What it does with them is its own;
only what comes back, and when, is known here.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from kshipra.errors import InputError
from kshipra.modes.base import Mode
from kshipra.types import Request, StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Job


def not_here(job: Job) -> Generator[StepEvent, None, None]:
    raise InputError("An engine of this process cannot run a server's part: ask for the recipe server.")


def check(requests: Sequence[Request]) -> None:
    for request in requests:
        if request.params.top_k or request.params.repetition_penalty != 1:
            raise InputError(
                "OpenAI's interface has neither top-k nor a repetition penalty: switch both off to ask a "
                "server."
            )


MODE = Mode(
    "server",
    "Server",
    "The same prompts to a server over OpenAI's interface, all at once. Times are taken here, network "
    "included; what it does not tell is a dash.",
    not_here,
    check,
    rows=None,
    caches=False,  # whatever it keeps is its own
    elsewhere=True,
)
