"""What study A and the memory puzzle generate: a few short prompts of different length."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from kshipra.experiments.rig import Rig
from kshipra.types import Request, SamplingParams, StepEvent

TEXTS = (
    "The capital of France is",
    "Once upon a time there was a small village by the sea where",
    "Water boils at a temperature of",
    "The largest planet of the solar system, which has more than ninety moons, is",
)


def prompts(rig: Rig) -> list[str] | list[list[int]]:
    """Study A's four short prompts. Random weights know no words, so they take a seeded id a word."""
    if rig.weights_from == "published":
        return list(TEXTS)
    return [seeded_ids(rig, len(text.split()), seed=len(text)) for text in TEXTS]


def seeded_ids(rig: Rig, length: int, *, seed: int) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(rig.spec.vocabulary) for _ in range(length)]


def greedy(new_tokens: int) -> SamplingParams:
    """All of `new_tokens`, so that every mode does the same work whatever the weights say."""
    return SamplingParams(new_tokens, ignore_eos=True)


def warmed(rig: Rig, requests: tuple[Request, ...]) -> None:
    """Have the engine run once, so that what starts up in libraries is there before anything is measured."""
    short = dataclasses.replace(requests[0], params=greedy(1))
    finish(rig.engine.run((short,), mode="kv_cache"))


def finish(events: Iterator[StepEvent]) -> None:
    for _ in events:
        pass
