"""What the cache takes by formula, in its tensors and from the allocator; masks; and where it overtakes the
weights."""

from __future__ import annotations

from statistics import median

from kshipra.experiments import experiment_named
from kshipra.experiments.report import kv_words as words
from kshipra.experiments.report import study
from kshipra.experiments.report.kv_words import (
    PROCESS,
    STORED_AS,
    context_lines,
    offsets,
    overtakes_at,
    samples_of,
    weights_of,
)
from kshipra.experiments.report.parts import Figure, Report, Table, add_line, add_published, chart, where
from kshipra.experiments.results import Results
from kshipra.ui.show import DASH, MIB, count, digits, size

STEP = "vh"  # a line that rises before the column that did not fit
ROWS_SHOWN = 12  # of the table by context


def report(results: Results) -> Report:
    """Parts of the cases that there are, in the order of the questions."""
    makers = (_by_context, _growth, _context_table, _offset, _overtaking, _overtaking_table, _masks)
    parts = [part for maker in makers if (part := maker(results)) is not None]
    experiment = experiment_named("kv-memory")
    return Report(experiment.title, experiment.question, tuple(words.answers(results)), tuple(parts))


def _by_context(results: Results) -> Figure | None:
    lines = context_lines(results)
    if lines is None:
        return None
    plot = chart("stored tokens of one row", "memory above the baseline (MiB)")
    columns, per_token = lines["columns"], lines["kv_bytes_per_token"]
    formula = [[per_token * end] for end in columns]
    add_line(plot, "formula", columns, formula, number=0, scale=1 / MIB, markers=False)
    add_line(plot, "requested: tensors", columns, lines["held_bytes"], number=1, scale=1 / MIB, markers=False)
    plot.data[-1].line.shape = STEP
    names = {"allocated_bytes": "allocated: blocks in use", **PROCESS}
    for number, (key, name) in enumerate(names.items(), start=2):
        if key in lines:
            add_line(plot, name, columns, lines[key], number=number, scale=1 / MIB, markers=False)
            plot.data[-1].line.shape = STEP
    caption = f"{words.allocated(lines)} Bars: least and greatest of the repeats. {where(results)}."
    return Figure("kv-context", "The cache by context, above a baseline after a first pass", plot, caption)


def _growth(results: Results) -> Figure | None:
    samples = samples_of(results, "growth")
    if samples is None:
        return None
    plot = chart("stored tokens of one row", "keys and values (MiB)")
    for number, (key, name) in enumerate((("used_bytes", "used columns"), ("held_bytes", "held: tensors"))):
        values = [[value] for value in samples[key]]
        add_line(plot, name, samples["columns"], values, number=number, scale=1 / MIB)
    plot.data[-1].line.shape = STEP
    steps = words.growth_columns(samples)
    most = max(held - used for held, used in zip(samples["held_bytes"], samples["used_bytes"], strict=True))
    caption = (
        f"The engine's own passes over {count(samples['columns'][0])} tokens each. "
        + (f"The tensors grow by {words.span(steps)} columns at a time; " if steps else "")
        + f"at most {size(most)} are held and not used. {where(results)}."
    )
    return Figure("kv-growth", "Held and used while the cache grows", plot, caption)


