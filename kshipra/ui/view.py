"""Fold a run's Messages into lines of JSON for the page's script. No gradio, no torch, no clock.

Decides how often what is told: text three times a second, figures and chart points half as often, both ever
more rarely in a long run, so that its whole text stays small; a state and a way's first token at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kshipra.costs import kv_bytes_per_token
from kshipra.memory import Estimate
from kshipra.modes import mode_named
from kshipra.types import (
    Ended,
    Failed,
    Finished,
    Kept,
    Loading,
    Message,
    Queued,
    Ready,
    Recipe,
    Reviewed,
    Reviewing,
    Started,
    StepEvent,
    Stepped,
)
from kshipra.ui import show, words
from kshipra.ui.columns import Column
from kshipra.ui.lines import line
from kshipra.ui.summary import Outcome, closing_words, did_not_run, summarize

TEXT_EVERY_S = 0.3
CHARTS_EVERY_S = 0.6
LONG_RUN_S = 60.0  # from here on both intervals grow with the run's age
SHOWN_PROMPT_CHARS = 2_000


def loading_text(message: Loading) -> str:
    if message.done is None:
        return message.what
    of = f" of {show.size(message.total)}" if message.total else ""
    return f"{message.what}: {show.size(message.done)}{of}"


def queued_text(message: Queued) -> str:
    """How many go first, and which model is loaded then in the place of which."""
    said = words.QUEUED
    go_first = {0: said["next"], 1: said["one"]}.get(message.place, said["more"].format(n=message.place))
    text = go_first + said["others"] * message.others_load
    if message.loads is not None:
        before = said["it"] if message.others_load else message.instead_of
        text += said["loads"].format(model=message.loads)
        text += said["instead"].format(before=before) if before else ""
    return f"{text}."


def model_text(message: Ready | Loading | Failed | None) -> str:
    """The header's line: what is loaded, or why nothing is."""
    if message is None:
        return words.HEADER["none"]
    if isinstance(message, Loading):
        return loading_text(message)
    if isinstance(message, Failed):
        return message.sentence
    where = f"{message.device}, {message.threads} threads" if message.device == "cpu" else message.device
    return " · ".join(
        (
            message.spec.name,
            f"{where}, {message.spec.dtype}",
            f"weights {show.size(message.weight_bytes)}",
            f"KV {show.size(message.kv_bytes_per_token or kv_bytes_per_token(message.spec))}/token",
        )
    )


def compiled_text(compile_s: float) -> str:
    """What compiling a way's engine took; 0.0 where its code was on disk."""
    return words.COMPILED.format(time=show.seconds(compile_s)) if compile_s else words.COMPILED_BEFORE


def kept_text(kept: Kept) -> str:
    said = words.REUSE
    if not kept.texts:
        return said["nothing"]
    texts = said["text"] if kept.texts == 1 else said["texts"].format(n=kept.texts)
    return said["kept"].format(
        texts=texts, used=show.size(kept.used_bytes), budget=show.size(kept.budget_bytes)
    )


def estimate_text(found: Estimate) -> str:
    """What a plan that fits takes of memory, against what is free."""
    said = words.ESTIMATE["loaded" if found.is_loaded else "fits"]
    return said.format(
        model=found.spec.name,
        parameters=f"{show.digits(found.parameters / 1e6)} million",
        dtype=found.spec.dtype,
        needed=show.size(found.needed_bytes),
        free=show.size(found.free_bytes),
    )


def shown_prompt(prompt: str) -> str:
    """`prompt` as the columns repeat it: the middle of a very long one is left out, and that is said."""
    left_out = len(prompt) - SHOWN_PROMPT_CHARS
    if left_out <= 0:
        return prompt
    half = SHOWN_PROMPT_CHARS // 2
    return f"{prompt[:half]} [… {left_out:,} characters …] {prompt[-half:]}"


def refusal(run_id: str, sentence: str) -> str:
    """A run that never began: one line, which leaves the page's last results where they are."""
    return line("refused", run_id, sentence)


