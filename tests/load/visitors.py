"""20 visitors for 10 minutes, programs and pages by turns: every run has the ids of its solo run, no last
update is lost, the queue is bounded, memory is flat.

python tests/load/visitors.py [VISITORS=20] [SECONDS=600]
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
from asking import WAYS, Client, Reading, compare, ids, logged_runs, tiny_app, verdict
from gradio_client.utils import apply_diff

import kshipra
from kshipra.types import SamplingParams

PAUSE_S = 1.0  # of a person who looks at an answer
Ask = Callable[[list[str], int], "dict[str, Any] | str"]


@dataclass
class Tally:
    waits_s: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return len(self.waits_s) + len(self.refused) + len(self.lost)


class Page:
    """A tab of the page: it presses Run and reads the stage and the run's record, as the browser does."""

    def __init__(self, address: str, model: str) -> None:
        self.api, self.session, self.model = f"{address}gradio_api/", uuid.uuid4().hex, model
        config = httpx.get(f"{address}config").json()
        button = next(each["id"] for each in config["components"] if each["props"].get("elem_id") == "run")
        self.run = next(each for each in config["dependencies"] if [button, "click"] in each["targets"])
        values = {each["id"]: each["props"].get("value") for each in config["components"]}
        self.fields = [values[number] for number in self.run["inputs"]]

    def ask(self, prompts: list[str], most: int) -> dict[str, Any] | str:
        """The run's record, or the sentence of a refusal or of what was lost."""
        data = [prompts, WAYS, self.model, *self.fields[3:6], most, *self.fields[7:]]
        call = {"fn_index": self.run["id"], "session_hash": self.session, "data": data}
        httpx.post(f"{self.api}queue/join", json=call).raise_for_status()
        values: list[Any] = []
        with httpx.stream(
            "GET", f"{self.api}queue/data", params={"session_hash": self.session}, timeout=300
        ) as stream:
            for text in stream.iter_lines():
                message = json.loads(text.removeprefix("data:")) if text.startswith("data:") else {}
                if message.get("msg") == "process_generating" and message["success"]:
                    news = message["output"]["data"]
                    values = news if not values else [*map(apply_diff, values, news)]
                if message.get("msg") == "process_completed":
                    break
        lines = [json.loads(line) for line in values[0].splitlines()] if values else []
        if lines and lines[0][0] == "refused":
            return lines[0][2]
        is_whole = bool(lines) and lines[-1] == ["over"] and any(line[0] == "summary" for line in lines)
        return json.loads(values[1]) if is_whole and values[1] else f"lost: the last update is {lines[-1:]}"


def visit(ask: Ask, number: int, end_s: float, solo: Ask, tally: Tally) -> None:
    """One visitor asks again and again, and holds every answer against what he alone would have got."""
    own = random.Random(number)
    while time.monotonic() < end_s:
        prompts = ["".join(own.choices("abcdefgh ", k=own.randint(1, 40))) for _ in range(own.randint(1, 3))]
        asked_s, most = time.monotonic(), own.randint(1, 12)
        try:
            found = ask(prompts, most)
        except Exception as error:  # whatever it is, his answer is gone
            found = f"{type(error).__name__}: {error}"
        if isinstance(found, str):
            (tally.refused if "waiting already" in found else tally.lost).append(found)
        else:
            tally.waits_s.append(time.monotonic() - asked_s)
            expected = solo(prompts, most)
            tally.wrong += [
                f"{way}: {rows}, not {expected}" for way, rows in ids(found).items() if rows != expected
            ]
        time.sleep(own.random() * PAUSE_S)


def main(visitors: int = 20, seconds: float = 600.0) -> int:
    tally, lock = Tally(), threading.Lock()
    with tiny_app() as (app, folder):
        engine = kshipra.load(str(folder), device="cpu")

        def solo(prompts: list[str], most: int) -> list[list[int]]:
            with lock:
                found = engine.generate(prompts, params=SamplingParams(most))
            return [list(row.token_ids) for row in found.rows]

        def asker(number: int) -> Ask:
            if number % 2:
                return Page(app.address, str(folder)).ask
            client = Client(app.address, verbose=False)
            return lambda prompts, most: compare(client, prompts, WAYS, most)

        askers = [asker(number) for number in range(visitors)]
        for ask in askers[:2]:
            ask(["warm"], 2)
        before, end_s = Reading.of(app), time.monotonic() + seconds
        with ThreadPoolExecutor(visitors) as pool:
            each = [pool.submit(visit, ask, at, end_s, solo, tally) for at, ask in enumerate(askers)]
            for visitor in each:
                visitor.result()
        after = Reading.of(app)
        queued_s = [run["waited_s"] for run in logged_runs(app)[2:]]
    print(
        f"{visitors} visitors for {seconds:.0f} s: {len(tally.waits_s)} answers, {len(tally.refused)} polite "
        f"refusals\nin the queue: {_spread(queued_s)}; from Run to the end: {_spread(tally.waits_s)}"
    )
    return verdict("visitors", tally.tried, before, after, lost=tally.lost, wrong=tally.wrong)


def _spread(times_s: list[float]) -> str:
    if not times_s:
        return "nobody"
    ordered = sorted(times_s)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    return f"median {statistics.median(ordered):.2f} s, p95 {p95:.2f} s, most {ordered[-1]:.2f} s"


if __name__ == "__main__":
    sys.exit(main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False))))
