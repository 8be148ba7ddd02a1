"""app.py whose first model takes a minute to load, or as long as the file NAME of `SLOW_UNTIL` is missing.

python tests/hosting/slow_app.py [what app.py takes]
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from app import main
from kshipra.engine import runner
from kshipra.types import ModelChoice, Progress

MINUTE_S, POLL_S = 60.0, 0.1


def slowly(load_choice):
    def load(choice: ModelChoice, *, progress: Progress, **options: Any) -> runner.Engine:
        began_s = time.monotonic()
        until = Path(os.environ["SLOW_UNTIL"])
        while (waited_s := time.monotonic() - began_s) < MINUTE_S and not until.exists():
            progress("Fetching", int(waited_s * 2**20), int(MINUTE_S * 2**20))
            time.sleep(POLL_S)
        return load_choice(choice, progress=progress, **options)

    return load


if __name__ == "__main__":
    runner.load_choice = slowly(runner.load_choice)
    main()
