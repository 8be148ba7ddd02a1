"""A backend of a script: messages of a run come as from a real one, and stop() is honoured.

A run takes no time and cannot be missed: it waits in the way that a test names, until the test lets it go on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import combinations
from queue import Empty, SimpleQueue
from typing import Any

from kshipra.errors import KshipraError, ModelError
from kshipra.limits import OWN, Limits, check_plan
from kshipra.memory import Estimate, work_of_texts
from kshipra.metrics import first_difference, fold
from kshipra.modes import mode_named
from kshipra.recipes import BUGS, LAB_KEYS, RECIPE_KEYS, recipe_named
from kshipra.types import (
    Check,
    Comparison,
    DeviceChoice,
    Ended,
    Failed,
    Finished,
    Kept,
    Loading,
    Message,
    ModelChoice,
    ModelSpec,
    NewToken,
    Plan,
    Queued,
    Ready,
    Request,
    Reviewed,
    Roofline,
    RunResult,
    SamplingParams,
    Started,
    StepEvent,
    Stepped,
)

MIB = 2**20
HELD_AFTER = 3  # passes of the way in which a run is held: tokens are there, and it decodes
WORDS = (
    " the", " model", " reads", " <b>bold</b>", " ${7*7}", " {{7*7}}", " a", " new", " token", " 🙂", " and",
    " then", "<img src=x onerror=alert(1)>", " writes", " it", " down", ",", " once", " more", ".",
)  # fmt: skip
SPEC = ModelSpec("SmolLM2-135M-Instruct", "llama", 30, 9, 3, 64, 576, 49152, 8192, 134_515_008, 106_000_000)
READY = Ready(spec=SPEC, device="cpu", threads=2, weight_bytes=513 * MIB, kv_bytes_per_token=46_080)
ROOFLINE = Roofline("cpu", "float32", 2, 20e9, 200e9, "2026-01-01T00:00:00+00:00")
PREFILL_S = {
    "no_cache": 0.06, "kv_cache": 0.06, "static_batch": 0.15, "continuous": 0.06, "speculative": 0.06,
    "two_at_a_time": 0.06, "transformers_generate": 0.07,
}  # fmt: skip
GUESSED = 3  # tokens a pass of the guessing way, of which all but the last come true

PACES = {  # of engines, beside the loaded one
    ("native", "eager"): 1.0,
    ("native", "compiled"): 0.45,
    ("int8", "eager"): 0.8,
    ("int8", "compiled"): 0.2,
    ("bfloat16", "compiled"): 0.3,
}

CHOICE = ModelChoice("smollm2-135m-instruct")


def make_plan(
    prompts: tuple[str, ...] = ("One", "Two two", "Three three three"),
    recipes: tuple[str, ...] = ("no_cache", "kv_cache", "static_batch"),
    **params,
) -> Plan:
    return Plan(CHOICE, prompts, recipes, SamplingParams(**({"max_new_tokens": 8} | params)))


def requests_of(plan: Plan) -> tuple[Request, ...]:
    return tuple(
        Request(
            row,
            prompt,
            tuple(range(max(1, len(prompt) // 4))),
            replace(params, seed=params.seed or 7),
        )
        for row, (prompt, params) in enumerate(zip(plan.prompts, plan.each, strict=True))
    )


def spec_of(recipe: str, spec: ModelSpec = SPEC) -> ModelSpec:
    """The shape as that way's engine stores it: by a byte or two a weight, scales left out."""
    weights = recipe_named(recipe).weights
    size = {"native": 4, "bfloat16": 2, "int8": 1}[weights]
    moved = spec.block_parameters + spec.width * spec.vocabulary
    return replace(spec, weights=weights, stored_bytes=spec.parameters * size, pass_weight_bytes=moved * size)


# Of a pass: its phase, the places of its running rows' new tokens, and how many rows have ended.
Pass = tuple[str, dict[int, range], int]


