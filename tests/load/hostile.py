"""1,000 hostile inputs through the public endpoint: each gets an answer or one sentence, the server lives.

python tests/load/hostile.py [INPUTS=1000]
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any
from unittest import mock

from asking import Client, Reading, compare, served, verdict

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


def wrong_with(sentence: str) -> str | None:
    """What a stranger should not have been told."""
    if "\n" in sentence.strip() or len(sentence) > 400:
        return "no single sentence"
    return next(
        (f"it names {place}" for place in ("/home", "/tmp", "/root", "Traceback") if place in sentence), None
    )


def escaped(value: Any, **_: Any) -> str:
    """JSON as browsers write it, which can hold half a character; httpx's own cannot."""
    return json.dumps(value)


@mock.patch("httpx._content.json_dumps", escaped)
def main(inputs: int = 1_000) -> int:
    chance, answered, slowest_s, asked = random.Random(11), 0, 0.0, {}
    lost: list[Any] = []
    wrong: list[Any] = []
    with served("--public") as app:
        client = Client(app.address, verbose=False)
        compare(client, ["warm"], ["kv_cache"], 2)
        before = Reading.of(app)
        for _ in range(inputs):
            asked, started_s = fields(chance), time.monotonic()
            try:
                found = compare(client, **asked)
            except Exception as error:  # neither an answer nor a refusal
                lost.append((asked, repr(error)))
                continue
            slowest_s = max(slowest_s, time.monotonic() - started_s)
            answered += not isinstance(found, str)
            if isinstance(found, str) and (fault := wrong_with(found)) is not None:
                wrong.append((fault, asked, found))
        if isinstance(alive := compare(client, ["next"], ["kv_cache"], 1), str):
            lost.append(("a good call at the end", alive))
        after = Reading.of(app)
    print(f"{answered} answered, {inputs - answered - len(lost)} refused; the slowest took {slowest_s:.2f} s")
    return verdict("hostile inputs", inputs, before, after, lost=lost, wrong=wrong)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
