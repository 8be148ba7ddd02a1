"""One thread, one run at a time, and every way in which a run can end (cases F1, F2, F5, G3) with a fake
model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from conftest import Letters
from fakes import FakeModel
from kshipra.backends.local import MAX_WAITING, LocalBackend, LocalRun
from kshipra.engine import roofline, runner
from kshipra.engine.runner import Engine
from kshipra.errors import KshipraError, ModelError
from kshipra.recipes import BUGS
from kshipra.types import (
    Comparison,
    Ended,
    Failed,
    Finished,
    Loading,
    Message,
    ModelChoice,
    Plan,
    Queued,
    Ready,
    Reviewed,
    Reviewing,
    Roofline,
    SamplingParams,
    Started,
    Stepped,
)

CHOICE = ModelChoice("fake")
ROOFLINE = Roofline("cpu", "float32", 2, 1e10, 1e11, "2026-01-01T00:00:00+00:00")


def plan(prompt: str = "ab", *, recipes=("kv_cache",), new_tokens: int = 5, model: str = "fake") -> Plan:
    return Plan(ModelChoice(model), (prompt,), tuple(recipes), SamplingParams(new_tokens))


def collect(run: LocalRun, limit_s: float = 20.0) -> list[Message]:
    """All messages of a run, which must end within the limit."""
    found: list[Message] = []
    deadline = time.monotonic() + limit_s
    while not (found and isinstance(found[-1], Ended)):
        assert time.monotonic() < deadline, f"no end in sight after {found[-3:]}"
        found += run.messages(0.1)
    return found


def of_kind(kind: type, messages: list[Message]) -> list:
    return [message for message in messages if isinstance(message, kind)]


@pytest.fixture
def serve(monkeypatch) -> Iterator[Callable[..., LocalBackend]]:
    """A backend whose models are the given fakes, by name; closed at the end."""
    made: list[LocalBackend] = []

    def with_models(**models) -> LocalBackend:
        def load(name, *, progress, **_):
            progress(f"Fetching {name}", 1, 2)
            model = models[name]
            if isinstance(model, Exception):
                raise model
            return Engine(model, Letters())

        monkeypatch.setattr(runner, "load", load)
        monkeypatch.setattr(roofline, "cached_roofline", lambda *_, **__: ROOFLINE)
        made.append(LocalBackend())
        return made[-1]

    yield with_models
    for backend in made:
        backend.close()


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_plan_from_start_to_end(serve):
    backend = serve(fake=FakeModel([5, 6, 7], prompt_tokens=2))
    messages = collect(backend.submit(plan(recipes=("no_cache", "kv_cache"))))
    kinds = [type(message).__name__ for message in messages if not isinstance(message, Queued)]
    each = ["Started", *["Stepped"] * 5, "Finished"]
    assert kinds == ["Loading", "Loading", "Ready", *each, *each, "Reviewed", "Ended"]
    for finished in of_kind(Finished, messages):
        assert finished.result.rows[0].token_ids == (5, 6, 7, 5, 6)
        assert not finished.stopped
    assert isinstance(backend.model(), Ready)
    (reviewed,) = of_kind(Reviewed, messages)
    assert reviewed.comparisons == (Comparison("no_cache", "kv_cache", "identical"),)
    assert reviewed.roofline == ROOFLINE
    assert reviewed.checks == {}
    assert {5, 6, 7} <= set(reviewed.texts)


def test_a_bug_runs_beside_the_healthy_way_and_its_checks_are_told(serve):
    (bug,) = (bug for bug in BUGS if bug.key == "positions-restart")
    backend = serve(fake=FakeModel([5, 6, 7], prompt_tokens=2))
    messages = collect(backend.submit(plan(recipes=(bug.healthy.key, bug.broken.key))))
    healthy, broken = (finished.result.rows[0].token_ids for finished in of_kind(Finished, messages))
    assert healthy == (5, 6, 7, 5, 6)
    assert broken[0] == 5  # read with the prompt
    assert broken[1:] != healthy[1:]  # the fake model says what its position tells it to
    (reviewed,) = of_kind(Reviewed, messages)
    (comparison,) = reviewed.comparisons
    assert (comparison.verdict, comparison.row, comparison.position) == ("fault", 0, 1)
    assert [check.passed for check in reviewed.checks[bug.healthy.key]] == [True, True, True]
    assert not all(check.passed for check in reviewed.checks[bug.broken.key])
    again = collect(backend.submit(plan()))  # nothing of the fault is left behind
    assert of_kind(Finished, again)[0].result.rows[0].token_ids == (5, 6, 7, 5, 6)


def test_all_recipes_share_one_seed(serve):
    backend = serve(fake=FakeModel(range(200), prompt_tokens=2))
    sampled = Plan(CHOICE, ("ab",), ("no_cache", "kv_cache"), SamplingParams(5, temperature=1.0))
    first, second = of_kind(Started, collect(backend.submit(sampled)))
    assert first.requests[0].params.seed == second.requests[0].params.seed is not None


def test_stop_holds_within_two_steps_and_keeps_what_there_is(serve):
    model = FakeModel([5], prompt_tokens=2, step_s=0.02)
    backend = serve(fake=model)
    run = backend.submit(plan(new_tokens=2000))
    wait_for(lambda: model.passes > 12)
    run.stop()
    run.stop()
    at_stop = model.passes
    messages = collect(run)
    assert model.passes <= at_stop + 2
    (finished,) = of_kind(Finished, messages)
    assert finished.stopped
    assert finished.result.rows[0].finish_reason == "cancelled"
    assert 8 <= finished.result.rows[0].new_tokens < 2000
    assert messages[-1] == Ended(stopped=True)
    again = collect(backend.submit(plan()))
    assert of_kind(Finished, again)[0].result.rows[0].new_tokens == 5


def test_stop_holds_while_logits_are_taken_again(serve):
    """The ways are over, but where two part late, one of them runs again that far."""

    def during(number: int) -> None:
        if number == 2 + 2 * 40:  # after the warm-up: the last pass of the second way
            model.script = [6]

    model = FakeModel([5], prompt_tokens=2, step_s=0.02, during=during)
    backend = serve(fake=model)
    run = backend.submit(plan(recipes=("kv_cache", "static_batch"), new_tokens=40))
    wait_for(lambda: model.passes > 2 + 2 * 40 + 5)
    run.stop()
    at_stop = model.passes
    messages = collect(run)
    assert model.passes <= at_stop + 2
    assert of_kind(Reviewing, messages)
    assert of_kind(Reviewed, messages) == []
    assert messages[-1] == Ended(stopped=True)


def test_stop_during_a_long_prefill_ends_with_that_pass(serve):
    model = FakeModel([5], prompt_tokens=2, prefill_s=0.5)
    backend = serve(fake=model)
    collect(backend.submit(plan(new_tokens=1)))  # the warm-up passes are over
    before = model.passes
    run = backend.submit(plan(new_tokens=2000))
    wait_for(lambda: model.passes > before)
    run.stop()
    collect(run, limit_s=5)
    assert model.passes <= before + 1


def test_stop_while_waiting_ends_at_once(serve):
    model = FakeModel([5], prompt_tokens=2, step_s=0.02)
    backend = serve(fake=model)
    first = backend.submit(plan(new_tokens=2000))
    second = backend.submit(plan())
    wait_for(lambda: model.passes > 0)
    second.stop()
    started = time.monotonic()
    assert collect(second)[-1] == Ended(stopped=True)
    assert time.monotonic() - started < 1
    first.stop()
    collect(first)


def test_stop_during_a_load(serve, monkeypatch):
    backend = serve(fake=FakeModel([5]))
    run = None

    def slow_load(name, *, progress, **_):
        for done in range(1000):
            time.sleep(0.01)
            progress("Fetching", done, 1000)

    monkeypatch.setattr(runner, "load", slow_load)
    run = backend.submit(plan())
    wait_for(lambda: isinstance(backend.model(), Loading))
    run.stop()
    messages = collect(run, limit_s=2)
    assert not of_kind(Failed, messages)
    assert messages[-1] == Ended(stopped=True)


def test_a_fault_in_a_step_ends_that_run_only(serve):
    def fail_at(number: int) -> None:
        if number == 9:
            raise RuntimeError("secret path /home/somebody")

    backend = serve(fake=FakeModel([5, 6], prompt_tokens=2, during=fail_at))
    messages = collect(backend.submit(plan(new_tokens=50)))
    (failed,) = of_kind(Failed, messages)
    assert failed.recipe == "kv_cache"
    assert "secret" not in failed.sentence
    assert "\n" not in failed.sentence
    assert 0 < failed.result.rows[0].new_tokens < 50
    assert failed.result.rows[0].finish_reason == "cancelled"
    assert of_kind(Finished, collect(backend.submit(plan())))


def test_out_of_memory_is_one_sentence(serve):
    def fail(number: int) -> None:
        if number == 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 10 bytes")

    backend = serve(fake=FakeModel([5], prompt_tokens=2, during=fail))
    (failed,) = of_kind(Failed, collect(backend.submit(plan())))
    assert "more memory than there is" in failed.sentence
    assert of_kind(Finished, collect(backend.submit(plan())))


def test_a_model_that_cannot_be_loaded_leaves_the_one_before(serve):
    good = FakeModel([5], prompt_tokens=2)
    backend = serve(fake=good, broken=ModelError("broken is no model: choose another."))
    collect(backend.submit(plan()))
    messages = collect(backend.submit(plan(model="broken")))
    assert [failed.sentence for failed in of_kind(Failed, messages)] == [
        "broken is no model: choose another."
    ]
    assert isinstance(backend.model(), Ready)
    assert of_kind(Finished, collect(backend.submit(plan())))


def test_first_model_that_cannot_be_loaded_is_told(serve):
    backend = serve(fake=ModelError("fake is not here: choose another."))
    collect(backend.preload(CHOICE))
    assert backend.model() == Failed("fake is not here: choose another.")


def test_two_visitors_never_mix(serve):
    """Both at once, twenty times: each gets its own prompt's tokens, and only its own."""
    backend = serve(fake=FakeModel(range(100, 200), prompt_tokens=1))
    problems: list[str] = []

    def visitor(prompt: str, expected: tuple[int, ...]) -> None:
        for _ in range(20):
            messages = collect(backend.submit(plan(prompt, new_tokens=len(expected))))
            started = of_kind(Started, messages)[0]
            result = of_kind(Finished, messages)[0].result
            steps = sum(len(step.event.new_tokens) for step in of_kind(Stepped, messages))
            if (started.requests[0].prompt, result.rows[0].token_ids, steps) != (
                prompt,
                expected,
                len(expected),
            ):
                problems.append(f"{prompt}: {result.rows[0]}")

    visitors = [
        threading.Thread(target=visitor, args=("a", tuple(range(100, 106)))),
        threading.Thread(target=visitor, args=("abc", tuple(range(102, 105)))),
    ]
    for thread in visitors:
        thread.start()
    for thread in visitors:
        thread.join()
    assert not problems