def schedule(mode: str, requests: Sequence[Request], rows: int | None) -> Iterator[Pass]:
    """The passes of that mode, with at most `rows` at once where it batches."""
    limits = {request.row: request.params.max_new_tokens for request in requests}
    waiting = deque(row for row, limit in limits.items() if limit)
    batches = mode in ("static_batch", "continuous")
    most, at_once = (rows or len(waiting) or 1) if batches else 1, GUESSED if mode == "speculative" else 1
    had: dict[int, int] = {}
    places: list[int] = []
    while waiting or places:
        joining = [waiting.popleft() for _ in range(min(len(waiting), most - len(places)))]
        for together in [[row] for row in joining] if mode == "continuous" else [joining] * bool(joining):
            yield "prefill", {row: range(1) for row in together}, 0
        had |= dict.fromkeys(joining, 1)
        places += joining
        while running := [row for row in places if had[row] < limits[row]]:
            new = {row: range(had[row], min(had[row] + at_once, limits[row])) for row in running}
            yield "decode", new, len(places) - len(running)
            had |= {row: places_of.stop for row, places_of in new.items()}
            if mode == "continuous":
                break
        places = [row for row in running if had[row] < limits[row]]


def arrivals(requests: Sequence[Request], pace: float) -> Iterator[StepEvent]:
    """What a server sends: two tokens a piece, prompts in turn, and each prompt's count at its end."""
    places = [(place, request.row) for place in range(3) for request in requests]
    said = [NewToken(row, None, f" {place} of {row}", count=None) for place, row in places]
    counts = [NewToken(each.row, None, "", "length", count=each.params.max_new_tokens) for each in requests]
    for index, token in enumerate((*said, *counts)):
        phase = "prefill" if index < len(requests) else "decode"
        at_s = pace * 0.05 * (index + 1)
        yield StepEvent(
            index, phase, (token.row,), (token,), None, None, pace * 0.05, at_s, None, None, None, None,
            "not told by the server", None,
        )  # fmt: skip


def events(
    mode: str,
    requests: Sequence[Request],
    *,
    pace: float = 1.0,
    odd: bool = False,
    at_once: int | None = None,
    reused: int = 0,
) -> Iterator[StepEvent]:
    """The steps of one way, with made-up but plausible times; `odd` changes one token, and of each prompt
    `reused` tokens were there."""
    if mode_named(mode).elsewhere:
        yield from arrivals(requests, pace)
        return
    at_s, kv = 0.0, 0
    for index, (phase, new, ended) in enumerate(schedule(mode, requests, at_once)):
        rows, step = tuple(new), max(places.start for places in new.values())
        length = sum(len(requests[row].prompt_ids) for row in rows) // len(rows) + step
        grows = 0.0012 * length if mode == "no_cache" else 0.0
        elapsed_s = pace * (PREFILL_S[mode] if phase == "prefill" else 0.05 + grows + 0.012 * (len(rows) - 1))
        elapsed_s *= 1 + 0.06 * ((index * 7919) % 13 - 6) / 6
        at_s += elapsed_s
        kv = 0 if mode == "no_cache" else (length + 1) * len(rows) * READY.kv_bytes_per_token
        tokens = []
        for row, place in ((row, place) for row, places in new.items() for place in places):
            last = place + 1 == requests[row].params.max_new_tokens
            id_ = (row * 31 + place * 7) % len(WORDS) + (1 if odd and (row, place) == (1, 4) else 0)
            best = tuple(((id_ + n) % len(WORDS), round(-0.4 - 0.7 * n, 3)) for n in range(5))
            text, reason = WORDS[id_ % len(WORDS)], "length" if last else None
            guessed = mode == "speculative" and phase == "decode" and place + 1 < new[row].stop
            tokens.append(NewToken(row, id_, text, reason, -0.4, best, guessed))
        drafted = tuple(map(len, new.values())) if mode == "speculative" and phase == "decode" else ()
        processed = len(rows) if phase == "decode" and mode != "no_cache" else length * len(rows)
        resident = 1012 * MIB + int(index % 5 * 0.3 * MIB) + (2 * kv if kv else length * 90_000)
        yield StepEvent(
            index, phase, rows, tuple(tokens), processed, ended, elapsed_s, at_s, kv, kv * 2, resident,
            resident - 1010 * MIB, "VmHWM", 10**9, reused * len(rows) if phase == "prefill" else 0,
            sum(drafted), drafted,
        )  # fmt: skip


