"""One way's column while it runs: its figures so far, and its chart points, thinned to a bounded number."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from kshipra.metrics import came, known_sum, latency, rate
from kshipra.modes import mode_named
from kshipra.types import NewToken, Recipe, Request, StepEvent
from kshipra.ui import show, words

WINDOW = 8  # passes of the throughput chart's rolling rate
MAX_POINTS = 500  # a way's chart points, about


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _mib(amount: int | None, places: int) -> float | None:
    return None if amount is None else round(amount / show.MIB, places)


def _rows(passes: list[StepEvent]) -> list[float | None]:
    """Rows that took part in decode `passes`, and those that were computed; None where there is none."""
    decode = [event for event in passes if event.phase == "decode" and event.processed_tokens]
    if not decode:
        return [None, None]
    running = sum(len(event.rows) for event in decode) / len(decode)
    real = sum(event.processed_tokens for event in decode)
    return [_short(running), _short(running * (1 + sum(event.pad_tokens for event in decode) / real))]


@dataclass
class Column:
    """The fold of one recipe's StepEvents. `take_*` hand out what was not yet handed out."""

    recipe: Recipe
    requests: tuple[Request, ...] = ()
    passes: int = 0  # or pieces of text, of a server's way
    ttft_s: float | None = None
    reused_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    last: StepEvent | None = None
    _counts: Counter[int] = field(default_factory=Counter)  # a row's tokens, as far as they are known
    _open: set[int] = field(default_factory=set)  # rows whose last piece is not counted yet
    _came: Counter[int] = field(default_factory=Counter)  # a row's tokens, or pieces of text
    _came_at_s: dict[int, float] = field(default_factory=dict)  # the row's last
    _decode_s: float = 0.0
    _step_s: list[float] = field(default_factory=list)  # decode passes, or from piece to piece
    _window: deque[tuple[float, int | None]] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))
    _texts: dict[int, list[tuple[bool, str]]] = field(default_factory=dict)  # a guess or not, text
    _points: list[list[Any]] = field(default_factory=list)
    _group: list[tuple[StepEvent, float]] = field(default_factory=list)
    _stride: int = 0

    def add(self, event: StepEvent) -> None:
        self.last = event
        self.reused_tokens += event.reused_tokens
        self.drafted_tokens += event.drafted_tokens
        self.accepted_tokens += sum(token.guessed for token in event.new_tokens)
        if event.phase == "decode":
            self._decode_s += event.elapsed_s
        came_s = [
            event.at_s - self._came_at_s.get(token.row, 0.0) for token in event.new_tokens if came(token)
        ]
        time_s = event.elapsed_s if event.is_pass else max(came_s, default=0.0)
        for token in event.new_tokens:
            self._add_token(token, event.at_s)
        if not event.is_pass and not came_s:
            return  # the count of what had come
        self.passes += 1
        if event.phase == "decode":
            self._step_s.append(time_s)
        self._window = self._window or deque([(0.0, 0)], maxlen=WINDOW + 1)
        self._window.append((event.at_s, known_sum(token.count for token in event.new_tokens)))
        self._add_point(event, time_s)

    def _add_token(self, token: NewToken, at_s: float) -> None:
        self._counts[token.row] += token.count or 0
        (self._open.add if token.count is None else self._open.discard)(token.row)
        if came(token):
            self._came[token.row] += 1
            self._came_at_s[token.row] = at_s
            self.ttft_s = at_s if self.ttft_s is None else self.ttft_s
        if token.text:
            self._texts.setdefault(token.row, []).append((token.guessed, token.text))

    def _add_point(self, event: StepEvent, time_s: float) -> None:
        if not self._stride:
            tokens = sum(request.params.max_new_tokens for request in self.requests)
            expected = tokens // max(1, len(event.rows))
            self._stride = max(1, -(-expected // MAX_POINTS))
        self._group.append((event, time_s))
        if len(self._group) >= self._stride:
            self._close_group()

    def _close_group(self) -> None:
        """One point for the passes since the last: their mean time, and the state after the last of them."""
        if not self._group:
            return
        mean_s = sum(time_s for _, time_s in self._group) / len(self._group)
        passes = [event for event, _ in self._group]
        end, rolling = passes[-1], self.rolling_tok_per_s
        self._points.append(
            [
                self.passes,
                _short(mean_s * 1000),
                round(end.at_s, 3),
                None if rolling is None else _short(rolling),
                _mib(end.resident_bytes, 2),
                _mib(end.kv_bytes, 3),
                int(any(event.phase == "prefill" for event in passes)),
                *_rows(passes),
            ]
        )
        self._group = []

    @property
    def rolling_tok_per_s(self) -> float | None:
        """New tokens a second over the last WINDOW passes, or all while there are fewer."""
        if not self._window:
            return None
        (from_s, _), *passes = self._window
        return rate(known_sum(new for _, new in passes), self._window[-1][0] - from_s)

    @property
    def new_tokens(self) -> int | None:
        return None if self._open else self._counts.total()

    @property
    def decoded(self) -> bool:
        return bool(self._step_s)

    @property
    def decode_tok_per_s(self) -> float | None:
        several = (self._counts[row] - 1 for row, came in self._came.items() if came > 1)
        return None if self._open else rate(sum(several), self._decode_s)

    def figures(self) -> list[str]:
        """In the order of `words.FIGURES`."""
        is_passes = self.last is None or self.last.is_pass
        return [
            show.digits(self.decode_tok_per_s),
            show.seconds(self.ttft_s),
            show.seconds(latency(self._step_s).p50),
            show.count(self.passes if is_passes else None),
            show.size(self.last.kv_bytes if self.last else None),
            show.size(self.last.peak_extra_bytes if self.last else None),
            show.count(self.reused_tokens),
            show.part(self.accepted_tokens, self.drafted_tokens),
            show.percent(self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None),
            show.digits(rate(self.new_tokens, self.passes) if is_passes else None),
        ]

    def more_figures(self, *, reuse: bool) -> list[str]:
        """Which of `words.MORE_FIGURES` have a meaning for this way."""
        mode = mode_named(self.recipe.mode)
        return [*words.REUSE_FIGURES * (reuse and mode.caches), *words.GUESS_FIGURES * mode.guesses]

    def take_texts(self) -> list[tuple[int, str, bool]]:
        """Row, text, and whether it was guessed, in order."""
        texts, self._texts = self._texts, {}
        return [
            (row, "".join(text for _, text in pieces), guessed)
            for row, all_pieces in texts.items()
            for guessed, pieces in groupby(all_pieces, key=itemgetter(0))
        ]

    def take_points(self, *, final: bool = False) -> list[list[Any]]:
        """The points since the last call; a final call includes the last pass, whatever the stride."""
        if final:
            self._close_group()
        points, self._points = self._points, []
        return points