def test_runs_are_measured_one_after_another(serve):
    inside = 0
    most = 0

    def during(_: int) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1

    backend = serve(fake=FakeModel([5], prompt_tokens=2, during=during))
    runs = [backend.submit(plan()) for _ in range(4)]
    places = [of_kind(Queued, collect(run)) for run in runs]
    assert most == 1
    assert [queued.place for queued in places[3]][-1] == 1
    assert [queued.place for queued in places[3]] == sorted((q.place for q in places[3]), reverse=True)


def test_who_waits_is_told_of_the_models_that_are_loaded_before(serve):
    model = FakeModel([5], prompt_tokens=2, step_s=0.01)
    backend = serve(fake=model, other=FakeModel([6], prompt_tokens=2))
    first = backend.submit(plan(new_tokens=2000))
    wait_for(lambda: model.passes > 0)
    runs = [backend.submit(plan(model=name)) for name in ("fake", "other", "other", "fake")]
    told = [of_kind(Queued, run.messages(1))[-1] for run in runs]
    assert told == [
        Queued(1),
        Queued(2, loads="other", instead_of="fake"),
        Queued(3, others_load=True),
        Queued(4, others_load=True, loads="fake"),
    ]
    runs[1].stop()
    runs[2].stop()
    assert of_kind(Queued, runs[3].messages(1))[-1] == Queued(2)
    first.stop()


