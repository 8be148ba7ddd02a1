"""The Experiments part of the page on the server: which results come with Kshipra, and what opening one
does. How a report looks is the scripts' in assets/; what it says, the experiment's. Never imports torch."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import gradio as gr

from kshipra.errors import InputError, KshipraError
from kshipra.experiments import EXPERIMENTS, NAMES
from kshipra.experiments.results import FILE
from kshipra.limits import FILE_BYTES, whole_characters
from kshipra.ui import words
from kshipra.ui.lines import line

FOLDER = Path(__file__).parents[2] / "assets" / "experiments"
MOST_NAME_CHARS = 80
MOST_S = 20.0  # that a report may take

_log = logging.getLogger(__name__)


def shelf() -> list[dict[str, Any]]:
    """Every experiment with its results that come with Kshipra, by folder: assets/experiments/MODEL/NAME."""
    models = {name: [path.parts[-3] for path in sorted(FOLDER.glob(f"*/{name}/{FILE}"))] for name in NAMES}
    return [
        {
            "name": experiment.name,
            "title": experiment.title,
            "question": experiment.question,
            "models": models[experiment.name],
        }
        for experiment in EXPERIMENTS
    ]


def open_results(event: gr.EventData) -> str:
    """A report as a line, or the sentence why there is none. The event holds either `shipped`, a MODEL/NAME
    of the shelf, or a file's `text` and `name`; nothing of it is kept."""
    number = uuid.uuid4().hex  # tells two answers of the same words apart
    try:
        return line("report", number, report_in_own_process(*_asked(event._data)))
    except KshipraError as error:
        return line("refused", number, str(error))
    except Exception:
        _log.exception("a report could not be made")
        return line("refused", number, words.EXPERIMENTS["failed"])


def _asked(data: Any) -> tuple[str, str]:
    """The text of the results asked for, and what to call them. Anything can be posted."""
    said = data if isinstance(data, dict) else {}
    if "shipped" in said:
        known = [f"{model}/{each['name']}" for each in shelf() for model in each["models"]]
        if said["shipped"] not in known:
            raise InputError(words.EXPERIMENTS["gone"])
        return (FOLDER / said["shipped"] / FILE).read_text(encoding="utf-8"), said["shipped"]
    text, name = said.get("text"), said.get("name")
    if not isinstance(text, str) or not isinstance(name, str):
        raise InputError(words.EXPERIMENTS["nothing"])
    name, text = whole_characters(name)[:MOST_NAME_CHARS], whole_characters(text)
    if len(text.encode()) > FILE_BYTES:
        raise InputError(words.EXPERIMENTS["tooLarge"].format(file=name, most=FILE_BYTES >> 20))
    return text, name


def report_in_own_process(text: str, name: str) -> dict[str, Any]:
    """`reported.shown` with bounds on time and memory, away from the process that measures.

    Raises InputError for what is no results file, or takes too long."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kshipra.ui.reported"],
            input=json.dumps({"text": text, "name": name}),
            capture_output=True,
            text=True,
            timeout=MOST_S,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(words.EXPERIMENTS["tooLong"].format(file=name, most=f"{MOST_S:g}")) from error
    if done.returncode:
        raise RuntimeError(f"the report's process ended with {done.returncode}: {done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise InputError(answer["refused"])
    return answer["report"]
