"""Results files of experiments with odd parts: a report or one sentence, never a fault of ours."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from kshipra.errors import InputError
from kshipra.ui import reported
from kshipra.ui.shelf import FOLDER

FILES = sorted(FOLDER.glob("gpt2/*/results.json"))
CASES = 8  # a file
ODD = (
    None, True, 0, -1, 1.5, 1e308, -1e308, 10**400, "", "1", "<b>", [], {}, [[]], [None], {"__proto__": 1},
    "x" * 10_000, [0] * 5_000,
)  # fmt: skip


def parts(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The path of every part, of a list only the first three."""
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    )
    for key, item in items:
        yield (*path, key)
        yield from parts(item, (*path, key))


def spoil(document: dict[str, Any], path: tuple, change: Any) -> None:
    part = document
    for key in path[:-1]:
        part = part[key]
    if change is KeyError:
        del part[path[-1]]
    else:
        part[path[-1]] = change


def answer(document: dict[str, Any]) -> str | None:
    """The sentence of a refusal; None where there is a report. Anything else is raised."""
    try:
        json.dumps(reported.shown(json.dumps(document), "r.json"), allow_nan=False)
    except InputError as error:
        return str(error)
    return None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_a_part_that_is_odd_or_missing_is_one_sentence(file):
    chance, text = random.Random(file.parent.name), file.read_text(encoding="utf-8")
    paths = list(parts(json.loads(text)))
    said = []
    for path in chance.sample(paths, CASES):
        document = json.loads(text)
        spoil(document, path, chance.choice((*ODD, KeyError, KeyError)))
        said.append(answer(document))
    for sentence in filter(None, said):
        assert sentence.endswith((".", "…")), sentence
        assert len(sentence) <= reported.MOST_CHARS, sentence
        assert "\n" not in sentence


FOUND = [
    ("kv-cache", ("cases", 1, "samples", "step_s", "kv_cache", 1), 10**400),
    ("positions", ("cases", 0, "samples", "faults", "new_before_old", "checks", 2), KeyError),
    (
        "positions",
        ("cases", 0, "samples", "faults", "pads_counted", "runs", "kv_cache", 1, "difference", 0),
        10**400,
    ),
]


@pytest.mark.parametrize(("name", "path", "change"), FOUND)
def test_what_was_a_fault_of_ours_is_damage(name, path, change):
    document = json.loads((FOLDER / "gpt2" / name / "results.json").read_text(encoding="utf-8"))
    spoil(document, path, change)
    assert (answer(document) or "").endswith(": run the experiment again.")
