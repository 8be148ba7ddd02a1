"""The ways of generating, in the order in which they are shown. A new mode is one file and one line here."""

from __future__ import annotations

from kshipra.errors import InputError
from kshipra.modes import (
    continuous,
    kv_cache,
    no_cache,
    server,
    speculative,
    static_batch,
    transformers_continuous,
    transformers_generate,
    two_at_a_time,
)
from kshipra.modes.base import Mode

MODES: tuple[Mode, ...] = (
    no_cache.MODE,
    kv_cache.MODE,
    static_batch.MODE,
    continuous.MODE,
    speculative.MODE,
)
# Not for every engine: what needs a draft, what the bug lab needs, and peers, a model of their own kind.
UNLISTED_MODES: tuple[Mode, ...] = (
    speculative.DRAFT_MODEL,
    two_at_a_time.MODE,
    transformers_generate.MODE,
    transformers_continuous.MODE,
    server.MODE,
)


def mode_named(name: str) -> Mode:
    """The mode of that name; InputError names those there are."""
    for mode in (*MODES, *UNLISTED_MODES):
        if mode.name == name:
            return mode
    raise InputError(f"Mode {name!r:.40} is not one of {', '.join(mode.name for mode in MODES)}.")
