"""Record the races of assets/recorded/ with the default model on this machine: python tests/record_races.py.

Run it on a quiet machine. Each file is a run's document as the page exports it, and says where it was taken.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from kshipra.backends.local import LocalBackend
from kshipra.models.catalogue import DEFAULT
from kshipra.types import ModelChoice
from kshipra.ui.endpoint import compare_endpoint
from kshipra.ui.record import to_json

FOLDER = Path(__file__).parents[1] / "assets" / "recorded"
PRESETS = Path(__file__).parents[1] / "assets" / "presets.json"
RACES = {"three-lengths": ("Three lengths", 32), "four-facts": ("Four facts", 24)}


def record(backend: LocalBackend, prompts: list[str], new_tokens: int) -> str:
    """The document of one run, as one line of JSON."""
    compare = compare_endpoint(backend, ModelChoice(DEFAULT))
    return to_json(asyncio.run(compare(prompts, max_new_tokens=new_tokens)))


def main() -> None:
    presets = {
        preset["name"]: preset["prompts"] for preset in json.loads(PRESETS.read_text(encoding="utf-8"))
    }
    backend = LocalBackend()
    FOLDER.mkdir(exist_ok=True)
    for name, (preset, new_tokens) in RACES.items():
        prompts = presets[preset]
        record(backend, prompts, 4)  # the first run warms everything up
        text = record(backend, prompts, new_tokens)
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {len(text) / 1024:.0f} KiB, {json.loads(text)['summary']['headline']}")
    backend.close()


if __name__ == "__main__":
    main()
