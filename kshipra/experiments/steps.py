"""One row's greedy step done in several ways, each a closure that is ready to be timed. Refuses to know
clocks and what the times are for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kshipra.engine.cache import KVCache
from kshipra.engine.captured import record
from kshipra.errors import InputError, KshipraError
from kshipra.models.base import CausalLM

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}


class Concatenated(KVCache):
    """As textbooks do: every step makes new tensors of all that is stored and the new token."""

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if layer == len(self._layers):
            self._layers.append(
                (k.contiguous(), v.contiguous())
            )  # views would keep more alive than they show
        else:
            keys, values = self._layers[layer]
            self._layers[layer] = (torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2))
        return self._layers[layer]

    def crop(self, columns: int) -> None:
        super().crop(columns)
        self._layers = [
            (k[:, :, :columns].contiguous(), v[:, :, :columns].contiguous()) for k, v in self._layers
        ]


@dataclass(frozen=True)
class Way:
    """`logits()` (V) of one step, on the device; `before` puts the cache back in place."""

    logits: Callable[[], Tensor]
    before: Callable[[], None] | None = None

    def step(self) -> int:
        """The next id, on the host."""
        return int(self.logits().argmax())


def text(model: CausalLM, tokens: int) -> Tensor:
    """Seeded ids (1, tokens)."""
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(model.spec.vocabulary, (1, tokens), generator=generator).to(model.device)


def places(model: CausalLM, first: int, end: int) -> Tensor:
    return torch.arange(first, end, device=model.device)[None]  # (1, end - first)


def filled(model: CausalLM, stored: int, cache: KVCache) -> KVCache:
    """`cache` with the keys and values of `stored` tokens."""
    model.forward(text(model, stored), places(model, 0, stored), None, cache, 1)
    cache.advance(stored)
    return cache


def uncached_way(model: CausalLM, tokens: int, keep: int) -> Way:
    """The step that runs all `tokens`, with the logits of the last `keep`."""
    ids, positions = text(model, tokens), places(model, 0, tokens)
    return Way(lambda: model.forward(ids, positions, None, None, keep)[0, -1])


def decode_way(model: CausalLM, cache: KVCache) -> Way:
    """The step behind what `cache` has. Nothing advances: every call is the same step, into the same
    column."""
    stored = cache.columns
    ids, positions = text(model, 1), places(model, stored, stored + 1)
    forward = functools.partial(model.forward, ids, positions, None, cache, 1)
    return Way(lambda: forward()[0, -1], lambda: cache.crop(stored))


def graph_way(model: CausalLM, cache: KVCache) -> Way:
    """The step recorded as one CUDA graph, over a cache that has its size already: starting it is one call,
    and neither Python nor the framework sees its kernels again. InputError without CUDA. Never run so far:
    there was no CUDA where it was written."""
    device = model.device
    if device.type != "cuda":
        raise InputError(f"No CUDA here: CUDA graphs need it, and the model is on {device}.")
    cache.reserve(1)  # memory that is allocated while recording would belong to the graph
    forward = decode_way(model, cache).logits
    replay, logits = record(forward, device)

    def again() -> Tensor:
        replay()
        return logits

    return Way(again)


def or_reason(make: Callable[[], Way]) -> Way | str:
    """The way, or one sentence that says why there is none here."""
    try:
        return make()
    except KshipraError as error:
        return str(error)


def compared(ways: dict[str, Way], dtype: torch.dtype) -> dict[str, float]:
    """Each way's largest difference of a logit to the first way's. KshipraError where it is more than
    rounding in `dtype` gives: a way that computes something else is not to be timed."""
    found: dict[str, float] = {}
    expected: Tensor | None = None
    for name, way in ways.items():
        if way.before is not None:
            way.before()
        logits = way.logits().double()
        expected = logits.clone() if expected is None else expected
        found[name] = float((logits - expected).abs().max())
        allowed = ROUNDING[dtype] * float(expected.abs().max())
        if not found[name] <= allowed:
            raise KshipraError(
                f"The way {name!r} gives logits that differ by {found[name]:.2g} where rounding gives at "
                f"most {allowed:.2g}: it computes something else, so mend it before timing it."
            )
    return found
