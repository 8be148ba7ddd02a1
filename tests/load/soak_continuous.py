"""Thousands of requests through one continuous run: they arrive while it goes on, some are cancelled, and
nothing of them may stay.

    PYTHONPATH=.:tests:tests/models .venv/bin/python tests/load/soak_continuous.py [REQUESTS]

Prints what was served and what was left, and ends with status 1 where memory or cache bytes grew, rows stayed
alive, or one of those that are compared, every 100th, is not its solo run.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from conftest import VOCABULARY, Letters, make_llama
from kshipra import machine
from kshipra.engine.cache import GROWTH_COLUMNS, KVCache
from kshipra.engine.job import Job, Row
from kshipra.engine.prefix import PrefixCache
from kshipra.engine.runner import Engine
from kshipra.engine.slots import SLACK_COLUMNS
from kshipra.types import Batching, Request, SamplingParams

ROWS, WAITING = 16, 24
START, OWN, NEW = 24, 12, 12  # the most tokens of a request: shared, its own, and new
LONGEST = START + OWN + NEW
COMPARED_EVERY = 100
CANCELLED_EVERY = 40
PREFIX_BYTES = 400_000
GROWTH_BYTES = 8 * 2**20  # of resident memory since a tenth had come; a row that stays alive takes 5 kB


@dataclass(frozen=True)
class Reading:
    """What there is of the process at one moment."""

    resident_bytes: int
    cache_bytes: int
    rows: int

    @classmethod
    def now(cls) -> Reading:
        gc.collect()
        machine.release_free_memory()
        found = gc.get_objects()
        caches = sum(one.held_bytes for one in found if type(one) is KVCache)
        return cls(machine.resident_bytes(), caches, sum(type(one) is Row for one in found))


@dataclass
class Soak:
    """What a soak came to; `readings` are taken when a tenth has come, when all have, and when it is over."""

    requests: int
    cache_bound_bytes: int
    tokens: int = 0
    reused_tokens: int = 0
    passes: int = 0
    cancelled: set[int] = field(default_factory=set)
    seconds: float = 0.0
    readings: list[Reading] = field(default_factory=list)
    compared: int = 0
    differing: list[int] = field(default_factory=list)

    @property
    def grown_bytes(self) -> int:
        return self.readings[1].resident_bytes - self.readings[0].resident_bytes

    def faults(self) -> Iterator[str]:
        early, late, after = self.readings
        if self.differing:
            yield f"requests {self.differing} are not their solo runs"
        if max(early.rows, late.rows) > ROWS + 2:  # those that are read, and that were cancelled just now
            yield f"{early.rows} and {late.rows} rows were alive at once"
        if max(early.cache_bytes, late.cache_bytes) > self.cache_bound_bytes:
            yield f"the caches have {early.cache_bytes:,} and {late.cache_bytes:,} bytes"
        if after.rows or after.cache_bytes:
            yield f"{after.rows} rows and {after.cache_bytes:,} bytes of cache are left"
        if self.grown_bytes > GROWTH_BYTES:
            yield f"memory has grown by {self.grown_bytes:,} bytes"


def requests(engine: Engine, count: int) -> tuple[Request, ...]:
    """Short ones, a third of which start as many others do, greedy and sampled."""
    chance = random.Random(0)
    starts = [[chance.randrange(VOCABULARY) for _ in range(START)] for _ in range(5)]
    prompts, params = [], []
    for row in range(count):
        start = chance.choice(starts) if row % 3 == 0 else []
        prompts.append(start + [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, OWN))])
        temperature = chance.choice((0.0, 0.0, 1.0))
        params.append(
            SamplingParams(chance.randint(1, NEW), temperature=temperature, seed=row, ignore_eos=True)
        )
    return engine.requests(prompts, params)


def arrivals(asked: Iterator[Request], found: Soak) -> Callable[[Job], None]:
    """An `attend` that lets a few come before every pass, as long as not too many wait, and cancels some."""
    chance, come = random.Random(1), 0

    def attend(job: Job) -> None:
        nonlocal come
        least = 0 if job.requests else 1  # else the run would end before all have come
        for _ in range(chance.randint(least, 2) if len(job.requests) < WAITING else 0):
            if (request := next(asked, None)) is None:
                return
            job.requests.append(request)
            come += 1
            if come in (found.requests // 10, found.requests - 1):
                found.readings.append(Reading.now())
            victim = request.row - chance.randrange(WAITING)
            if chance.randrange(CANCELLED_EVERY) == 0 and victim > 0 and victim % COMPARED_EVERY:
                found.cancelled.add(victim)
                job.cancel(victim)

    return attend


def soak(count: int) -> Soak:
    """Of `count` requests; what the process held before, as a suite of tests does, is not counted."""
    gc.collect()
    gc.freeze()  # `gc.get_objects` leaves out what is frozen
    try:
        return soak_alone(count)
    finally:
        gc.unfreeze()


def soak_alone(count: int) -> Soak:
    engine = Engine(make_llama(), Letters())
    columns = LONGEST + SLACK_COLUMNS + GROWTH_COLUMNS
    held_bytes = (ROWS + 1) * columns * engine.describe().kv_bytes_per_token
    found = Soak(count, PREFIX_BYTES + held_bytes)
    asked, prefixes = requests(engine, count), PrefixCache(PREFIX_BYTES)
    told: dict[int, list[int]] = {row: [] for row in range(0, count, COMPARED_EVERY)}
    started_s = time.perf_counter()
    for step in engine.run(
        asked[:1],
        mode="continuous",
        batching=Batching(rows=ROWS, cache_tokens=LONGEST * ROWS, chunk_tokens=16),
        attend=arrivals(iter(asked[1:]), found),
        prefixes=prefixes,
    ):
        found.passes += 1
        found.tokens += len(step.new_tokens)
        found.reused_tokens += step.reused_tokens
        for token in step.new_tokens:
            if token.row in told:
                told[token.row].append(token.id)
    found.seconds = time.perf_counter() - started_s
    prefixes.clear()
    found.readings.append(Reading.now())
    for row, ids in told.items():
        alone = [token.id for step in engine.run([asked[row]], mode="kv_cache") for token in step.new_tokens]
        found.compared += 1
        if ids != alone:
            found.differing.append(row)
    return found


def main(count: int) -> int:
    found = soak(count)
    early, late, after = found.readings
    print(
        f"{found.requests:,} requests, {len(found.cancelled):,} of them cancelled, in {found.seconds:.0f} s: "
        f"{found.passes:,} passes, {found.tokens:,} new tokens, {found.reused_tokens:,} reused\n"
        f"resident: {early.resident_bytes / 2**20:.1f} MiB when a tenth had come, "
        f"{late.resident_bytes / 2**20:.1f} MiB at the end ({found.grown_bytes / 2**20:+.2f})\n"
        f"cache bytes: {early.cache_bytes:,} then, {late.cache_bytes:,} at the end, "
        f"{after.cache_bytes:,} after\n"
        f"rows alive: {early.rows} then, {late.rows} at the end, {after.rows} after\n"
        f"{found.compared - len(found.differing)} of {found.compared} compared are their solo runs"
    )
    for fault in found.faults():
        print(f"FAULT: {fault}")
    return 1 if any(found.faults()) else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