def review_of(results: dict[str, RunResult]) -> Reviewed:
    """Pairs compared as the engine does; where two part, figures of a real fault."""
    found = []
    for first, second in combinations((key for key, result in results.items() if result.tells_ids), 2):
        parting = first_difference(results[first], results[second])
        if parting is None:
            found.append(Comparison(first, second, "identical"))
        else:
            where = (parting.row, parting.position, parting.first_id, parting.second_id)
            found.append(Comparison(first, second, "fault", *where, 1.25, 3.5))
    checks = {
        recipe.key: (
            Check("padding", "A left-padded row gives the logits of the row alone.", bad == 0, bad, 0.02),
            Check("one-token", "Tokens fed one by one give the logits of one pass.", True, 1e-6, 0.02),
        )
        for bug in BUGS
        for recipe, bad in ((bug.healthy, 0.0), (bug.broken, 4.2))
        if recipe.key in results
    }
    return Reviewed(tuple(found), checks, ROOFLINE, dict(enumerate((*WORDS, " odd"))))


@dataclass
class FakeRun:
    plan: Plan
    backend: FakeBackend
    queue: SimpleQueue[Message] = field(default_factory=SimpleQueue)
    stopping: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    steps: int = 0
    stops: int = 0
    wakes: int = 0

    def messages(self, timeout_s: float) -> list[Message]:
        self.wakes += 1
        try:
            found = [self.queue.get(timeout=timeout_s)]
        except Empty:
            return []
        while not self.queue.empty():
            found.append(self.queue.get())
        return found

    def stop(self) -> None:
        with self.backend.gate:
            self.stops += 1
            self.stopping.set()
            self.backend.gate.notify_all()

    def work(self) -> None:
        try:
            with self.backend.device:
                self._work()
        finally:
            self.over.set()

    def _work(self) -> None:
        put, backend = self.queue.put, self.backend
        spec = replace(READY.spec, name=backend.model_name or READY.spec.name)
        put(Queued(0))
        put(Loading(f"Loading {self.plan.choice.model}", 12 * MIB, 98 * MIB))
        time.sleep(0.05)
        put(replace(READY, spec=spec))
        results: dict[str, RunResult] = {}
        for key in self.plan.recipes:
            if self.stopping.is_set():
                break
            recipe = recipe_named(key)
            if key in backend.impossible:
                put(Failed(backend.impossible[key], key, unavailable=True))
                continue
            if (recipe.weights, recipe.execution) != ("native", "eager"):
                put(Loading(f"Making the engine of {recipe.label}"))
            requests, done = requests_of(self.plan), []
            if mode_named(recipe.mode).elsewhere:
                put(Started(key, requests, server_model=self.plan.server.model))
            else:
                put(Started(key, requests, spec_of(key, spec)))
            odd = key == backend.odd or recipe.fault is not None
            pace = backend.pace * PACES[recipe.weights, recipe.execution]
            reused = backend.reused if self.plan.reuse and mode_named(recipe.mode).caches else 0
            shared = dict(at_once=self.plan.rows, reused=reused)
            for event in events(recipe.mode, requests, pace=pace, odd=odd, **shared):
                if backend.in_real_time:
                    time.sleep(event.elapsed_s)
                self.steps += 1
                done.append(event)
                put(Stepped(key, event))
                if backend.fail_at == self.steps:
                    put(Failed(backend.failure, key, fold(key, requests, done)))
                    put(Ended())
                    return
                if len(done) == HELD_AFTER:
                    backend.pass_gate(key, self.stopping)
                if self.stopping.is_set():
                    break
            results[key] = fold(key, requests, done)
            put(Finished(key, results[key], self.stopping.is_set()))
        if self.plan.reuse:
            backend.texts += len(self.plan.prompts)
        if results and not self.stopping.is_set():
            put(review_of(results))
        put(Ended(self.stopping.is_set()))


