"""Measure cases against each other: warm up, alternate, repeat, and report medians with their spread. Refuses
to know how that is shown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kshipra import machine, metrics
from kshipra.cases import Case, CaseEngine
from kshipra.metrics import first_difference
from kshipra.types import Comparison, Request, RunResult, SamplingParams, plain

if TYPE_CHECKING:
    import argparse

    from kshipra.engine.runner import Engine

FIGURES: dict[str, Callable[[RunResult], float | None]] = {
    **{
        name: attrgetter(name)
        for name in (
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
            "largest_gap_s",
            "reused_tokens",
            "drafted_tokens",
            "accepted_tokens",
        )
    },
    **{f"step_{name}_s": attrgetter(f"step_latency_s.{name}") for name in ("p50", "p90", "p99")},
    **{
        figure.__name__: figure
        for figure in (
            metrics.ttft_p50_s,
            metrics.own_ttft_p50_s,
            metrics.padding,
            metrics.between_passes_share,
            metrics.acceptance,
            metrics.tokens_per_pass,
        )
    },
}


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
            events = CaseEngine(case, engine).run(requests, mode=case.mode)
            result = metrics.fold(case.mode, requests, events)
            if repeat:
                results[case].append(result)
            progress()
    return results


def verdicts(
    engines: Mapping[Case, Engine], requests: Sequence[Request], results: Mapping[Case, Sequence[RunResult]]
) -> dict[str, tuple[Comparison, ...]]:
    """Of each case but the first every row whose ids differ from the first's, and whether rounding did it."""
    from kshipra.engine.review import compare

    first, *others = results
    found = {}
    for case in others:
        pair = {one.name: one for one in (first, case)}
        found[case.name] = compare(
            {name: CaseEngine(one, engines[one]) for name, one in pair.items()},
            requests,
            {name: (one.recipe, results[one][0]) for name, one in pair.items()},
            every_row=True,
        )
    return found


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Median, least and greatest; None where nothing was measured."""
    known = [value for value in values if value is not None]
    if not known:
        return {"median": None, "min": None, "max": None}
    return {"median": statistics.median(known), "min": min(known), "max": max(known)}


def summarise(
    case: Case,
    engine: Engine,
    results: Sequence[RunResult],
    reference: Sequence[RunResult],
    judged: str = "end_to_end_tok_per_s",
) -> dict[str, Any]:
    """One case as strict JSON: the medians under their plain names, and every figure's spread under
    `spread`. `against`: how many times as good as `reference` by the figure `judged`, repeat by repeat."""
    spreads = {name: spread([figure(result) for result in results]) for name, figure in FIGURES.items()}
    figure = FIGURES[judged]
    pairs = [(figure(own), figure(other)) for own, other in zip(results, reference, strict=True)]
    if judged.endswith("_s") and not judged.endswith("_per_s"):  # a time: less is better
        pairs = [(other, own) for own, other in pairs]
    is_here = results[0].tells_ids  # what another machine computes with, nobody knows
    spreads["against"] = spread([one / other if one and other else None for one, other in pairs])
    return {
        "case": case.name,
        "recipe": case.asked_as,
        "mode": case.mode,
        "dtype": str(engine.here.dtype).removeprefix("torch.") if is_here else None,
        "weights": case.choice.weights if is_here else None,
        "execution": case.choice.execution if is_here else None,
        "server_model": None if is_here else engine.target.model,
        "compile_s": engine.compile_s if is_here else None,
        "repeats": len(results),
        **{name: figures["median"] for name, figures in spreads.items()},
        "memory_method": results[0].memory_method,
        "spread": spreads,
    }


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
    runs = [result for found in results.values() for result in found if result.tells_ids]
    ready = engine.describe()  # of a server, which tells no ids, the one whose tokenizer wrote the prompts
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
