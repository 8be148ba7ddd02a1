"""The results file of an experiment: raw samples of every case, with all that they depend on. Knows nothing
of torch, of how a sample is taken, or of figures.

    format, version   "kshipra-experiment", 1
    experiment        its name
    settings          model, device, dtype as asked for, and quick
    model             the ModelSpec, `weights_from` ("published" or "random": GPT-2's shape where the
                      published values cannot be had), threads, and the device as it was
    machine, versions, commit
    finished          whether every case is there
    cases             a list: name, settings, samples (the experiment's own), took_s, taken_at
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kshipra.errors import InputError
from kshipra.experiments import NAMES

FORMAT, VERSION = "kshipra-experiment", 1
FILE = "results.json"
MOST_BYTES = 64 * 2**20  # of a file that somebody opens


@dataclass(frozen=True)
class CaseResult:
    name: str
    settings: dict[str, Any]
    samples: dict[str, Any]
    took_s: float
    taken_at: str  # ISO 8601, UTC


@dataclass(frozen=True)
class Results:
    experiment: str
    settings: dict[str, Any]
    model: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, Any]
    commit: str | None
    cases: tuple[CaseResult, ...] = ()
    finished: bool = False

    def case(self, name: str) -> CaseResult | None:
        return next((case for case in self.cases if case.name == name), None)

    def of(self, **settings: Any) -> list[CaseResult]:
        """The cases whose settings hold these values, in the order in which they were taken."""
        return [
            case
            for case in self.cases
            if all(case.settings.get(key) == value for key, value in settings.items())
        ]

    def extended(self, case: CaseResult) -> Results:
        return dataclasses.replace(self, cases=(*self.cases, case))

    def differences(self, other: Results) -> list[str]:
        """What two results do not share of all that a sample depends on: they cannot be one experiment's."""
        fields = ("experiment", "settings", "model", "machine", "versions", "commit")
        return [field for field in fields if getattr(self, field) != getattr(other, field)]


def write(results: Results, folder: Path) -> None:
    """results.json in `folder`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(results)}
    unfinished = folder / f".{FILE}.part"
    unfinished.write_text(json.dumps(document, allow_nan=False, indent=1), encoding="utf-8")
    unfinished.replace(folder / FILE)


def read(path: Path) -> Results:
    """The results in the file `path`. InputError where it is none."""
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path.name} is larger than {MOST_BYTES >> 20} MiB: choose a results.json.")
    return from_document(parsed(path.read_bytes(), path.name), path.name)


def parsed(text: str | bytes, name: str) -> Any:
    """Strict JSON of a file, whatever it holds; InputError for what is none."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not JSON: choose a results.json of an experiment.") from error


def from_document(document: Any, name: str = "the file") -> Results:
    """Results of parsed JSON, every field of the kind that it should be; InputError else."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{name} holds no results of an experiment: choose a results.json.")
    if document.get("version") != VERSION:
        raise InputError(
            f"{name} has format {document.get('version')!r:.20}, and this Kshipra reads {VERSION}."
        )
    if document.get("experiment") not in NAMES:
        raise InputError(f"{name} is of no experiment that this Kshipra knows: {', '.join(NAMES)}.")
    try:
        cases = tuple(
            CaseResult(
                _is(case["name"], str),
                _is(case["settings"], dict),
                _is(case["samples"], dict),
                _number(case["took_s"]),
                _is(case["taken_at"], str),
            )
            for case in _is(document["cases"], list)
        )
        parts = (_is(document[field], dict) for field in ("settings", "model", "machine", "versions"))
        commit = document["commit"]
        return Results(
            document["experiment"],
            *parts,
            commit if commit is None else _is(commit, str),
            cases,
            _is(document["finished"], bool),
        )
    except (KeyError, TypeError) as error:
        raise InputError(f"{name} is damaged ({error}): run the experiment again.") from error


def _is(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__} is missing")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError("a number is missing")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
