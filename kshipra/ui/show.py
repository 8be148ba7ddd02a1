"""How a number is written for a person: at most three significant digits, a unit, a dash for unknown.

Milliseconds, KiB and MiB exist only here; everything else speaks seconds and bytes.
"""

from __future__ import annotations

DASH = "–"
MIB = 2**20


def digits(value: float | None) -> str:
    """`value` with at most three significant digits and no exponent: 16.4, 0.0123, 1,210."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    text = f"{rounded:,.6f}" if abs(rounded) < 1 else f"{rounded:,.2f}"
    return text.rstrip("0").rstrip(".")


def seconds(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{digits(value)} s" if value >= 1 else f"{digits(value * 1000)} ms"


def size(value: int | None) -> str:
    """Bytes as bytes, KiB, MiB or GiB."""
    if value is None:
        return DASH
    amount, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if abs(amount) < 1000:
            break
        amount, unit = amount / 1024, larger
    return f"{digits(amount)} {unit}" if value else "0"


def work(value: float | None) -> str:
    """Floating-point operations, in thousands of thousands: 247 MFLOP."""
    if value is None:
        return DASH
    amount, unit = value, "FLOP"
    for larger in ("kFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{digits(amount)} {unit}"


def count(value: int | None) -> str:
    """A number that was counted, not measured: every digit."""
    return DASH if value is None else f"{value:,}"


def times(value: float | None) -> str:
    return DASH if value is None else f"{digits(value)}×"


def percent(value: float | None) -> str:
    """A part of 1 in hundredths."""
    return DASH if value is None else f"{digits(value * 100)} %"


def part(amount: int, whole: int) -> str:
    """12 of 40; a dash where there is no whole."""
    return f"{amount:,} of {whole:,}" if whole else DASH


def counted(amount: int, noun: str) -> str:
    """1 prompt, 2 prompts."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def listing(items: list[str]) -> str:
    """A, B and C."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
