"""`positions`: which check catches which planted fault, on learned and on rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from kshipra.experiments import experiment_named
from kshipra.experiments.report.parts import Figure, Report, Table
from kshipra.experiments.report.study import B_ONE_TOKEN_DIFFERENCE
from kshipra.experiments.results import CaseResult, Results
from kshipra.ui.show import digits, listing

HEALTHY = "none"
LABELS = {
    HEALTHY: "no fault",
    "pads_counted": "positions count pads",
    "restarted": "positions restart at 0",
    "pads_visible": "pads left in the mask",
    "new_before_old": "new keys before old",
}
LEARNED = ("gpt2",)  # families with learned positions; the others' are rotary


@dataclass(frozen=True)
class Check:
    """`runs`: of that mode, what it found; else one of the engine's checks by that name."""

    key: str
    label: str
    mode: str | None = None
    tokens: int = 0  # 0: the logits of the prompt's last token; else so many greedy ids


CHECKS = (
    Check("prompt", "prompt's last token: logits", "kv_cache"),
    Check("first", "first new token", "kv_cache", 1),
    Check("greedy", "20 greedy tokens", "kv_cache", 20),
    Check("one-token", "one-token steps: logits"),
    Check("two-token", "two-token steps: logits"),
    Check("padding", "padded row: logits"),
    Check("batch", "20 greedy tokens of a padded batch", "static_batch", 20),
    Check("pairs", "20 greedy tokens, prompt in pairs", "two_at_a_time", 20),
)
ONE_TOKEN, FIRST = "one-token", "first"


@dataclass(frozen=True)
class Finding:
    """What one check saw of one fault."""

    caught: bool
    difference: float  # largest of the logits that the check looked at, or that its tokens came from
    tolerance: float
    parted: int | None = None  # first new token, from 1, that is another


def found(case: CaseResult, fault: str, check: Check) -> Finding:
    own = case.samples["faults"][fault]
    if check.mode is None:
        engine = next(each for each in own["checks"] if each["name"] == check.key)
        caught = not engine["largest_difference"] <= engine["tolerance"]
        return Finding(caught, engine["largest_difference"], engine["tolerance"])
    rows = [_row(row, check.tokens) for row in own["runs"][check.mode]]
    caught = any(row.caught for row in rows)
    parted = [row.parted for row in rows if row.parted is not None and row.caught == caught]
    largest = max(rows, key=lambda row: row.difference)
    return Finding(caught, largest.difference, largest.tolerance, min(parted, default=None))


def _row(row: dict[str, Any], tokens: int) -> Finding:
    """A row's ids are another text's only where logits differ by more than rounding: else a near-tie fell the
    other way."""
    differences, allowed = row["difference"][: max(1, tokens)], row["tolerance"]
    if tokens == 0:
        return Finding(differences[0] > allowed, differences[0], allowed)
    place = row["parted"]
    if place is None or place >= tokens:
        return Finding(False, max(differences), allowed)
    return Finding(row["difference"][place] > allowed, max(differences), allowed, place + 1)


def report(results: Results) -> Report:
    experiment = experiment_named("positions")
    parts = [part for case in results.cases for part in (_table(case), _map(case))]
    return Report(experiment.title, experiment.question, tuple(_answers(results)), tuple(parts))


def _faults(case: CaseResult) -> list[str]:
    return [fault for fault in case.samples["faults"] if fault != HEALTHY]


def _kind(case: CaseResult) -> str:
    return "learned" if case.settings["family"] in LEARNED else "rotary"


def _name(case: CaseResult) -> str:
    return f"{case.name} ({_kind(case)} positions)"


def _small(value: float) -> str:
    return digits(value) if value == 0 or value >= 1e-3 else f"{value:.2g}"


def _table(case: CaseResult) -> Table:
    faults = [HEALTHY, *_faults(case)]
    rows = [(c.label, *(_cell(found(case, fault, c), c) for fault in faults)) for c in CHECKS]
    allowed = [found(case, HEALTHY, check).tolerance for check in CHECKS]
    return Table(
        f"catches-{_kind(case)}",
        f"What each check sees: {_name(case)}",
        ("check", *(LABELS[fault] for fault in faults)),
        tuple(rows),
        "The largest logit difference to plain passes without cache and pads, and whether that is a catch: "
        f"rounding is allowed {_small(min(allowed))} to {_small(max(allowed))}. Greedy tokens are caught "
        "where another token comes by more than rounding.",
    )


def _cell(finding: Finding, check: Check) -> str:
    said = "caught" if finding.caught else "missed" if finding.difference > finding.tolerance else "passes"
    if finding.parted is not None and check.tokens > 1:
        said += f" at token {finding.parted}" if finding.caught else f", near-tie at token {finding.parted}"
    return f"{said}, {_small(finding.difference)}"


