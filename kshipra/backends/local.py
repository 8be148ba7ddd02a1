"""An engine in this process: one thread owns the model, loads it and runs one plan at a time.

Everything that leaves the thread is a plain Message in a run's own queue, so a slow listener never slows a
pass.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kshipra import metrics
from kshipra.backends import addresses
from kshipra.backends.kept import Asked, KeptTexts, PlanTexts, asked_of
from kshipra.backends.live import Live
from kshipra.backends.lobby import Lobby
from kshipra.backends.outlook import Outlook, work_of
from kshipra.backends.runlog import RunLog
from kshipra.errors import DoesNotFit, KshipraError, ServerError
from kshipra.limits import OWN, Limits, check_plan
from kshipra.memory import Estimate
from kshipra.modes import mode_named
from kshipra.recipes import LAB_KEYS, RECIPE_KEYS, RECIPES, recipe_named
from kshipra.types import (
    Batching,
    DeviceChoice,
    Ended,
    Failed,
    Finished,
    Kept,
    Loading,
    Message,
    ModelChoice,
    Plan,
    Queued,
    Ready,
    Recipe,
    Request,
    Reviewing,
    RunResult,
    StepEvent,
    Stepped,
)

if TYPE_CHECKING:
    from kshipra.backends.openai import ServerEngine
    from kshipra.engine.runner import Engine

MAX_WAITING = 16
log = logging.getLogger(__name__)


class Stopped(KshipraError):
    """Raised inside a load whose run was stopped."""


class LocalRun:
    """A plan, or with `plan=None` only a model to load, and what has been told about it."""

    def __init__(self, backend: LocalBackend, choice: ModelChoice, plan: Plan | None) -> None:
        self.choice, self.plan = choice, plan
        self._backend = backend
        self._told: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._stop = threading.Event()
        self.log = RunLog(choice, plan)
        self.context = contextvars.copy_context()  # of whoever asks: the page's server keeps him there

    def messages(self, timeout_s: float) -> list[Message]:
        try:
            found = [self._told.get(timeout=timeout_s)]
        except queue.Empty:
            return []
        while not self._told.empty():
            found.append(self._told.get_nowait())
        return found

    def stop(self) -> None:
        self._stop.set()
        self._backend.withdraw(self)

    def stopped(self) -> bool:
        return self._stop.is_set()

    def tell(self, message: Message) -> None:
        self.log.add(message)
        self._told.put(message)


class LocalBackend:
    def __init__(self, limits: Limits = OWN) -> None:
        self.limits = limits
        self._changed = threading.Condition()
        self._waiting: list[LocalRun] = []
        self._current: LocalRun | Live | None = None
        self._closed = False
        self.lobby = Lobby(self._changed, lambda: bool(self._waiting) or self._measures())
        self._live = Live(self.lobby, among_strangers=limits.public)
        self._loaded: tuple[ModelChoice, Engine] | None = None
        self._variants: dict[Asked, Engine] = {}  # of what is loaded, as a recipe asks for it
        self._kept = KeptTexts()  # by those variants
        self._model: Ready | Loading | Failed | None = None
        self._outlook = Outlook()
        self._thread = threading.Thread(target=self._work, name="kshipra-engine", daemon=True)
        self._thread.start()

    def submit(self, plan: Plan) -> LocalRun:
        check_plan(plan, RECIPE_KEYS, LAB_KEYS, self.unavailable(), self.limits)
        return self._enqueue(LocalRun(self, plan.choice, plan))

    def preload(self, choice: ModelChoice) -> LocalRun:
        return self._enqueue(LocalRun(self, choice, None))

    def model(self) -> Ready | Loading | Failed | None:
        return self._model

    def estimate(self, plan: Plan) -> Estimate:
        check_plan(plan, RECIPE_KEYS, LAB_KEYS, self.unavailable(), self.limits)
        from kshipra.engine.devices import settled

        loaded = self._loaded
        return self._outlook.of(plan, loaded[1] if loaded and self._has(settled(plan.choice)) else None)

    def devices(self) -> tuple[DeviceChoice, ...]:
        from kshipra.engine.devices import device_choices

        return device_choices()

    def unavailable(self) -> dict[str, str]:
        from kshipra.engine import decode

        missing = {}
        if not decode.compiler() and not any(
            device.name == "cuda" and device.unavailable is None for device in self.devices()
        ):
            missing |= where(decode.NO_COMPILER, lambda one: one.execution == "compiled")
        if self.limits.public and not addresses.allowed():
            missing |= where(addresses.NONE_LISTED, lambda one: mode_named(one.mode).elsewhere)
        return missing

    def kept(self) -> Kept:
        return self._kept.told()

    def forget(self) -> None:
        self._kept.forget()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            if self._current is not None:
                self._current.stop()
            self._live.stop()
            self._changed.notify_all()
        self._thread.join()
        self._loaded = None
        self._variants.clear()
        self.forget()

    def withdraw(self, run: LocalRun) -> None:
        """End `run` at once if it is still waiting; one that works is told through its flag."""
        with self._changed:
            if run in self._waiting:
                self._waiting.remove(run)
                run.tell(Ended(stopped=True))
                self._tell_places()

    def _enqueue(self, run: LocalRun) -> LocalRun:
        with self._changed:
            if self._closed:
                raise KshipraError("Kshipra is shutting down: try again in a minute.")
            if len(self._waiting) >= MAX_WAITING:
                raise KshipraError(f"{MAX_WAITING} runs are waiting already: try again in a few minutes.")
            self._waiting.append(run)
            self._tell_places()
            self._changed.notify_all()
        return run

    def _measures(self) -> bool:
        return isinstance(self._current, LocalRun) and self._current.plan is not None

    def _tell_places(self) -> None:
        """Who waits for a first model only is no run's next; what it waits for, the load tells."""
        loads = isinstance(self._current, LocalRun) and not self._measures()
        ahead = 1 if self._current is not None and not loads else 0
        there, others_load = self._model_in_use(), False
        for place, run in enumerate(self._waiting, start=ahead):
            other = run.choice.model if run.choice.model != there else None
            if place:
                run.tell(Queued(place, others_load, other, there if other and not others_load else None))
            elif loads:
                first = Loading(f"Loading {self._current.choice.model}")
                run.tell(self._model if isinstance(self._model, Loading) else first)
            there, others_load = run.choice.model, others_load or other is not None

    def _model_in_use(self) -> str | None:
        if self._current is not None:
            return self._current.choice.model
        return self._loaded[0].model if self._loaded else None

    def _next(self) -> LocalRun | Live | None:
        """Who has the model next: a run in its turn, else all who share the live one."""
        with self._changed:
            self._current = None
            self._changed.wait_for(lambda: self._waiting or self._live.wanted or self._closed)
            if self._closed:
                for run in self._waiting:
                    run.tell(Ended(stopped=True))
                return None
            if self._waiting:
                self._current = self._waiting.pop(0)
                self._current.log.begin()
                self._tell_places()
            else:
                self._current = self._live.on(self._loaded[0] if self._loaded else None)
            return self._current

    def _work(self) -> None:
        while (run := self._next()) is not None:
            try:
                engine = self._engine(run)
                if isinstance(run, Live):
                    run.work(engine)
                elif run.plan is not None:
                    self._serve(run, run.plan, engine)
            except Stopped:
                pass
            except Exception as error:  # the thread must outlive whatever a run does
                run.tell(Failed(self._sentence(error)))
            finally:
                run.tell(Ended(run.stopped()))

    def _serve(self, run: LocalRun, plan: Plan, engine: Engine) -> None:
        """Every recipe on the same requests, so with the same seeds, one after another."""
        requests = engine.requests(plan.prompts, plan.each, chat=plan.chat)
        texts = self._kept.for_plan(plan)
        engines: dict[str, Engine | ServerEngine] = {}
        results: dict[str, RunResult] = {}
        for key in plan.recipes:
            if run.stopped():
                return
            try:
                recipe = recipe_named(key)
                mode_named(recipe.mode).check(requests)  # before an engine is made for nothing
                own = self._variant(run, recipe, engine, plan)
                options = how(plan, recipe, texts)
                own.check(requests, mode_named(recipe.mode), options["batching"])
            except Stopped:
                raise
            except KshipraError as error:  # it cannot be had here, which costs the other recipes nothing
                run.tell(Failed(self._sentence(error), key, unavailable=True))
                continue
            ended = None if run.stopped() else self._recipe(run, recipe, requests, own, options)
            if isinstance(ended, RunResult):
                engines[key], results[key] = own, ended
                texts.leave(recipe, options["prefixes"])
            elif ended is None or not ended.unavailable:
                return
        results = {key: result for key, result in results.items() if result.tells_ids}
        if results and not run.stopped():
            again = {key: how(plan, recipe_named(key), texts) for key in results}
            self._review(run, requests, results, engines, again)

    def _variant(self, run: LocalRun, recipe: Recipe, engine: Engine, plan: Plan) -> Engine | ServerEngine:
        """`engine` as `recipe` asks for it, made once and kept as long as it; or what is elsewhere."""
        from kshipra.backends.openai import server_engine
        from kshipra.engine.variants import variant

        if mode_named(recipe.mode).elsewhere:
            return server_engine(
                plan.server,
                engine,
                model=plan.choice.model,
                chat=plan.chat,
                public=self.limits.public,
            )

        def progress(what: str, done: int | None, total: int | None) -> None:
            if run.stopped():
                raise Stopped("The making of an engine was stopped.")
            run.tell(Loading(what, done, total))

        asked = asked_of(recipe)
        if asked not in self._variants:
            alike = recipe.weights, "eager", recipe.implementation  # shares what was converted for it
            made = variant(self._variants.get(alike, engine), run.choice, *asked, progress=progress)
            self._variants[asked] = made
        return self._variants[asked]

    def _review(
        self,
        run: LocalRun,
        requests: tuple[Request, ...],
        results: dict[str, RunResult],
        engines: dict[str, Any],
        options: dict[str, dict[str, Any]],
    ) -> None:
        from kshipra.engine.review import review

        def tell(what: str) -> None:
            run.tell(Reviewing(what))

        reviewed = review(engines, requests, results, stopped=run.stopped, tell=tell, options=options)
        if reviewed is not None:
            run.tell(reviewed)

    def _recipe(
        self,
        run: LocalRun,
        recipe: Recipe,
        requests: tuple[Request, ...],
        engine: Engine | ServerEngine,
        options: dict[str, Any],
    ) -> RunResult | Failed:
        """Run one recipe and tell of every step; the failure where there was one, which has been told, with
        what there was until then."""
        key, mode = recipe.key, recipe.mode
        events: list[StepEvent] = []
        run.tell(engine.started(key, requests))
        try:
            for event in engine.run(requests, stopped=run.stopped, **options):
                events.append(event)
                run.tell(Stepped(key, event))
        except Exception as error:
            elsewhere = isinstance(error, ServerError)  # it costs the ways that are here nothing
            so_far = metrics.fold(mode, requests, events) if events or not elsewhere else None
            failed = Failed(self._sentence(error), key, so_far, unavailable=elsewhere)
            run.tell(failed)
            return failed
        result = metrics.fold(mode, requests, events)
        run.tell(Finished(key, result, any(row.finish_reason == "cancelled" for row in result.rows)))
        return result

    def _sentence(self, error: Exception) -> str:
        return sentence_for(error, public=self.limits.public)

    def _engine(self, run: LocalRun | Live) -> Engine:
        """The engine of the run's choice. The one before stays until the new one is there, then goes."""
        from kshipra.engine.devices import settled

        if not self._has(choice := settled(run.choice)):
            before = self._model if isinstance(self._model, Ready) else None
            self._variants.clear()  # first, so that they take no memory beside the new model
            self._live.forget_model()
            self._kept = KeptTexts()
            try:
                self._loaded = (choice, self._load(run))
            except Exception as error:
                of_the_run = isinstance(error, (Stopped, DoesNotFit))
                self._model = before or (None if of_the_run else Failed(self._sentence(error)))
                raise
        engine = self._loaded[1]
        self._model = engine.describe()
        run.tell(self._model)
        return engine

    def _has(self, choice: ModelChoice) -> bool:
        """Whether it is loaded; a draft that it does not ask for does no harm."""
        loaded = self._loaded[0] if self._loaded is not None else None
        return loaded is not None and choice in (loaded, replace(loaded, draft=None))

    def _load(self, run: LocalRun | Live) -> Engine:
        from kshipra.engine.devices import free_bytes
        from kshipra.engine.runner import load_choice

        def progress(what: str, done: int | None, total: int | None) -> None:
            if run.stopped():
                raise Stopped("The load was stopped.")
            self._model = Loading(what, done, total)
            run.tell(self._model)
            with self._changed:
                for next_one in [] if self._measures() else self._waiting[:1]:
                    next_one.tell(self._model)

        progress(f"Loading {run.choice.model}", None, None)
        plan = run.plan if isinstance(run, LocalRun) else None
        engine = load_choice(run.choice, work=work_of(plan) if plan else None, progress=progress)
        self._kept = KeptTexts(free_bytes(engine.device))
        return engine


