"""How many weights a model has and what they take, counted from its real tensors, however they are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torch import Tensor, nn

from kshipra.models.weights import Int8Embedding, Int8Linear, PackedLinear, ends
from kshipra.types import ModelSpec


def counted(spec: ModelSpec, model: nn.Module) -> ModelSpec:
    """`spec` with the elements and bytes of the weights of `model`, shared ones once; scales are bytes only.

    What every pass reads is all matrices but tables, and the output head, which may be a table as well.
    `pass_weight_bytes` stays 0 where `model` does not say which its head is.
    """
    modules = list(model.modules())
    _, head = ends(model)
    packed = [module.packed for module in modules if isinstance(module, PackedLinear)]
    weights = _once([*model.parameters(), *packed])
    tables = _once(module.weight for module in modules if isinstance(module, nn.Embedding))
    heads = _once([_matrix(head)] if head is not None else [])
    matrices = [
        weight
        for place, weight in weights.items()
        if weight.dim() == 2 and place not in tables and place not in heads
    ]
    scales = _once(module.scale for module in modules if isinstance(module, (Int8Linear, Int8Embedding)))
    read = _once(module.scale for module in modules if isinstance(module, Int8Linear))
    return dataclasses.replace(
        spec,
        parameters=sum(weight.numel() for weight in weights.values()),
        block_parameters=sum(weight.numel() for weight in matrices),
        stored_bytes=_bytes(weights.values()) + _bytes(scales.values()),
        pass_weight_bytes=_bytes([*matrices, *heads.values(), *read.values()]) if heads else 0,
    )


def _matrix(module: nn.Module) -> Tensor:
    return module.packed if isinstance(module, PackedLinear) else module.weight


def _once(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """By where they are in memory; a packed tensor does not say, and is shared with nothing."""
    return {id(tensor) if tensor.is_mkldnn else tensor.data_ptr(): tensor for tensor in tensors}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
