"""transformers generate: the same weights and prompts through Hugging Face transformers' own loop, as a peer
to measure the others against. Greedy only, because what it draws comes from other random numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from kshipra.errors import InputError
from kshipra.modes.base import Mode
from kshipra.types import Request, StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Job


def transformers_generate(job: Job) -> Generator[StepEvent, None, None]:
    """Positions, mask and the choice of the next id are that library's own: a planted fault or another
    choice cannot reach them."""
    from kshipra.engine.generation import Generation

    for request in job.requests:
        batch = job.batch([request], cached=False)
        with Generation(job.model, batch.ids, request.params) as generation:
            batch.cache = generation.cache
            while batch.running:
                yield job.took(batch, *generation.token())


def check(requests: Sequence[Request]) -> None:
    if any(request.params.temperature > 0 for request in requests):
        raise InputError(
            "transformers draws other random numbers than Kshipra: choose temperature 0 to compare with it."
        )


MODE = Mode(
    "transformers_generate",
    "transformers generate",
    "As KV cache, but by Hugging Face transformers: its model, its cache, its own generate loop. The weights "
    "are loaded a second time for it.",
    transformers_generate,
    check,
    implementation="transformers",
    caches=False,  # the cache is that library's own
)
