"""Where the shell writes: results on stdout, and on stderr, while it works, bars that go away again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from kshipra.types import ModelChoice

if TYPE_CHECKING:
    from kshipra.engine.runner import Engine
    from kshipra.memory import Work

ERRORS = Console(stderr=True)
WIDE_COLUMNS = 140  # of what goes into a file or a pipe


def screen() -> Console:
    """stdout, as wide as the terminal is."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE_COLUMNS)


def load_engine(choice: ModelChoice, work: Work | None = None) -> Engine:
    """The engine of `choice` for `work`, with a bar while something is fetched."""
    from kshipra.engine.runner import load_choice

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=ERRORS, transient=True) as bar:
        task = bar.add_task("Loading", total=None)

        def progress(what: str, done: int | None, total: int | None) -> None:
            bar.update(task, description=what, completed=done or 0, total=total)

        return load_choice(choice, work=work, progress=progress)


def counting_bar(what: str, total: int | None = None) -> tuple[Progress, int]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=ERRORS, transient=True)
    return bar, bar.add_task(what, total=total)