def where(why: str, missing: Callable[[Recipe], bool]) -> dict[str, str]:
    """The recipes that are `missing`, by key, with the reason."""
    return {recipe.key: why for recipe in RECIPES if missing(recipe)}


def how(plan: Plan, recipe: Recipe, texts: PlanTexts) -> dict[str, Any]:
    """What Engine.run takes for `recipe`, beside the requests and who stops it."""
    from kshipra.engine.layout import layout_named

    return {
        "mode": recipe.mode,
        "layout": layout_named(recipe.fault),
        "batching": Batching(rows=plan.rows if mode_named(recipe.mode).batches else None),
        "prefixes": texts.found_by(recipe),
    }


def sentence_for(error: Exception, *, public: bool = False) -> str:
    """What a person is told about `error`; what they cannot mend goes to the log with its traceback."""
    if isinstance(error, KshipraError):
        if public and error.in_public != str(error):
            log.warning("%s", error)
        return error.in_public if public else str(error)
    if isinstance(error, MemoryError) or "memory" in str(error).lower():
        log.warning("out of memory", exc_info=error)
        return (
            "The run needed more memory than there is: use fewer prompts, shorter ones or fewer new tokens."
        )
    log.exception("a run failed", exc_info=error)
    return (
        "Something went wrong in Kshipra itself: the log has the details; try again or change the settings."
    )
