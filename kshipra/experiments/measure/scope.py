"""Cached against uncached steps as rows and model grow, in the engine's own passes: fact B10's open question.

The chosen model, and GPT-2's shapes with random weights, one in memory at a time. On a CPU the grid leaves
out passes of minutes.
"""

from __future__ import annotations

import math
from typing import Any

from kshipra.bench import synthetic_requests
from kshipra.costs import kv_bytes_per_token, pass_bytes
from kshipra.engine import roofline
from kshipra.engine.devices import free_bytes
from kshipra.engine.job import Job
from kshipra.engine.runner import Engine
from kshipra.experiments import shapes
from kshipra.experiments.rig import Case, Rig
from kshipra.types import ModelSpec, StepEvent
from kshipra.ui.show import size

ROOFLINE = "this machine's roofline"
CHOSEN = "chosen"
MOST_FLOPS = 0.8e12  # of one uncached pass on a CPU: some 7 s on two cores
QUICK_FLOPS = 0.1e12
CASE_FLOPS = 0.8e12  # of a case's uncached passes on a CPU, at least two of them
VOCABULARY, PLACES = 50257, 1024  # of every GPT-2


class NoRoom(Exception):
    """A sentence on what does not fit into memory."""


def cases(rig: Rig) -> list[Case]:
    found = [Case(ROOFLINE, {"kind": "roofline"})]
    for shape in _shapes(rig):
        blocks = rig.spec.block_parameters if shape == CHOSEN else block_parameters(shape)
        for context in _contexts(rig):
            for rows in _rows(rig):
                if 2 * blocks * rows * context <= _most_flops(rig):
                    settings = {"kind": "steps", "shape": shape, "context": context, "rows": rows}
                    name = rig.choice.model if shape == CHOSEN else f"{shape}, random weights"
                    found.append(Case(f"{name}, {rows} x {context} tokens", settings))
    return found


def measure(rig: Rig, case: Case) -> dict[str, Any]:
    """Seconds, FLOPs and bytes of every uncached and cached step that counts, or why there is none."""
    if case.settings["kind"] == "roofline":
        found = roofline.measure(rig.device, rig.engine.dtype, budget_s=0.3 if rig.quick else 0.8)
        return {"bytes_per_s": found.bytes_per_s, "flops_per_s": found.flops_per_s}
    shape, context, rows = (case.settings[key] for key in ("shape", "context", "rows"))
    try:
        engine = _engine(rig, shape)
        spec = engine.model.spec
        _require(step_bytes(spec, rows, context), rig, f"A step of {rows} x {context} tokens")
    except NoRoom as error:
        return {"skipped": str(error)}
    job = Job(engine.model, engine.tokenizer, (), engine.device)
    # The first of these passes reads the prompts: a warm-up for the uncached ones too, and not counted.
    cached = _steps(engine, job, rows, context, cached=True, count=2 * rig.repeats)
    repeats = _repeats(rig, context * cached[0].flops)
    uncached = _steps(engine, job, rows, context, cached=False, count=repeats)
    return {
        "model": spec.name,
        "parameters": spec.parameters,
        **_samples("uncached", uncached),
        **_samples("cached", cached),
        "uncached_bytes": [pass_bytes(spec, kv_bytes=0) for _ in uncached],
        "cached_bytes": [pass_bytes(spec, kv_bytes=event.kv_bytes) for event in cached],
    }


def block_parameters(shape: str) -> int:
    """Of a GPT-2's layers: 12 squares of its width each."""
    layers, _, width = shapes.SHAPES[shape]
    return 12 * layers * width**2


def making_bytes(shape: str, dtype_bytes: int) -> int:
    """Most that making a GPT-2 takes: its float32 weights, beside those in another dtype."""
    width = shapes.SHAPES[shape][2]
    parameters = block_parameters(shape) + (VOCABULARY + PLACES) * width
    return parameters * (4 if dtype_bytes == 4 else 4 + dtype_bytes)


def step_bytes(spec: ModelSpec, rows: int, context: int) -> int:
    """About what the widest pass takes beside weights: keys and values, one layer's activations (16 widths a
    token), and logits twice."""
    activations = (16 * rows * context * spec.width + 2 * rows * spec.vocabulary) * spec.dtype_bytes
    return kv_bytes_per_token(spec) * rows * context + activations


def _shapes(rig: Rig) -> list[str]:
    """The chosen model, then those of GPT-2 that it is not, smallest first."""
    shaped = list(shapes.SHAPES)[: 2 if rig.quick else None]
    return [CHOSEN, *(shape for shape in shaped if shape != rig.choice.model)]


def _contexts(rig: Rig) -> list[int]:
    """Tokens of a step; a few more have to fit, because every step adds one."""
    wanted = (64,) if rig.quick else (128, 512) if rig.device.type == "cpu" else (128, 512, 1000)
    limit = min(rig.spec.context or PLACES, PLACES) - 2 * rig.repeats - 2
    return sorted({min(context, limit) for context in wanted})


def _rows(rig: Rig) -> tuple[int, ...]:
    if rig.quick:
        return (1, 2, 4)
    return (1, 2, 4, 8) if rig.device.type == "cpu" else (1, 2, 4, 8, 16, 32)


def _most_flops(rig: Rig) -> float:
    if rig.device.type != "cpu":
        return math.inf
    return QUICK_FLOPS if rig.quick else MOST_FLOPS


def _repeats(rig: Rig, flops: int) -> int:
    """Fewer of passes that take seconds."""
    return rig.repeats if rig.device.type != "cpu" else max(2, min(rig.repeats, int(CASE_FLOPS / flops)))


def _engine(rig: Rig, shape: str) -> Engine:
    """Of the chosen model, or of a GPT-2 that is made now. Raises NoRoom where it would not fit."""
    if shape == CHOSEN:
        return rig.engine
    if shape not in rig.made:
        rig.made.clear()  # before the free memory is counted
        _require(making_bytes(shape, rig.spec.dtype_bytes), rig, shape)
    return rig.shaped(shape)


def _require(needed_bytes: int, rig: Rig, what: str) -> None:
    free = free_bytes(rig.device)
    if needed_bytes > free:
        raise NoRoom(
            f"{what} needs about {size(needed_bytes)}, and {size(free)} are free: close other programs, or "
            "take a machine with more memory."
        )


def _steps(engine: Engine, job: Job, rows: int, context: int, *, cached: bool, count: int) -> list[StepEvent]:
    """`count` steps of rows that are alike in length: at `context` tokens, one more, ..."""
    before = 2 if cached else 0  # the prompts' pass, and a first step
    requests = synthetic_requests(
        engine, rows=rows, prompt_tokens=context - before, new_tokens=before + count
    )
    batch = job.batch(requests, cached=cached)
    return [job.step(batch) for _ in range(before + count)][before:]


def _samples(kind: str, events: list[StepEvent]) -> dict[str, list[float]]:
    return {
        f"{kind}_s": [event.elapsed_s for event in events],
        f"{kind}_flops": [event.flops for event in events],
    }
