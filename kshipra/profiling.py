"""Where time goes, operation by operation: one run, or some calls, under torch.profiler. Refuses to know
tables.

An engine's step may be opaque: what a compiled graph does inside shows as one operation, or as time outside.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, record_function

from kshipra.engine.runner import Engine
from kshipra.engine.sampling import next_ids
from kshipra.types import Request

# Else torch writes two lines to stderr for every profile, through whatever bar is drawn there.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
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


@dataclass(frozen=True)
class Trace:
    """One call under the profiler. `operations`: how often each was called, and its CPU time without that of
    operations it calls, seconds; what a GPU's driver was asked for counts as one. `device_s`: how long a GPU
    worked meanwhile, None on a CPU."""

    wall_s: float
    operations: dict[str, tuple[int, float]]
    device_s: float | None


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
    with torch.profiler.profile(activities=_activities(engine.device)) as recorded:
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
    decode = [span for span, phase in zip(_spans(events), phases, strict=False) if phase == "decode"]
    wall_s = sum(map(_elapsed_s, decode))
    found = _operations(decode)
    kernel_s = _device_s(events, decode)
    if kernel_s is None:
        kernel_s = sum(self_s for _, self_s in found.values())
    longest = sorted(found, key=lambda name: -found[name][1])[:SHOWN]
    return Profile(
        passes=len(decode),
        wall_s=wall_s,
        outside_share=max(0.0, 1 - kernel_s / wall_s) if wall_s else None,
        operations=tuple(Operation(name, *found[name], found[name][1] / wall_s) for name in longest),
    )


def traces(call: Callable[[], object], device: torch.device, *, repeats: int) -> list[Trace]:
    """`repeats` calls under the profiler, after one that does not count. `call` must wait for the device."""
    with torch.profiler.profile(activities=_activities(device)) as recorded:
        for _ in range(1 + repeats):
            with record_function(PASS):
                call()
    events = list(recorded.events() or ())
    return [
        Trace(_elapsed_s(span), _operations([span]), _device_s(events, [span])) for span in _spans(events)[1:]
    ]


def _activities(device: torch.device) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]


def _spans(events: Sequence[FunctionEvent]) -> list[FunctionEvent]:
    """The spans named PASS, oldest first."""
    found = (event for event in events if event.name == PASS and event.device_type == DeviceType.CPU)
    return sorted(found, key=lambda event: event.time_range.start)


def _elapsed_s(event: FunctionEvent) -> float:
    return event.time_range.elapsed_us() * 1e-6


def _operations(spans: Sequence[FunctionEvent]) -> dict[str, tuple[int, float]]:
    """Calls and self CPU time, seconds, of every operation in `spans`."""
    found: dict[str, tuple[int, float]] = {}
    for span in spans:
        for operation in _below(span):
            calls, self_s = found.get(operation.name, (0, 0.0))
            found[operation.name] = (calls + 1, self_s + operation.self_cpu_time_total * 1e-6)
    return found


def _device_s(events: Sequence[FunctionEvent], spans: Sequence[FunctionEvent]) -> float | None:
    """How long a GPU worked in `spans`; None where it was not seen at all."""
    on_device = [e for e in events if e.device_type == DeviceType.CUDA and e.name != PASS]
    if not on_device:
        return None
    return sum(
        _elapsed_s(event)
        for event in on_device
        if any(s.time_range.start <= event.time_range.start < s.time_range.end for s in spans)
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
