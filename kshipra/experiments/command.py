"""The shell's `experiments NAME`: measure with a progress bar, then draw. With --plots-only nothing is
measured, and torch is not even imported."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table as Screen

from kshipra.bars import ERRORS, counting_bar, screen
from kshipra.errors import InputError
from kshipra.experiments import EXPERIMENTS, NAMES, Experiment, experiment_named
from kshipra.experiments.results import FILE, Results, read
from kshipra.models import catalogue

if TYPE_CHECKING:
    from kshipra.experiments.report.parts import Report

ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"{', '.join(NAMES)}, or {ALL}")
    parser.add_argument(
        "--model",
        default=catalogue.DEFAULT,
        help="catalogue name, Hub id, folder or .gguf file; gpt2, gpt2-medium and gpt2-large take random "
        "weights where the published ones cannot be fetched",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16")
    parser.add_argument("--quick", action="store_true", help="a smaller grid, for a coffee break")
    parser.add_argument(
        "--out", type=Path, help="folder of results.json and figures (experiments/MODEL/NAME)"
    )
    parser.add_argument(
        "--plots-only", action="store_true", help="draw results.json again, without measuring anything"
    )


def chosen(arguments: argparse.Namespace) -> tuple[Experiment, ...]:
    return EXPERIMENTS if arguments.name == ALL else (experiment_named(arguments.name),)


def folder_of(experiment: Experiment, arguments: argparse.Namespace) -> Path:
    """`--out`, with a folder of its own in it for each of `all`; else experiments/MODEL/NAME."""
    if arguments.out is not None:
        return arguments.out / experiment.name if arguments.name == ALL else arguments.out
    model = Path(arguments.model).name or arguments.model
    return Path("experiments") / model / experiment.name


def experiments(arguments: argparse.Namespace) -> int:
    for experiment in chosen(arguments):
        folder = folder_of(experiment, arguments)
        if arguments.plots_only:
            if not (folder / FILE).is_file():
                raise InputError(f"There is no {folder / FILE}: run the experiment first, or give its --out.")
            results = read(folder / FILE)
        else:
            results = measured(experiment, arguments, folder)
        draw(results, folder)
    return 0


def measured(experiment: Experiment, arguments: argparse.Namespace, folder: Path) -> Results:
    """The results of a run that shows, on the line of its bar, what is measured now."""
    from kshipra.experiments.rig import Rig
    from kshipra.experiments.run import run
    from kshipra.types import ModelChoice

    bar, task = counting_bar(experiment.name)
    with bar:

        def counted(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{experiment.name}: {what}", completed=done, total=total)

        def loading(what: str, done: int | None, total: int | None) -> None:
            bar.update(task, description=f"{experiment.name}: {what}")

        rig = Rig(
            ModelChoice(arguments.model, arguments.device, arguments.dtype), arguments.quick, progress=loading
        )
        return run(experiment, rig, folder, progress=counted)


def draw(results: Results, folder: Path) -> None:
    """Answers and tables on the screen, everything into the folder."""
    from kshipra.experiments.report import report_of
    from kshipra.experiments.report.save import save

    found = report_of(results)
    print_report(found, screen().print)
    files, complaint = save(found, results, folder)
    ERRORS.print(f"{folder / FILE}, {', '.join(path.name for path in files)}", style="dim")
    if complaint:
        ERRORS.print(complaint)


def print_report(found: Report, say: Callable[..., None]) -> None:
    from kshipra.experiments.report.parts import Table

    say(found.title, style="bold")
    say(found.question)
    for part in found.parts:
        if isinstance(part, Table):
            table = Screen(title=part.title, caption=part.caption, box=None, pad_edge=False)
            for place, column in enumerate(part.columns):
                table.add_column(column, justify="right" if place else "left")
            for row in part.rows:
                table.add_row(*row)
            say(table)
    for answer in found.answers:
        say(f"- {answer}")
