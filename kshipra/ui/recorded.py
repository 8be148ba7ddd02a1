"""The recorded runs that come with Kshipra: which there are and what they are called. Without gradio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kshipra.ui import words

FOLDER = Path(__file__).parents[2] / "assets" / "recorded"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def name_of(document: dict[str, Any]) -> str:
    """What a visitor picks a recorded run by: its model, where it ran, and how much of what."""
    settings = document["settings"]
    return words.RACE["recordedName"].format(
        model=document["model"]["spec"]["name"],
        device=document["model"]["device"],
        ways=_count(len(document["ways"]), "way"),
        prompts=_count(len(settings["prompts"]), "prompt"),
        tokens=settings["params"]["max_new_tokens"],
    )


def runs() -> dict[str, str]:
    """The name of each recorded run by its file's, in that order."""
    return {
        path.name: name_of(json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(FOLDER.glob("*.json"))
    }
