"""What the least time of a step is made of: the step done in other ways, under the profiler, and in ever
narrower models of as many layers. One row, greedy; a step lasts until its id is on the host."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kshipra.costs import kv_bytes_per_token, pass_bytes, pass_flops
from kshipra.engine import roofline
from kshipra.engine.cache import KVCache
from kshipra.engine.runner import Engine
from kshipra.experiments.rig import Case, Rig
from kshipra.experiments.shapes import Numbers
from kshipra.experiments.steps import (
    Concatenated,
    Way,
    compared,
    decode_way,
    filled,
    graph_way,
    or_reason,
    uncached_way,
)
from kshipra.models.gpt2 import GPT2
from kshipra.models.llama import Llama
from kshipra.profiling import traces
from kshipra.types import ModelSpec

DECODE = (10, 100, 500, 1000)  # the contexts of the study's table
UNCACHED = (10, 20, 50, 100, 200, 500, 1000)
QUICK_TOKENS = 200  # --quick goes so far without cache on a CPU
QUICK_LEAVES_OUT = (20, 500)


def cases(rig: Rig) -> list[Case]:
    limit = rig.spec.context or max(DECODE)
    quick_limit = QUICK_TOKENS if rig.quick and rig.device.type == "cpu" else limit
    left_out = QUICK_LEAVES_OUT if rig.quick else ()
    decode = [t for t in DECODE if t <= limit and t not in left_out]
    uncached = [t for t in UNCACHED if t <= min(limit, quick_limit) and t not in left_out]
    profiled = sorted({decode[0], decode[-1]})
    heads, least = rig.spec.heads, decode[0]
    return [
        Case("roofline", {"kind": "roofline"}),
        *(Case(f"decode, {t} tokens", {"kind": "decode", "tokens": t}) for t in decode),
        *(Case(f"no cache, {t} tokens", {"kind": "no cache", "tokens": t}) for t in uncached),
        *(Case(f"profile, {t} tokens", {"kind": "profile", "tokens": t}) for t in profiled),
        *(
            Case(f"width {size * heads}", {"kind": "width", "tokens": least, "head_size": size})
            for size in head_sizes(rig)
        ),
    ]


def measure(rig: Rig, case: Case) -> dict[str, Any]:
    settings = dict(case.settings)
    kind = MEASURES[settings.pop("kind")]
    with torch.inference_mode():
        return kind(rig, **settings)


def roof(rig: Rig) -> dict[str, Any]:
    """What memory and arithmetic do at best here and now; of a ceiling, the best sample counts."""
    budget_s = 0.3 if rig.quick else 0.8
    taken = [
        roofline.measure(rig.device, rig.engine.dtype, budget_s=budget_s)
        for _ in range(2 if rig.quick else 3)
    ]
    return {"bytes_per_s": [r.bytes_per_s for r in taken], "flops_per_s": [r.flops_per_s for r in taken]}


def decode(rig: Rig, tokens: int) -> dict[str, Any]:
    """Seconds of the step to a context of `tokens`, of which the cache has all but the newest. Ways with the
    same kind of cache share one: all write the same into the same column."""
    model, stored = rig.engine.model, tokens - 1
    cache = filled(model, stored, KVCache())
    ways = {
        "preallocated": decode_way(model, cache),
        "concatenated": decode_way(model, filled(model, stored, Concatenated())),
        "compiled": or_reason(lambda: compiled_way(rig, cache)),
        "CUDA graph": or_reason(lambda: graph_way(model, cache)),
    }
    return {"ways": in_turns(rig, ways), **asked_for(rig.spec, columns=1, stored=tokens, kept=1)}


def no_cache(rig: Rig, tokens: int) -> dict[str, Any]:
    """Seconds of the uncached step with the head on the last position, and on all as the study's has it."""
    model = rig.engine.model
    ways = {
        "last position": uncached_way(model, tokens, 1),
        "all positions": uncached_way(model, tokens, tokens),
    }
    every = asked_for(rig.spec, columns=tokens, stored=tokens, kept=tokens)
    return {
        "ways": in_turns(rig, ways),
        **asked_for(rig.spec, columns=tokens, stored=tokens, kept=1),
        "all_positions_flops": every["flops"],
    }


