"""The tables of all that bench finds. Refuses to know how it is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kshipra.types import Comparison

if TYPE_CHECKING:
    from kshipra.profiling import Profile
    from kshipra.quality import Quality


@dataclass(frozen=True)
class Column:
    """A figure as it is shown: its heading, its unit's factor, and whether the spread stands behind it."""

    heading: str
    factor: float = 1.0
    unit: str = ""
    spread: bool = False

    def cell(self, figures: Mapping[str, float | None]) -> str:
        if figures["median"] is None:
            return "–"
        digits = 2 if self.unit == "x" else 1
        if self.spread:
            low, high = (f"{figures[name] * self.factor:.{digits}f}" for name in ("min", "max"))
            return f"{figures['median'] * self.factor:.{digits}f}{self.unit} ({low} to {high})"
        value = figures["median"] * self.factor
        return (f"{value:.0f}" if self.factor == 1.0 and value == int(value) else f"{value:.3g}") + self.unit


COLUMNS = {
    "end_to_end_tok_per_s": Column("tok/s end to end", spread=True),
    "against": Column("against", unit="x", spread=True),
    "decode_tok_per_s": Column("decode tok/s", spread=True),
    "ttft_s": Column("TTFT ms", 1e3),
    "ttft_p50_s": Column("TTFT p50 ms", 1e3),
    "own_ttft_p50_s": Column("own TTFT p50 ms", 1e3, spread=True),
    "largest_gap_s": Column("largest gap ms", 1e3),
    "step_p50_s": Column("step p50 ms", 1e3),
    "step_p99_s": Column("p99 ms", 1e3),
    "padding": Column("padding", 100, "%"),
    "between_passes_share": Column("between passes", 100, "%"),
    "reused_tokens": Column("reused"),
    "acceptance": Column("accepted", 100, "%"),
    "tokens_per_pass": Column("tokens a pass"),
    "forward_passes": Column("passes"),
    "new_tokens": Column("tokens"),
    "peak_extra_bytes": Column("peak extra MiB", 2**-20),
    "kv_bytes": Column("KV MiB", 2**-20),
    "kv_held_bytes": Column("KV held MiB", 2**-20),
}
USUAL = (
    "end_to_end_tok_per_s",
    "against",
    "decode_tok_per_s",
    "ttft_s",
    "step_p50_s",
    "step_p99_s",
    "forward_passes",
    "new_tokens",
    "peak_extra_bytes",
    "kv_bytes",
)


def table(summaries: Sequence[dict[str, Any]], columns: Sequence[str] = USUAL) -> Table:
    """The cases side by side; rates with their least and greatest, and each against its reference."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("case", no_wrap=True)
    for name in columns:
        shown.add_column(COLUMNS[name].heading, justify="right")
    for one in summaries:
        shown.add_row(one["case"], *(COLUMNS[name].cell(one["spread"][name]) for name in columns))
    return shown


def compile_lines(summaries: Sequence[dict[str, Any]]) -> list[str]:
    """What compiling took, which is in no figure of the table: a line for each case that is compiled."""
    compiled = {one["case"]: one["compile_s"] for one in summaries if one["compile_s"] is not None}
    return [
        f"{case}: {f'compiled in {compile_s:.1f} s' if compile_s else 'compiled code taken from disk'}"
        for case, compile_s in compiled.items()
    ]


def profile_table(name: str, profile: Profile) -> Group:
    """The longest operations of a case's decode passes."""
    title = f"{name}: no decode passes"
    if profile.outside_share is not None:
        title = (
            f"{name}: {profile.passes} decode passes, {profile.wall_s * 1e3:.0f} ms under the profiler, "
            f"{profile.outside_share:.1%} of it outside kernels"
        )
    shown = Table(box=None, pad_edge=False)
    for heading in ("operation", "calls", "self ms", "share"):
        shown.add_column(heading, justify="left" if heading == "operation" else "right")
    for one in profile.operations:
        shown.add_row(one.name, str(one.calls), f"{one.self_s * 1e3:.2f}", f"{one.share:.1%}")
    return Group(Text(title, style="bold"), shown)


def check_table(found: Sequence[Quality]) -> Table:
    """What each case says against the reference, every figure with its bound."""
    shown = Table(box=None, pad_edge=False)
    headings = ("case", "greedy ids", "perplexity", "reference", "ratio", "top-1 agreement", "")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in headings[:2] else "right")
    for one in found:
        ratio = f"{_scaled(one.perplexity_ratio, 1, digits=6)} (bound {one.perplexity_bound:g})"
        least = f" (bound {one.agreement_bound:.0%})" if one.agreement_bound is not None else ""
        shown.add_row(
            one.case,
            one.verdict + _where(one.parted, one.rows),
            _scaled(one.perplexity, 1, digits=6),
            _scaled(one.reference_perplexity, 1, digits=6),
            ratio,
            f"{one.agreement:.1%}{least}",
            "passed" if one.passed else "broken",
        )
    return shown


def verdict_lines(reference: str, verdicts: Mapping[str, Sequence[Comparison]], rows: int) -> list[str]:
    """Whether the ids of each case are the reference's, and where not, whether rounding did it."""
    lines = []
    for case, found in verdicts.items():
        kinds = [one.verdict for one in found if one.verdict != "identical"]
        worst = next((kind for kind in kinds if kind != "near-tie"), "near-tie" if kinds else "identical")
        parted = [one for one in found if one.verdict != "identical"]
        lines.append(f"{case}: ids against {reference}: {worst}{_where(parted, rows)}")
    return lines


def _where(parted: Sequence[Comparison], rows: int) -> str:
    """How many rows part, and where: "row 1 at token 5", both from 1."""
    if not parted:
        return f" in {rows} rows"
    places = (f"row {one.row + 1} at token {one.position + 1}" for one in parted)
    return f" in {len(parted)} of {rows} rows: {', '.join(places)}"


def _scaled(value: float | None, factor: float, *, digits: int = 3) -> str:
    return "–" if value is None else f"{value * factor:.{digits}g}"
