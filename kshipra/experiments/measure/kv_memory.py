"""What the cache takes: by formula, in its tensors, and from the allocator, by context and by rows; and what
masks and weights take beside it (facts B8 and B9).

Cases that read the allocator have a process of their own, in which nothing else has left its traces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kshipra import machine
from kshipra.bench import synthetic_requests
from kshipra.costs import kv_bytes_per_token, weight_bytes
from kshipra.engine import geometry
from kshipra.engine.cache import KVCache
from kshipra.engine.devices import free_bytes
from kshipra.engine.job import Job
from kshipra.errors import KshipraError
from kshipra.experiments.rig import Case, Rig
from kshipra.types import WEIGHTS, ModelSpec
from kshipra.ui.show import size

MOST_TOKENS = 8192  # of one row: models without a limit, or with one of 100,000, stop here
QUICK_TOKENS = 2048
MASKS_BYTES = 2**29  # of stored masks that are made: long contexts have gigabytes of them
PASS_TOKENS = 512
PIECE = 16  # columns a pass, to see the tensors grow
GROWN_COLUMNS = 320


def cases(rig: Rig) -> list[Case]:
    alone: dict[str, str] = {}  # a process of its own
    return [
        Case("first pass and later ones", {"kind": "passes", "tokens": _fitting(rig, PASS_TOKENS)}, alone),
        Case("by context", {"kind": "context", "tokens": _limit(rig)}, alone),
        Case("growth", {"kind": "growth", "tokens": _fitting(rig, GROWN_COLUMNS)}),
        Case("masks", {"kind": "masks", "tokens": _limit(rig)}),
        *(Case(f"weights: {kind}", {"kind": "weights", "weights": kind}) for kind in WEIGHTS),
        *(
            Case(
                f"full rows: {rows}",
                {"kind": "rows", "rows": rows, "tokens": _limit(rig)},
            )
            for rows in _rows(rig)
        ),
    ]


@torch.inference_mode()
def measure(rig: Rig, case: Case) -> dict[str, Any]:
    settings = dict(case.settings)
    return _MEASURES[settings.pop("kind")](rig, **settings)


def memory(rig: Rig) -> dict[str, int | None]:
    """What the allocator says now. CUDA: blocks handed out, and what is reserved for blocks. CPU: malloc's
    blocks in use, and what of the process is in memory, after malloc has given back what it could."""
    rig.wait()
    if rig.device.type == "cuda":
        return {
            "allocated_bytes": torch.cuda.memory_allocated(rig.device),
            "reserved_bytes": torch.cuda.memory_reserved(rig.device),
        }
    machine.release_free_memory()
    books = machine.malloc_books()
    return {
        "allocated_bytes": books["uordblks"] + books["hblkhd"] if books else None,
        "resident_bytes": machine.resident_bytes(),
    }


def _passes(rig: Rig, *, tokens: int) -> dict[str, Any]:
    """Passes of `tokens` with a cache each, from the process's very first: before, with the cache that it
    left, and after that is gone."""
    model = rig.engine.model
    found = []
    for _ in range(1 + rig.repeats):
        before = memory(rig)
        cache = KVCache()
        _read(model, cache, tokens, rig.device)
        requested = {"used_bytes": cache.used_bytes, "held_bytes": cache.held_bytes}
        found.append({"before": before, "with_cache": memory(rig), **requested})
        del cache
        found[-1]["after"] = memory(rig)
    return {"passes": found}


def _context(rig: Rig, *, tokens: int) -> dict[str, Any]:
    """One row's cache filled piece by piece up to `tokens`, above a baseline that is taken after a pass."""
    model, piece = rig.engine.model, 96 if tokens > 2048 else 32
    _read(model, KVCache(), min(PASS_TOKENS, tokens), rig.device)
    ends = [*range(piece, tokens, piece), tokens]
    filling = _columns(rig, rows=1, columns=piece)
    repeats = []
    for _ in range(rig.repeats):
        cache = KVCache()
        before = memory(rig)
        stored = []
        for end in ends:
            _fill(cache, rig.spec, filling[:, :, : end - cache.columns])
            stored.append(_stored(cache, memory(rig)))
        repeats.append({"before": before, "stored": stored})
        del cache
    return {"kv_bytes_per_token": kv_bytes_per_token(rig.spec), "repeats": repeats}


def _rows_full(rig: Rig, *, rows: int, tokens: int) -> dict[str, Any]:
    """A cache of `rows` full rows."""
    needed, free = kv_bytes_per_token(rig.spec) * rows * tokens, free_bytes(rig.device)
    if 2 * needed > free:  # the tensors, and the rows that are written into them
        return {"skipped": f"{rows} rows of {tokens} tokens need {size(needed)}, and {size(free)} are free."}
    _read(rig.engine.model, KVCache(), min(PASS_TOKENS, tokens), rig.device)
    filling = _columns(rig, rows=rows, columns=tokens)
    before, cache = memory(rig), KVCache()
    _fill(cache, rig.spec, filling)
    return {"before": before, "stored": _stored(cache, memory(rig))}


