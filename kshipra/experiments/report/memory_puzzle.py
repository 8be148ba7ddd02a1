"""The memory puzzle, read: what the churn-and-fragmentation explanation predicts, and which predictions hold.

Numbers of a run: its peak above the warm process; tensors alive at their peak; what the allocator kept of
freed memory when all was over; and the most that was resident in the process's whole life.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from kshipra.experiments import experiment_named
from kshipra.experiments.report import study
from kshipra.experiments.report.parts import COLOURS, Figure, Report, Table, add_bars, add_line, chart
from kshipra.experiments.report.spread import apart, spread
from kshipra.experiments.results import Results
from kshipra.ui import show

PLAIN, TRIMMED = "as it is", "freed memory returned after each pass"
FIRST, CONCATENATED = "longest prompt first", "concatenated cache"
ONE, FOUR = 1, 4  # the author's two cases: rows to a pass
STUDY_GAP_BYTES = (study.A_PEAK_MB["kv_cache"] - study.A_PEAK_MB["static_batch"]) * 1e6
GPT2_KV_BYTES = 2 * 12 * 768 * 4  # a token's, in the author's model: layers, width, fp32


class Run(NamedTuple):
    """One process."""

    passes: int
    peak: float  # above the warm process, bytes as all that follows
    kept: float  # freed by torch, not given back by the allocator, at the end
    life: float | None  # most ever resident
    load: float | None  # most resident when the model had just been loaded
    libraries: float  # what the first passes left behind for good
    warm: float
    climb: list[float]  # resident above the warm process after each pass
    tensors: dict[str, int] | None
    books: tuple[dict[str, int], dict[str, int]] | None  # mallinfo2 when warm and in the end
    held: int


Group = dict[tuple[int, str], list[Run]]


def read(sample: dict[str, Any]) -> Run:
    warm, ended, steps = sample["warm"], sample["ended"], sample["steps"]
    marks = (warm["high_water_bytes"], ended["high_water_bytes"])
    books = (warm["allocator"], ended["allocator"])
    return Run(
        passes=len(steps),
        peak=steps[-1]["peak_extra_bytes"],
        kept=ended["resident_bytes"] - sample["returned"]["resident_bytes"],
        life=None if None in marks else max(marks),
        load=sample["loaded"]["high_water_bytes"],
        libraries=warm["resident_bytes"] - sample["trimmed"]["resident_bytes"],
        warm=warm["resident_bytes"],
        climb=[step["resident_bytes"] - warm["resident_bytes"] for step in steps],
        tensors=sample["tensors"],
        books=None if None in books else books,
        held=max(step["kv_held_bytes"] for step in steps),
    )


def grouped(results: Results) -> Group:
    found: Group = {}
    for case in results.of(kind="run"):
        found.setdefault((case.settings["rows"], case.settings["change"]), []).append(read(case.samples))
    return found


def report(results: Results) -> Report:
    runs = grouped(results)
    plain = {rows: found for (rows, change), found in runs.items() if change == PLAIN}
    experiment = experiment_named(results.experiment)
    place = f"{results.model['name']} on {results.machine['processor']}, {results.model['threads']} threads"
    tests = predictions(runs)
    parts: list[Figure | Table] = []
    if plain:
        parts += [rows_figure(plain, place), climb_figure(plain, place), rows_table(plain, place)]
    if tests:
        parts.append(predictions_table(tests, place))
    if any(change != PLAIN for _, change in runs):
        parts.append(changes_figure(runs, place))
    if books := [(rows, run) for rows, found in plain.items() for run in found[:1] if run.books]:
        parts.append(books_table(books, place))
    answers = (
        *peak_answer(plain), *churn_answer(tests), *live_answer(plain), *life_answer(plain),
        *order_answer(runs), *library_answer(runs), *other_answer(results, runs),
    )  # fmt: skip
    for case in results.of(kind="cache"):
        parts.append(cache_table(case.samples, place))
        answers += cache_answer(case.samples, results.model)
    return Report(experiment.title, experiment.question, answers, tuple(parts))


def peaks(runs: Sequence[Run]) -> list[float]:
    return [run.peak for run in runs]


def alive(runs: Sequence[Run]) -> float | None:
    """Tensors alive at their peak: allocations are the same in every process, so one was asked."""
    return next((run.tensors["live_peak_bytes"] for run in runs if run.tensors), None)


def beyond(runs: Sequence[Run]) -> list[float]:
    """Of each peak, what is no live tensor; below zero where tensors were never touched."""
    return [run.peak - (alive(runs) or 0) for run in runs]


def noise(runs: Sequence[Run]) -> float:
    return max(peaks(runs)) - min(peaks(runs))


class Prediction(NamedTuple):
    claim: str
    first: list[float]
    second: list[float]
    holds: bool


def predictions(runs: Group) -> dict[str, Prediction]:
    """What must be seen if churn and fragmentation raise the peak of one at a time; each is a comparison in
    which the first must be above the second by more than identical processes differ."""
    found: dict[str, Prediction] = {}

    def test(
        key: str, claim: str, more: tuple[int, str], less: tuple[int, str], of: Callable[..., list[float]]
    ) -> None:
        if more in runs and less in runs:
            first, second = of(runs[more]), of(runs[less])
            least = max((noise(same) for (_, change), same in runs.items() if change == PLAIN), default=0.0)
            found[key] = Prediction(claim, first, second, apart(first, second, least=least) == 1)

    one, four = (ONE, PLAIN), (FOUR, PLAIN)
    test("peak", "one at a time peaks above a batch of four", one, four, peaks)
    test("beyond", "more of its peak is no live tensor", one, four, beyond)
    test("kept", "the allocator keeps more freed memory", one, four, lambda rs: [run.kept for run in rs])
    test("returned", "returning freed memory after each pass lowers its peak", one, (ONE, TRIMMED), peaks)
    test("arena", "a single arena lowers its peak", one, (ONE, "one arena"), peaks)
    for name in sorted({change for _, change in runs} - {PLAIN, TRIMMED, FIRST, CONCATENATED, "one arena"}):
        test(name, f"{name} in the allocator's place lowers its peak", one, (ONE, name), peaks)
    test(
        "concatenated",
        "with a cache that is concatenated anew in each pass, it peaks above a batch of four",
        (ONE, CONCATENATED),
        (FOUR, CONCATENATED),
        peaks,
    )
    return found


def shown(samples: Sequence[float]) -> str:
    return spread(samples, show.size)


def peak_answer(plain: dict[int, list[Run]]) -> list[str]:
    if not {ONE, FOUR} <= plain.keys():
        return []
    one, four = plain[ONE], plain[FOUR]
    order = apart(peaks(one), peaks(four))
    verdict = {
        1: "Batching peaks lower here too",
        -1: "Batching does not peak lower here but higher, which contradicts study A",
        0: "Batching and one at a time peak alike here, within their spread, unlike in study A",
    }[order]
    return [
        f"{verdict}: {shown(peaks(one))} above the warm process in {one[0].passes} passes one at a time, "
        f"{shown(peaks(four))} in {four[0].passes} passes of four rows."
    ]


def churn_answer(tests: dict[str, Prediction]) -> list[str]:
    """The verdict on the author's explanation, from the predictions that were tested."""
    if "peak" not in tests:
        return []
    effect = any(tests[key].holds for key in ("peak", "concatenated") if key in tests)
    left = any(tests[key].holds for key in ("beyond", "kept") if key in tests)
    cures = [key for key in tests if key not in ("peak", "concatenated", "beyond", "kept")]
    cured = any(tests[key].holds for key in cures)
    held = sum(test.holds for test in tests.values())
    if effect and left and cured:
        verdict = "The numbers support churn and fragmentation"
    elif not effect:
        verdict = (
            "The numbers do not support churn and fragmentation: there is no higher peak for it to explain"
        )
        if left or cured:
            verdict += (
                ", though freed memory that is kept does cost something"
                if left
                else ", though how the allocator is told to work moves the peak"
            )
    else:
        missing = "the memory that it should leave behind" if not left else "a change that takes it away"
        verdict = (
            f"The numbers do not support churn and fragmentation: the higher peak is there, {missing} is not"
        )
    return [f"{verdict}; {held} of its {len(tests)} predictions hold."]


