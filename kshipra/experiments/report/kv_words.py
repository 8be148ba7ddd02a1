"""The numbers behind `kv_memory`'s figures, and the sentences made from them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median
from typing import Any

from kshipra.experiments.report import study
from kshipra.experiments.results import Results
from kshipra.ui.show import MIB, count, listing, size, times

PROCESS = {"reserved_bytes": "reserved", "resident_bytes": "resident"}
STORED_AS = {
    "native": "weights as computed",
    "bfloat16": "weights stored in bfloat16",
    "int8": "weights stored in int8",
}


def samples_of(results: Results, kind: str) -> dict[str, Any] | None:
    return next((case.samples for case in results.of(kind=kind) if "skipped" not in case.samples), None)


def context_lines(results: Results) -> dict[str, Any] | None:
    """By stored tokens, every repeat's value: used and held bytes, and the allocator's growth above its
    baseline."""
    samples = samples_of(results, "context")
    if samples is None:
        return None
    repeats = samples["repeats"]
    lines: dict[str, Any] = {
        "columns": [stored["columns"] for stored in repeats[0]["stored"]],
        "kv_bytes_per_token": samples["kv_bytes_per_token"],
    }
    by_column = list(zip(*(repeat["stored"] for repeat in repeats), strict=True))
    for key in ("used_bytes", "held_bytes"):
        lines[key] = [[stored[key] for stored in same] for same in by_column]
    for key, before in repeats[0]["before"].items():
        if before is not None:
            baselines = [repeat["before"][key] for repeat in repeats]
            lines[key] = [
                [stored[key] - own for stored, own in zip(same, baselines, strict=True)] for same in by_column
            ]
    return lines


def excess_bytes(lines: dict[str, Any], key: str, over: str = "held_bytes") -> list[int]:
    """By how much `key` lies above `over`, every sample."""
    pairs = zip(lines[key], lines[over], strict=True)
    return [value - base for own, bases in pairs for value, base in zip(own, bases, strict=True)]


def offsets(results: Results) -> list[int] | None:
    """Of every pass from a process's first: growth beyond the cache's tensors, by the allocator's blocks, or
    where malloc does not tell by what is resident."""
    samples = samples_of(results, "passes")
    if samples is None:
        return None
    key = offset_key(samples)
    return [
        passed["with_cache"][key] - passed["before"][key] - passed["held_bytes"]
        for passed in samples["passes"]
    ]


def offset_key(samples: dict[str, Any]) -> str:
    known = samples["passes"][0]["before"]
    return "allocated_bytes" if known["allocated_bytes"] is not None else "resident_bytes"


def weights_of(results: Results) -> dict[str, tuple[int, int]]:
    """(bytes of the weights, bytes of a token's keys and values) by how the weights are stored."""
    return {
        case.settings["weights"]: (case.samples["weights_bytes"], case.samples["kv_bytes_per_token"])
        for case in results.of(kind="weights")
        if "skipped" not in case.samples
    }


def overtakes_at(weights_bytes: int, per_token: int) -> int:
    """The first number of stored tokens whose keys and values are larger than the weights."""
    return weights_bytes // per_token + 1


def full_row(results: Results) -> int | None:
    return next((case.settings["tokens"] for case in results.of(kind="rows")), None)


def stored_mask_bytes(samples: dict[str, Any]) -> int:
    return samples["stored_bytes"] // samples["stored_masks"] * samples["layers"]


def growth_columns(samples: dict[str, Any]) -> list[int]:
    """By how many columns the tensors grew, each time."""
    held = [0, *samples["held_bytes"]]
    return [
        (after - before) // samples["kv_bytes_per_token"]
        for before, after in itertools.pairwise(held)
        if after > before
    ]


def left_out(results: Results) -> str:
    reasons = [case.samples["skipped"] for case in results.cases if "skipped" in case.samples]
    return "".join(f" {reason}" for reason in dict.fromkeys(reasons))


def answers(results: Results) -> list[str]:
    makers = (_formula, _in_use, offset, overtaking, _rows, _mask)
    return [sentence for maker in makers if (sentence := maker(results))]


def _formula(results: Results) -> str | None:
    lines = context_lines(results)
    if lines is None:
        return None
    per_token, columns = lines["kv_bytes_per_token"], lines["columns"]
    formula = [[per_token * end] * len(own) for end, own in zip(columns, lines["used_bytes"], strict=True)]
    away = max(abs(value) for value in excess_bytes(lines | {"formula": formula}, "used_bytes", "formula"))
    matches = "to the byte" if away == 0 else f"but for {size(away)}"
    ratio = study.B_KV_BYTES_PER_TOKEN / per_token
    theirs = f"{study.STUDY_B} has {size(study.B_KV_BYTES_PER_TOKEN)}"
    return (
        f"A token's keys and values take {size(per_token)} ({count(per_token)} bytes) by the formula, and "
        f"the columns in use of the real tensors agree {matches} at all {count(len(columns))} contexts up to "
        f"{count(columns[-1])} tokens, where they take {size(per_token * columns[-1])}; {theirs}, "
        + ("the same." if ratio == 1 else f"{times(ratio)} as much.")
    )


def _in_use(results: Results) -> str | None:
    lines = context_lines(results)
    return allocated(lines) if lines else None


def allocated(lines: dict[str, Any]) -> str:
    """Requested against used, then what the allocator has given out, and what the process takes, against
    requested."""
    spare = excess_bytes(lines, "held_bytes", "used_bytes")
    said = [f"The tensors hold up to {size(max(spare))} more than is used, because they grow in steps"]
    if "allocated_bytes" in lines:
        beyond = excess_bytes(lines, "allocated_bytes")
        said.append(f"the allocator's blocks take {_apart(beyond)} than the tensors")
    for key, name in PROCESS.items():
        if key in lines:
            said.append(f"what is {name} is {_apart(excess_bytes(lines, key))}")
            if min(excess_bytes(lines, key)) < -MIB:
                said[-1] += ", because a page of memory counts once it is written"
    return "; ".join(said) + f". {_spare(lines, max(spare))}"


def _spare(lines: dict[str, Any], own: int) -> str:
    """Whether the allocator is what lies beyond the formula, as the study says."""
    theirs = (
        f"In {study.STUDY_B} up to {size(study.B_SPARE_BYTES)} lay beyond the formula, and were put down "
        "to the allocator"
    )
    if "allocated_bytes" not in lines:
        return f"{theirs}; this machine's allocator does not tell."
    beyond = max(map(abs, excess_bytes(lines, "allocated_bytes")))
    here = "the growth of the tensors" if own > beyond else "not the growth of the tensors alone"
    return f"{theirs}; here it is {here}: {size(own)} against the allocator's {size(beyond)}."


def offset(results: Results) -> str | None:
    found = offsets(results)
    if found is None:
        return None
    first, later = found[0], found[1:]
    after = median(later) if later else None
    says = f"A process's first pass leaves {size(first)} ({count(first)} bytes) that are not the cache's"
    if after is not None:
        says += f", later ones {size(round(after))}"
        needed = first > 10 * max(abs(after), 1) and first > MIB
        says += (
            ": a baseline has to be taken after a first pass"
            if needed
            else ": here a baseline before the first pass would do"
        )
    return f"{says}. In {study.STUDY_B} it was {count(study.B_WORKSPACE_BYTES)} bytes."


def overtaking(results: Results) -> str | None:
    weights = weights_of(results)
    if not weights:
        return None
    found = [
        f"{count(overtakes_at(*own))} stored tokens with {STORED_AS[kind]} ({size(own[0])})"
        for kind, own in weights.items()
    ]
    return (
        f"By rows x context the cache overtakes the weights at {listing(found)}; {study.STUDY_B} puts it at "
        f"about {count(study.B_KV_OVERTAKES_AT)}."
    )


def _rows(results: Results) -> str | None:
    """What real tensors of full rows took, against the formula, and 64 rows by it."""
    full = [case for case in results.of(kind="rows") if "skipped" not in case.samples]
    native = weights_of(results).get("native")
    if not full or native is None:
        return None
    weights, per_token = native
    tokens = full[-1].settings["tokens"]
    larger = [case for case in full if case.samples["stored"]["used_bytes"] > weights]
    seen = larger[0] if larger else full[-1]
    rows, used = seen.settings["rows"], seen.samples["stored"]["used_bytes"]
    return (
        f"Measured: {count(rows)} x {count(tokens)} tokens take {size(used)}, "
        f"{'more' if larger else 'still no more'} than the weights' {size(weights)}; 64 would take "
        f"{size(64 * tokens * per_token)}."
    )


def _mask(results: Results) -> str | None:
    samples = samples_of(results, "masks")
    if samples is None:
        return None
    stored, ours = stored_mask_bytes(samples), samples["full_prefill_bytes"]
    dense = max(mask["bytes"] for mask in samples["dense"])
    tokens = results.of(kind="masks")[0].settings["tokens"]
    return (
        f"A float32 mask stored in every layer would take {size(stored)} ({study.STUDY_B}: "
        f"{size(study.B_MASK_BYTES)}); ours takes {size(dense)} for rows alike in length, and one bool of "
        f"{size(ours)}, {times(stored / ours)} smaller, while a padded row of {count(tokens)} tokens is read."
    )


def span(values: Sequence[int]) -> str:
    return listing([count(value) for value in sorted(set(values))])


def _apart(values: Sequence[int]) -> str:
    """How far these are above, or below, what they are held against."""
    least, most = min(values), max(values)
    if least >= 0:
        return f"{size(least)} to {size(most)} more"
    if most <= 0:
        return f"{size(-most)} to {size(-least)} less"
    return f"from {size(-least)} less to {size(most)} more"
