"""The results that come with Kshipra: whole runs, whose reports and pictures are those of this code."""

from __future__ import annotations

from pathlib import Path

import pytest

from kshipra.experiments.report import report_of
from kshipra.experiments.report.parts import Figure
from kshipra.experiments.results import FILE, read

SHELF = Path(__file__).parents[2] / "assets" / "experiments"
FILES = sorted(SHELF.glob(f"*/*/{FILE}"))


def test_there_are_some():
    assert {"gpt2", "smollm2-135m-instruct"} == {path.parts[-3] for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_a_shipped_result_is_a_whole_run_with_its_pictures(path):
    results = read(path)
    assert results.finished
    assert not results.settings["quick"]
    assert results.commit is None or not results.commit.endswith("-dirty")
    assert results.experiment == path.parts[-2]
    report = report_of(results)
    assert report.answers
    pictures = {f"{part.key}.svg" for part in report.parts if isinstance(part, Figure)}
    assert pictures == {picture.name for picture in path.parent.glob("*.svg")}
