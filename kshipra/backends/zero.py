"""An engine on a Space with ZeroGPU: no GPU belongs to this process, but one is lent to a process that is
forked from it, for one call of one decorated generator.

So a plan runs in that call, whole: plain values go in and come out, pickled, and every figure is taken
there. Here the model stands on the processor: it reads prompts as ids, runs plans that ask for cpu, and is
what the fork finds and moves to its GPU. A scheduler that serves many requests cannot live across such calls.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import spaces  # before whatever imports torch: it stands in for CUDA in this process

from kshipra import metrics
from kshipra.backends import lease
from kshipra.backends.local import LocalBackend, LocalRun, where
from kshipra.errors import InputError
from kshipra.limits import OWN, Limits
from kshipra.memory import Estimate
from kshipra.modes import mode_named
from kshipra.recipes import recipe_named
from kshipra.types import (
    DeviceChoice,
    Failed,
    Finished,
    Loading,
    Message,
    ModelChoice,
    Plan,
    Ready,
    Request,
    RunResult,
    Started,
    StepEvent,
    Stepped,
)

if TYPE_CHECKING:
    from kshipra.engine.runner import Engine

GPU, CPU = "cuda", "cpu"
BEAT_S = 0.5  # the GPU's process is told to stop only between two of its messages, so it never falls silent
NOT_COMPILED = (
    "a compiled step is made for this server's processor, and ZeroGPU lends a GPU for one run at a time"
)
NOT_LENT = "a run here holds a lent GPU, which would wait idly for the server"
Told = tuple[Message, ...]


class ZeroBackend(LocalBackend):
    def __init__(self, limits: Limits = OWN) -> None:
        super().__init__(limits)
        self.lobby = None
        self._on_gpu: tuple[ModelChoice, Engine] | None = None  # in the GPU's process only
        self._lent = spaces.GPU(self._messages, duration=asked_s)

    def devices(self) -> tuple[DeviceChoice, ...]:
        """What torch says of the GPU in this process is made up, and so is not shown."""
        lent = DeviceChoice(GPU, "cuda, a GPU that ZeroGPU lends for each run")
        return tuple(lent if device.name == GPU else device for device in super().devices())

    def unavailable(self) -> dict[str, str]:
        return {
            **where(NOT_COMPILED, lambda one: one.execution == "compiled"),
            **where(NOT_LENT, lambda one: mode_named(one.mode).elsewhere),
        }

    def estimate(self, plan: Plan) -> Estimate:
        """Of this process, where the model must fit too; the GPU that is lent has more."""
        return super().estimate(replace(plan, choice=replace(plan.choice, device=CPU)))

    def submit(self, plan: Plan) -> LocalRun:
        if plan.choice.device not in ("auto", GPU, CPU):
            raise InputError(f"Device must be auto, {GPU} or {CPU}, not {plan.choice.device!r:.40}.")
        return super().submit(plan)

    def _enqueue(self, run: LocalRun) -> LocalRun:
        run.choice = replace(run.choice, device=CPU)  # where models are in this process
        return super()._enqueue(run)

    def _serve(self, run: LocalRun, plan: Plan, engine: Engine) -> None:
        if plan.choice.device == CPU:
            super()._serve(run, plan, engine)
            return
        requests = engine.requests(plan.prompts, plan.each, chat=plan.chat)
        seconds = lease.seconds(engine.model.spec, requests, plan)
        run.tell(Loading(f"Asking ZeroGPU for a GPU, for {seconds} s at most"))
        told = Heard()
        try:
            with closing(self._lent(run.choice, plan, seconds)) as stream:
                # In the context of who asks: ZeroGPU finds there whose time it is.
                while not run.stopped() and (messages := run.context.run(next, stream, None)) is not None:
                    for message in messages:
                        self._model = message if isinstance(message, Ready) else self._model
                        told.add(message)
                        run.tell(message)
            if told.way is not None:
                run.tell(Finished(told.way, told.result(), stopped=True))
        except Exception as error:
            sentence = zero_sentence(error, begun=told.begun) or self._sentence(error)
            run.tell(Failed(sentence, told.way, told.result()))

    # From here on in the GPU's process. It has everything of this object as it was at the fork, and no thread
    # of it: a lock that one of them held is held for ever.

    def _messages(self, choice: ModelChoice, plan: Plan, seconds: int) -> Iterator[Told]:
        """All that a run of `plan` tells. Closing it ends the run with its pass."""
        run = GpuRun(replace(choice, device=GPU), plan)
        thread = threading.Thread(target=self._work_on_gpu, args=(run,), daemon=True)
        thread.start()
        try:
            while not run.ended:
                yield run.told(BEAT_S)
        finally:
            run.stop()
            thread.join()

    def _work_on_gpu(self, run: GpuRun) -> None:
        try:
            engine = self._engine_on_gpu(run)
            run.tell(engine.describe())
            super()._serve(run, run.plan, engine)
        except Exception as error:
            run.tell(Failed(self._sentence(error)))
        finally:
            run.tell(None)

    def _engine_on_gpu(self, run: GpuRun) -> Engine:
        """The process may serve several calls, and be older than the model that is asked for."""
        from kshipra.engine.devices import settled
        from kshipra.engine.runner import load_choice
        from kshipra.engine.variants import moved

        if self._on_gpu is None or self._on_gpu[0] != run.choice:
            self._variants.clear()
            is_here = self._has(settled(replace(run.choice, device=CPU)))
            engine = moved(self._loaded[1], GPU) if is_here and self._loaded else None
            self._on_gpu = run.choice, engine or load_choice(run.choice, progress=run.progress)
        return self._on_gpu[1]


def asked_s(choice: ModelChoice, plan: Plan, seconds: int) -> int:
    """What `spaces` calls with a call's arguments to know its length."""
    return seconds


