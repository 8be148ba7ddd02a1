"""The Experiments part on the server: what comes with Kshipra, what a file gives, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import gradio as gr
import pytest
from experiments_fake import CONTEXTS, NASTY, document, fake_reports, put

from kshipra.experiments import EXPERIMENTS, NAMES
from kshipra.experiments.report.parts import PUBLISHED
from kshipra.limits import FILE_BYTES
from kshipra.ui import reported, shelf, words


@pytest.fixture(autouse=True)
def shipped(tmp_path):
    with fake_reports(tmp_path):
        yield tmp_path


def told(**data) -> list:
    """What the page is told after a click that says `data`: kind, number, answer."""
    return json.loads(shelf.open_results(gr.EventData(None, data)))


def opened(**data) -> dict:
    kind, _, answer = told(**data)
    assert kind == "report", answer
    return answer


def refusal(**data) -> str:
    kind, _, answer = told(**data)
    assert kind == "refused"
    return answer


def file(**changes) -> dict[str, str]:
    return {"name": "results.json", "text": json.dumps(document(**changes))}


def strings(value) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for item in items for text in strings(item)]


def test_the_shelf_names_every_experiment_and_what_comes_of_each():
    found = {each["name"]: each for each in shelf.shelf()}
    assert tuple(found) == NAMES
    assert found["kv-cache"]["models"] == ["gpt2"]
    assert found["floor"]["models"] == ["smollm2-135m-instruct"]
    assert found["scope"]["models"] == []
    assert found["floor"]["question"] == EXPERIMENTS[4].question


def test_without_a_folder_nothing_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf, "FOLDER", tmp_path / "missing")
    assert all(each["models"] == [] for each in shelf.shelf())
    assert refusal(shipped="gpt2/kv-cache") == words.EXPERIMENTS["gone"]


def test_what_comes_with_kshipra_is_a_report_with_all_it_depends_on():
    report = opened(shipped="gpt2/kv-cache")
    assert report["title"] == "A step's time at every context"
    assert report["note"] == "Recorded: measured on A processor of 2026, 2026-07-04, not here."
    facts = dict(report["facts"])
    assert facts["measured on"].startswith("GPT-2 small (random weights, float32) on cpu, 2 threads")
    assert facts["grid"] == "quick: a smaller grid"
    assert facts["state"] == "finished, 10 cases"
    assert facts["versions"] == "python 3.11, torch 2.9"
    assert facts["commit"] == "abc123456789"
    lines, bars, table = report["parts"]
    first, _, published = lines["data"]
    assert first["x"] == list(CONTEXTS)
    assert first["y"][-1] == pytest.approx((0.02 + 1e-3 * 1024 + 1e-4) * 1e3)
    assert (published["meta"], published["marker"]["color"]) == ("published", PUBLISHED)
    assert "template" not in lines["layout"]
    assert bars["data"][0]["type"] == "bar"
    assert len(table["rows"]) == 10


def test_a_file_gives_what_the_shelf_gives():
    assert opened(**file()) == opened(shipped="gpt2/kv-cache")


def test_an_unfinished_run_without_commit_says_so():
    facts = dict(opened(**file(finished=False, commit=None))["facts"])
    assert facts["state"] == "unfinished: the run was stopped after 10 cases"
    assert facts["commit"] == "unknown"


def test_two_answers_of_the_same_words_are_told_apart():
    assert told(**file())[1] != told(**file())[1]


@pytest.mark.parametrize("data", [{}, {"text": 5, "name": "x"}, {"text": "{}"}, {"text": "{}", "name": None}])
def test_a_click_without_a_file_is_refused(data):
    assert refusal(**data) == words.EXPERIMENTS["nothing"]


@pytest.mark.parametrize("data", [None, [], "text", 7])
def test_an_event_that_holds_no_names_is_refused(data):
    assert json.loads(shelf.open_results(gr.EventData(None, data)))[2] == words.EXPERIMENTS["nothing"]


@pytest.mark.parametrize(
    "name",
    [
        "deeper/x/floor",
        "../x/floor",
        "gpt2/../gpt2/kv-cache",
        "/etc/passwd",
        "",
        5,
        None,
        ["gpt2/kv-cache"],
        {},
    ],
)
def test_only_what_stands_on_the_shelf_can_be_asked_for(name, shipped):
    put(shipped / "deeper", "x", "floor")
    assert refusal(shipped=name) == words.EXPERIMENTS["gone"]


def test_a_file_that_is_too_large_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(shelf, "report_in_own_process", pytest.fail)
    sentence = refusal(name="x" * 500, text="é" * (FILE_BYTES // 2 + 1))
    assert "is larger than 8 MiB" in sentence
    assert len(sentence) < 250


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("NaN", "is not JSON"),
        ("[]", "holds no results"),
        (json.dumps(document() | {"version": 9}), "has format 9"),
        (json.dumps(document() | {"experiment": "<b>"}), "is of no experiment"),
        (json.dumps(document() | {"cases": [{}]}), "is damaged"),
        (json.dumps(document() | {"cases": []}), "No case has been measured yet"),
        (json.dumps(document() | {"machine": {}}), "cannot be read"),
        (json.dumps(document() | {"model": {"name": {"deep": {}}}}), "cannot be read"),
        (json.dumps(document()).replace('"step_s": [', '"step_s": ["x", '), "cannot be read"),
    ],
)
def test_a_file_that_is_no_results_is_refused_in_one_sentence(text, sentence):
    found = refusal(name="mine.json", text=text)
    assert sentence in found
    assert found.endswith((".", "kv-memory."))
    assert "\n" not in found


def test_a_files_strings_stay_text_where_plotly_would_read_them():
    report = opened(**file(text=NASTY))
    assert NASTY in report["answers"][0]
    assert NASTY in report["parts"][0]["title"]
    assert NASTY in dict(report["facts"])["measured on"]
    assert NASTY in report["parts"][2]["rows"][0][0]
    drawn = [
        text for part in report["parts"] if "data" in part for text in strings([part["data"], part["layout"]])
    ]
    named = [text for text in drawn if "script" in text]
    assert named
    assert all("<" not in text and "{" not in text.replace("&#123;", "") for text in named)
    assert any("&lt;script&gt;" in text and "&amp;lt;" in text and "%&#123;x}" in text for text in named)


def test_the_characters_that_stand_for_markup_are_taken_out_of_a_file():
    drawn = json.dumps(opened(**file(text="\ue000b\ue001"))["parts"][0]["data"])
    assert "no cacheb" in drawn
    assert "lt;" not in drawn


def test_lone_halves_of_characters_are_replaced():
    line = shelf.open_results(gr.EventData(None, file(text="\ud800")))
    line.encode()
    assert json.loads(line)[0] == "report"


def test_a_line_holds_no_markup_and_one_line():
    line = shelf.open_results(gr.EventData(None, file(text=NASTY + "\n")))
    assert "<" not in line
    assert line.count("\n") == 1


def test_a_fault_of_ours_is_one_sentence_and_logged(monkeypatch, caplog):
    def break_off(*_):
        raise RuntimeError("secret path")

    monkeypatch.setattr(shelf, "report_in_own_process", break_off)
    assert refusal(**file()) == words.EXPERIMENTS["failed"]
    assert "secret path" in caplog.text


class TestOwnProcess:
    """The real process: no report is faked there."""

    @pytest.fixture(autouse=True)
    def real(self, shipped, monkeypatch):
        monkeypatch.setattr(shelf, "report_in_own_process", REAL)

    def test_a_report_comes_back(self, tmp_path, monkeypatch):
        (tmp_path / "sitecustomize.py").write_text(
            "from types import SimpleNamespace\n"
            "import experiments_fake\n"
            "faked = SimpleNamespace(report=experiments_fake.report)\n"
            "experiments_fake.Experiment.reporting = lambda experiment: faked\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        assert opened(**file(text=f"ü🙂{NASTY}"))["title"] == "A step's time at every context"

    def test_a_refusal_comes_back(self):
        assert "is not JSON" in refusal(name="ü<b>.json", text="no")

    def test_what_takes_too_long_is_ended(self, monkeypatch):
        monkeypatch.setattr(shelf, "MOST_S", 0.01)
        assert "took more than 0.01 seconds" in refusal(**file())

    def test_a_process_that_dies_is_one_sentence(self, monkeypatch):
        monkeypatch.setattr(sys, "executable", "/bin/false")
        assert refusal(**file()) == words.EXPERIMENTS["failed"]


REAL = shelf.report_in_own_process


def test_neither_torch_nor_gradio_is_loaded_for_a_report():
    code = (
        "import sys, kshipra.ui.reported, kshipra.experiments.report.parts\n"
        "print([name for name in ('torch', 'gradio', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_main_answers_on_stdout(monkeypatch, capsys):
    import io

    monkeypatch.setattr(reported, "_bound_memory", lambda: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(file())))
    assert reported.main() == 0
    assert json.loads(capsys.readouterr().out)["report"]["title"] == "A step's time at every context"
