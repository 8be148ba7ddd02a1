"""What a config says of a model's shape, whatever its fields are called, and which shapes can be a model's.
Refuses to know weights.

A config.json comes from anybody: what it says is in its range before anything is built, counted or divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kshipra.errors import ModelError
from kshipra.types import ModelSpec

# Generous: beyond it nothing published lies, and what is built for it would take minutes or all memory.
MOST = {
    "layers": 1_000,
    "heads": 10_000,
    "kv_heads": 10_000,
    "width": 10**6,
    "head_size": 10_000,
    "vocabulary": 10**7,
    "context": 10**9,
    "intermediate_size": 10**7,
    "experts": 10_000,
}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
SMALL = ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps", "norm_eps")  # which keep a division possible


def config_of(values: Mapping[str, Any], label: str) -> Any:
    """The config of transformers that the `values` of a config.json stand for. ModelError where they are of
    no model."""
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(**values)
    except Exception as error:  # each of hundreds of config classes refuses in its own way
        raise ModelError(
            f"The config of {label} cannot be read ({reason(error)}): choose another model."
        ) from error


def check_shape(values: Mapping[str, Any], label: str) -> None:
    """Raise ModelError unless the `values` of a config.json can be a model's."""
    describe(config_of(values, label), label, torch.float32)


def describe(config: Any, name: str, dtype: torch.dtype) -> ModelSpec:
    """The shape that a Hugging Face config determines, still without its number of parameters. ModelError
    where it can be no model's."""
    config = config.get_text_config()
    try:
        heads = config.num_attention_heads
        spec = ModelSpec(
            name=name,
            family=config.model_type,
            layers=config.num_hidden_layers,
            heads=heads,
            kv_heads=_first(getattr(config, "num_key_value_heads", None), heads),
            head_size=_first(getattr(config, "head_dim", None), config.hidden_size // heads),
            width=config.hidden_size,
            vocabulary=config.vocab_size,
            context=getattr(config, "max_position_embeddings", None),
            parameters=0,
            block_parameters=0,
            dtype=str(dtype).removeprefix("torch."),
            dtype_bytes=dtype.itemsize,
        )
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ModelError(
            f"The config of {name} describes no model ({reason(error)}): choose another model."
        ) from error
    if (wrong := _wrong(spec, config)) is not None:
        raise ModelError(f"The config of {name} describes no model ({wrong}): choose another model.")
    return spec


def _first(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def _wrong(spec: ModelSpec, config: Any) -> str | None:
    """What no model can have."""
    experts = next((getattr(config, name) for name in EXPERTS if getattr(config, name, None)), None)
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    for name, most in MOST.items():
        value = {"intermediate_size": inner, "experts": experts}.get(name, getattr(spec, name, None))
        if value is None and name in ("context", "intermediate_size", "experts"):
            continue
        each = value if isinstance(value, list) else [value]  # some families have one a layer
        if not all(isinstance(one, int) and 1 <= one <= most for one in each):
            return f"{name.replace('_', ' ')} {value!r:.30} is not from 1 to {most:,}"
    if spec.heads % spec.kv_heads:
        return f"{spec.kv_heads} key/value heads do not share {spec.heads} heads evenly"
    if getattr(config, "head_dim", None) is None and spec.width % spec.heads:
        return f"a width of {spec.width} is not {spec.heads} heads"
    rope = getattr(config, "rope_parameters", None)
    if rope and spec.head_size % 2:
        return f"a head of {spec.head_size} cannot be turned in pairs"
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
    if theta is not None and not 0 < theta < math.inf:
        return f"rope theta {theta!r:.30}"
    epsilons = [getattr(config, name) for name in SMALL if getattr(config, name, None) is not None]
    return next((f"an epsilon of {value!r:.30}" for value in epsilons if not 0 <= value < 1), None)


def reason(error: Exception) -> str:
    """The first line of somebody else's error, short enough for a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return "".join(letter for letter in lines[0] if letter.isprintable()).rstrip(".:! ")[:160]