def _growth(rig: Rig, *, tokens: int) -> dict[str, Any]:
    """The cache after every pass of the engine that reads PIECE more tokens."""
    engine = rig.engine
    (request,) = synthetic_requests(engine, rows=1, prompt_tokens=tokens, new_tokens=1)
    job = Job(engine.model, engine.tokenizer, [request], engine.device)
    batch = job.batch(job.requests, cached=True)
    events = [job.read(batch, PIECE) for _ in range(tokens // PIECE)]
    return {
        "columns": [PIECE * (place + 1) for place in range(len(events))],
        "used_bytes": [event.kv_bytes for event in events],
        "held_bytes": [event.kv_held_bytes for event in events],
        "kv_bytes_per_token": kv_bytes_per_token(rig.spec),
    }


def _weights(rig: Rig, *, weights: str) -> dict[str, Any]:
    """Bytes of the weights as they are stored, and of a token's keys and values beside them."""
    try:
        spec = rig.variant(weights=weights).model.spec
    except KshipraError as error:
        return {"skipped": str(error)}
    rig.variants.clear()
    return {"weights_bytes": weight_bytes(spec), "kv_bytes_per_token": kv_bytes_per_token(spec)}


class Masks(nn.Module):
    """A float32 mask of `tokens` x `tokens` registered in each of `layers`, as a model may keep it."""

    def __init__(self, layers: int, tokens: int, device: torch.device) -> None:
        super().__init__()
        for layer in range(layers):
            self.register_buffer(f"mask_{layer}", torch.ones(tokens, tokens, device=device).tril_())

    @property
    def nbytes(self) -> int:
        return sum(mask.nbytes for mask in self.buffers())


class Watched:
    """A model that notes the masks that it is given."""

    def __init__(self, model: Any) -> None:
        self.model, self.masks = model, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None, *rest: Any) -> Tensor:
        shape = list(mask.shape) if mask is not None else None
        self.masks.append({"shape": shape, "bytes": mask.nbytes if mask is not None else 0})
        return self.model.forward(ids, positions, mask, *rest)


def _masks(rig: Rig, *, tokens: int) -> dict[str, Any]:
    """The masks of a batch with and without pads, as the model is given them; the largest that a full row
    takes; and those that would be stored, as many as MASKS_BYTES and a quarter of the free memory hold."""
    layers, spec = rig.spec.layers, rig.spec
    one = Masks(1, tokens, rig.device).nbytes
    made = max(1, min(layers, min(MASKS_BYTES, free_bytes(rig.device) // 4) // one))
    valid = torch.ones(1, tokens, dtype=torch.bool, device=rig.device)
    return {
        "layers": spec.layers,
        "stored_bytes": Masks(made, tokens, rig.device).nbytes,
        "stored_masks": made,
        "dense": _masks_seen(rig, lengths=(32, 32)),
        "padded": _masks_seen(rig, lengths=(32, 16)),
        "full_prefill_bytes": geometry.attention_mask(valid, tokens).nbytes,
        "full_decode_bytes": geometry.attention_mask(valid, 1).nbytes,
    }


def _masks_seen(rig: Rig, *, lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Of a prefill and a decode step of a batch whose rows have these lengths."""
    engine, watched = rig.engine, Watched(rig.engine.model)
    requests = [
        synthetic_requests(engine, rows=1, prompt_tokens=length, new_tokens=2)[0] for length in lengths
    ]
    job = Job(watched, engine.tokenizer, requests, engine.device)
    batch = job.batch(job.requests, cached=True)
    for _ in range(2):
        job.step(batch)
    return watched.masks


_MEASURES = {
    "passes": _passes,
    "context": _context,
    "growth": _growth,
    "masks": _masks,
    "weights": _weights,
    "rows": _rows_full,
}


def _limit(rig: Rig) -> int:
    most = QUICK_TOKENS if rig.quick else MOST_TOKENS
    return min(rig.spec.context or most, most)


def _fitting(rig: Rig, tokens: int) -> int:
    return min(tokens, _limit(rig) - 1)


def _rows(rig: Rig) -> list[int]:
    """1, 2, 4, ... full rows, until their cache is larger than the weights."""
    rows, found = 1, [1]
    while rows * _limit(rig) * kv_bytes_per_token(rig.spec) <= weight_bytes(rig.spec):
        rows *= 2
        found.append(rows)
    return found


def _read(model: Any, cache: KVCache, tokens: int, device: torch.device) -> None:
    """One pass over `tokens` ids into an empty cache."""
    ids = torch.arange(tokens, device=device)[None] % model.spec.vocabulary  # (1, T)
    valid = torch.ones(1, tokens, dtype=torch.bool, device=device)
    model.forward(ids, geometry.positions(valid, tokens), None, cache, 1).sum().item()  # waits
    cache.advance(tokens)


def _columns(rig: Rig, *, rows: int, columns: int) -> Tensor:
    """Keys or values (B, G, T, D) to be stored; ones, so that every page is written."""
    spec = rig.spec
    return torch.ones(rows, spec.kv_heads, columns, spec.head_size, dtype=rig.engine.dtype, device=rig.device)


def _fill(cache: KVCache, spec: ModelSpec, columns: Tensor) -> None:
    for layer in range(spec.layers):
        cache.append(layer, columns, columns)
    cache.advance(columns.shape[2])


def _stored(cache: KVCache, now: dict[str, int | None]) -> dict[str, int | None]:
    return {
        "columns": cache.columns, "used_bytes": cache.used_bytes, "held_bytes": cache.held_bytes, **now
    }  # fmt: skip
