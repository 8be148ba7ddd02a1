"""The road of every experiment: cases into results.json, stopped and resumed, read again, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from conftest import byte_level_tokenizer, make_gpt2
from kshipra.__main__ import main
from kshipra.engine.runner import Engine
from kshipra.errors import InputError, KshipraError, UnreachableError
from kshipra.experiments import EXPERIMENTS, experiment_named, shapes
from kshipra.experiments import run as running
from kshipra.experiments.report.parts import where
from kshipra.experiments.results import FILE, from_document, read
from kshipra.experiments.rig import Case, Rig
from kshipra.experiments.shapes import load_or_random, random_gpt2
from kshipra.types import ModelChoice

CHOICE = ModelChoice("gpt2", device="cpu")


class Toy:
    """An experiment of three cases, which stops before the case `stop`."""

    name = "floor"

    def __init__(self, stop: str | None = None) -> None:
        self.stop, self.measured = stop, []

    def measuring(self):
        return SimpleNamespace(cases=self.cases, measure=self.measure)

    def cases(self, rig):
        return [Case(name, {"at": place}) for place, name in enumerate(("a", "b", "c"))]

    def measure(self, rig, case):
        if case.name == self.stop:
            raise KeyboardInterrupt
        self.measured.append(case.name)
        return {"step_s": (0.5, float("nan")), "at": case.settings["at"]}


@pytest.fixture
def rig(monkeypatch) -> Rig:
    """A rig whose model is a tiny one that cannot be fetched."""
    tiny = Engine(make_gpt2().float(), byte_level_tokenizer())
    monkeypatch.setattr("kshipra.machine.threads", lambda: 1)  # shared cores: two threads wait for each other
    monkeypatch.setattr("kshipra.experiments.rig.load_or_random", lambda choice, progress: (tiny, "random"))
    return Rig(CHOICE, quick=True)


def told(*_) -> None:
    pass


def without_times(results) -> list:
    return [(case.name, case.settings, case.samples) for case in results.cases]


def test_a_resumed_run_equals_an_uninterrupted_one(rig, tmp_path):
    whole = running.run(Toy(), rig, tmp_path / "whole", progress=told)
    with pytest.raises(KeyboardInterrupt):
        running.run(Toy(stop="c"), rig, tmp_path / "cut", progress=told)
    stopped = read(tmp_path / "cut" / FILE)
    assert [case.name for case in stopped.cases] == ["a", "b"]
    assert not stopped.finished
    rest = Toy()
    resumed = running.run(rest, rig, tmp_path / "cut", progress=told)
    assert rest.measured == ["c"]
    assert without_times(resumed) == without_times(whole)
    assert resumed == read(tmp_path / "cut" / FILE)
    assert resumed.finished


def test_a_finished_run_is_measured_anew(rig, tmp_path):
    running.run(Toy(), rig, tmp_path, progress=told)
    again = Toy()
    running.run(again, rig, tmp_path, progress=told)
    assert again.measured == ["a", "b", "c"]


def test_an_unfinished_run_of_other_settings_is_not_lost(rig, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        running.run(Toy(stop="b"), rig, tmp_path, progress=told)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(KshipraError, match="another settings: delete it"):
        running.run(Toy(), replace(rig, quick=False), tmp_path, progress=told)
    assert (tmp_path / FILE).read_bytes() == before


def test_results_say_all_that_they_depend_on(rig, tmp_path):
    running.run(Toy(), rig, tmp_path, progress=told)
    document = json.loads((tmp_path / FILE).read_text())
    assert document["format"] == "kshipra-experiment"
    assert document["machine"]["memory_bytes"] > 2**30
    assert {"processor", "caches", "quota_cores", "threads"} <= set(document["machine"])
    assert document["versions"]["torch"]
    assert document["model"]["weights_from"] == "random"
    assert document["cases"][0]["samples"] == {"step_s": [0.5, None], "at": 0}  # strict JSON
    assert "random weights" in where(read(tmp_path / FILE))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.update(format="other"), "no results of an experiment"),
        (lambda d: d.update(version=2), "has format 2"),
        (lambda d: d.update(experiment="<b>"), "no experiment that this Kshipra knows"),
        (lambda d: d["cases"][0].update(samples=[1]), "damaged"),
        (lambda d: d["cases"][0].pop("name"), "damaged"),
        (lambda d: d.update(cases={}), "damaged"),
        (lambda d: d["cases"][0].update(took_s=True), "damaged"),
        (lambda d: d.update(commit=5), "damaged"),
    ],
)
def test_a_file_that_is_no_results_is_refused_in_one_sentence(rig, tmp_path, change, sentence):
    running.run(Toy(), rig, tmp_path, progress=told)
    document = json.loads((tmp_path / FILE).read_text())
    change(document)
    with pytest.raises(InputError, match=sentence):
        from_document(document)


@pytest.mark.parametrize("text", ["", "[1, 2", "[NaN]", "[" * 100_000, "[1]"])
def test_a_file_that_is_no_json_object_is_refused(tmp_path, text):
    path = tmp_path / FILE
    path.write_text(text)
    with pytest.raises(InputError):
        read(path)


def test_a_case_with_an_environment_runs_in_a_process_of_its_own(rig, monkeypatch):
    asked = {}

    def run(command, *, input, env, **_):
        asked.update(json.loads(input), env=env, command=command)
        return SimpleNamespace(returncode=0, stdout='warned\n{"peak": 3}\n', stderr="")

    monkeypatch.setattr(running.subprocess, "run", run)
    case = Case("one", {"rows": 2}, {"MALLOC_ARENA_MAX": "1"})
    assert running.in_own_process(experiment_named("memory-puzzle"), rig, case) == {"peak": 3}
    assert asked["env"]["MALLOC_ARENA_MAX"] == "1"
    assert (asked["settings"], asked["choice"]["model"], asked["quick"]) == ({"rows": 2}, "gpt2", True)


def test_a_process_that_ends_badly_is_one_sentence(rig):
    with pytest.raises(KshipraError, match=r"The process of one ended with status \d"):
        running.in_own_process(SimpleNamespace(name="no-such"), rig, Case("one", {}, {}))


def test_gpt2_takes_random_weights_only_where_it_cannot_be_fetched(monkeypatch):
    def unreachable(choice, progress):
        raise UnreachableError("no network")

    made = []
    monkeypatch.setattr(shapes, "load_choice", unreachable)
    monkeypatch.setattr(shapes, "random_gpt2", lambda name, **options: made.append((name, options)))
    assert load_or_random(CHOICE)[1] == "random"
    assert made == [("gpt2", {"device": "cpu", "dtype": "auto", "implementation": "auto"})]
    with pytest.raises(UnreachableError):
        load_or_random(ModelChoice("someone/gpt2-like"))
    monkeypatch.setattr(shapes, "load_choice", lambda choice, progress: "engine")
    assert load_or_random(CHOICE) == ("engine", "published")


def test_random_weights_are_the_same_ones_every_time():
    small = dict(n_layer=1, n_embd=40, n_head=2, vocab_size=50)
    first, second = (random_gpt2("gpt2", device="cpu", **small) for _ in range(2))
    ids = first.generate([[1, 2, 3]]).rows[0].token_ids
    assert ids == second.generate([[1, 2, 3]]).rows[0].token_ids
    assert first.model.spec.context == 1024


def test_bad_arguments_are_one_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["experiments", "nope"]) == 2
    assert "not one of positions" in capsys.readouterr().err
    assert main(["experiments", "floor", "--plots-only"]) == 2
    assert "run the experiment first" in capsys.readouterr().err


def test_drawing_needs_no_torch():
    modules = [f"kshipra.experiments.report.{e.name.replace('-', '_')}" for e in EXPERIMENTS]
    script = (
        f"import sys, importlib; [importlib.import_module(m) for m in {modules}];"
        "import kshipra.experiments.command, kshipra.experiments.report.save;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
