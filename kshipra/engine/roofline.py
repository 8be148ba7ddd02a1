"""This machine's roofline: how fast memory is read and how fast matrices are multiplied, measured at
the first few runs.

One to three seconds on a CPU, with the threads that torch has, and then kept in the user's cache folder.
Refuses to know models and runs: `kshipra.predict` holds them against it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kshipra import machine
from kshipra.engine.devices import free_bytes
from kshipra.models.wheel import cache_folder, write_json
from kshipra.types import Progress, Roofline, silent

FILE = "roofline.json"
READ_BYTES = 512 * 2**20  # beyond any cache: servers' last level has up to some 300 MiB
ROW_FLOATS = 2048
TAKES = 3  # a machine may be busy when it is first asked
TIMED_S = 0.02  # one timing covers this much work, against the clock's and the launch's own cost


def _timed_s(call: Callable[[], Tensor], calls: int = 1) -> float:
    """Seconds a call; reading one element of the last result waits for any kind of device."""
    started_s = time.perf_counter()
    for _ in range(calls):
        out = call()
    out.flatten()[0].item()
    return (time.perf_counter() - started_s) / calls


def _best_s(ways: Sequence[Callable[[], Tensor]], budget_s: float) -> float:
    """Seconds of the fastest call of the fastest of `ways`, tried in turns for `budget_s` after a warm-up.

    The best and not the median: a roofline is a ceiling and is kept for long, and other work on the machine
    can only slow it down. Two shared cores gave medians from 89 to 240 GFLOP/s within ten seconds.
    """
    calls = []
    for way in ways:
        _timed_s(way)
        calls.append(min(1000, math.ceil(TIMED_S / _timed_s(way))))
    times_s: list[float] = []
    end_s = time.perf_counter() + budget_s
    while not times_s or time.perf_counter() < end_s:
        times_s += [_timed_s(way, times) for way, times in zip(ways, calls, strict=True)]
    return min(times_s)


def _room_bytes(device: torch.device) -> int:
    """A quarter of the memory that is free on `device`, at most READ_BYTES."""
    return max(2**20, min(READ_BYTES, free_bytes(device) // 4))


def _bytes_per_s(device: torch.device, read_bytes: int, budget_s: float) -> float:
    """The best of three ways to read memory once from end to end: a sum, and a matrix times a vector from
    either side, which is what a decode step does to its weights. Which of them is fastest differs from one
    machine and library to the next.

    In float32 whatever the model computes in: memory delivers bytes, and half precision on a CPU without
    kernels for it would measure the kernel instead. Filled with ones, because untouched zeros are one page.
    """
    rows = read_bytes // (4 * ROW_FLOATS)
    weights = torch.ones(rows, ROW_FLOATS, device=device)  # (K, N)
    left, right = torch.ones(1, rows, device=device), torch.ones(ROW_FLOATS, 1, device=device)
    reads = (weights.sum, lambda: left @ weights, lambda: weights @ right)
    return weights.nbytes / _best_s(reads, budget_s)


def _flops_per_s(device: torch.device, dtype: torch.dtype, largest: int, budget_s: float) -> float:
    """Of a square product in `dtype`, of the first size that takes TIMED_S: slow kernels must not take
    minutes, and fast ones need large matrices to show what they can do. Random numbers, because a GPU draws
    less power for equal ones and multiplies them faster; from a generator of their own."""
    size, random = 256, torch.Generator(device).manual_seed(0)
    while True:
        matrix = torch.rand(size, size, dtype=dtype, device=device, generator=random)
        multiply = partial(torch.matmul, matrix, matrix)
        _timed_s(multiply)  # libraries choose and set up their kernels in the first call of a size
        if _timed_s(multiply) >= TIMED_S or 2 * size > largest:
            return 2 * size**3 / _best_s([multiply], budget_s)
        size *= 2


@torch.inference_mode()
def measure(
    device: torch.device,
    dtype: torch.dtype,
    *,
    read_bytes: int | None = None,
    largest: int = 8192,
    budget_s: float = 0.8,
) -> Roofline:
    """Measure now. `read_bytes` of memory are read (None: what fits, up to 512 MiB), and matrices of at most
    `largest` squared are multiplied, each for `budget_s`."""
    return Roofline(
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        bytes_per_s=_bytes_per_s(device, read_bytes or _room_bytes(device), budget_s),
        flops_per_s=_flops_per_s(device, dtype, largest, budget_s),
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _key(device: torch.device, dtype: torch.dtype) -> str:
    """All that a roofline depends on, as a person can read it in the file."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else machine.processor()
    threads, version = torch.get_num_threads(), torch.__version__
    return f"{name} | {threads} threads | {device.type} | {dtype} | torch {version}"


def _read(path: Path) -> dict[str, Any]:
    """What is kept; nothing where the file is missing or damaged."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _from_json(entry: Any) -> tuple[int, Roofline] | None:
    """How often it was measured and the Roofline of `entry`, None where it is damaged."""
    try:
        takes, roofline = int(entry["takes"]), Roofline(**{k: v for k, v in entry.items() if k != "takes"})
        rates = (roofline.bytes_per_s, roofline.flops_per_s)
        return (takes, roofline) if all(math.isfinite(rate) and rate > 0 for rate in rates) else None
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _better(one: Roofline, other: Roofline) -> Roofline:
    """The newer of two measurements with the higher rate of either: other work can only lower them."""
    return dataclasses.replace(
        other,
        bytes_per_s=max(one.bytes_per_s, other.bytes_per_s),
        flops_per_s=max(one.flops_per_s, other.flops_per_s),
    )


def cached_roofline(device: torch.device, dtype: torch.dtype, *, progress: Progress = silent) -> Roofline:
    """The roofline of this machine, the best of its first TAKES measurements: one now while there are fewer,
    else as it was kept.

    A damaged file is measured again; a folder that cannot be written costs a measurement at each start.
    """
    path, key = cache_folder() / FILE, _key(device, dtype)
    kept = _from_json(_read(path).get(key))
    if kept is not None and kept[0] >= TAKES:
        return kept[1]
    progress("Measuring this machine's memory and arithmetic", None, None)
    taken = measure(device, dtype)
    takes, best = (1, taken) if kept is None else (kept[0] + 1, _better(kept[1], taken))
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, _read(path) | {key: {"takes": takes, **dataclasses.asdict(best)}})
    return best