def live_answer(plain: dict[int, list[Run]]) -> list[str]:
    """Which part of a peak moves when more rows share a pass: what is alive, or the rest."""
    least, most = min(plain, default=0), max(plain, default=0)
    if least == most or None in (alive(plain[least]), alive(plain[most])):
        return []
    live = [alive(plain[rows]) or 0 for rows in (least, most)]
    rest = [median(beyond(plain[rows])) for rows in (least, most)]
    change = median(peaks(plain[most])) - median(peaks(plain[least]))
    moved, other = live[1] - live[0], rest[1] - rest[0]
    cause = "what is alive" if abs(moved) >= abs(other) else "memory that is no live tensor"
    return [
        f"From {least} to {most} rows at once the peak changes by {show.size(change)}: live tensors by "
        f"{show.size(moved)} ({show.size(live[0])} to {show.size(live[1])}) and the rest by "
        f"{show.size(other)}. "
        f"So the peak follows {cause}."
    ]


def life_answer(plain: dict[int, list[Run]]) -> list[str]:
    """What a process monitor shows, as the author read it."""
    runs = [run for found in plain.values() for run in found if run.life is not None and run.load is not None]
    if not runs:
        return []
    lives = [run.life for run in runs]
    loading = sum(run.load >= run.life for run in runs)
    gap = max(lives) - min(lives)
    most = max(run.peak for run in runs)
    said = (
        f"The whole life's peak, which is what a process monitor shows, is {shown(lives)} over {len(runs)} "
        f"processes, and set by loading in {loading} of them; generating adds {show.size(most)} at most."
    )
    if loading == len(runs):
        said += " Such a peak says nothing about batching."
    comparison = "as much as" if gap >= STUDY_GAP_BYTES else "less than"
    return [
        f"{said} It differs by {show.size(gap)} between processes, {comparison} study A's gap of "
        f"{STUDY_GAP_BYTES / 1e6:.0f} MB."
    ]


