"""Recorded runs: which there are and what they are called."""

from __future__ import annotations

from record_fake import document, record_in

from kshipra.ui import recorded


def test_a_recorded_run_is_named_after_its_model_its_machine_and_its_size(tmp_path, monkeypatch):
    record_in(tmp_path / "a b", monkeypatch, one=document(model="tiny"))
    assert recorded.runs() == {"one.json": "tiny, cpu: 3 ways, 3 prompts, up to 8 new tokens"}


def test_without_a_folder_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "missing")
    assert recorded.runs() == {}


def test_what_comes_with_kshipra_can_be_named():
    assert all(recorded.runs().values())
