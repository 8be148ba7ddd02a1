"""Record the races of assets/recorded/ with the default model on this machine: python tests/record_races.py.

Run it on a quiet machine. Each file is a run's document as the page exports it, and says where it was taken.
"""

from __future__ import annotations

import json
from pathlib import Path

from kshipra.backends.local import LocalBackend
from kshipra.models.catalogue import DEFAULT
from kshipra.recipes import RECIPE_KEYS
from kshipra.types import Ended, Failed, ModelChoice, Plan, SamplingParams
from kshipra.ui.record import Recording, to_json

FOLDER = Path(__file__).parents[1] / "assets" / "recorded"
PRESETS = Path(__file__).parents[1] / "assets" / "presets.json"
RACES = {"three-lengths": ("Three lengths", 32), "four-facts": ("Four facts", 24)}


def record(backend: LocalBackend, prompts: tuple[str, ...], new_tokens: int) -> str:
    """The document of one run, as one line of JSON."""
    plan = Plan(ModelChoice(DEFAULT), prompts, RECIPE_KEYS, SamplingParams(new_tokens))
    run, recording = backend.submit(plan), Recording(plan)
    ended = False
    while not ended:
        for message in run.messages(1.0):
            recording.add(message)
            ended = ended or isinstance(message, Ended)
            assert not isinstance(message, Failed), message.sentence
    document = recording.document()
    assert document is not None
    return to_json(document)


def main() -> None:
    presets = {
        preset["name"]: preset["prompts"] for preset in json.loads(PRESETS.read_text(encoding="utf-8"))
    }
    backend = LocalBackend()
    FOLDER.mkdir(exist_ok=True)
    for name, (preset, new_tokens) in RACES.items():
        prompts = tuple(presets[preset])
        record(backend, prompts, 4)  # the first run warms everything up
        text = record(backend, prompts, new_tokens)
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {len(text) / 1024:.0f} KiB, {json.loads(text)['summary']['headline']}")
    backend.close()


if __name__ == "__main__":
    main()
