"""Visitors of the live batch: a conversation each, the turns they wait for, and how a turn becomes a prompt.
Refuses to know threads, steps and the page."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kshipra.errors import InputError
from kshipra.types import FinishReason, ModelChoice, NewToken, Request, SamplingParams

if TYPE_CHECKING:
    from kshipra.text import Tokenizer

TurnState = Literal["waiting", "reading", "answering", "stop", "length", "context", "cancelled", "failed"]
UNDER_WAY = ("waiting", "reading", "answering")
MOST_TOKENS = 2_048  # of a conversation with its answer, where the model would take more
MOST_ROWS = 64  # of a visitor, that are known to be his: more than a picture shows


@dataclass
class Exchange:
    """What was said and answered; `ids` of the answer, None where another model gave it."""

    said: str
    answer: str
    ids: tuple[int, ...] | None


@dataclass(eq=False)
class Turn:
    """What a visitor said, and its answer as it comes along. `number` is the visitor's own."""

    visitor: Visitor
    number: int
    row: int
    said: str
    params: SamplingParams
    sent_s: float
    state: TurnState = "waiting"
    request: Request | None = None
    text: str = ""
    ids: list[int] = field(default_factory=list)
    reused_tokens: int = 0
    first_s: float | None = None
    last_s: float | None = None
    note: str = ""  # a sentence about it

    @property
    def under_way(self) -> bool:
        return self.state in UNDER_WAY

    def take(self, token: NewToken, now_s: float) -> FinishReason | None:
        """Go on with the answer; why it has ended, if it has."""
        self.state = "answering"
        self.text += token.text
        self.ids.append(token.id)
        self.first_s = self.first_s if self.first_s is not None else now_s
        self.last_s = now_s
        return token.finish_reason

    @property
    def ttft_s(self) -> float | None:
        """From the moment it was sent, so with all waiting."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def tok_per_s(self) -> float | None:
        """New tokens after the first."""
        if self.first_s is None or self.last_s is None or self.last_s <= self.first_s:
            return None
        return (len(self.ids) - 1) / (self.last_s - self.first_s)


@dataclass(eq=False)
class Visitor:
    """One browser tab. `choice` is the model to load when there is none; `turns` are in order, those that
    have ended only until somebody has seen it."""

    choice: ModelChoice
    scope: str = field(default_factory=lambda: uuid.uuid4().hex)
    exchanges: list[Exchange] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    rows: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_ROWS))
    gone: bool = False

    @property
    def under_way(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.under_way]


def prompt_ids(
    tokenizer: Tokenizer, exchanges: Sequence[Exchange], said: str, room: int
) -> tuple[list[int], int]:
    """The conversation with `said` at its end, in the model's chat template where it has one, else as plain
    text; and how many of the first `exchanges` were left out so that it fits `room` tokens.

    Raises InputError if `said` does not fit by itself.
    """
    for left_out in range(len(exchanges) + 1):
        earlier = [(own.said, ids_of(tokenizer, own)) for own in exchanges[left_out:]]
        ids = tokenizer.encode_chat(said, earlier) if tokenizer.has_chat_template else (
            continued(tokenizer, earlier, said)
        )  # fmt: skip
        if len(ids) <= room:
            return ids, left_out
    raise InputError(
        f"The message takes {len(ids):,} tokens and {max(room, 0):,} fit beside its answer: shorten it, "
        "or ask for fewer new tokens."
    )


def ids_of(tokenizer: Tokenizer, exchange: Exchange) -> Sequence[int]:
    if exchange.ids is None:
        exchange.ids = tuple(tokenizer.encode(exchange.answer, add_special_tokens=False))
    return exchange.ids


def continued(tokenizer: Tokenizer, earlier: Sequence[tuple[str, Sequence[int]]], said: str) -> list[int]:
    """A text that model and visitor write in turns, a line break before each of the visitor's."""
    ids: list[int] = []
    for own, answer in earlier:
        ids += _next_part(tokenizer, own, first=not ids)
        ids += answer
    return ids + _next_part(tokenizer, said, first=not ids)


def _next_part(tokenizer: Tokenizer, said: str, *, first: bool) -> list[int]:
    return tokenizer.encode(said if first else f"\n{said}", add_special_tokens=first)
