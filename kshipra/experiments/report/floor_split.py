"""A traced step split into kernels, the framework around them, and Python.

Kernels: operations that compute or move data. Framework: operations that only describe tensors, allocate them
or pass a call on. Both by their CPU time without that of operations they call. Python: the rest of the wall
time, the binding between Python and an operation included. What a kernel takes to start up counts as kernel,
and an operation that is not known here too, so the split errs against the suspect; and recording an operation
takes time, in it and around it, which is why each step was timed without the profiler as well. On a GPU
kernels are the time in which it was seen to work, and the rest of the wall time is shared between framework
and Python as their time on the host is, without waiting for the GPU.
"""

from __future__ import annotations

from typing import Any

from kshipra.experiments.report.parts import Figure, Table, add_bars, chart, middle, where
from kshipra.experiments.results import Results
from kshipra.ui.show import count, digits, seconds

FLOOR_PARTS = ("kernels", "framework", "Python")
NAMES = """
    _reshape_alias _to_copy _unsafe_view alias as_strided chunk contiguous detach empty empty_like
    empty_strided expand expand_as flatten item layer_norm lift_fresh linear matmul narrow permute
    reshape resize_ resolve_conj resolve_neg result_type rms_norm scaled_dot_product_attention select
    slice split split_with_sizes squeeze t to transpose type_as unbind unflatten unsqueeze view
"""
FRAMEWORK = frozenset(f"aten::{name}" for name in NAMES.split())
WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpyAsync")
LARGEST = 8


def split(trace: dict[str, Any]) -> dict[str, float]:
    """Seconds of each of FLOOR_PARTS; together the wall time."""
    wall, device = trace["wall_s"], trace["device_s"]
    spent = {name: self_s for name, (_, self_s) in trace["operations"].items()}
    on_host = sum(self_s for name, self_s in spent.items() if name not in WAITS)
    python = max(0.0, wall - sum(spent.values()))
    if device is None:
        framework = sum(self_s for name, self_s in spent.items() if name in FRAMEWORK)
        return {"kernels": wall - python - framework, "framework": framework, "Python": python}
    rest = max(0.0, wall - device)
    of_python = python / (python + on_host) if python + on_host else 0.0
    return {"kernels": wall - rest, "framework": rest * (1 - of_python), "Python": rest * of_python}


def outside_s(results: Results, tokens: int) -> float | None:
    """What of a step at `tokens` is not kernels: its time without the profiler less the kernels of the trace
    that was taken next, the median of these pairs. None where that was not measured."""
    case = results.case(f"profile, {tokens} tokens")
    if case is None:
        return None
    samples = case.samples["preallocated"]
    pairs = zip(samples["step_s"], samples["traces"], strict=True)
    return max(0.0, middle([step - split(trace)["kernels"] for step, trace in pairs]))


def traced_steps(results: Results) -> dict[str, dict[str, Any]]:
    """All that was traced, by a name."""
    found = {}
    for case in results.of(kind="profile"):
        for way in ("preallocated", "compiled"):
            if "traces" in case.samples[way]:
                label = "eager" if way == "preallocated" else way
                found[f"{label}, {count(case.settings['tokens'])} tokens"] = case.samples[way]
    narrow = sorted(results.of(kind="width"), key=lambda case: case.samples["width"])
    if narrow:
        found[f"eager, {count(narrow[0].samples['width'])} wide"] = narrow[0].samples
    return found


def split_figure(results: Results) -> Figure | None:
    steps = traced_steps(results)
    if not steps:
        return None
    plot = chart("step", "time under the profiler, ms")
    for number, part in enumerate(FLOOR_PARTS):
        samples = [[split(trace)[part] for trace in step["traces"]] for step in steps.values()]
        add_bars(plot, part, list(steps), samples, number=number, scale=1e3)
    name, step = next(iter(steps.items()))
    parts = {part: middle([split(trace)[part] for trace in step["traces"]]) for part in FLOOR_PARTS}
    wall, bare = middle([trace["wall_s"] for trace in step["traces"]]), middle(step["step_s"])
    caption = (
        f"{name}: kernels {seconds(parts['kernels'])}, framework {seconds(parts['framework'])}, Python "
        f"{seconds(parts['Python'])}, together {seconds(wall)}; without the profiler the step takes "
        f"{seconds(bare)}, so recording adds {digits((wall / bare - 1) * 100)} %. {where(results)}."
    )
    return Figure("split", "Kernels, framework and Python", plot, caption)


def split_table(results: Results) -> Table | None:
    """The operations of the shortest eager step that take longest."""
    steps = traced_steps(results)
    if not steps:
        return None
    name, step = next(iter(steps.items()))
    taken: dict[str, list[float]] = {}
    calls: dict[str, int] = {}
    for trace in step["traces"]:
        for operation, (times, self_s) in trace["operations"].items():
            taken.setdefault(operation, []).append(self_s)
            calls[operation] = times
    longest = sorted(taken, key=lambda operation: -middle(taken[operation]))[:LARGEST]
    wall = middle([trace["wall_s"] for trace in step["traces"]])
    rows = tuple(
        (
            operation,
            "framework" if operation in FRAMEWORK else "kernel",
            count(calls[operation]),
            seconds(middle(taken[operation])),
            f"{digits(middle(taken[operation]) / wall * 100)} %",
        )
        for operation in longest
    )
    return Table(
        "operations",
        f"The longest operations: {name}",
        ("operation", "counted as", "calls", "own time", "of the step"),
        rows,
        f"Of {count(sum(calls.values()))} operations in a step; medians of own time, that of operations "
        "called left out.",
    )
