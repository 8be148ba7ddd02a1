"""One continuously batched run that all visitors of a Lobby share, on the thread that owns the model: what
each sends joins it, what he stops leaves it. Measured runs go first: while one waits nobody new is admitted,
and the live run ends with its rows."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kshipra.backends.lobby import BATCHING, KEPT_BYTES, Lobby
from kshipra.backends.visitors import MOST_TOKENS, Turn, prompt_ids
from kshipra.errors import KshipraError
from kshipra.types import Failed, Message, ModelChoice, Request, StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Job
    from kshipra.engine.prefix import PrefixCache
    from kshipra.engine.runner import Engine

UNREADABLE = "The model's tokenizer does not take this conversation: start a new one."
log = logging.getLogger(__name__)


class Live:
    """The backend treats it like a run: one with a choice of model, that is told what fails and may be
    stopped."""

    def __init__(self, lobby: Lobby, *, among_strangers: bool) -> None:
        """`among_strangers` no visitor goes on from another's text: what he need not read would tell him."""
        self._among_strangers = among_strangers
        self.choice = ModelChoice("")  # of the next time that somebody is served
        self._lobby = lobby
        self._prefixes: PrefixCache | None = None
        self._stopped = False

    @property
    def wanted(self) -> bool:
        return bool(self._lobby.waiting)

    def on(self, loaded: ModelChoice | None) -> Live:
        """Serve with the model that is loaded, else with the one of the visitor who waits longest."""
        self.choice = loaded or next(iter(self._lobby.waiting.values())).visitor.choice
        return self

    def tell(self, message: Message) -> None:
        if isinstance(message, Failed):
            with self._lobby.changed:
                self._lobby.fail(message.sentence)

    def stop(self) -> None:
        """For good."""
        self._stopped = True
        with self._lobby.changed:
            self._lobby.close()

    def stopped(self) -> bool:
        return self._stopped

    def forget_model(self) -> None:
        """Another model comes: nothing that this one has computed is of use."""
        self._prefixes = None
        with self._lobby.changed:
            self._lobby.forget_model()

    def work(self, engine: Engine) -> None:
        """Serve whoever waits, until nobody is left or a measured run waits."""
        from kshipra.engine.prefix import PrefixCache

        lobby = self._lobby
        prefixes = self._prefixes = self._prefixes or PrefixCache(KEPT_BYTES)
        lobby.occupancy.token_bytes = engine.describe().kv_bytes_per_token

        def attend(job: Job) -> None:
            job.requests.clear()  # of those that have not joined, which may since have been cancelled
            job.requests.extend(self._admissible(engine))
            with lobby.changed:
                cancelled = lobby.take_cancelled()
            for row in cancelled:
                job.cancel(row)

        options = {"attend": attend, "batching": BATCHING, "prefixes": prefixes, "stopped": self.stopped}
        try:
            if first := self._admissible(engine):
                for event in engine.run(first, mode="continuous", **options):
                    self._took(event, engine.model.eos_ids, prefixes)
        finally:
            with lobby.changed:
                for turn in list(lobby.serving.values()):
                    lobby.end(turn, "cancelled")
                lobby.take_cancelled()
                lobby.occupancy.rests(lobby.now_s())

    def _admissible(self, engine: Engine) -> list[Request]:
        """The requests that may join now, in order."""
        with self._lobby.changed:
            ready = [] if self._lobby.held_up() else self._lobby.ready()
        for turn in ready:
            if turn.request is None:
                self._prepare(turn, engine)
        return [turn.request for turn in ready if turn.request is not None and turn.under_way]

    def _prepare(self, turn: Turn, engine: Engine) -> None:
        """Its request: ids of the whole conversation, as far as it fits with the answer."""
        visitor, most = turn.visitor, min(MOST_TOKENS, engine.model.spec.context or MOST_TOKENS)
        room = most - turn.params.max_new_tokens
        try:
            ids, left_out = prompt_ids(engine.tokenizer, visitor.exchanges, turn.said, room)
            (request,) = engine.requests([ids], turn.params)
        except Exception as error:  # what one visitor sends must not end the others' rows
            with self._lobby.changed:
                turn.note = str(error) if isinstance(error, KshipraError) else UNREADABLE
                self._lobby.end(turn, "failed")
            if not isinstance(error, KshipraError):
                log.exception("a turn could not be read", exc_info=error)
            return
        with self._lobby.changed:
            turn.request = replace(
                request, row=turn.row, scope=visitor.scope if self._among_strangers else ""
            )
            if left_out:
                visitor.exchanges = visitor.exchanges[left_out:]
                which = "turn is" if left_out == 1 else f"{left_out} turns are"
                turn.note = (
                    f"A conversation takes {most:,} tokens here: its first {which} left out from now on."
                )

    def _took(self, event: StepEvent, ends: frozenset[int], prefixes: PrefixCache) -> None:
        """A pass is over: its rows have joined, its tokens are their visitors'."""
        lobby, is_prompt = self._lobby, event.phase == "prefill"
        has_kept = is_prompt or any(token.finish_reason for token in event.new_tokens)
        kept_bytes = prefixes.used_bytes if has_kept else None
        with lobby.changed:
            now_s = lobby.now_s()
            for row in event.rows:
                lobby.joins(row, now_s - event.elapsed_s)
                if is_prompt and (turn := lobby.serving.get(row)) is not None:
                    turn.reused_tokens += event.reused_tokens
            lobby.occupancy.passed(event, now_s)
            for token in event.new_tokens:
                turn = lobby.serving.get(token.row)
                if turn is not None and (reason := turn.take(token, now_s)) is not None:
                    said = turn.ids[:-1] if token.id in ends else turn.ids  # the end is the template's to say
                    lobby.end(turn, reason, tuple(said))
            lobby.kept_bytes = lobby.kept_bytes if kept_bytes is None else kept_bytes