def test_a_full_queue_refuses_politely(serve):
    model = FakeModel([5], prompt_tokens=2, step_s=0.01)
    backend = serve(fake=model)
    first = backend.submit(plan(new_tokens=2000))
    wait_for(lambda: model.passes > 0)
    waiting = [backend.submit(plan()) for _ in range(MAX_WAITING)]
    with pytest.raises(KshipraError, match="waiting already"):
        backend.submit(plan())
    for run in (*waiting, first):
        run.stop()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (dict(prompts=()), "Prompts"),
        (dict(prompts=("x",) * 1000), "Prompts"),
        (dict(prompts=("",)), "Prompt 1"),
        (dict(prompts=("a" * 5_000_000,)), "Prompt 1"),
        (dict(recipes=()), "Ways to compare"),
        (dict(recipes=("magic",)), "magic"),
        (dict(choice=ModelChoice("")), "Model"),
        (dict(choice=ModelChoice("m" * 10_000)), "Model"),
        (dict(params=SamplingParams(100_000)), "Max new tokens"),
        (dict(params=SamplingParams(1, stop=("x",) * 100)), "Stop"),
    ],
)
def test_plans_out_of_their_limits_are_refused_before_anything_else(serve, wrong, field):
    backend = serve(fake=AssertionError("nothing may be loaded"))
    fields = dict(choice=CHOICE, prompts=("a",), recipes=("kv_cache",), params=SamplingParams(1))
    started = time.monotonic()
    with pytest.raises(KshipraError, match=field):
        backend.submit(Plan(**(fields | wrong)))
    assert time.monotonic() - started < 1
    assert backend.model() is None


def test_closing_ends_what_runs_and_what_waits(serve):
    model = FakeModel([5], prompt_tokens=2, step_s=0.01)
    backend = serve(fake=model)
    first, second = backend.submit(plan(new_tokens=2000)), backend.submit(plan())
    wait_for(lambda: model.passes > 2)
    backend.close()
    for run in (first, second):
        assert collect(run, limit_s=2)[-1] == Ended(stopped=True)
    with pytest.raises(KshipraError):
        backend.submit(plan())
