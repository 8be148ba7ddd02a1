"""Where visitors of the live batch meet: what each wants, what each may see, and who may join next. Refuses
to know how a request is served.

Any thread may come here: everything is done under the backend's own lock.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Condition

from kshipra import limits
from kshipra.backends.occupancy import Bar, Figures, Occupancy
from kshipra.backends.visitors import Exchange, Turn, TurnState, Visitor
from kshipra.errors import KshipraError
from kshipra.types import Batching, ModelChoice, SamplingParams

BATCHING = Batching(rows=8, cache_tokens=8_192)  # four of the longest conversations, or eight of half of it
KEPT_BYTES = 256 * 2**20  # of earlier texts' keys and values
MOST_WAITING = 32
MOST_TURNS = 4  # of one visitor, under way at once


@dataclass(frozen=True)
class TurnNews:
    """A turn as its visitor may see it now. `place`: how many go before it, while it waits."""

    number: int
    state: TurnState
    place: int
    behind_own: bool  # waits for the visitor's own turn before it
    text: str
    note: str
    ttft_s: float | None
    tok_per_s: float | None
    new_tokens: int
    prompt_tokens: int | None  # None until it has been read as ids
    reused_tokens: int


@dataclass(frozen=True)
class Scene:
    """The live batch as one visitor may see it: his turns, which rows are his, and how full it is."""

    turns: tuple[TurnNews, ...]
    own_rows: frozenset[int]
    bars: tuple[Bar, ...]
    figures: Figures
    visitors: int
    waiting: int
    kept_bytes: int
    held_up: bool  # a measured run goes first


class Lobby:
    def __init__(self, changed: Condition, held_up: Callable[[], bool]) -> None:
        """`changed`: the backend's lock, and how its thread is woken. `held_up`: whether a measured run waits
        or works; asked with the lock held."""
        self.changed, self.held_up = changed, held_up
        self.visitors: set[Visitor] = set()
        self.waiting: dict[int, Turn] = {}  # by row, in the order of arrival
        self.serving: dict[int, Turn] = {}
        self.occupancy = Occupancy()
        self.kept_bytes = 0
        self._cancelled: list[int] = []
        self._numbers = itertools.count()
        self._closed = False
        self._began_s = time.perf_counter()

    # For visitors

    def enter(self, choice: ModelChoice) -> Visitor:
        visitor = Visitor(choice)
        with self.changed:
            self.visitors.add(visitor)
        return visitor

    def leave(self, visitor: Visitor) -> None:
        """His tab is closed: his rows end before their next token. More than once is as good as once."""
        with self.changed:
            self.forget(visitor)
            visitor.gone = True
            self.visitors.discard(visitor)

    def send(self, visitor: Visitor, number: int, said: str, params: SamplingParams) -> None:
        """Let `said` wait for its place in the batch. Raises KshipraError at once for what is not taken."""
        limits.check_turn(said, params)
        with self.changed:
            if visitor.gone or self._closed:
                raise KshipraError("This page has lost its place: reload it.")
            if len(visitor.under_way) >= MOST_TURNS:
                raise KshipraError(f"{MOST_TURNS} of your messages are under way: wait for an answer.")
            if len(self.waiting) >= MOST_WAITING:
                raise KshipraError(f"{MOST_WAITING} messages are waiting already: try again in a minute.")
            turn = Turn(visitor, number, next(self._numbers), said, params, self.now_s())
            visitor.turns.append(turn)
            visitor.rows.append(turn.row)
            self.waiting[turn.row] = turn
            self.changed.notify_all()

    def cancel(self, visitor: Visitor, number: int) -> None:
        """Stop his turn of that number; what it has said stays in the conversation."""
        with self.changed:
            for turn in visitor.under_way:
                if turn.number == number:
                    self.end(turn, "cancelled")

    def forget(self, visitor: Visitor) -> None:
        """A new conversation: stop what is under way, and nothing was ever said."""
        with self.changed:
            for turn in visitor.under_way:
                self.end(turn, "cancelled")
            visitor.exchanges, visitor.turns = [], []

    def scene(self, visitor: Visitor) -> Scene:
        """What he may see now; turns that have ended are told once."""
        with self.changed:
            places = {turn: place for place, turn in enumerate(self.ready())}
            turns = tuple(_news(turn, places) for turn in visitor.turns)
            visitor.turns = visitor.under_way
            return Scene(
                turns=turns,
                own_rows=frozenset(visitor.rows),
                bars=tuple(map(replace, self.occupancy.bars())),
                figures=self.occupancy.figures(),
                visitors=len(self.visitors),
                waiting=len(self.waiting),
                kept_bytes=self.kept_bytes,
                held_up=self.held_up(),
            )

    # For whoever serves them, with the lock held

    def ready(self) -> list[Turn]:
        """Who may join next, in order: of each visitor the first that is under way."""
        return [turn for turn in self.waiting.values() if turn.visitor.under_way[0] is turn]

    def joins(self, row: int, now_s: float) -> None:
        """The row that waited is in the batch; one that was cancelled meanwhile is nobody's."""
        if (turn := self.waiting.pop(row, None)) is not None:
            self.serving[row] = turn
            turn.state = "reading"
            self.occupancy.joins(row, now_s)

    def end(self, turn: Turn, state: TurnState, ids: tuple[int, ...] | None = None) -> None:
        """It is over; what it has said is part of the conversation, as `ids` (None: as all its ids)."""
        if state in ("cancelled", "failed"):
            self._cancelled.append(turn.row)
        self.waiting.pop(turn.row, None)
        self.serving.pop(turn.row, None)
        self.occupancy.leaves(turn.row, self.now_s())
        turn.state = state
        if turn.ids:
            turn.visitor.exchanges.append(
                Exchange(turn.said, turn.text, tuple(turn.ids) if ids is None else ids)
            )

    def fail(self, sentence: str) -> None:
        """Nobody can be served: whatever is under way ends with that sentence."""
        for turn in [*self.serving.values(), *self.waiting.values()]:
            turn.note = sentence
            self.end(turn, "failed")

    def take_cancelled(self) -> list[int]:
        """Rows whose visitors want no more, since the last call."""
        taken, self._cancelled = self._cancelled, []
        return taken

    def forget_model(self) -> None:
        """Another model comes, which has its own ids."""
        self.kept_bytes = 0
        for turn in self.waiting.values():
            turn.request = None
        for exchange in itertools.chain.from_iterable(visitor.exchanges for visitor in self.visitors):
            exchange.ids = None

    def close(self) -> None:
        self._closed = True
        self.fail("Kshipra is shutting down: try again in a minute.")

    def now_s(self) -> float:
        return time.perf_counter() - self._began_s


def _news(turn: Turn, places: dict[Turn, int]) -> TurnNews:
    return TurnNews(
        number=turn.number,
        state=turn.state,
        place=places.get(turn, 0),
        behind_own=turn.state == "waiting" and turn not in places,
        text=turn.text,
        note=turn.note,
        ttft_s=turn.ttft_s,
        tok_per_s=turn.tok_per_s,
        new_tokens=len(turn.ids),
        prompt_tokens=len(turn.request.prompt_ids) if turn.request else None,
        reused_tokens=turn.reused_tokens,
    )
