"""200 runs that are stopped or left at random moments: each ends, the one after it works, memory is flat.

python tests/load/cycles.py [CYCLES=200]
"""

from __future__ import annotations

import json
import random
import sys
import time

from asking import WAYS, Client, compare, tiny_app

FREED_WITHIN_S = 30.0  # on a machine that does other things; Kshipra itself promises ten


def main(cycles: int = 200) -> None:
    chance = random.Random(7)
    slowest_s = 0.0
    with tiny_app() as (app, _):
        client = Client(app.address, verbose=False)
        compare(client, ["warm"], WAYS, 2)
        before = app.resident_bytes()
        for cycle in range(cycles):
            own = client if cycle % 2 else Client(app.address, verbose=False)
            job = own.submit(["x" * chance.randint(1, 60)] * 4, WAYS, 400, api_name="/compare")
            time.sleep(chance.random() * 0.5)
            if cycle % 2:
                job.cancel()
            else:
                own.close()
            freed_s = time.monotonic()
            answer = compare(client, ["next"], ["kv_cache"], 1)
            slowest_s = max(slowest_s, time.monotonic() - freed_s)
            assert isinstance(answer, dict), answer
        grown = (app.resident_bytes() - before) / 2**20
        lines = [line for line in app.log.read_text().splitlines() if "kshipra.runs: {" in line]
        ended = [json.loads(line[line.index("{") :]) for line in lines]
        stopped = sum(line["stopped"] for line in ended)
    print(
        f"{cycles} tried: {stopped} stopped before their end, {2 * cycles + 2 - len(ended)} left without an "
        f"end; the next answer after at most {slowest_s:.2f} s; memory grew by {grown:.1f} MiB"
    )
    assert len(ended) == 2 * cycles + 2
    assert slowest_s < FREED_WITHIN_S


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
