"""Kshipra: a laboratory bench for LLM inference, with an engine that is correct to the token.

engine = kshipra.load("smollm2-135m-instruct")
result = engine.generate(["The sea is"], mode="kv_cache", params=kshipra.SamplingParams(max_new_tokens=20))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kshipra.errors import InputError, KshipraError, ModelError
from kshipra.types import RunResult, SamplingParams, StepEvent

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kshipra.engine.runner import Engine, load

__all__ = [
    "Engine",
    "InputError",
    "KshipraError",
    "ModelError",
    "RunResult",
    "SamplingParams",
    "StepEvent",
    "load",
]


def __getattr__(name: str) -> Any:
    """Engine and load come with torch, which `import kshipra` alone does not need."""
    if name in ("Engine", "load"):
        from kshipra.engine import runner

        return getattr(runner, name)
    raise AttributeError(f"module 'kshipra' has no attribute {name!r}")
