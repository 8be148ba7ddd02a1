"""What bench measures besides synthetic rows: workloads that show what batching and reuse are for, each with
the ways that are held against each other on it. Refuses to know engines beyond their tokenizer, and tables.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

from kshipra.errors import InputError
from kshipra.modes import continuous, kv_cache, speculative, static_batch, transformers_continuous
from kshipra.types import UNBOUNDED, Batching, Request, SamplingParams

if TYPE_CHECKING:
    from kshipra.engine.runner import Engine

TEXT = Path(__file__).parents[1] / "assets" / "held_text.txt"


@dataclass(frozen=True)
class Way:
    """A mode with what it runs under. `reuse`: every run has a PrefixCache, empty at its start. `seen_as`: of
    a peer that shows no logits, the mode that shows those of its model."""

    mode: str
    batching: Batching = UNBOUNDED
    reuse: bool = False
    implementation: str = "auto"
    seen_as: str | None = None


@dataclass(frozen=True)
class Workload:
    """Requests and the ways to serve them, the first of which the others are held against, by the figure
    `judged`. `columns` are the figures that its table shows after that."""

    name: str
    sentence: str
    requests: Callable[[Engine], tuple[Request, ...]]
    ways: tuple[Way, ...]
    judged: str
    columns: tuple[str, ...]


# Ragged: what continuous batching is for

REQUESTS = 32
ROWS = 8
PROMPT_TOKENS = (8, 200)  # the shortest and the longest
NEW_TOKENS = (8, 128)


def ragged(engine: Engine) -> tuple[Request, ...]:
    """REQUESTS stretches of a text. Lengths and limits lie evenly between their bounds and arrive shuffled,
    so that no luck of a seed makes them few or many."""
    ids, chance = _text_ids(engine), random.Random(0)
    lengths, limits = (_spread(*bounds, REQUESTS) for bounds in (PROMPT_TOKENS, NEW_TOKENS))
    chance.shuffle(lengths)
    chance.shuffle(limits)
    prompts = [_stretch(ids, 37 * row, length) for row, length in enumerate(lengths)]
    return engine.requests(prompts, [SamplingParams(limit, ignore_eos=True) for limit in limits])


# Shared prefix: what keeping keys and values between requests is for

SHARERS = 16
SHARED_TOKENS = 200
OWN_TOKENS = 12
ANSWER_TOKENS = 16


def shared_prefix(engine: Engine) -> tuple[Request, ...]:
    """SHARERS prompts that start with the same SHARED_TOKENS and go on with OWN_TOKENS of another stretch."""
    ids = _text_ids(engine)
    prompts = [
        _stretch(ids, 0, SHARED_TOKENS) + _stretch(ids, SHARED_TOKENS + OWN_TOKENS * row, OWN_TOKENS)
        for row in range(SHARERS)
    ]
    return engine.requests(prompts, SamplingParams(ANSWER_TOKENS, ignore_eos=True))


# Copy: what prompt lookup is for

COPIED_TOKENS = 120
TASKS = (  # and which paragraph of the text they are about
    ("Repeat the following text word for word, without any change:", 0),
    ("Rewrite this text and replace the word mill by the word factory. Keep everything else as it is.", 0),
    ("Copy every sentence of this text that mentions the river:", 1),
    ("Correct the spelling of this text and write it again in full:", 2),
)


def copying(engine: Engine) -> tuple[Request, ...]:
    """TASKS that have most of their answer in their prompt, as a chat where the model knows how."""
    paragraphs = TEXT.read_text(encoding="utf-8").split("\n\n")
    prompts = [f"{task}\n\n{paragraphs[place]}" for task, place in TASKS]
    chat = engine.tokenizer.has_chat_template
    return engine.requests(prompts, SamplingParams(COPIED_TOKENS), chat=chat)


def _text_ids(engine: Engine) -> list[int]:
    return engine.tokenizer.encode(TEXT.read_text(encoding="utf-8"))


def _stretch(ids: Sequence[int], start: int, length: int) -> list[int]:
    """`length` ids from `start`, round and round."""
    return list(islice(cycle(ids), start % len(ids), start % len(ids) + length))


def _spread(least: int, most: int, count: int) -> list[int]:
    return [round(least + (most - least) * place / (count - 1)) for place in range(count)]


SERVING = (
    "ttft_p50_s",
    "largest_gap_s",
    "padding",
    "between_passes_share",
    "forward_passes",
    "new_tokens",
    "kv_held_bytes",
)
WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "ragged",
        "32 requests of different length and limit, 8 at once.",
        ragged,
        (
            Way(static_batch.MODE.name, Batching(rows=ROWS)),
            Way(continuous.MODE.name, Batching(rows=ROWS)),
            Way(
                transformers_continuous.MODE.name,
                Batching(rows=ROWS),
                implementation=transformers_continuous.MODE.implementation,
                seen_as=kv_cache.MODE.name,
            ),
        ),
        "end_to_end_tok_per_s",
        SERVING,
    ),
    Workload(
        "shared-prefix",
        "16 requests that start with the same 200 tokens, one after another.",
        shared_prefix,
        (Way(kv_cache.MODE.name), Way(kv_cache.MODE.name, reuse=True)),
        "own_ttft_p50_s",
        ("end_to_end_tok_per_s", "reused_tokens", "forward_passes", "new_tokens", "peak_extra_bytes"),
    ),
    Workload(
        "copy",
        "Texts to repeat, to rewrite, to correct and to quote from, one after another.",
        copying,
        (Way(kv_cache.MODE.name), Way(speculative.MODE.name), Way(speculative.DRAFT_MODEL.name)),
        "end_to_end_tok_per_s",
        ("acceptance", "tokens_per_pass", "step_p50_s", "forward_passes", "new_tokens"),
    ),
)


def workload_named(name: str) -> Workload:
    """The workload of that name; InputError names those there are."""
    for workload in WORKLOADS:
        if workload.name == name:
            return workload
    raise InputError(f"Workload {name!r:.40} is not one of {', '.join(one.name for one in WORKLOADS)}.")
