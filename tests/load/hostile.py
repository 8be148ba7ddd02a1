"""1,000 hostile inputs through the public endpoint: each gets an answer or one sentence, the server lives.

python tests/load/hostile.py [INPUTS=1000]
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from asking import Client, compare, tiny_app

TEXTS = (
    "", " ", "a", "\0", "\ud83d", "{{7*7}}", "${7*7}", "<script>alert(1)</script>", "../../etc/passwd",
    "/etc/passwd", "file:///etc/passwd", "http://127.0.0.1:1/x", "'; DROP TABLE runs; --", "%s%n", "é" * 300,
    "\u202e", "a" * 30_000, "__import__('os').system('true')", "<|im_end|>", "org/../../x", "x.gguf", "CON",
    "\r\nX-A: b", "😀" * 50,
)  # fmt: skip
NUMBERS = (
    0,
    -1,
    1,
    2,
    3,
    1e308,
    -1e308,
    2**63,
    10**30,
    0.5,
    "1",
    "",
    None,
    True,
    [],
    {},
    "NaN",
    [1],
    {"a": 1},
)
ENGINES = ("auto", "cpu", "cuda", "cpu:99", "meta", "float32", "int4", "../", "")


def fields(chance: random.Random) -> dict[str, Any]:
    """A call with one to three fields gone wrong."""
    good: dict[str, Any] = {"prompts": ["a"], "ways": ["kv_cache"], "max_new_tokens": 2}
    odd = {
        "prompts": lambda: chance.choice(
            [
                [],
                TEXTS[2],
                [None],
                [[]],
                [1],
                {},
                None,
                [chance.choice(TEXTS) for _ in range(chance.randint(1, 20))],
            ]
        ),
        "ways": lambda: chance.choice(
            [[], ["all"], [None], "kv_cache", {}, ["kv_cache"] * 50, [chance.choice(TEXTS)]]
        ),
        "model": lambda: chance.choice(TEXTS),
        "device": lambda: chance.choice(ENGINES),
        "dtype": lambda: chance.choice(ENGINES),
        "chat": lambda: chance.choice(NUMBERS),
        **{
            name: lambda: chance.choice(NUMBERS)
            for name in ("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed")
        },
    }
    return good | {name: odd[name]() for name in chance.sample(sorted(odd), chance.randint(1, 3))}


def main(inputs: int = 1_000) -> None:
    chance, answered, refused, slowest_s = random.Random(11), 0, 0, 0.0
    with tiny_app("--public") as (app, _):
        client = Client(app.address, verbose=False)
        compare(client, ["warm"], ["kv_cache"], 2)
        before = app.resident_bytes()
        for _ in range(inputs):
            asked, started_s = fields(chance), time.monotonic()
            found = compare(client, **asked)
            slowest_s = max(slowest_s, time.monotonic() - started_s)
            if isinstance(found, str):
                refused += 1
                assert "\n" not in found.strip(), (asked, found)
                assert len(found) < 400, (asked, found)
                assert "/home" not in found, (asked, found)
                assert "/tmp" not in found, (asked, found)
            else:
                answered += 1
        alive = compare(client, ["next"], ["kv_cache"], 1)
        assert isinstance(alive, dict), alive
        grown = (app.resident_bytes() - before) / 2**20
    print(
        f"{inputs} tried: {answered} answered, {refused} refused in one sentence, 0 lost; the slowest took "
        f"{slowest_s:.2f} s; memory grew by {grown:.1f} MiB"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
