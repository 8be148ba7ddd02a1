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
from kshipra.bars import counting_bar, load_engine
from kshipra.cases import MODE_NAMES, Case, cases_of, engines_of, reference_of
from kshipra.errors import InputError
from kshipra.modes import mode_named
from kshipra.recipes import RECIPE_KEYS
from kshipra.types import Request, plain

if TYPE_CHECKING:
    from kshipra.engine.runner import Engine
    from kshipra.quality import Quality


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All options but those that say which model to load."""
    parser.add_argument("--mode", help=f"one or several of {', '.join(MODE_NAMES)}, separated by commas")
    parser.add_argument("--recipes", help=f"instead of modes: any of {', '.join(RECIPE_KEYS)}")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
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
    """Measure, then profile and check where asked. The status: 1 where a bound of the check is broken."""
    cases = cases_of(arguments)
    _check_arguments(arguments, cases)
    engines = engines_of(cases, load_engine)
    reference = reference_of(engines, load_engine) if arguments.check else None
    requests = benching.synthetic_requests(
        engines[cases[-1]],
        rows=arguments.rows,
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
    )
    screen = bars.screen()
    report = _measured(arguments, engines, requests, screen)
    if arguments.profile:
        report["profile"] = _profiled(engines, requests, screen)
    passed = True
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
    for field, least in (("rows", 1), ("prompt_tokens", 1), ("new_tokens", 1), ("repeats", 1)):
        if getattr(arguments, field) < least:
            raise InputError(f"--{field.replace('_', '-')} must be at least {least}.")
    if arguments.json not in (None, "-") and not Path(arguments.json).absolute().parent.is_dir():
        raise InputError(f"--json: there is no folder for {arguments.json!r:.120}; make it first.")
    unseen = [case.name for case in cases if mode_named(case.mode).implementation != "auto"]
    if arguments.profile and unseen:
        raise InputError(f"--profile sees Kshipra's own step only: leave {' and '.join(unseen)} out.")


def _measured(
    arguments: argparse.Namespace,
    engines: Mapping[Case, Engine],
    requests: Sequence[Request],
    screen: Console,
) -> dict[str, Any]:
    bar, task = counting_bar("Measuring", len(engines) * (arguments.repeats + 1))
    with bar:
        results = benching.measure(
            engines, requests, repeats=arguments.repeats, progress=lambda: bar.advance(task)
        )
    summaries = [benching.summarise(case, engines[case], found) for case, found in results.items()]
    screen.print(benching.table(summaries))
    for line in benching.compile_lines(summaries):
        screen.print(line, style="dim")
    last = list(engines.values())[-1]
    return benching.report(last, arguments, summaries, results)


def _profiled(engines: Mapping[Case, Engine], requests: Sequence[Request], screen: Console) -> dict[str, Any]:
    from kshipra.profiling import profile

    report = {}
    for case, engine in engines.items():
        found = profile(engine, requests, mode=case.mode)
        screen.print(benching.profile_table(case.name, found))
        report[case.name] = plain(found)
    return report


def _checked(reference: Engine, engines: Mapping[Case, Engine], screen: Console) -> list[Quality]:
    from kshipra.quality import check

    others = {*map(id, engines.values())} - {id(reference)}
    bar, task = counting_bar("Checking", 2 + len(engines) + len(others))
    ways = {case.name: (case.recipe, engine) for case, engine in engines.items()}
    with bar:
        qualities = list(check(reference, ways, progress=lambda: bar.advance(task)).values())
    screen.print(benching.check_table(qualities))
    return qualities
