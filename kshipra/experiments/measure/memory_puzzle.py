"""Why would one prompt at a time peak above a batch (A5)? The same prompts, 1, 2, 4 or 8 rows to a pass, a
fresh process each, and one thing changed at a time that the author's explanation says should matter.

All on the processor, whose allocator the question is about, whatever device the experiment was given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from kshipra.costs import kv_bytes_per_token, weight_bytes
from kshipra.engine.cache import KVCache
from kshipra.engine.job import Job
from kshipra.engine.layout import HONEST
from kshipra.errors import KshipraError
from kshipra.experiments.measure import memory, workload
from kshipra.experiments.rig import Case, Rig
from kshipra.experiments.steps import Concatenated
from kshipra.types import Batching, Request, StepEvent

LENGTHS = (4, 5, 6, 8, 10, 12, 15, 20)  # of the prompts, in tokens; sorted, so padding is what it must be
KV_TOKENS = 30  # those whose cache the author gives as 0.66 MB
PLAIN, TRIMMED = "as it is", "freed memory returned after each pass"
CHANGES: dict[str, dict[str, Any]] = {
    PLAIN: {},
    TRIMMED: {"trim": True},
    "one arena": {"environment": {"MALLOC_ARENA_MAX": "1"}},
    "longest prompt first": {"longest_first": True},
    "concatenated cache": {"concatenated": True},
}
OF_BOTH = ("longest prompt first", "concatenated cache")  # the others are said to help one at a time


def cases(rig: Rig) -> list[Case]:
    """The author's two cases, with nothing changed, come in several processes: a change, or another number
    of rows, is held against their spread."""
    plain, trimmed = {PLAIN: CHANGES[PLAIN]}, {TRIMMED: CHANGES[TRIMMED]}
    found = [Case(f"cache of {KV_TOKENS} tokens", {"kind": "cache"})]
    if rig.quick:
        return [*found, *grid(plain, (1, 4), 1), *grid(trimmed, (1,), 1)]
    found += [*grid(plain, (1, 2, 4, 8), 1), *grid(plain, (1, 4), 2), *grid(plain, (1, 4), 3)]
    for name, change in changes().items():
        found += grid({name: change}, (1, 4) if name in OF_BOTH else (1,), 1)
    return found


def changes() -> dict[str, dict[str, Any]]:
    """All but PLAIN, with a change for each other allocator that is installed."""
    others = {
        name: {"environment": {"LD_PRELOAD": library}, "allocator": name}
        for name, allocator in memory.ALLOCATORS.items()
        if (library := allocator.library())
    }
    return {name: change for name, change in CHANGES.items() if name != PLAIN} | others


def grid(changes: dict[str, dict[str, Any]], rows: tuple[int, ...], process: int) -> list[Case]:
    return [
        Case(
            f"{count} at once, {name}, process {process}",
            {"kind": "run", "rows": count, "change": name, "process": process}
            | {key: value for key, value in change.items() if key != "environment"},
            change.get("environment", {}),
        )
        for name, change in changes.items()
        for count in rows
    ]


def measure(rig: Rig, case: Case) -> dict[str, Any]:
    if rig.device.type != "cpu":
        rig = Rig(dataclasses.replace(rig.choice, device="cpu"), rig.quick)
    return cache(rig) if case.settings["kind"] == "cache" else peak(rig, case.settings)


@torch.inference_mode()
def cache(rig: Rig) -> dict[str, Any]:
    """The cache of one row of KV_TOKENS: by formula, and its real tensors after a pass over as many ids."""
    ids = torch.tensor([workload.seeded_ids(rig, KV_TOKENS, seed=0)])  # (1, T)
    kept = KVCache()
    rig.engine.model.forward(ids, torch.arange(KV_TOKENS)[None], None, kept, 1)
    kept.advance(KV_TOKENS)
    return {
        "tokens": KV_TOKENS,
        "formula_bytes": KV_TOKENS * kv_bytes_per_token(rig.spec),
        "used_bytes": kept.used_bytes,
        "held_bytes": kept.held_bytes,
        "weight_bytes": weight_bytes(rig.spec),
        "allocators": [name for name, found in memory.ALLOCATORS.items() if found.library()],
    }


def peak(rig: Rig, settings: dict[str, Any]) -> dict[str, Any]:
    """Readings before and after loading, once warm, after every pass and in the end; and, of the same passes
    once more, the tensors that were alive."""
    wanted = settings.get("allocator", memory.SYSTEM)
    if memory.loaded_allocator() != wanted:
        raise KshipraError(f"{wanted} did not take the allocator's place: install it again.")
    started = memory.reading()
    requests = requests_of(rig, longest_first=settings.get("longest_first", False))
    loaded = memory.reading()
    memory.give_back()
    trimmed = memory.reading()
    workload.warmed(rig, requests)
    memory.give_back()
    warm = memory.reading()
    layout = HONEST._replace(cache=Concatenated) if settings.get("concatenated") else HONEST

    def passes() -> Iterator[StepEvent]:
        job = Job(rig.engine.model, rig.engine.tokenizer, requests, torch.device("cpu"), layout=layout)
        return in_groups(job, settings["rows"])

    steps = []
    for event in passes():
        steps.append(
            {
                "rows": len(event.rows),
                "phase": event.phase,
                "resident_bytes": event.resident_bytes,
                "peak_extra_bytes": event.peak_extra_bytes,
                "kv_bytes": event.kv_bytes,
                "kv_held_bytes": event.kv_held_bytes,
                "allocator": memory.mallinfo2(),
            }
        )
        if settings.get("trim"):
            memory.give_back()
    ended = memory.reading()
    memory.give_back()
    repeated = settings["process"] > 1  # the same tensors again
    return {
        "method": event.memory_method,
        "started": started,
        "loaded": loaded,
        "trimmed": trimmed,
        "warm": warm,
        "steps": steps,
        "ended": ended,
        "returned": memory.reading(),
        "tensors": None if repeated else memory.tensor_bytes(lambda: workload.finish(passes())),
    }


def requests_of(rig: Rig, *, longest_first: bool) -> tuple[Request, ...]:
    lengths = sorted(LENGTHS, reverse=longest_first)
    prompts = [workload.seeded_ids(rig, length, seed=length) for length in lengths]
    return rig.engine.requests(prompts, workload.greedy(4 if rig.quick else 10))


def in_groups(job: Job, rows: int) -> Iterator[StepEvent]:
    """All requests, `rows` of them to a pass, group after group: 1 is the mode kv_cache, all static_batch."""
    for requests in Batching(rows=rows).groups(job.requests, rows):
        batch = job.batch(requests, cached=True)
        while batch.running:
            yield job.step(batch)
