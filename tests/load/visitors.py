"""20 visitors for 10 minutes: every run's ids are those of its solo run, no answer is lost, memory is flat.

python tests/load/visitors.py [VISITORS=20] [SECONDS=600]
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time

from asking import WAYS, Client, compare, ids, tiny_app

import kshipra
from kshipra.types import SamplingParams

PAUSE_S = 1.0  # of a person who looks at an answer


def main(visitors: int = 20, seconds: float = 600.0) -> None:
    with tiny_app() as (app, folder):
        engine = kshipra.load(str(folder), device="cpu")
        solo_lock, answers, refused, wrong, lost = threading.Lock(), [], [], [], []

        def visit(number: int, end_s: float) -> None:
            own = random.Random(number)
            client = Client(app.address, verbose=False)
            while time.monotonic() < end_s:
                prompts = [
                    "".join(own.choices("abcdefgh ", k=own.randint(1, 40))) for _ in range(own.randint(1, 3))
                ]
                asked_s, most = time.monotonic(), own.randint(1, 12)
                found = compare(client, prompts, WAYS, most)
                if isinstance(found, str):
                    (refused if "waiting already" in found else lost).append(found)
                else:
                    answers.append(time.monotonic() - asked_s)
                    with solo_lock:
                        solo = engine.generate(prompts, params=SamplingParams(most))
                    expected = [list(row.token_ids) for row in solo.rows]
                    wrong.extend(way for way, rows in ids(found).items() if rows != expected)
                time.sleep(own.random() * PAUSE_S)

        compare(Client(app.address, verbose=False), ["warm"], WAYS, 2)
        before, end_s = app.resident_bytes(), time.monotonic() + seconds
        threads = [threading.Thread(target=visit, args=(number, end_s)) for number in range(visitors)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        grown = (app.resident_bytes() - before) / 2**20
    print(
        f"{len(answers) + len(refused) + len(lost)} tried by {visitors} visitors in {seconds:.0f} s: "
        f"{len(lost)} lost, {len(wrong)} wrong, {len(refused)} politely refused; an answer after "
        f"{statistics.median(answers):.2f} s, at most {max(answers):.2f} s; memory grew by {grown:.1f} MiB"
    )
    assert not lost, lost[:3]
    assert not wrong, wrong[:3]
    assert answers


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False)))
