"""200 runs that are stopped or left at random moments: each ends at once, the next one works, nothing stays.

python tests/load/cycles.py [CYCLES=200]
"""

from __future__ import annotations

import random
import sys
import time
import uuid
from typing import Any

import httpx
from asking import WAYS, Client, Reading, compare, logged_runs, tiny_app, verdict

FREED_WITHIN_S = 10.0
LONG = 400  # new tokens, so that no run ends before it is stopped or left


class Caller:
    """One browser tab or program: a session of its own, without anything that would end it tidily."""

    def __init__(self, address: str) -> None:
        self.api, self.session = f"{address}gradio_api/", uuid.uuid4().hex
        config = httpx.get(f"{address}config").json()
        self.number = next(each["id"] for each in config["dependencies"] if each["api_name"] == "compare")
        self.fields = [each["parameter_default"] for each in self._parameters()]

    def _parameters(self) -> list[dict[str, Any]]:
        info = httpx.get(f"{self.api}info").json()["named_endpoints"]["/compare"]
        return info["parameters"]

    def run(self, prompts: list[str], after_s: float, *, cancel: bool) -> None:
        """Begin a long run; `after_s` later stop it, or drop the line."""
        call = {"fn_index": self.number, "session_hash": self.session}
        data = {"data": [prompts, WAYS, LONG, *self.fields[3:]]}
        event = httpx.post(f"{self.api}queue/join", json=call | data).raise_for_status().json()["event_id"]
        with httpx.stream("GET", f"{self.api}queue/data", params={"session_hash": self.session}):
            time.sleep(after_s)
            if cancel:
                httpx.post(f"{self.api}cancel", json=call | {"event_id": event}).raise_for_status()


def main(cycles: int = 200) -> int:
    chance, waits_s, lost = random.Random(7), [], []
    with tiny_app() as (app, _):
        client = Client(app.address, verbose=False)
        caller = Caller(app.address)
        for _ in range(4):
            compare(client, ["warm"], WAYS, 2)
        before = Reading.of(app)
        for cycle in range(cycles):
            caller.session = uuid.uuid4().hex  # as after a reload
            prompts = ["x" * chance.randint(1, 60) for _ in range(4)]
            caller.run(prompts, chance.random() * 0.5, cancel=bool(cycle % 2))
            left_s = time.monotonic()
            answer = compare(client, ["next"], ["kv_cache"], 1)
            waits_s.append(time.monotonic() - left_s)
            if isinstance(answer, str):
                lost.append(answer)
        after = Reading.of(app)
        runs = logged_runs(app)[4:]
    cut = [run for run in runs if run["max_new_tokens"] == LONG]
    lost += [f"{2 * cycles - len(runs)} runs have no end"] * (len(runs) != 2 * cycles)
    wrong = [f"a run went on to its end: {run}" for run in cut if not run["stopped"]]
    wrong += [f"the next answer took {wait:.1f} s" for wait in waits_s if wait > FREED_WITHIN_S]
    print(
        f"stopped {cycles // 2} times, left {cycles - cycles // 2} times; the next answer came after at most "
        f"{max(waits_s):.2f} s"
    )
    return verdict("cycles", cycles, before, after, lost=lost, wrong=wrong)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
