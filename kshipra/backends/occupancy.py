"""What everybody may see of the live batch: who shares it in which place, by row and without a word of text,
and how full and how fast it is. A fold over StepEvents on one clock, seconds since anything was served."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kshipra.types import StepEvent

WINDOW_S = 30.0  # how far back the picture and the largest gap go
RATE_S = 3.0  # how far back the rates go


@dataclass
class Bar:
    """One row's stay: in which place of the batch, when its prompt began to be read, its first token came,
    and it left."""

    row: int
    place: int
    joined_s: float
    first_s: float | None = None
    last_s: float | None = None
    left_s: float | None = None


@dataclass(frozen=True)
class Figures:
    now_s: float
    running: int
    columns: int  # of the cache, rows x the longest
    largest_gap_s: float | None  # between two tokens of a row
    passes_per_s: float | None
    tok_per_s: float | None


class Occupancy:
    def __init__(self, token_bytes: int = 1) -> None:
        self.token_bytes = token_bytes  # of one cached token
        self.now_s = 0.0
        self._running: dict[int, Bar] = {}
        self._left: deque[Bar] = deque()
        self._passes: deque[tuple[float, int]] = deque()  # when, new tokens
        self._gaps: deque[tuple[float, float]] = deque()  # when, the largest of that pass
        self._columns = {"prefill": 0, "decode": 0}  # of the row that is read, and of the batch

    def bars(self) -> list[Bar]:
        return [*self._left, *self._running.values()]

    def joins(self, row: int, now_s: float) -> None:
        taken = {bar.place for bar in self._running.values()}
        place = next(place for place in range(len(taken) + 1) if place not in taken)
        self._running[row] = Bar(row, place, now_s)

    def leaves(self, row: int, now_s: float) -> None:
        if (bar := self._running.pop(row, None)) is not None:
            bar.left_s = now_s
            self._left.append(bar)

    def passed(self, event: StepEvent, now_s: float) -> None:
        """A pass is over, of rows that have joined."""
        self.now_s = now_s
        self._passes.append((now_s, len(event.new_tokens)))
        self._columns = {"decode": self._columns["decode"], "prefill": 0}
        self._columns[event.phase] = event.kv_bytes // self.token_bytes
        gaps = []
        for token in event.new_tokens:
            if (bar := self._running.get(token.row)) is None:
                continue
            if bar.last_s is not None:
                gaps.append(now_s - bar.last_s)
            bar.first_s = now_s if bar.first_s is None else bar.first_s
            bar.last_s = now_s
        if gaps:
            self._gaps.append((now_s, max(gaps)))
        for old, window_s in ((self._passes, RATE_S), (self._gaps, WINDOW_S)):
            while old and old[0][0] < now_s - window_s:
                old.popleft()
        while self._left and self._left[0].left_s < now_s - WINDOW_S:
            self._left.popleft()

    def rests(self, now_s: float) -> None:
        """Nobody is served any more: the rows have left, the rates are of the past."""
        self.now_s = now_s
        for row in list(self._running):
            self.leaves(row, now_s)
        self._passes.clear()
        self._columns = {"prefill": 0, "decode": 0}

    def figures(self) -> Figures:
        seconds = self._passes[-1][0] - self._passes[0][0] if self._passes else 0.0
        tokens = sum(new for _, new in self._passes) - (self._passes[0][1] if self._passes else 0)
        return Figures(
            now_s=self.now_s,
            running=len(self._running),
            columns=sum(self._columns.values()),
            largest_gap_s=max((gap for _, gap in self._gaps), default=None),
            passes_per_s=(len(self._passes) - 1) / seconds if seconds > 0 else None,
            tok_per_s=tokens / seconds if seconds > 0 else None,
        )