def _context_table(results: Results) -> Table | None:
    lines = context_lines(results)
    if lines is None:
        return None
    places = range(len(lines["columns"]))
    shown = sorted({*places[:: max(1, len(places) // ROWS_SHOWN)], places[-1]})
    keys = ["used_bytes", "held_bytes", *(key for key in ("allocated_bytes", *PROCESS) if key in lines)]
    rows = [
        (
            count(lines["columns"][place]),
            size(lines["kv_bytes_per_token"] * lines["columns"][place]),
            *(size(round(median(lines[key][place]))) for key in keys),
        )
        for place in shown
    ]
    heads = {"used_bytes": "used", "held_bytes": "requested", "allocated_bytes": "allocated", **PROCESS}
    return Table(
        "kv-context",
        "The cache by context",
        ("tokens", "formula", *(heads[key] for key in keys)),
        tuple(rows),
        "Used: stored columns of the real tensors; requested: the whole tensors. Allocated and what follows "
        "it: medians of the growth above the baseline.",
    )


def _offset(results: Results) -> Figure | None:
    found = offsets(results)
    if found is None:
        return None
    plot = chart("pass over the same text in a fresh process", "allocated beyond the tensors (MiB)")
    places = [count(place) for place in range(1, len(found) + 1)]
    add_line(plot, "measured", places, [[value] for value in found], number=0, scale=1 / MIB)
    plot.update_xaxes(type="category")
    plot.update_traces(mode="markers", marker={"size": 10})
    workspace = [study.B_WORKSPACE_BYTES / MIB]
    add_published(plot, "published: first measurement of study B, A40", ["1"], workspace)
    caption = f"{words.offset(results)} {where(results)}."
    return Figure("kv-offset", "What a first pass leaves that is not the cache's", plot, caption)


def _overtaking(results: Results) -> Figure | None:
    full = [case for case in results.of(kind="rows") if "skipped" not in case.samples]
    weights = weights_of(results)
    if not full or not weights:
        return None
    plot = chart("stored tokens: rows x context", "memory (MiB)")
    tokens = [case.settings["rows"] * case.settings["tokens"] for case in full]
    held = [[case.samples["stored"]["held_bytes"]] for case in full]
    add_line(plot, "cache: real tensors", tokens, held, number=0, scale=1 / MIB)
    for number, (kind, (stored, _)) in enumerate(weights.items(), start=1):
        line = [[stored], [stored]]
        add_line(plot, STORED_AS[kind], [0, max(tokens)], line, number=number, scale=1 / MIB, markers=False)
    theirs = study.B_WEIGHTS_BYTES / MIB
    add_published(plot, "published: study B, GPT-2 small, fp32", [study.B_KV_OVERTAKES_AT], [theirs])
    caption = f"{words.overtaking(results)} {where(results)}."
    return Figure("kv-overtakes", "Where the cache overtakes the weights", plot, caption)


def _overtaking_table(results: Results) -> Table | None:
    weights = weights_of(results)
    if not weights:
        return None
    limit = words.full_row(results)
    rows = []
    for kind, (stored, per_token) in weights.items():
        tokens = overtakes_at(stored, per_token)
        full = digits(tokens / limit) if limit else DASH
        rows.append((STORED_AS[kind], size(stored), f"{count(per_token)} B", count(tokens), full))
    return Table(
        "kv-overtakes",
        "Rows x context where the cache overtakes the weights",
        ("weights", "bytes", "keys and values a token", "stored tokens", "full rows"),
        tuple(rows),
        "Weights by the bytes of the real tensors, keys and values in the dtype of the computation"
        + (f"; a full row is {count(limit)} tokens." if limit else ".")
        + words.left_out(results),
    )


def _masks(results: Results) -> Table | None:
    samples = samples_of(results, "masks")
    if samples is None:
        return None
    stored = words.stored_mask_bytes(samples)
    kind = f"{samples['layers']} float32 masks, stored in every layer"
    rows = [(kind, "at any time", size(stored))]
    for label, seen in (("ours, rows alike in length", "dense"), ("ours, rows with pads", "padded")):
        for when, mask in zip(("prefill", "a decode step"), samples[seen], strict=True):
            shape = " x ".join(map(str, mask["shape"])) if mask["shape"] else "none"
            rows.append((label, f"{when}, {shape}", size(mask["bytes"])))
    tokens = samples_tokens(results)
    rows.append((f"ours, a padded row of {tokens} tokens", "prefill", size(samples["full_prefill_bytes"])))
    rows.append(
        (f"ours, a padded row of {tokens} tokens", "a decode step", size(samples["full_decode_bytes"]))
    )
    made = samples["stored_masks"]
    caption = "Real tensors" + (
        "; ours is one for all layers, made for a pass and gone after it."
        if made == samples["layers"]
        else f"; of the stored masks {made} were made, and the sum is for all {samples['layers']} layers."
    )
    return Table("kv-masks", "What masks take", ("mask", "when", "bytes"), tuple(rows), caption)


def samples_tokens(results: Results) -> str:
    return count(results.of(kind="masks")[0].settings["tokens"])