def zero_sentence(error: Exception, *, begun: bool) -> str | None:
    """What a person is told where ZeroGPU gives no GPU, or takes it back; None for another error."""
    if not str(getattr(error, "title", "")).startswith("ZeroGPU"):  # a gr.Error of `spaces`
        return None
    reason = " ".join(str(getattr(error, "message", error)).split()).rstrip(". ")[:200]
    if begun:
        return (
            f"ZeroGPU took the GPU back before the run was over ({reason}): what there is stays; ask for "
            "fewer new tokens or ways, or choose cpu as the device."
        )
    return f"ZeroGPU lends no GPU for this run ({reason}): choose cpu as the device, or try again later."


class Heard:
    """The fold of what has come from the GPU's process: the way that has not ended, and what there is of
    it."""

    def __init__(self) -> None:
        self.begun = False
        self.way: str | None = None
        self._requests: tuple[Request, ...] = ()
        self._events: list[StepEvent] = []

    def add(self, message: Message) -> None:
        self.begun = True
        if isinstance(message, Started):
            self.way, self._requests, self._events = message.recipe, message.requests, []
        elif isinstance(message, Stepped):
            self._events.append(message.event)
        elif isinstance(message, (Finished, Failed)):
            self.way = None

    def result(self) -> RunResult | None:
        if self.way is None:
            return None
        return metrics.fold(recipe_named(self.way).mode, self._requests, self._events)


class GpuRun:
    """What LocalRun is to the backend's thread, in the GPU's process."""

    def __init__(self, choice: ModelChoice, plan: Plan) -> None:
        self.choice, self.plan, self.ended = choice, plan, False
        self._told: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._stop = threading.Event()

    def tell(self, message: Message | None) -> None:
        """None: there will be no more."""
        self._told.put(message)

    def told(self, timeout_s: float) -> Told:
        """All messages since the last call; waits up to `timeout_s` for the first."""
        found: list[Message] = []
        try:
            message = self._told.get(timeout=timeout_s)
            while message is not None:
                found.append(message)
                message = self._told.get_nowait()
            self.ended = True
        except queue.Empty:
            pass
        return tuple(found)

    def progress(self, what: str, done: int | None, total: int | None) -> None:
        self.tell(Loading(what, done, total))

    def stop(self) -> None:
        self._stop.set()

    def stopped(self) -> bool:
        return self._stop.is_set()
