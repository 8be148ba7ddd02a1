"""python -m kshipra bench: what is asked for, measured, then profiled and checked where that is wanted; as
tables and as one JSON object."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from kshipra import bars
from kshipra import bench as benching
from kshipra import bench_tables as tables
from kshipra.bars import counting_bar, load_engine
from kshipra.cases import (
    MODE_NAMES,
    SYNTHETIC,
    Case,
    cases_of,
    engines_of,
    reference_of,
    references_of,
)
from kshipra.errors import InputError
from kshipra.memory import Work
from kshipra.modes import mode_named
from kshipra.recipes import RECIPE_KEYS
from kshipra.types import Request, Server, plain
from kshipra.workloads import WORKLOADS, Workload, workload_named

if TYPE_CHECKING:
    from kshipra.backends.openai import ServerEngine
    from kshipra.engine.runner import Engine
    from kshipra.quality import Quality


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All options but those that say which model to load."""
    parser.add_argument("--mode", help=f"one or several of {', '.join(MODE_NAMES)}, separated by commas")
    parser.add_argument("--recipes", help=f"instead of modes: any of {', '.join(RECIPE_KEYS)}")
    parser.add_argument(
        "--workload",
        help=f"instead of modes and synthetic rows: {', '.join(one.name for one in WORKLOADS)}",
    )
    for option, usual in SYNTHETIC.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=int, help=f"of synthetic rows: {usual}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--json", metavar="FILE", help="also as one JSON object; - for the last line of stdout"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="one more run of each under torch.profiler: where its time goes",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="tokens and perplexity of each against float32, native, eager; status 1 where a bound is broken",
    )


def bench(arguments: argparse.Namespace) -> int:
    """Measure, then profile and check where asked. The status: 1 where a bound of the check is broken, or a
    workload's cases say different things."""
    cases = cases_of(arguments)
    _check_arguments(arguments, cases)
    work = _work(arguments, cases) if arguments.workload is None else None  # whose texts wait for a tokenizer
    engines = engines_of(cases, lambda choice: load_engine(choice, work), _ask)
    reference = reference_of(engines, load_engine) if arguments.check else None
    workload = workload_named(arguments.workload) if arguments.workload is not None else None
    requests = _requests(arguments, workload, engines[cases[-1]].here)
    screen = bars.screen()
    report, passed = _measured(arguments, workload, engines, requests, screen)
    if arguments.profile:
        report["profile"] = _profiled(engines, requests, screen)
    if reference is not None:
        qualities = _checked(reference, engines, screen)
        report["check"] = plain(qualities)
        passed = all(quality.passed for quality in qualities)
    if arguments.json == "-":
        print(json.dumps(report, allow_nan=False))
    elif arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, allow_nan=False)
    return 0 if passed else 1


def _check_arguments(arguments: argparse.Namespace, cases: Sequence[Case]) -> None:
    """Raise InputError for what would fail only after engines are loaded and measured."""
    for field in (*SYNTHETIC, "repeats"):
        if (getattr(arguments, field) or 0) < 1 and not (arguments.workload and field in SYNTHETIC):
            raise InputError(f"--{field.replace('_', '-')} must be at least 1.")
    if arguments.json not in (None, "-") and not Path(arguments.json).absolute().parent.is_dir():
        raise InputError(f"--json: there is no folder for {arguments.json!r:.120}; make it first.")
    if arguments.workload and (arguments.profile or arguments.check):
        raise InputError("--workload compares ids itself: leave --profile and --check out.")
    elsewhere = [case.name for case in cases if mode_named(case.mode).elsewhere]
    if elsewhere and (arguments.profile or arguments.check):
        raise InputError(f"--profile and --check look into an engine here: leave {elsewhere[0]} out.")
    unseen = [case.name for case in cases if mode_named(case.mode).implementation != "auto"]
    if arguments.profile and unseen:
        raise InputError(f"--profile sees Kshipra's own step only: leave {' and '.join(unseen)} out.")


def _ask(here: Engine, model: str) -> ServerEngine:
    """The server that the environment names."""
    from kshipra.backends.openai import server_engine

    return server_engine(Server(), here, model=model)


def _work(arguments: argparse.Namespace, cases: Sequence[Case]) -> Work:
    """Of the synthetic rows, in the case that has most of them at once."""
    rows = max(mode_named(case.mode).together(arguments.rows) for case in cases)
    return Work(rows, arguments.prompt_tokens, arguments.prompt_tokens + arguments.new_tokens)


def _requests(
    arguments: argparse.Namespace, workload: Workload | None, engine: Engine
) -> tuple[Request, ...]:
    if workload is not None:
        return workload.requests(engine)
    sizes = {option: getattr(arguments, option) for option in SYNTHETIC}
    return benching.synthetic_requests(engine, **sizes)


def _measured(
    arguments: argparse.Namespace,
    workload: Workload | None,
    engines: Mapping[Case, Engine],
    requests: Sequence[Request],
    screen: Console,
) -> tuple[dict[str, Any], bool]:
    """The report, and whether every case of a workload gave the first one's ids or was as right as that."""
    bar, task = counting_bar("Measuring", len(engines) * (arguments.repeats + 1))
    with bar:
        results = benching.measure(
            engines, requests, repeats=arguments.repeats, progress=lambda: bar.advance(task)
        )
    judged = workload.judged if workload is not None else "end_to_end_tok_per_s"
    summaries = [
        benching.summarise(case, engines[case], results[case], results[reference], judged)
        for case, reference in references_of(list(results)).items()
    ]
    columns = (workload.judged, "against", *workload.columns) if workload is not None else tables.USUAL
    screen.print(tables.table(summaries, columns))
    for line in tables.compile_lines(summaries):
        screen.print(line, style="dim")
    last = list(engines.values())[-1].here
    report = benching.report(last, arguments, summaries, results)
    if workload is None:
        return report, True
    verdicts = benching.verdicts(engines, requests, results)
    for line in tables.verdict_lines(summaries[0]["case"], verdicts, len(requests)):
        screen.print(line)
    report["verdicts"] = plain(verdicts)
    right = ("identical", "near-tie")
    return report, all(one.verdict in right for found in verdicts.values() for one in found)


def _profiled(engines: Mapping[Case, Engine], requests: Sequence[Request], screen: Console) -> dict[str, Any]:
    from kshipra.profiling import profile

    report = {}
    for case, engine in engines.items():
        found = profile(engine, requests, mode=case.mode)
        screen.print(tables.profile_table(case.name, found))
        report[case.name] = plain(found)
    return report


def _checked(reference: Engine, engines: Mapping[Case, Engine], screen: Console) -> list[Quality]:
    from kshipra.quality import check

    others = {*map(id, engines.values())} - {id(reference)}
    bar, task = counting_bar("Checking", 2 + len(engines) + len(others))
    ways = {case.name: (case.recipe, engine) for case, engine in engines.items()}
    with bar:
        qualities = list(check(reference, ways, progress=lambda: bar.advance(task)).values())
    screen.print(tables.check_table(qualities))
    return qualities
