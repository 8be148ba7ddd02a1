"""The uncached step, and each of its products alone: do they jump together, and where a tile ends?

Three kinds of cases. Sweeps: step and parts at many lengths, each sweep in an order of its own, so that a
slow minute of the machine meets other lengths in every one. Pairs, which decide: everything at the end of a
tile and one token further, in direct alternation, so that whatever is slower than a pair cancels. Every
length: one layer's products, upwards, so that neighbours in length are neighbours in time.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from typing import Any

import torch

from kshipra.costs import pass_flops
from kshipra.errors import InputError
from kshipra.experiments.rig import Case, Rig
from kshipra.experiments.steps import uncached_way
from kshipra.models.base import attend
from kshipra.models.gpt2 import GPT2
from kshipra.models.llama import Llama

LONGEST, QUICK_LONGEST = 1024, 330  # tokens; the first is the study's
# Tokens from one length to the next. On a CPU no multiple of what a tile has, 8 or 16 or 32, so that the last
# tile is now full and now not; and few, because there the pairs take the time.
STEP, QUICK_STEP, GPU_STEP = 60, 36, 1
SWEEPS = 2
PART_REPEATS = 3  # a part is over soon
CASE_LENGTHS, CASE_EVERY = 16, 128  # visited between two writes of the results
TILE = 64  # tokens: its multiples hold the study's jumps, and end tiles of 8, 16 and 32 as well
BESIDE = 18  # from a tile's end to where nothing ends: as even, and no multiple of 4
CONTROL_EVERY = 5  # tile ends for one place beside them
STEP_PAIRS, HEAD_PAIRS, PART_PAIRS = 6, 2, 16  # 6 are the fewest whose range holds the median 95 times in 100
AT_ONCE_S = 1e-9  # a limit that every call exceeds, so that it is its own warm-up
PRODUCTS = ("qkv", "attention_out", "mlp_in", "mlp_out")  # of every layer, as the model names them


def cases(rig: Rig) -> list[Case]:
    """Sweeps, pairs, every length. InputError for a model whose products have no names here."""
    if not isinstance(rig.engine.model, (GPT2, Llama)):
        raise InputError(
            "staircase takes the single products of Kshipra's own GPT-2 and Llama, not those of the adapter: "
            "choose such a model."
        )
    longest = min(rig.spec.context or LONGEST, QUICK_LONGEST if rig.quick else LONGEST)
    return [*sweeps(rig, longest), *pairs(longest), *ladder(longest)]


def sweeps(rig: Rig, longest: int) -> list[Case]:
    """The sweeps, in pieces."""
    coarse = QUICK_STEP if rig.quick else STEP
    step = coarse if rig.device.type == "cpu" else GPU_STEP
    every = range(max(step, 8), longest + 1, step)
    found = []
    for sweep in range(SWEEPS):
        shuffled = random.Random(sweep).sample(every, len(every))
        for start in range(0, len(every), CASE_LENGTHS):
            piece = shuffled[start : start + CASE_LENGTHS]
            settings = {"kind": "sweep", "sweep": sweep, "step_tokens": step, "lengths": piece}
            found.append(Case(f"sweep {sweep + 1}, from its length {start + 1}", settings))
    return found


def pairs(longest: int) -> list[Case]:
    """Every end of a tile, and beside some of them a place where none ends."""
    edges = range(TILE, longest, TILE)
    beside = [edge + BESIDE for edge in edges[::CONTROL_EVERY] if edge + BESIDE < longest]
    return [
        Case(
            f"{tokens} and {tokens + 1} tokens in turns",
            {"kind": "pair", "tokens": tokens, "is_edge": tokens in edges},
        )
        for tokens in sorted((*edges, *beside))
    ]


def ladder(longest: int) -> list[Case]:
    found = []
    for first in range(8, longest + 1, CASE_EVERY):
        last = min(first + CASE_EVERY - 1, longest)
        name = f"products at every length, {first} to {last}"
        found.append(Case(name, {"kind": "every length", "first": first, "last": last}))
    return found


def measure(rig: Rig, case: Case) -> dict[str, Any]:
    """Seconds of the whole step, with the head on the last position, and of the parts. A part is done in
    `timed_layers` layers of the model's `layers`, and the head once, on all positions as in the study's step.

    On a CPU one layer stands for all, and what takes seconds is not done twice for a warm-up: the products of
    that length have just been run. On a GPU all layers follow one another as in a step, because one product
    is shorter than the way to it.
    """
    settings = dict(case.settings)
    kind = MEASURES[settings.pop("kind")]
    layers = rig.spec.layers
    timed_layers = 1 if rig.device.type == "cpu" else layers
    with torch.inference_mode():
        samples = kind(rig, timed_layers, **settings)
    return {"timed_layers": timed_layers, "layers": layers, **samples}


def swept(rig: Rig, timed_layers: int, lengths: list[int], **_: int) -> dict[str, Any]:
    found: dict[str, list[list[float]]] = {}
    for tokens in lengths:
        for name, call in parts(rig, tokens, timed_layers).items():
            repeats = 1 if is_long(name) else PART_REPEATS
            limit_s = own_warm_up(rig) if is_long(name) else math.inf
            found.setdefault(name, []).append(rig.timed_s(call, repeats=repeats, limit_s=limit_s))
    return {"taken_s": found}


def paired(rig: Rig, timed_layers: int, tokens: int, **_: bool) -> dict[str, Any]:
    """Seconds at `tokens` and at one more, and what the step computes at both."""
    here, next_one = (parts(rig, length, timed_layers) for length in (tokens, tokens + 1))
    repeats = {"step": STEP_PAIRS, "head": HEAD_PAIRS}
    found = {}
    for name in here:
        if not is_long(name) or rig.device.type != "cpu":  # a warm-up
            here[name]()
            next_one[name]()
        found[name] = in_turns(rig, here[name], next_one[name], repeats.get(name, PART_PAIRS))
    flops = [
        pass_flops(rig.spec, rows=1, columns=length, stored=length, kept=1) for length in (tokens, tokens + 1)
    ]
    return {"flops": flops, "pairs_s": found}


def every_length(rig: Rig, timed_layers: int, first: int, last: int) -> dict[str, Any]:
    """Seconds of one call of each product, from `first` to `last` tokens."""
    found: dict[str, list[float]] = {name: [] for name in PRODUCTS}
    for tokens in range(first, last + 1):
        for name, call in products(rig, tokens, timed_layers).items():
            found[name] += rig.timed_s(call, repeats=1, limit_s=own_warm_up(rig))
    return {"taken_s": found}


MEASURES = {"sweep": swept, "pair": paired, "every length": every_length}


def in_turns(rig: Rig, first: Callable[[], Any], second: Callable[[], Any], pairs: int) -> list[list[float]]:
    """[Seconds of `first`, seconds of `second`] of each pair. Every other pair is taken the other way round
    (first, second, second, first, ...): a drift lifts one as often as the other."""
    once = functools.partial(rig.timed_s, repeats=1, limit_s=AT_ONCE_S)
    found = []
    for number in range(pairs):
        if number % 2 == 0:
            (first_s,), (second_s,) = once(first), once(second)
        else:
            (second_s,), (first_s,) = once(second), once(first)
        found.append([first_s, second_s])
    return found


def is_long(name: str) -> bool:
    return name in ("step", "head")


def own_warm_up(rig: Rig) -> float:
    """The limit with which a call on a CPU is its own warm-up."""
    return AT_ONCE_S if rig.device.type == "cpu" else math.inf


def noise(rig: Rig, *shape: int) -> torch.Tensor:
    """One seeded random vector in every place: times do not depend on the values."""
    vector = torch.randn(shape[-1], generator=torch.Generator().manual_seed(shape[-1]))
    return vector.to(device=rig.device, dtype=rig.engine.dtype).expand(shape).contiguous()


def products(rig: Rig, tokens: int, timed_layers: int) -> dict[str, Callable[[], None]]:
    blocks = list(rig.engine.model.blocks)[:timed_layers]

    def product(name: str) -> Callable[[], None]:
        modules = [getattr(block, name) for block in blocks]
        x = noise(rig, tokens, modules[0].weight.shape[0])  # (T, inputs)

        def call() -> None:
            for module in modules:
                module(x)

        return call

    return {name: product(name) for name in PRODUCTS}


def parts(rig: Rig, tokens: int, timed_layers: int) -> dict[str, Callable[[], Any]]:
    """What is timed at one length, the whole step last."""
    model, spec = rig.engine.model, rig.spec
    q = noise(rig, 1, spec.heads, tokens, spec.head_size)  # (1, H, T, D)
    k, v = (noise(rig, 1, spec.kv_heads, tokens, spec.head_size) for _ in range(2))  # (1, G, T, D)
    hidden = noise(rig, 1, tokens, spec.width)

    def attention() -> None:
        for _ in range(timed_layers):
            attend(q, k, v, layer=0, mask=None, cache=None)

    return {
        **products(rig, tokens, timed_layers),
        "attention": attention,
        "head": lambda: model.head(hidden),
        "step": uncached_way(model, tokens, 1).step,
    }