class RunView:
    """Lines, one kind each: run (id, facts), status (state, text), model (text), state (way, word, text),
    note (way, sentence: what else is known of it), why (way, sentence: it cannot run here),
    t (way, row, text, and 1 where it was guessed), end (way, row, reason), f (way, figures),
    p (way, points), summary (dict), over ().
    A way is its place among the run's recipes. `ragged` and `reuse` are the plan's.
    """

    def __init__(
        self,
        run_id: str,
        recipes: tuple[Recipe, ...],
        prompts: tuple[str, ...],
        *,
        ragged: bool = False,
        reuse: bool = False,
    ) -> None:
        self.ended, self._reuse = False, reuse
        self._columns = [Column(recipe) for recipe in recipes]
        self._places = {recipe.key: place for place, recipe in enumerate(recipes)}
        self._outcomes: list[Outcome] = []
        self._failure: str | None = None
        self._missing: list[str] = []  # what is said of ways that cannot run here
        self._dtype: str | None = None
        self._active: int | None = None
        self._begun_at: float | None = None
        self._text_at = self._charts_at = float("-inf")
        self._dirty: set[int] = set()  # ways with figures or points that were not told
        self._closed: set[int] = set()  # those whose last points may go
        facts = {
            "recipes": [recipe.key for recipe in recipes],
            "prompts": [shown_prompt(p) for p in prompts],
            "figures": [column.more_figures(reuse=reuse) for column in self._columns],
            "ragged": ragged,
        }
        self._out = [line("run", run_id, facts), line("status", "queued", words.PAGE["starting"])]

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            handler = getattr(self, f"_on_{type(message).__name__.lower()}")
            handler(message)

    def lines(self, now_s: float) -> str:
        """What is due at `now_s` (a monotonic clock's); "" when nothing is."""
        if self._begun_at is None:
            self._begun_at = now_s
        slower = max(1.0, (now_s - self._begun_at) / LONG_RUN_S)
        if self.ended or now_s - self._text_at >= TEXT_EVERY_S * slower or self._is_first_token():
            self._tell_texts(now_s)
        if self._dirty and (self.ended or now_s - self._charts_at >= CHARTS_EVERY_S * slower):
            self._tell_charts(now_s)
        if self.ended:
            self._tell_end()
        out, self._out = self._out, []
        return "".join(out)

    # What to tell when

    def _is_first_token(self) -> bool:
        column = self._columns[self._active] if self._active is not None else None
        return column is not None and column.passes <= 1

    def _tell(self, *parts: Any) -> None:
        self._out.append(line(*parts))

    def _tell_texts(self, now_s: float) -> None:
        for place in range(len(self._columns)):
            if self._tell_texts_of(place):
                self._text_at = now_s

    def _tell_charts(self, now_s: float) -> None:
        for place in sorted(self._dirty):
            column = self._columns[place]
            self._tell("f", place, column.figures())
            if points := column.take_points(final=place in self._closed):
                self._tell("p", place, points)
        self._dirty.clear()
        self._charts_at = now_s

    def _tell_end(self) -> None:
        self._tell("summary", summarize(self._outcomes, self._dtype, self._missing))
        self._tell("over")

    # One method a kind of message

    def _on_queued(self, message: Queued) -> None:
        self._tell("status", "queued", queued_text(message))
        for place in self._places.values():
            self._tell("state", place, "queued", "queued")

    def _on_loading(self, message: Loading) -> None:
        self._tell("status", "loading", loading_text(message))
        if self._dtype is None:
            self._tell("model", loading_text(message))
        elif (place := len(self._closed)) < len(self._columns):  # the model is there: it is a way's engine
            self._tell("state", place, "loading", "preparing")

    def _on_ready(self, message: Ready) -> None:
        self._dtype = message.spec.dtype
        self._tell("model", model_text(message))

    def _on_started(self, message: Started) -> None:
        self._active = place = self._places[message.recipe]
        self._columns[place].requests = message.requests
        if message.server_model is not None:
            self._tell("note", place, words.SERVER["asked"].format(model=message.server_model))
        if message.compile_s is not None:
            self._tell("note", place, compiled_text(message.compile_s))
        if self._reuse and not mode_named(self._columns[place].recipe.mode).caches:
            self._tell("note", place, words.REUSE["none"])
        self._phase(place, "prefill")
        for later in range(place + 1, len(self._columns)):
            before = self._columns[later - 1].recipe.letter
            self._tell("state", later, "waiting", f"waiting for {before}")

    def _on_stepped(self, message: Stepped) -> None:
        place = self._places[message.recipe]
        column, event = self._columns[place], message.event
        self._tell_phase_change(place, column.last, event)
        column.add(event)
        self._dirty.add(place)
        for token in event.new_tokens:
            if token.finish_reason:
                self._tell_texts_of(place)
                self._tell("end", place, token.row, words.FINISH[token.finish_reason])

    def _on_finished(self, message: Finished) -> None:
        self._close(message.recipe, "stopped" if message.stopped else None)
        recipe = self._columns[self._places[message.recipe]].recipe
        self._outcomes.append(Outcome(recipe, message.result, "stopped" if message.stopped else None))

    def _on_reviewing(self, message: Reviewing) -> None:
        self._tell("status", "running", message.what)

    def _on_reviewed(self, message: Reviewed) -> None:
        """Told by the run's record, not line by line."""

    def _on_failed(self, message: Failed) -> None:
        if message.unavailable and message.recipe is not None:
            self._missing.append(did_not_run(message))
            self._close(message.recipe, "unavailable" if message.result is None else "failed")
            self._tell("why", self._places[message.recipe], message.sentence)
        else:
            self._failure = message.sentence
            self._tell("status", "failed", message.sentence)
            if message.recipe is None:
                return
            self._close(message.recipe, "failed")
        if message.result is not None:
            recipe = self._columns[self._places[message.recipe]].recipe
            self._outcomes.append(Outcome(recipe, message.result, "failed"))

    def _on_ended(self, message: Ended) -> None:
        self.ended = True
        self._active = None
        for place in self._places.values():
            if place not in self._closed:
                word = "failed" if self._failure else "stopped"
                self._tell("state", place, word, word)
        if self._failure:
            self._tell("status", "failed", self._failure)
        elif self._missing and all(one.excluded for one in self._outcomes) and not message.stopped:
            self._tell("status", "failed", " ".join(self._missing))
        elif message.stopped:
            self._tell("status", "stopped", "Stopped: what there is stays.")
        else:
            self._tell("status", "done", self._closing_words())

    # Their parts

    def _closing_words(self) -> str:
        summary = summarize(self._outcomes, self._dtype)
        parts = ("Done.", *closing_words(self._outcomes, summary), *self._missing)
        return " ".join(part for part in parts if part)

    def _phase(self, place: int, word: str) -> None:
        recipe = self._columns[place].recipe
        self._tell("state", place, word, word)
        if not self._failure:
            of = f", {place + 1} of {len(self._columns)}" if len(self._columns) > 1 else ""
            self._tell("status", "running", f"{recipe.letter} {recipe.label}: {word}{of}")

    def _tell_phase_change(self, place: int, last: StepEvent | None, event: StepEvent) -> None:
        """The column follows every change; the status, which is read aloud, only the first of a way."""
        word = "prefill" if event.phase == "prefill" else "decoding"
        was = "prefill" if last is None or last.phase == "prefill" else "decoding"
        if word == was:
            return
        if word == "decoding" and last is not None and not self._columns[place].decoded:
            self._phase(place, word)
        else:
            self._tell("state", place, word, word)

    def _tell_texts_of(self, place: int) -> bool:
        """Whether there was any."""
        texts = self._columns[place].take_texts()
        for row, text, guessed in texts:
            self._tell("t", place, row, text, *[1] * guessed)
        return bool(texts)

    def _close(self, key: str, excluded: str | None) -> None:
        place = self._places[key]
        self._tell_texts_of(place)
        self._closed.add(place)
        self._dirty.add(place)
        word = excluded or "done"
        self._tell("state", place, word, word)
