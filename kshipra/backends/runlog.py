"""One line of JSON in the log for every run: what was asked for, how much it was and how long it took. Never
a prompt or an output."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from kshipra.types import Ended, Failed, Finished, Message, ModelChoice, Plan, Started

log = logging.getLogger("kshipra.runs")


class RunLog:
    """A fold over a run's messages; `Ended` writes the line."""

    def __init__(self, choice: ModelChoice, plan: Plan | None) -> None:
        self._submitted_s = time.monotonic()
        self._started_s: float | None = None
        self._said: dict[str, Any] = {
            "what": "run" if plan is not None else "load",
            "model": choice.model,
            "device": choice.device,
            "dtype": choice.dtype,
            "prompts": len(plan.prompts) if plan is not None else 0,
            "characters": sum(map(len, plan.prompts)) if plan is not None else 0,
            "max_new_tokens": plan.params.max_new_tokens if plan is not None else 0,
            "ways": {},
            "failed": 0,
        }

    def begin(self) -> None:
        """It waits no longer."""
        self._started_s = time.monotonic()

    def add(self, message: Message) -> None:
        if isinstance(message, Started):
            self._said["prompt_tokens"] = sum(len(request.prompt_ids) for request in message.requests)
        elif isinstance(message, Finished):
            result = message.result
            self._said["ways"][message.recipe] = {
                "new_tokens": result.new_tokens,
                "wall_s": round(result.wall_s, 4),
                "ttft_s": round(result.ttft_s, 4) if result.ttft_s is not None else None,
            }
        elif isinstance(message, Failed):
            self._said["failed"] += 1
        elif isinstance(message, Ended):
            now_s, began_s = time.monotonic(), self._started_s
            waited_s = (began_s or now_s) - self._submitted_s
            self._said |= {"stopped": message.stopped, "waited_s": round(waited_s, 3)}
            self._said["worked_s"] = round(now_s - began_s, 3) if began_s is not None else 0.0
            log.info(json.dumps(self._said))
