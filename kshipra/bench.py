"""Measure cases against each other: warm up, alternate, repeat, and report medians with their spread; and the
tables of all that bench finds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kshipra import machine
from kshipra.metrics import first_difference, fold
from kshipra.types import Request, RunResult, SamplingParams, plain

if TYPE_CHECKING:
    import argparse

    from kshipra.cases import Case
    from kshipra.engine.runner import Engine
    from kshipra.profiling import Profile
    from kshipra.quality import Quality

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
    engines: Mapping[Case, Engine],
    requests: Sequence[Request],
    *,
    repeats: int,
    progress: Callable[[], None],
) -> dict[Case, list[RunResult]]:
    """`repeats` results a case, taken in turns so that a slow minute of the machine falls on all of them.

    One uncounted run a case goes first. `progress` is called after every run.
    """
    results: dict[Case, list[RunResult]] = {case: [] for case in engines}
    for repeat in range(repeats + 1):
        for case, engine in engines.items():
            result = fold(case.mode, requests, engine.run(requests, mode=case.mode))
            if repeat:
                results[case].append(result)
            progress()
    return results


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Median, least and greatest; None where nothing was measured."""
    known = [value for value in values if value is not None]
    if not known:
        return {"median": None, "min": None, "max": None}
    return {"median": statistics.median(known), "min": min(known), "max": max(known)}


def summarise(case: Case, engine: Engine, results: Sequence[RunResult]) -> dict[str, Any]:
    """One case as strict JSON: the medians under their plain names, and every figure's spread under
    `spread`."""
    spreads = {name: spread([getattr(result, name) for result in results]) for name in FIGURES}
    for name in ("p50", "p90", "p99"):
        spreads[f"step_{name}_s"] = spread([getattr(result.step_latency_s, name) for result in results])
    return {
        "case": case.name,
        "recipe": case.asked_as,
        "mode": case.mode,
        "dtype": str(engine.dtype).removeprefix("torch."),
        "weights": case.choice.weights,
        "execution": case.choice.execution,
        "compile_s": engine.compile_s,
        "repeats": len(results),
        **{name: figures["median"] for name, figures in spreads.items()},
        "memory_method": results[0].memory_method,
        "spread": spreads,
    }


def table(summaries: Sequence[dict[str, Any]]) -> Table:
    """The cases side by side; every rate with its least and greatest, and against the first case."""
    shown = Table(box=None, pad_edge=False)
    for heading in (
        "case",
        "tok/s end to end",
        "against",
        "decode tok/s",
        "TTFT ms",
        "step p50 ms",
        "p99 ms",
    ):
        shown.add_column(heading, justify="left" if heading == "case" else "right", no_wrap=heading == "case")
    for heading in ("passes", "tokens", "peak extra MiB", "KV MiB"):
        shown.add_column(heading, justify="right")
    reference = summaries[0]["end_to_end_tok_per_s"]
    for one in summaries:
        rate = one["end_to_end_tok_per_s"]
        shown.add_row(
            one["case"],
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


def compile_lines(summaries: Sequence[dict[str, Any]]) -> list[str]:
    """What compiling took, which is in no figure of the table: a line for each case that is compiled."""
    compiled = {one["case"]: one["compile_s"] for one in summaries if one["compile_s"] is not None}
    return [
        f"{case}: {f'compiled in {compile_s:.1f} s' if compile_s else 'compiled code taken from disk'}"
        for case, compile_s in compiled.items()
    ]


def profile_table(name: str, profile: Profile) -> Group:
    """The longest operations of a case's decode passes."""
    title = f"{name}: no decode passes"
    if profile.outside_share is not None:
        title = (
            f"{name}: {profile.passes} decode passes, {profile.wall_s * 1e3:.0f} ms under the profiler, "
            f"{profile.outside_share:.1%} of it outside kernels"
        )
    shown = Table(box=None, pad_edge=False)
    for heading in ("operation", "calls", "self ms", "share"):
        shown.add_column(heading, justify="left" if heading == "operation" else "right")
    for one in profile.operations:
        shown.add_row(one.name, str(one.calls), f"{one.self_s * 1e3:.2f}", f"{one.share:.1%}")
    return Group(Text(title, style="bold"), shown)


def check_table(found: Sequence[Quality]) -> Table:
    """What each case says against the reference, every figure with its bound."""
    shown = Table(box=None, pad_edge=False)
    headings = ("case", "greedy ids", "perplexity", "reference", "ratio", "top-1 agreement", "")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in headings[:2] else "right")
    for one in found:
        ratio = f"{_scaled(one.perplexity_ratio, 1, digits=6)} (bound {one.perplexity_bound:g})"
        least = f" (bound {one.agreement_bound:.0%})" if one.agreement_bound is not None else ""
        shown.add_row(
            one.case,
            one.verdict + _where(one),
            _scaled(one.perplexity, 1, digits=6),
            _scaled(one.reference_perplexity, 1, digits=6),
            ratio,
            f"{one.agreement:.1%}{least}",
            "passed" if one.passed else "broken",
        )
    return shown


def _where(quality: Quality) -> str:
    """How many rows part, and where: "row 1 at token 5", both from 1."""
    if not quality.parted:
        return f" in {quality.rows} rows"
    places = (f"row {one.row + 1} at token {one.position + 1}" for one in quality.parted)
    return f" in {len(quality.parted)} of {quality.rows} rows: {', '.join(places)}"


def _plain_settings(settings: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for key, value in vars(settings).items():
        if key not in ("verb", "json"):
            yield key, value[0] if isinstance(value, list) and len(value) == 1 else value


def report(
    engine: Engine,
    settings: argparse.Namespace,
    summaries: Sequence[dict[str, Any]],
    results: Mapping[Case, Sequence[RunResult]],
) -> dict[str, Any]:
    """Settings, machine and every case (`modes`); the figures of the last case also at the top, for programs
    that ask for one, and `engine` is its. `identical_ids` says whether all runs of all cases gave the same
    tokens."""
    runs = [result for found in results.values() for result in found]
    ready = engine.describe()
    return {
        **summaries[-1],
        "settings": dict(_plain_settings(settings)),
        "model": plain(ready.spec),
        "device": ready.device,
        "threads": ready.threads,
        "processor": machine.processor(),
        "versions": machine.versions(),
        "identical_ids": all(first_difference(runs[0], run) is None for run in runs[1:]),
        "modes": list(summaries),
    }


def _with_spread(figures: dict[str, float | None]) -> str:
    if figures["median"] is None:
        return "–"
    return f"{figures['median']:.1f} ({figures['min']:.1f} to {figures['max']:.1f})"


def _scaled(value: float | None, factor: float, *, digits: int = 3) -> str:
    return "–" if value is None else f"{value * factor:.{digits}g}"