def profile(rig: Rig, tokens: int) -> dict[str, Any]:
    """The step under the profiler and without it, in turns."""
    model = rig.engine.model
    cache = filled(model, tokens - 1, KVCache())
    compiled = or_reason(lambda: compiled_way(rig, cache))
    return {
        "preallocated": traced(rig, decode_way(model, cache)),
        "compiled": {"unavailable": compiled} if isinstance(compiled, str) else traced(rig, compiled),
    }


def width(rig: Rig, tokens: int, head_size: int) -> dict[str, Any]:
    """The step of a model with as many layers and heads, each of `head_size`, and random weights: as many
    operations as the real one, with less to do in each."""
    engine = shrunk(rig, head_size)
    model = engine.model
    found = traced(rig, decode_way(model, filled(model, tokens - 1, KVCache())))
    return {
        "width": model.spec.width,
        **found,
        **asked_for(model.spec, columns=1, stored=tokens, kept=1),
    }


MEASURES = {"roofline": roof, "decode": decode, "no cache": no_cache, "profile": profile, "width": width}


def compiled_way(rig: Rig, cache: KVCache) -> Way:
    return decode_way(rig.variant(execution="compiled").model, cache)


def in_turns(rig: Rig, ways: dict[str, Way | str]) -> dict[str, dict[str, Any]]:
    """Seconds of each way's steps, two after a warm one in turns, so that a slow moment of the machine meets
    all of them; a way that there is not gives its reason."""
    there = {name: way for name, way in ways.items() if isinstance(way, Way)}
    found: dict[str, dict[str, Any]] = {
        name: {"step_s": [], "largest_difference": difference}
        for name, difference in compared(there, rig.engine.dtype).items()
    }
    for _ in range(rig.repeats):
        for name, way in there.items():
            found[name]["step_s"] += rig.timed_s(way.step, repeats=2, before=way.before)
    return {name: found.get(name, {"unavailable": way}) for name, way in ways.items()}


def traced(rig: Rig, way: Way) -> dict[str, Any]:
    """Traces of the step and, each taken just before its trace, its seconds without the profiler."""
    found: dict[str, list] = {"step_s": [], "traces": []}
    for _ in range(rig.repeats):
        found["step_s"] += rig.timed_s(way.step, repeats=1)
        found["traces"] += traces(way.step, rig.device, repeats=1)
    return found


def asked_for(spec: ModelSpec, *, columns: int, stored: int, kept: int) -> dict[str, int]:
    """What a pass must read and compute by its shape; `kv_bytes` are part of `bytes`."""
    kv_bytes = kv_bytes_per_token(spec) * stored if columns == 1 else 0
    return {
        "bytes": pass_bytes(spec, kv_bytes=kv_bytes),
        "kv_bytes": kv_bytes,
        "flops": pass_flops(spec, rows=1, columns=columns, stored=stored, kept=kept),
    }


def head_sizes(rig: Rig) -> list[int]:
    """Powers of two from 4 up to the model's own. None for a model behind the adapter: its config is not ours
    to shrink."""
    if not isinstance(rig.engine.model, (GPT2, Llama)):
        return []
    own = rig.spec.head_size
    sizes = [2**power for power in range(2, own.bit_length()) if 2**power < own]
    return [*(sizes[::2] if rig.quick else sizes), own]


def shrunk(rig: Rig, head_size: int) -> Engine:
    """A model of the loaded one's family, layers, heads and vocabulary, seeded."""
    spec, block = rig.spec, rig.engine.model.blocks[0]
    inner = block.mlp_out.weight.shape[0]
    width = spec.heads * head_size
    shape: dict[str, Any] = dict(
        hidden_size=width,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        vocab_size=spec.vocabulary,
        max_position_embeddings=spec.context,
        bos_token_id=None,
        eos_token_id=None,
    )
    if spec.family != "gpt2":
        shape |= dict(num_key_value_heads=spec.kv_heads, intermediate_size=inner * width // spec.width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(spec.family, **shape))
    return Engine(model.to(device=rig.device, dtype=rig.engine.dtype), Numbers(), implementation="native")