def order_answer(runs: Group) -> list[str]:
    pairs = [(rows, runs[rows, PLAIN], runs[rows, FIRST]) for rows in (ONE, FOUR) if (rows, FIRST) in runs]
    said = []
    for rows, last, first in pairs:
        moved = apart(peaks(first), peaks(last), least=noise(last))
        verdict = {1: "raises the peak", -1: "lowers the peak", 0: "changes nothing beyond the spread"}[moved]
        said.append(f"{verdict} with {rows} at once ({shown(peaks(first))} for {shown(peaks(last))})")
    return [f"The longest prompt first instead of last {' and '.join(said)}."] if said else []


def library_answer(runs: Group) -> list[str]:
    left = [run.libraries for (_, change), found in runs.items() if change == PLAIN for run in found]
    if not left:
        return []
    return [
        f"What libraries keep for themselves after the first passes is {shown(left)}, once a process and "
        f"before "
        "any mode begins, so it cannot tell modes apart."
    ]


def other_answer(results: Results, runs: Group) -> list[str]:
    installed = [name for case in results.of(kind="cache") for name in case.samples["allocators"]]
    if not results.of(kind="cache") or installed:
        return []
    return ["Another allocator: – (neither jemalloc, tcmalloc nor mimalloc is installed here)."]


def cache_answer(samples: dict[str, Any], model: dict[str, Any]) -> tuple[str, ...]:
    tokens, used = samples["tokens"], samples["used_bytes"]
    agree = "as" if used == samples["formula_bytes"] else "unlike"
    theirs, expected = study.A_KV_30_TOKENS_MB * 1e6, tokens * GPT2_KV_BYTES
    wrong = abs(theirs - expected) > 0.1 * expected
    verdict = (
        f"is not that of {tokens} tokens but of {theirs / GPT2_KV_BYTES:.0f}"
        if wrong
        else f"is that of {tokens} tokens"
    )
    return (
        f"The cache of {tokens} tokens of {model['name']} is {show.size(used)} in its real tensors, "
        f"{agree} the "
        f"formula says ({show.size(samples['formula_bytes'])}). Study A's {study.A_KV_30_TOKENS_MB} MB "
        f"{verdict}: "
        f"GPT-2 small in fp32 takes {show.size(GPT2_KV_BYTES)} a token, {expected / 1e6:.2f} MB for "
        f"{tokens}.",
    )


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
    return Figure(
        "rows",
        "Peak by rows at once",
        figure,
        f"The same 8 prompts. Peaks by rows at once: {listed}; {min(map(len, plain.values()))} processes "
        f"each or "
        f"more. {place}.",
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
        labels = [change.replace(" ", "<br>", 1).replace(" after", "<br>after") for change in there]
        add_bars(figure, f"{rows} at once", labels, samples, number=number, scale=1 / show.MIB)
        said += [f"{rows} at once, {change}: {shown(s)}" for change, s in zip(there, samples, strict=True)]
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
        "Median (least to greatest) over processes. The cache is held in room for 128 columns, of which "
        "only those "
        f"that were written are resident, so tensors may exceed the peak. {place}.",
    )


def predictions_table(tests: dict[str, Prediction], place: str) -> Table:
    return Table(
        "predictions",
        "What churn and fragmentation predict",
        ("prediction", "this", "must be above", "holds"),
        tuple(
            (test.claim, shown(test.first), shown(test.second), "yes" if test.holds else "no")
            for test in tests.values()
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
        ("GPT-2 small in fp32 by formula", show.size(samples["tokens"] * GPT2_KV_BYTES)),
    )
    return Table(
        "cache", f"The cache of one row of {samples['tokens']} tokens", ("", "bytes"), rows, f"{place}."
    )
