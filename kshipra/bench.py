"""Measure modes against each other: warm up, alternate, repeat, and report medians with their spread."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rich.table import Table

from kshipra import machine
from kshipra.metrics import first_difference, fold
from kshipra.types import Request, RunResult, SamplingParams, plain

if TYPE_CHECKING:
    import argparse

    from kshipra.engine.runner import Engine

FIGURES = (
    "end_to_end_tok_per_s",
    "decode_tok_per_s",
    "ttft_s",
    "prefill_s",
    "wall_s",
    "peak_extra_bytes",
    "kv_bytes",
    "kv_held_bytes",
    "forward_passes",
    "new_tokens",
    "pad_tokens",
)


def synthetic_requests(
    engine: Engine, *, rows: int, prompt_tokens: int, new_tokens: int
) -> tuple[Request, ...]:
    """`rows` prompts of exactly `prompt_tokens` ordinary ids each, different from row to row, ends
    ignored."""
    vocabulary = engine.model.spec.vocabulary
    first = min(100, vocabulary // 2)  # control tokens come first in many vocabularies
    prompts = [
        [first + (7919 * (row + 1) + 31 * place) % (vocabulary - first) for place in range(prompt_tokens)]
        for row in range(rows)
    ]
    return engine.requests(prompts, SamplingParams(new_tokens, ignore_eos=True))


def measure(
    engine: Engine,
    requests: Sequence[Request],
    modes: Sequence[str],
    *,
    repeats: int,
    progress: Callable[[], None],
) -> dict[str, list[RunResult]]:
    """`repeats` results a mode, taken in turns so that a slow minute of the machine falls on all of them.

    One uncounted run a mode goes first. `progress` is called after every run.
    """
    results: dict[str, list[RunResult]] = {mode: [] for mode in modes}
    for repeat in range(repeats + 1):
        for mode in modes:
            result = fold(mode, requests, engine.run(requests, mode=mode))
            if repeat:
                results[mode].append(result)
            progress()
    return results


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Median, least and greatest; None where nothing was measured."""
    known = [value for value in values if value is not None]
    if not known:
        return {"median": None, "min": None, "max": None}
    return {"median": statistics.median(known), "min": min(known), "max": max(known)}


def summarise(mode: str, results: Sequence[RunResult]) -> dict[str, Any]:
    """One mode as strict JSON: the medians under their plain names, and every figure's spread under
    `spread`."""
    spreads = {name: spread([getattr(result, name) for result in results]) for name in FIGURES}
    for name in ("p50", "p90", "p99"):
        spreads[f"step_{name}_s"] = spread([getattr(result.step_latency_s, name) for result in results])
    return {
        "mode": mode,
        "repeats": len(results),
        **{name: figures["median"] for name, figures in spreads.items()},
        "memory_method": results[0].memory_method,
        "spread": spreads,
    }


def table(summaries: Sequence[dict[str, Any]]) -> Table:
    """The modes side by side; every rate with its least and greatest, and against the first mode."""
    shown = Table(box=None, pad_edge=False)
    for heading in (
        "mode",
        "tok/s end to end",
        "against",
        "decode tok/s",
        "TTFT ms",
        "step p50 ms",
        "p99 ms",
    ):
        shown.add_column(heading, justify="left" if heading == "mode" else "right", no_wrap=heading == "mode")
    for heading in ("passes", "tokens", "peak extra MiB", "KV MiB"):
        shown.add_column(heading, justify="right")
    reference = summaries[0]["end_to_end_tok_per_s"]
    for one in summaries:
        rate = one["end_to_end_tok_per_s"]
        shown.add_row(
            one["mode"],
            _with_spread(one["spread"]["end_to_end_tok_per_s"]),
            f"{rate / reference:.2f}x" if rate and reference else "–",
            _with_spread(one["spread"]["decode_tok_per_s"]),
            _scaled(one["ttft_s"], 1e3),
            _scaled(one["step_p50_s"], 1e3),
            _scaled(one["step_p99_s"], 1e3),
            f"{one['forward_passes']:.0f}",
            f"{one['new_tokens']:.0f}",
            _scaled(one["peak_extra_bytes"], 2**-20),
            _scaled(one["kv_bytes"], 2**-20),
        )
    return shown


def report(
    engine: Engine,
    settings: argparse.Namespace,
    summaries: Sequence[dict[str, Any]],
    results: dict[str, list[RunResult]],
) -> dict[str, Any]:
    """Settings, machine and every mode; the figures of the last mode also at the top, for programs that ask
    for one mode. `identical_ids` says whether all runs of all modes gave the same tokens."""
    runs = [result for found in results.values() for result in found]
    ready = engine.describe()
    return {
        **summaries[-1],
        "settings": {key: value for key, value in vars(settings).items() if key not in ("verb", "json")},
        "model": plain(ready.spec),
        "device": ready.device,
        "threads": ready.threads,
        "processor": machine.processor(),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "identical_ids": all(first_difference(runs[0], run) is None for run in runs[1:]),
        "modes": list(summaries),
    }


def _with_spread(figures: dict[str, float | None]) -> str:
    if figures["median"] is None:
        return "–"
    return f"{figures['median']:.1f} ({figures['min']:.1f} to {figures['max']:.1f})"


def _scaled(value: float | None, factor: float) -> str:
    return "–" if value is None else f"{value * factor:.3g}"