def _map(case: CaseResult) -> Figure:
    faults = [HEALTHY, *_faults(case)]
    findings = [[found(case, fault, check) for fault in faults] for check in CHECKS]
    plot = go.Figure(
        go.Heatmap(
            x=["<br>".join(wrap(LABELS[fault], 16)) for fault in faults],
            y=[check.label for check in CHECKS],
            z=[[int(finding.caught) for finding in row] for row in findings],
            zmin=0,
            zmax=1,
            text=[
                [_cell(finding, check).replace(", ", "<br>") for finding in row]
                for row, check in zip(findings, CHECKS, strict=True)
            ],
            texttemplate="%{text}",
            textfont={"size": 12},
            colorscale=[[0, "#f3f4f6"], [1, "#fca5a5"]],
            showscale=False,
            xgap=3,
            ygap=3,
        )
    )
    plot.update_layout(
        template="plotly_white",
        font={"family": "IBM Plex Sans, system-ui, sans-serif", "size": 12},
        margin={"l": 260, "r": 20, "t": 70, "b": 20},
    )
    plot.update_xaxes(side="top", showgrid=False, tickangle=0)
    plot.update_yaxes(autorange="reversed", showgrid=False)
    caught = sum(any(f.caught for f in column[1:]) for column in findings)
    return Figure(
        f"catches-{_kind(case)}",
        f"Caught or not: {_name(case)}",
        plot,
        f"Red: the check alarms. {caught} of {len(CHECKS)} checks catch at least one of {len(faults) - 1} "
        "faults. Numbers: largest logit difference that the check, or the tokens it compares, came from.",
    )


def _answers(results: Results) -> list[str]:
    said = [_healthy(case) for case in results.cases]
    said += [_missed_by(case, ONE_TOKEN, "one-token steps miss") for case in results.cases]
    said += [_missed_by(case, FIRST, "the first new token misses") for case in results.cases]
    said += [_enough(case) for case in results.cases]
    learned = next((case for case in results.cases if _kind(case) == "learned"), None)
    rotary = next((case for case in results.cases if _kind(case) == "rotary"), None)
    if learned is not None and rotary is not None:
        said.append(_forgiven(learned, rotary))
    said += [_order(case) for case in results.cases]
    return said


def _largest(case: CaseResult, fault: str) -> float:
    return max(found(case, fault, check).difference for check in CHECKS)


def _catching(case: CaseResult, fault: str) -> list[Check]:
    return [check for check in CHECKS if found(case, fault, check).caught]


def _healthy(case: CaseResult) -> str:
    alarms = _catching(case, HEALTHY)
    largest = _small(_largest(case, HEALTHY))
    if alarms:
        names = listing([check.label for check in alarms])
        return f"{_name(case)}: without a fault {names} alarm, by {largest}: what they catch is no evidence."
    return f"{_name(case)}: without a fault no check alarms; the largest logit difference is {largest}."


def _missed_by(case: CaseResult, key: str, words: str) -> str:
    """Faults that this check lets pass and another catches."""
    check = next(check for check in CHECKS if check.key == key)
    missed = [
        f"{LABELS[fault]} (it sees {_small(found(case, fault, check).difference)}, and another check "
        f"{_small(_largest(case, fault))})"
        for fault in _faults(case)
        if not found(case, fault, check).caught and _catching(case, fault)
    ]
    return f"{_name(case)}: {words} {listing(missed) if missed else 'none of the faults that show at all'}."


def _enough(case: CaseResult) -> str:
    """The fewest checks that catch all that any check catches."""
    shown = [fault for fault in _faults(case) if _catching(case, fault)]
    if not shown:
        return f"{_name(case)}: no check catches any of the faults."
    for size in range(1, len(CHECKS) + 1):
        for chosen in combinations(CHECKS, size):
            if all(any(found(case, fault, check).caught for check in chosen) for fault in shown):
                names = listing([f"“{check.label}”" for check in chosen])
                return f"{_name(case)}: {names} catch all {len(shown)} faults that show."
    raise AssertionError("all checks together catch what any of them catches")


def _forgiven(learned: CaseResult, rotary: CaseResult) -> str:
    forgiven = [
        f"{LABELS[fault]} (largest difference {_small(_largest(rotary, fault))}, where learned positions "
        f"show {_small(_largest(learned, fault))})"
        for fault in _faults(rotary)
        if not _catching(rotary, fault) and _catching(learned, fault)
    ]
    kept = [LABELS[fault] for fault in _faults(rotary) if _catching(rotary, fault)]
    said = f"Rotary positions forgive {listing(forgiven) if forgiven else 'none of these faults'}"
    return f"{said}; {listing(kept)} show on them too." if kept else f"{said}."


def _order(case: CaseResult) -> str:
    one, two, batch = (
        found(case, "new_before_old", next(check for check in CHECKS if check.key == key))
        for key in (ONE_TOKEN, "two-token", "batch")
    )
    verdict = "as in" if not one.caught and two.caught else "unlike"
    said = (
        f"{_name(case)}: new keys before old change logits by {_small(one.difference)} in one-token steps "
        f"and by {_small(two.difference)} in two-token steps, {verdict} study B "
        f"({B_ONE_TOKEN_DIFFERENCE:.1g} with one token, caught with two)"
    )
    if not batch.caught:
        return f"{said}."
    return (
        f"{said}; in a padded batch one-token steps do show it, at token {batch.parted}, because the mask "
        "that hides pads no longer fits the columns."
    )
