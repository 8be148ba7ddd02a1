"""Where a run's time goes, operation by operation: one run under torch.profiler. Refuses to know tables.

An engine's step may be opaque: what a compiled graph does inside shows as one operation, or as time outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, record_function

from kshipra.engine.runner import Engine
from kshipra.engine.sampling import next_ids
from kshipra.types import Request

PASS = "kshipra::pass"
SHOWN = 12
PROFILED_TOKENS = 8  # new tokens a row: a pass leaves thousands of events, and decode passes are alike


@dataclass(frozen=True)
class Operation:
    """One operation in all decode passes. `self_s` is its CPU time without that of operations it calls."""

    name: str
    calls: int
    self_s: float
    share: float  # of the decode passes' wall time


@dataclass(frozen=True)
class Profile:
    """The decode passes of one run; `outside_share` is None where there was no such pass."""

    passes: int
    wall_s: float
    outside_share: float | None
    operations: tuple[Operation, ...]  # the SHOWN with the longest self time


def profile(engine: Engine, requests: Sequence[Request], *, mode: str) -> Profile:
    """One run of `requests`, of PROFILED_TOKENS new tokens a row at most, under torch.profiler.

    Counted are decode passes only, each from the moment at which it is asked for until its new ids are on
    the host (forward and sampling; what Kshipra looks at afterwards is not in it). Their wall time is the
    sum of those spans. In kernels is the self CPU time of every operation recorded there, leaf or not:
    aten::mm calls aten::resolve_conj and yet does the product itself. On CUDA it is instead the time that
    the device was seen to work in those spans. `outside_share` is the rest of the wall time: Python, the
    way from Python to an operation, and whatever an opaque step does without an operation of its own.
    Recording takes time itself, in and outside operations: compare the shares of two engines, and take
    times from a run without it.
    """
    short = [_shortened(request) for request in requests]
    activities = [ProfilerActivity.CPU]
    if engine.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    window: list[record_function] = []  # the one that is open

    def close() -> None:
        while window:
            window.pop().__exit__(None, None, None)

    def choose(logits: torch.Tensor, rows: Sequence) -> torch.Tensor:
        ids = next_ids(logits, rows)
        ids.tolist()  # waits for the device
        close()
        return ids

    phases: list[str] = []
    with torch.profiler.profile(activities=activities) as recorded:
        steps = engine.run(short, mode=mode, choose=choose)
        while True:
            window.append(record_function(PASS))
            window[0].__enter__()
            step = next(steps, None)
            close()
            if step is None:
                break
            phases.append(step.phase)
    return summarise(list(recorded.events() or ()), phases)


def summarise(events: Sequence[FunctionEvent], phases: Sequence[str]) -> Profile:
    """The decode passes among `events`: the n-th span named PASS is the n-th of `phases`."""
    spans = sorted(
        (event for event in events if event.name == PASS and event.device_type == DeviceType.CPU),
        key=lambda event: event.time_range.start,
    )
    decode = [span for span, phase in zip(spans, phases, strict=False) if phase == "decode"]
    wall_us = sum(span.time_range.elapsed_us() for span in decode)
    calls: dict[str, int] = {}
    self_us: dict[str, float] = {}
    for span in decode:
        for operation in _below(span):
            calls[operation.name] = calls.get(operation.name, 0) + 1
            self_us[operation.name] = self_us.get(operation.name, 0.0) + operation.self_cpu_time_total
    kernel_us = sum(self_us.values())
    on_device = [e for e in events if e.device_type == DeviceType.CUDA and e.name != PASS]
    if on_device:
        kernel_us = sum(
            event.time_range.elapsed_us()
            for event in on_device
            if any(s.time_range.start <= event.time_range.start < s.time_range.end for s in decode)
        )
    longest = sorted(self_us, key=lambda name: -self_us[name])[:SHOWN]
    return Profile(
        passes=len(decode),
        wall_s=wall_us * 1e-6,
        outside_share=max(0.0, 1 - kernel_us / wall_us) if wall_us else None,
        operations=tuple(
            Operation(name, calls[name], self_us[name] * 1e-6, self_us[name] / wall_us) for name in longest
        ),
    )


def _below(event: FunctionEvent) -> Iterator[FunctionEvent]:
    """Every operation that `event` calls, those they call, and so on."""
    for child in event.cpu_children:
        yield child
        yield from _below(child)


def _shortened(request: Request) -> Request:
    params = request.params
    fewer = min(params.max_new_tokens, PROFILED_TOKENS)
    return dataclasses.replace(request, params=dataclasses.replace(params, max_new_tokens=fewer))
