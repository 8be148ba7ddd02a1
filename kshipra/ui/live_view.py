"""Fold what one visitor may see of the live batch into lines of JSON for the page's script: only what has
changed. No gradio, no torch, no clock."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

from kshipra.backends.lobby import BATCHING, KEPT_BYTES, Scene, TurnNews
from kshipra.types import Failed, Loading, Ready
from kshipra.ui import show, words
from kshipra.ui.lines import line
from kshipra.ui.view import loading_text, model_text

MOST_CHARS = 16_000  # of the text, which is as old as the visit ...
KEPT_CHARS = 4_000  # ... before it goes on from its last lines


class LiveView:
    """Lines, one kind each, each with its number so that none is taken twice: model (text), took (wish),
    turn (number, state, word, note, figures), t (number, text: goes on with the answer),
    bar (row, own, place, joined_s, first_s, left_s), now (now_s, running, own rows, figures),
    refused (number, sentence).
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._out: list[str] = []
        self._lines: deque[str] = deque()
        self._chars = 0
        self._told: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._said: dict[int, int] = {}  # characters of each turn's answer that were told

    def took(self, wish: int) -> None:
        self._tell("took", wish)

    def refuse(self, number: int, sentence: str) -> None:
        self._tell("refused", number, sentence)

    def text(self, scene: Scene, model: Ready | Loading | Failed | None) -> str | None:
        """The component's whole text, or None while it is as it was."""
        self._tell_new("model", (), model_text(model))
        for turn in scene.turns:
            self._tell_turn(turn, scene, model)
        self._tell_batch(scene)
        if not self._out:
            return None
        self._lines.extend(self._out)
        self._chars += sum(map(len, self._out))
        self._out = []
        if self._chars > MOST_CHARS:
            while self._chars > KEPT_CHARS:
                self._chars -= len(self._lines.popleft())
        return "".join(self._lines)

    def _tell(self, kind: str, *parts: Any) -> None:
        self._out.append(line(kind, next(self._numbers), *parts))

    def _tell_new(self, kind: str, key: tuple[Any, ...], *parts: Any) -> None:
        if self._told.get((kind, *key)) != parts:
            self._told[kind, *key] = parts
            self._tell(kind, *key, *parts)

    def _tell_turn(self, turn: TurnNews, scene: Scene, model: Any) -> None:
        word, figures = word_of(turn, scene, model), figures_of(turn)
        if new := turn.text[self._said.get(turn.number, 0) :]:
            self._tell("t", turn.number, new)
            self._said[turn.number] = len(turn.text)
        self._tell_new("turn", (turn.number,), turn.state, word, turn.note, figures)
        if turn.state not in ("waiting", "reading", "answering"):  # it is told once
            self._told.pop(("turn", turn.number), None)
            self._said.pop(turn.number, None)

    def _tell_batch(self, scene: Scene) -> None:
        shown = {bar.row: bar for bar in scene.bars}
        for kind, *key in list(self._told):
            if kind == "bar" and key[0] not in shown:
                del self._told[kind, *key]
        for row, bar in shown.items():
            times = [bar.joined_s, bar.first_s, bar.left_s]
            rounded = [None if time is None else round(time, 2) for time in times]
            self._tell_new("bar", (row,), row in scene.own_rows, bar.place, *rounded)
        mine = sum(bar.left_s is None for row, bar in shown.items() if row in scene.own_rows)
        figures = scene.figures
        self._tell_new("now", (), round(figures.now_s, 2), figures.running, mine, batch_figures(scene))


def word_of(turn: TurnNews, scene: Scene, model: Ready | Loading | Failed | None) -> str:
    """What a turn is at: its place while it waits, and what it waits for."""
    if turn.state != "waiting":
        return words.LIVE_STATES.get(turn.state) or words.FINISH[turn.state]
    if turn.behind_own:
        return words.LIVE_STATES["behind"]
    if isinstance(model, Loading):
        return loading_text(model)
    return words.LIVE_STATES["held up" if scene.held_up else "place"].format(place=turn.place + 1)


def figures_of(turn: TurnNews) -> list[str]:
    """In the order of `words.LIVE_TURN`."""
    read = turn.prompt_tokens
    reused = show.DASH if turn.state == "waiting" or read is None else f"{turn.reused_tokens:,} of {read:,}"
    return [
        show.seconds(turn.ttft_s),
        show.digits(turn.tok_per_s),
        reused,
        show.count(turn.new_tokens),
    ]


def batch_figures(scene: Scene) -> list[str]:
    """In the order of `words.LIVE_BATCH`."""
    figures = scene.figures
    return [
        f"{figures.running} of {BATCHING.rows}",
        show.count(scene.waiting),
        show.digits(figures.passes_per_s),
        show.digits(figures.tok_per_s),
        show.seconds(figures.largest_gap_s),
        f"{figures.columns:,} of {BATCHING.cache_tokens:,}",
        f"{show.size(scene.kept_bytes)} of {show.size(KEPT_BYTES)}",
        show.count(scene.visitors),
    ]
