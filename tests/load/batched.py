"""10,000 requests through one continuous run, some cancelled, with kept texts: every hundredth is its solo
run, nobody is forgotten, memory is flat.

    make soak, or PYTHONPATH=.:tests:tests/models:tests/load python tests/load/batched.py [REQUESTS=10000]
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace

from conftest import Letters, make_gpt2
from kshipra import machine
from kshipra.engine.prefix import PrefixCache
from kshipra.engine.runner import Engine
from kshipra.types import Batching, Request, SamplingParams

WAITING = 16  # that stand in line at any time
KEPT_BYTES = 2**20
CANCELLED_EVERY, COMPARED_EVERY = 37, 100


def main(count: int = 10_000) -> None:
    engine, chance = Engine(make_gpt2(), Letters()), random.Random(3)
    prefixes, tokens, over = PrefixCache(KEPT_BYTES), {}, 0
    given, cancelled, wrong, grown_from = 0, set(), [], 0

    def request() -> Request:
        nonlocal given
        start = [7] * chance.choice((0, 10, 30))  # which some share
        prompt = start + chance.choices(range(200), k=chance.randint(1, 40))
        params = SamplingParams(chance.randint(1, 24), ignore_eos=True)
        (made,) = engine.requests([prompt], params)
        given += 1
        tokens[given - 1] = (made, [])
        return replace(made, row=given - 1)

    def attend(job) -> None:
        while len(job.requests) < WAITING and given < count:
            job.requests.append(request())
        while len(cancelled) < given // CANCELLED_EVERY and tokens:
            row = chance.choice(list(tokens))  # that waits or runs
            cancelled.add(row)
            job.cancel(row)
            del tokens[row]

    started_s = time.monotonic()
    batching = Batching(rows=8, cache_tokens=1_024)
    how = {"batching": batching, "attend": attend, "prefixes": prefixes}
    for event in engine.run([request()], mode="continuous", **how):
        assert len(event.rows) <= 8
        assert prefixes.used_bytes <= KEPT_BYTES
        for token in event.new_tokens:
            own, said = tokens[token.row]
            said.append(token.id)
            if token.finish_reason is not None:
                over += 1
                del tokens[token.row]
                if token.row % COMPARED_EVERY == 0:
                    solo = engine.generate([own.prompt_ids], params=own.params).rows[0].token_ids
                    wrong += [token.row] if solo != tuple(said) else []
                if over == count // 10:
                    grown_from = machine.resident_bytes()
    taken_s = time.monotonic() - started_s
    grown = (machine.resident_bytes() - grown_from) / 2**20
    print(
        f"{given} tried: {over} ended, {len(cancelled)} cancelled, {len(tokens)} forgotten, {len(wrong)} "
        f"wrong; {taken_s:.0f} s; memory grew by {grown:.1f} MiB after the first tenth; "
        f"{prefixes.used_bytes >> 10} of {KEPT_BYTES >> 10} KiB of kept texts"
    )
    assert not wrong, wrong
    assert not tokens, list(tokens)[:5]
    assert over + len(cancelled) == given == count
    assert grown < 32


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
