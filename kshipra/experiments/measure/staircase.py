"""The uncached step, and each of its products alone, at many lengths: do they jump together?

The lengths are visited in sweeps, each in an order of its own: a slow minute of the machine then meets other
lengths in every sweep, and cannot look like a jump.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch

from kshipra.errors import InputError
from kshipra.experiments.rig import Case, Rig
from kshipra.experiments.steps import uncached_way
from kshipra.models.base import attend
from kshipra.models.gpt2 import GPT2
from kshipra.models.llama import Llama

LONGEST = 1024  # as the study's
# Tokens from one length to the next. On a CPU no multiple of what a tile has, 8 or 16 or 32, so that the last
# tile is now full and now not; and rather many sweeps than many lengths, because one pass of 0.5 s took up to
# twice as long as another on two cores of a shared machine, and only the least of several tells.
STEP, GPU_STEP = 28, 1
SWEEPS, FEW_SWEEPS = 5, 3  # on a CPU; in --quick, and on a GPU, whose times scatter little
PART_REPEATS = 3  # a part is over soon
QUICK_LENGTHS = 12
CASE_LENGTHS = 16  # visited between two writes of the results
AT_ONCE_S = 1e-9  # a limit that every call exceeds, so that it is its own warm-up
PRODUCTS = ("qkv", "attention_out", "mlp_in", "mlp_out")  # of every layer, as the model names them


def cases(rig: Rig) -> list[Case]:
    """The sweeps, in pieces. InputError for a model whose products have no names here."""
    if not isinstance(rig.engine.model, (GPT2, Llama)):
        raise InputError(
            "staircase takes the single products of Kshipra's own GPT-2 and Llama, not those of the adapter: "
            "choose such a model."
        )
    every = lengths(rig)
    found = []
    for sweep in range(FEW_SWEEPS if rig.quick or rig.device.type != "cpu" else SWEEPS):
        shuffled = random.Random(sweep).sample(every, len(every))
        for start in range(0, len(every), CASE_LENGTHS):
            name = f"sweep {sweep + 1}, from its length {start + 1}"
            piece = shuffled[start : start + CASE_LENGTHS]
            found.append(Case(name, {"sweep": sweep, "step_tokens": every.step, "lengths": piece}))
    return found


def lengths(rig: Rig) -> range:
    step = STEP if rig.quick or rig.device.type == "cpu" else GPU_STEP
    longest = min(rig.spec.context or LONGEST, LONGEST)
    every = range(max(step, 8), longest + 1, step)
    return every[:QUICK_LENGTHS] if rig.quick else every


def measure(rig: Rig, case: Case) -> dict[str, Any]:
    """Seconds at each of the case's lengths: of the whole step, with the head on the last position, and of
    the parts. A part is done in `timed_layers` layers of the model's `layers`, and the head once, on all
    positions as in the study's step.

    On a CPU one layer stands for all, and what takes seconds is not done twice for a warm-up: the products of
    that length have just been run. On a GPU all layers follow one another as in a step, because one product
    is shorter than the way to it.
    """
    on_cpu = rig.device.type == "cpu"
    timed_layers = 1 if on_cpu else rig.spec.layers
    found: dict[str, list[list[float]]] = {}
    with torch.inference_mode():
        for tokens in case.settings["lengths"]:
            for name, call in parts(rig, tokens, timed_layers).items():
                long = name in ("step", "head")
                limit_s = AT_ONCE_S if on_cpu and long else math.inf
                repeats = 1 if long else PART_REPEATS
                found.setdefault(name, []).append(rig.timed_s(call, repeats=repeats, limit_s=limit_s))
    return {"timed_layers": timed_layers, "layers": rig.spec.layers, "taken_s": found}


def parts(rig: Rig, tokens: int, timed_layers: int) -> dict[str, Callable[[], Any]]:
    """What is timed at one length, the whole step last; activations are seeded random numbers."""
    model, spec = rig.engine.model, rig.spec
    blocks = list(model.blocks)[:timed_layers]
    generator = torch.Generator().manual_seed(tokens)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device=rig.device, dtype=rig.engine.dtype)

    def product(name: str) -> Callable[[], None]:
        modules = [getattr(block, name) for block in blocks]
        x = noise(tokens, modules[0].weight.shape[0])  # (T, inputs)

        def call() -> None:
            for module in modules:
                module(x)

        return call

    q = noise(1, spec.heads, tokens, spec.head_size)  # (1, H, T, D)
    k, v = (noise(1, spec.kv_heads, tokens, spec.head_size) for _ in range(2))  # (1, G, T, D)
    hidden = noise(1, tokens, spec.width)

    def attention() -> None:
        for _ in blocks:
            attend(q, k, v, layer=0, mask=None, cache=None)

    return {
        **{name: product(name) for name in PRODUCTS},
        "attention": attention,
        "head": lambda: model.head(hidden),
        "step": uncached_way(model, tokens, 1).step,
    }
