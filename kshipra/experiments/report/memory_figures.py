"""Figures and tables of the memory puzzle."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import median
from typing import Any

from kshipra.experiments.report import study
from kshipra.experiments.report.churn import Prediction
from kshipra.experiments.report.memory_runs import FOUR, ONE, Group, Run, alive, beyond, peaks, shown
from kshipra.experiments.report.parts import COLOURS, Figure, Table, add_bars, add_line, chart
from kshipra.ui import show


def rows_figure(plain: dict[int, list[Run]], place: str) -> Figure:
    figure = chart("rows at once", "MiB")
    x = [str(rows) for rows in plain]
    kinds = (
        ("peak above the warm process", peaks),
        ("tensors alive at their peak", lambda runs: [alive(runs) or 0]),
        ("freed, but kept by the allocator", lambda runs: [run.kept for run in runs]),
    )
    for number, (name, of) in enumerate(kinds):
        add_bars(figure, name, x, [of(runs) for runs in plain.values()], number=number, scale=1 / show.MIB)
    figure.update_xaxes(type="category")
    listed = "; ".join(f"{rows}: {shown(peaks(runs))}" for rows, runs in plain.items())
    counts = ", ".join(f"{len(runs)} of {rows} at once" for rows, runs in plain.items())
    return Figure(
        "rows",
        "Peak by rows at once",
        figure,
        f"The same 8 prompts. Peaks by rows at once: {listed}. Processes: {counts}. {place}.",
    )


def climb_figure(plain: dict[int, list[Run]], place: str) -> Figure:
    figure = chart("part of the passes done, %", "resident above the warm process, MiB")
    ends = []
    for number, (rows, runs) in enumerate(plain.items()):
        passes = runs[0].passes
        x = [100 * (at + 1) / passes for at in range(passes)]
        climbs = list(zip(*(run.climb for run in runs), strict=True))
        add_line(figure, f"{rows} at once", x, climbs, number=number, scale=1 / show.MIB, markers=False)
        figure.data[-1].error_y = None
        figure.data[-1].line.color = COLOURS[number]
        ends.append(f"{rows} at once {show.size(median(climbs[0]))} to {show.size(median(climbs[-1]))}")
    return Figure(
        "climb",
        "Resident memory from pass to pass",
        figure,
        f"Medians of the processes, first pass to last: {'; '.join(ends)}. {place}.",
    )


def changes_figure(runs: Group, place: str) -> Figure:
    changes = list(dict.fromkeys(change for _, change in runs))
    figure = chart("", "peak above the warm process, MiB")
    said = []
    for number, rows in enumerate((ONE, FOUR)):
        there = [change for change in changes if (rows, change) in runs]
        samples = [peaks(runs[rows, change]) for change in there]
        labels = ["<br>".join(textwrap.wrap(change, 14)) for change in there]
        add_bars(figure, f"{rows} at once", labels, samples, number=number, scale=1 / show.MIB)
        said += [f"{rows} at once, {change}: {shown(s)}" for change, s in zip(there, samples, strict=True)]
    figure.update_xaxes(type="category")
    return Figure("changes", "One thing changed at a time", figure, f"{'; '.join(said)}. {place}.")


def rows_table(plain: dict[int, list[Run]], place: str) -> Table:
    rows = []
    for count, runs in plain.items():
        tensors = next((run.tensors for run in runs if run.tensors), None)
        rows.append(
            (
                str(count),
                show.count(runs[0].passes),
                shown(peaks(runs)),
                show.size(alive(runs)),
                show.size(runs[0].held),
                shown(beyond(runs)) if tensors else show.DASH,
                shown([run.kept for run in runs]),
                show.count(tensors["allocations"]) if tensors else show.DASH,
                show.size(tensors["allocated_bytes"]) if tensors else show.DASH,
                shown([run.life for run in runs]) if all(run.life for run in runs) else show.DASH,
            )
        )
    columns = (
        "rows at once", "passes", "peak above warm", "tensors alive", "cache held", "peak beyond tensors",
        "freed but kept", "tensors made", "their bytes", "most in the whole life",
    )  # fmt: skip
    return Table(
        "by-rows",
        "One at a time, and in batches",
        columns,
        tuple(rows),
        "Median (least to greatest) over processes. Tensors alive count "
        f"the cache's room to grow, which is resident only where it was touched. {place}.",
    )


def predictions_table(tests: Sequence[Prediction], place: str) -> Table:
    return Table(
        "predictions",
        "What churn and fragmentation predict",
        ("prediction", "this", "must be above", "holds"),
        tuple(
            (test.claim, shown(test.first), shown(test.second), "yes" if test.holds else "no")
            for test in tests
        ),
        f"A prediction holds where the first is above the second by more than identical processes differ. "
        f"{place}.",
    )


def books_table(books: Sequence[tuple[int, Run]], place: str) -> Table:
    names = {
        "arena": "heap", "hblkhd": "mapped", "uordblks": "in use", "fordblks": "free", "keepcost": "free "
        "on top"
    }  # fmt: skip
    rows = [
        (f"{count} at once, {when}", *(show.size(book[name]) for name in names))
        for count, run in books
        for when, book in zip(("warm", "in the end"), run.books or (), strict=True)
    ]
    return Table(
        "books",
        "The allocator's books (mallinfo2)",
        ("", *names.values()),
        tuple(rows),
        f"glibc's, of the first process each. {place}.",
    )


def cache_table(samples: dict[str, Any], place: str) -> Table:
    rows = (
        ("by formula", show.size(samples["formula_bytes"])),
        ("stored columns of the real tensors", show.size(samples["used_bytes"])),
        ("whole tensors, with room to grow", show.size(samples["held_bytes"])),
        ("study A's figure, for its model", f"{study.A_KV_30_TOKENS_MB} MB"),
        ("GPT-2 small in fp32 by formula", show.size(samples["tokens"] * study.A_KV_TOKEN_BYTES)),
    )
    return Table(
        "cache", f"The cache of one row of {samples['tokens']} tokens", ("", "bytes"), rows, f"{place}."
    )
