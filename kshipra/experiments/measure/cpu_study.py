"""Study A's case (A1-A5): four short prompts, generated without cache, with it, and as one batch.

Ids are compared first: a mode that is fast and wrong stops the experiment. Speed is taken in this process,
run after run; memory in a new process a run, because a peak knows no way back.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kshipra.engine.layout import HONEST
from kshipra.engine.review import compare
from kshipra.errors import KshipraError
from kshipra.experiments.measure import memory, workload
from kshipra.experiments.rig import Case, Rig
from kshipra.metrics import fold
from kshipra.types import Recipe, Request, RunResult, StepEvent

MODES = ("no_cache", "kv_cache", "static_batch")


def cases(rig: Rig) -> list[Case]:
    processes = range(1, 2 if rig.quick else 4)
    return [
        Case("ids", {"kind": "ids"}),
        *(Case(f"{mode}, speed", {"kind": "speed", "mode": mode}) for mode in MODES),
        *(
            Case(f"{mode}, memory, process {n}", {"kind": "memory", "mode": mode, "process": n}, {})
            for n in processes
            for mode in MODES
        ),
    ]


def measure(rig: Rig, case: Case) -> dict[str, Any]:
    return {"ids": ids, "speed": speed, "memory": peak}[case.settings["kind"]](rig, case)


def requests_of(rig: Rig) -> tuple[Request, ...]:
    return rig.engine.requests(workload.prompts(rig), workload.greedy(8 if rig.quick else 20))


def run(rig: Rig, requests: tuple[Request, ...], mode: str) -> RunResult:
    return fold(mode, requests, rig.engine.run(requests, mode=mode, layout=HONEST))


def ids(rig: Rig, case: Case) -> dict[str, Any]:
    """Every mode's ids beside no_cache's. Raises KshipraError where rounding does not explain a difference
    (A4: a wrong position of a padded row would)."""
    requests = requests_of(rig)
    results = {mode: run(rig, requests, mode) for mode in MODES}
    ways = {mode: (Recipe(mode, "", mode, "", mode), result) for mode, result in results.items()}
    found = [c for c in compare(rig.engine, requests, ways, every_row=True) if c.first == MODES[0]]
    if fault := next((c for c in found if c.verdict not in ("identical", "near-tie")), None):
        raise KshipraError(
            f"{fault.second} writes other ids than {fault.first} from new token {fault.position + 1} of "
            f"prompt {fault.row + 1} on: what a wrong mode takes means nothing, so mend it first."
        )
    return {
        "prompt_tokens": [len(request.prompt_ids) for request in requests],
        "comparisons": [dataclasses.asdict(c) for c in found],
        "texts": [row.text for row in results[MODES[0]].rows],
    }


def speed(rig: Rig, case: Case) -> dict[str, Any]:
    """Every step of every run, and what the run's own clock says in the end."""
    requests, mode = requests_of(rig), case.settings["mode"]
    workload.warmed(rig, requests)
    run(rig, requests, mode)  # warm-up: the first meeting with these shapes
    results = [run(rig, requests, mode) for _ in range(rig.repeats)]
    return {
        "runs": [
            {
                "wall_s": result.wall_s,
                "passes": result.forward_passes,
                "new_tokens": result.new_tokens,
                "pad_tokens": result.pad_tokens,
                "steps": steps_of(result.steps, requests),
            }
            for result in results
        ]
    }


def steps_of(events: tuple[StepEvent, ...], requests: tuple[Request, ...]) -> list[dict[str, Any]]:
    """Each pass with the number of the new token that it gave its rows (1: the prompt's pass), and the
    columns of text up to that token."""
    given = [0] * len(requests)
    steps = []
    for event in events:
        for row in event.rows:
            given[row] += 1
        number = given[event.rows[0]]
        longest = max(len(requests[row].prompt_ids) for row in event.rows)
        steps.append(
            {
                "number": number,
                "columns": longest + number - 1,
                "phase": event.phase,
                "elapsed_s": event.elapsed_s,
            }
        )
    return steps


def peak(rig: Rig, case: Case) -> dict[str, Any]:
    """The process's memory once loaded, once warm, and after the run, with the peak above what was there."""
    requests = requests_of(rig)
    loaded = memory.reading()
    workload.warmed(rig, requests)
    memory.give_back()
    warm = memory.reading()
    result = run(rig, requests, case.settings["mode"])
    return {
        "loaded": loaded,
        "warm": warm,
        "after": memory.reading(),
        "peak_extra_bytes": result.peak_extra_bytes,
        "method": result.memory_method,
        "kv_bytes": result.kv_bytes,
        "kv_held_bytes": result.kv_held_bytes,
    }