def in_a_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run `coroutine` in a thread of its own: a browser's fixture has a running loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


@dataclass
class FakeBackend:
    """`pace` scales the times that steps tell, and `in_real_time` they also pass; `hold_in` names the way in
    which runs wait, HELD_AFTER passes in, for `go` or to be stopped; `odd` the way that takes another token,
    `fail_at` the step that fails, `missing` the ways that this machine cannot run, `impossible` those that
    this model cannot; runs with reuse find `reused` tokens of each prompt; `too_large` models are refused."""

    limits: Limits = OWN
    pace: float = 1.0
    in_real_time: bool = False
    hold_in: str | None = None
    odd: str | None = None
    fail_at: int | None = None
    failure: str = "The device <b>ran</b> out of memory: take fewer prompts."
    model_name: str | None = None
    refuse: str | None = None
    missing: dict[str, str] = field(default_factory=dict)
    impossible: dict[str, str] = field(default_factory=dict)
    reused: int = 0
    free_bytes: int = 8 * 2**30
    too_large: dict[str, str] = field(default_factory=dict)
    texts: int = 0  # kept
    device: threading.Lock = field(default_factory=threading.Lock)
    gate: threading.Condition = field(default_factory=threading.Condition)
    runs: list[FakeRun] = field(default_factory=list)
    lobby = None  # its runs share no batch

    def submit(self, plan: Plan) -> FakeRun:
        check_plan(plan, RECIPE_KEYS, LAB_KEYS, self.missing, self.limits)
        if self.refuse:
            raise KshipraError(self.refuse)
        run = FakeRun(plan, self)
        self.runs.append(run)
        threading.Thread(target=run.work, daemon=True).start()
        return run

    def pass_gate(self, way: str, stopping: threading.Event) -> None:
        with self.gate:
            self.gate.wait_for(lambda: self.hold_in != way or stopping.is_set())

    def go(self, until: str | None = None) -> None:
        """Let the held run go on: to the way `until`, or to its end."""
        with self.gate:
            self.hold_in = until
            self.gate.notify_all()

    def preload(self, choice: ModelChoice) -> FakeRun:
        raise NotImplementedError

    def model(self) -> Ready | Loading | Failed | None:
        return replace(READY, spec=replace(READY.spec, name=self.model_name)) if self.model_name else READY

    def estimate(self, plan: Plan) -> Estimate:
        check_plan(plan, RECIPE_KEYS, LAB_KEYS, self.missing, self.limits)
        spec = replace(SPEC, name=plan.choice.model)
        if spec.name in self.too_large:
            raise ModelError(self.too_large[spec.name])
        work = work_of_texts(plan.prompts, plan.each, len(plan.prompts))
        return Estimate((spec,), work, self.free_bytes, is_loaded=plan.choice == CHOICE)

    def devices(self) -> tuple[DeviceChoice, ...]:
        return (
            DeviceChoice("cpu", "cpu, 2 threads"),
            DeviceChoice("cuda", "cuda", "PyTorch sees no NVIDIA GPU here."),
            DeviceChoice("mps", "mps", "only on Apple machines."),
        )

    def unavailable(self) -> dict[str, str]:
        return self.missing

    def kept(self) -> Kept:
        return Kept(self.texts, self.texts * MIB, 256 * MIB)

    def forget(self) -> None:
        self.texts = 0

    def close(self) -> None:
        for run in self.runs:
            run.stop()


if __name__ == "__main__":  # python tests/ui/page_fake.py [PORT]: the page for the eye, without a model
    import sys

    from kshipra.ui.build import build_page, launch_options

    build_page(FakeBackend(in_real_time=True), ModelChoice("smollm2-135m-instruct")).launch(
        **launch_options(), server_name="127.0.0.1", server_port=int(sys.argv[1]) if sys.argv[1:] else 7871
    )
