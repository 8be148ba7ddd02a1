"""The backend for ZeroGPU over a `spaces` that really forks and pickles: what crosses, what is refused, what
stops, and what is said."""

from __future__ import annotations

import contextvars
import importlib
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import test_local
from test_local import ROOFLINE, of_kind

from conftest import Letters, make_llama
from kshipra.backends import lease
from kshipra.backends.local import LocalBackend
from kshipra.engine import roofline, runner
from kshipra.engine.runner import Engine
from kshipra.errors import InputError
from kshipra.limits import public
from kshipra.models.llama import Llama
from kshipra.types import (
    Ended,
    Failed,
    Finished,
    Loading,
    Message,
    ModelChoice,
    Plan,
    Ready,
    Reviewed,
    SamplingParams,
    Started,
    Stepped,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ZeroGPU forks.")
ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "zero" / "stand_in"  # holds `spaces`


def plan(*, recipes=("kv_cache",), new_tokens: int = 5, device: str = "auto", prompts=("ab",)) -> Plan:
    return Plan(
        ModelChoice("tiny", device=device), tuple(prompts), tuple(recipes), SamplingParams(new_tokens)
    )


def collect(run) -> list[Message]:
    return test_local.collect(run, limit_s=30.0)


def wait_for(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def zero(monkeypatch):
    """`kshipra.backends.zero` over the stand-in, with this machine's processor as the GPU that is lent."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    for name in ("spaces", "kshipra.backends.zero"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("kshipra.backends.zero")
    monkeypatch.setattr(module, "GPU", "cpu")
    monkeypatch.setattr(module, "BEAT_S", 0.1)
    monkeypatch.setattr(roofline, "cached_roofline", lambda *_, **__: ROOFLINE)
    monkeypatch.setattr(runner, "load", lambda name, **_: Engine(make_llama(), Letters()))
    yield module
    sys.modules["spaces"].lender.end()
    sys.modules.pop("spaces", None)
    sys.modules.pop("kshipra.backends.zero", None)


@pytest.fixture
def lender(zero):
    return sys.modules["spaces"].lender


@pytest.fixture
def backend(zero) -> Iterator:
    made = zero.ZeroBackend()
    yield made
    made.close()


@pytest.fixture
def passes(monkeypatch):
    """Counts the passes of every process that is forked from this one, each of which takes a while."""
    counter = multiprocessing.Value("i", 0)
    forward = Llama.forward

    def counted(*arguments):
        with counter.get_lock():
            counter.value += 1
        time.sleep(0.02)
        return forward(*arguments)

    monkeypatch.setattr(Llama, "forward", counted)
    return counter


def ids(messages: list[Message]) -> list[tuple[int, ...]]:
    return [row.token_ids for finished in of_kind(Finished, messages) for row in finished.result.rows]


def test_a_plan_runs_in_the_other_process_and_gives_the_same_tokens(backend, lender):
    asked = plan(recipes=("no_cache", "static_batch", "int8"), prompts=("ab", "abcd"))
    messages = collect(backend.submit(asked))
    local = LocalBackend()
    try:
        there = collect(local.submit(asked))
    finally:
        local.close()
    assert ids(messages) == ids(there)
    assert len(ids(messages)) == 6
    assert of_kind(Failed, messages) == []
    (reviewed,) = of_kind(Reviewed, messages)
    assert len(reviewed.comparisons) == 3
    assert messages[-1] == Ended(stopped=False)
    assert isinstance(backend.model(), Ready)
    assert lender.asked_s  # it was not this process that ran


def test_all_that_crosses_is_plain_values(backend, lender):
    collect(backend.submit(plan(recipes=("kv_cache", "int8", "positions-restart-broken"))))
    assert len(lender.sent) > 2
    for sent in lender.sent:
        assert b"torch" not in sent
        assert b"numpy" not in sent
    assert {type(message) for told in map(pickle.loads, lender.sent[1:]) for message in told} >= {
        Ready, Started, Stepped, Finished, Reviewed,
    }  # fmt: skip


def test_memory_is_read_in_the_process_that_runs(backend, monkeypatch):
    grown: list[bytes] = []

    def grows(module, ids, *arguments, forward=Llama.forward):
        grown.append(b"x" * 30 * 2**20 if ids.shape[1] == 1 else b"")  # there alone
        return forward(module, ids, *arguments)

    monkeypatch.setattr(Llama, "forward", grows)
    (finished,) = of_kind(Finished, collect(backend.submit(plan())))
    first, *_, last = finished.result.steps
    assert last.resident_bytes - first.resident_bytes > 80 * 2**20
    assert grown == []


def test_where_the_quota_is_used_up_one_sentence_says_so_and_the_processor_serves(backend, lender):
    lender.refusal = (
        "You have exceeded your free ZeroGPU quota (60s requested vs. 40s left). Try again in 3:00."
    )
    messages = collect(backend.submit(plan()))
    (failed,) = of_kind(Failed, messages)
    assert failed.sentence == (
        "ZeroGPU lends no GPU for this run (You have exceeded your free ZeroGPU quota (60s requested vs. 40s "
        "left). Try again in 3:00): choose cpu as the device, or try again later."
    )
    assert of_kind(Started, messages) == []
    served = collect(backend.submit(plan(device="cpu")))
    assert len(ids(served)) == 1
    assert len(lender.asked_s) == 1  # the processor's run asked for nothing


def test_a_gpu_that_is_taken_back_leaves_what_there_is(backend, lender, passes):
    lender.kill_after = 12
    messages = collect(backend.submit(plan(recipes=("kv_cache", "static_batch"), new_tokens=200)))
    (failed,) = of_kind(Failed, messages)
    assert failed.recipe == "kv_cache"
    assert failed.sentence.startswith("ZeroGPU took the GPU back before the run was over (GPU task aborted):")
    assert failed.result.rows[0].finish_reason == "cancelled"
    assert 0 < failed.result.rows[0].new_tokens < 200
    assert failed.result.new_tokens == len(
        [token for step in of_kind(Stepped, messages) for token in step.event.new_tokens]
    )
    lender.kill_after = None
    assert len(ids(collect(backend.submit(plan())))) == 1


def test_stop_reaches_the_other_process(backend, passes):
    run = backend.submit(plan(new_tokens=240))
    wait_for(lambda: passes.value > 12)
    run.stop()
    run.stop()
    messages = collect(run)
    at_end = passes.value
    (finished,) = of_kind(Finished, messages)
    assert finished.stopped
    assert finished.result.rows[0].finish_reason == "cancelled"
    assert 0 < finished.result.rows[0].new_tokens < 60
    assert messages[-1] == Ended(stopped=True)
    time.sleep(0.2)
    assert passes.value == at_end  # nothing goes on behind it


def test_stop_holds_while_nothing_is_told(backend, monkeypatch):
    """A long load or prefill there: the process is not silent, so it hears."""
    began = multiprocessing.Event()

    def slow(*arguments, forward=Llama.forward):
        began.set()
        time.sleep(1.0)
        return forward(*arguments)

    monkeypatch.setattr(Llama, "forward", slow)
    run = backend.submit(plan(new_tokens=240))
    assert began.wait(20)
    started = time.monotonic()
    run.stop()
    assert collect(run)[-1] == Ended(stopped=True)
    assert time.monotonic() - started < 10  # the warm-up's two passes, of 240


def test_a_failure_there_is_one_sentence_here(backend, monkeypatch):
    def fails(*_):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(Llama, "forward", fails)
    (failed,) = of_kind(Failed, collect(backend.submit(plan())))
    assert "more memory than there is" in failed.sentence


def test_a_process_older_than_the_model_loads_it_there(zero, backend, monkeypatch):
    collect(backend.preload(ModelChoice("tiny")))
    loaded: list[ModelChoice] = []
    monkeypatch.setattr(runner, "load_choice", lambda choice, **_: loaded.append(choice) or "engine")
    other = zero.GpuRun(ModelChoice("other", device="cpu"), plan())
    assert backend._engine_on_gpu(other) == "engine"
    assert [choice.model for choice in loaded] == ["other"]
    assert backend._engine_on_gpu(other) == "engine"
    same = zero.GpuRun(ModelChoice("tiny", device="cpu"), plan())
    assert isinstance(backend._engine_on_gpu(same), Engine)
    assert len(loaded) == 1


def test_it_is_asked_for_in_the_context_of_the_visitor(backend, lender):
    who = contextvars.ContextVar("who", default="nobody")
    found = []
    lender.before_call = lambda: found.append(who.get())
    who.set("Asha")
    run = backend.submit(plan())
    who.set("somebody else")
    collect(run)
    assert found == ["Asha"]


def test_what_cannot_be_had_there_says_why(backend):
    assert set(backend.unavailable()) == {"compiled", "compiled_int8", "compiled_bf16", "server"}
    with pytest.raises(InputError, match="leave out compiled, because a compiled step is made for"):
        backend.submit(plan(recipes=("compiled",)))
    with pytest.raises(InputError, match="Device must be auto"):
        backend.submit(plan(device="mps"))
    assert backend.lobby is None


def test_strangers_are_served_within_their_limits(zero):
    made = zero.ZeroBackend(public("tiny"))
    with pytest.raises(InputError, match="this page offers"):
        made.submit(Plan(ModelChoice("/etc/passwd"), ("ab",), ("kv_cache",), SamplingParams(5)))
    assert len(ids(collect(made.submit(plan())))) == 1
    made.close()


def test_a_run_that_would_take_too_long_is_refused_before_a_gpu_is_asked_for(backend, lender, monkeypatch):
    monkeypatch.setattr(lease, "LAYER_S", 1.0)
    (failed,) = of_kind(Failed, collect(backend.submit(plan(new_tokens=200))))
    assert failed.sentence.startswith("This run may take 6")
    assert lender.asked_s == []


def test_waiting_for_a_gpu_is_told(backend):
    told = [message.what for message in of_kind(Loading, collect(backend.submit(plan())))]
    assert told[-1] == "Asking ZeroGPU for a GPU, for 19 s at most"


def test_the_package_is_there_before_torch():
    said = (
        "import sys, runpy; sys.argv = ['app.py', '--help']\n"
        "try: runpy.run_path('app.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print('had torch', sys.modules['spaces'].HAD_TORCH)"
    )
    paths = os.pathsep.join((str(STAND_IN), str(ROOT)))
    environment = os.environ | {"PYTHONPATH": paths, "SPACES_ZERO_GPU": "true"}
    shown = subprocess.run(
        [sys.executable, "-c", said], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert shown.stdout.splitlines()[-1] == "had torch False", shown.stderr


@pytest.mark.slow
@pytest.mark.skipif(find_spec("spaces") is None, reason="The package `spaces` is not installed.")
def test_the_real_package_lends_stops_refuses_and_knows_the_visitor():
    """Its own fork, pickling and HTTP; nothing of CUDA, which is not to be had here."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    shown = subprocess.run(
        [sys.executable, "tests/zero/on_the_package.py"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": paths + os.pathsep + os.environ.get("PYTHONPATH", "")},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    said = json.loads(shown.stdout.splitlines()[-1])
    assert said["emulates"]  # what it says of a GPU in the page's process is made up
    one = said["whole"]["ids"][0]
    assert len(one) == 5
    for way in ("whole", "again"):
        assert said[way] == {"ids": [one, one], "reasons": ["length"] * 2, "failed": [], "stopped": False}
    assert said["stopped"]["reasons"] == ["cancelled"]
    assert said["stopped"]["stopped"]
    assert 0 < len(said["stopped"]["ids"][0]) < 240
    assert said["refused"]["ids"] == []
    assert said["refused"]["failed"][0].startswith("ZeroGPU lends no GPU for this run (Space app has reached")
    assert said["visitor"] == [one]
    paths = [path.split("?")[0] for path in said["asked"]]
    assert paths == ["/startup-report", "/schedule", "/allow", "/release"]
    asked = parse_qs(urlsplit(said["asked"][1]).query)
    assert asked["token"] == ["e30.e30.visitor"]  # it is the visitor's own time
    assert asked["durationSeconds"] == ["19"]
    assert said["asked"][3].endswith("fail=false")
