"""How a model's matrices are stored: as they are computed with, in bfloat16, or in int8 with a scale a row.

`store` swaps modules once, when a model is loaded; nothing that runs a model asks which it is. Norms, biases
and GPT-2's places stay as they are. Activations are never quantized, so no row's scale depends on its
neighbours.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from kshipra.errors import InputError
from kshipra.models.base import CausalLM, Linear
from kshipra.types import WEIGHTS

# Up to here torch's int8 kernel, which takes four rows at a time, is as fast as widening the matrix first:
# 13 against 28 ms for SmolLM2's layers at 4 rows, even at 12, 1100 against 150 at 512.
FEW_ROWS = 12
KERNEL_INPUTS = 16  # that kernel reads inputs in blocks of 16 and crashes on what is left over
# Larger matrices, which are tables, are widened in pieces: else the system gives them fresh memory every
# time, 157 ms a step of SmolLM2 at 16 rows against 118. Layers gain nothing by it, and lose in a prefill.
LARGE = 2**23
WIDENED = 2**20


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether this CPU's matrix library takes bfloat16; without it such products are many times slower."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(outputs, inputs) to int8 of that shape and the float32 scale of each row, largest / 127."""
    rows = rows.float()
    largest = torch.linalg.vector_norm(rows, ord=torch.inf, dim=1)  # (outputs)
    scale = (largest / 127).clamp_min(torch.finfo(torch.float32).tiny)  # a row of zeros is divided as well
    steps = (rows / scale[:, None]).round_().clamp_(-127, 127)
    return steps.to(torch.int8).contiguous(), scale


def as_bfloat16(rows: Tensor) -> tuple[Tensor]:
    return (rows.to(torch.bfloat16).contiguous(),)


class StoredLinear(nn.Module):
    """x @ weight.T + bias with a weight (outputs, inputs) that is stored smaller; gives x's dtype back."""

    def __init__(self, weight: Tensor, *, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        out = self._product(x.reshape(-1, x.shape[-1]))  # (N, outputs)
        out = out if self.bias is None else out + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], -1)

    def _product(self, x: Tensor) -> Tensor:
        """x (N, inputs) to (N, outputs), without the bias."""
        raise NotImplementedError


class Int8Linear(StoredLinear):
    """weight int8 (outputs, inputs), each row times its scale, float32 (outputs)."""

    def __init__(self, weight: Tensor, scale: Tensor, *, bias: Tensor | None) -> None:
        super().__init__(weight, bias=bias)
        self.register_buffer("scale", scale)

    def _product(self, x: Tensor) -> Tensor:
        """On a CPU the sums are scaled after the product, in fp32: the kernel's own scale would be rounded to
        bfloat16. Elsewhere the matrix is widened first, because sums of int8 steps overflow float16."""
        outputs, inputs = self.weight.shape
        if x.device.type != "cpu":
            return F.linear(x, (self.weight * self.scale[:, None]).to(x.dtype))
        if x.shape[0] <= FEW_ROWS and inputs % KERNEL_INPUTS == 0:
            half = x.to(torch.bfloat16).contiguous()  # fp32 activations would take ten times as long
            return torch._weight_int8pack_mm(half, self.weight, half.new_ones(outputs)) * self.scale
        wide = torch.bfloat16 if multiplies_bfloat16() else torch.float32  # either holds -127 to 127 exactly
        x = x.to(wide)
        if self.weight.numel() <= LARGE:
            return F.linear(x, self.weight.to(wide)) * self.scale
        pieces = self.weight.split(max(1, WIDENED // inputs))
        return torch.cat([F.linear(x, piece.to(wide)) for piece in pieces], dim=1) * self.scale


class Bfloat16Linear(StoredLinear):
    """weight bfloat16 (outputs, inputs), and x rounded to it where the processor multiplies that."""

    def _product(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and not multiplies_bfloat16():
            return F.linear(x, self.weight.to(x.dtype))
        half = x.to(self.weight.dtype)
        if x.device.type == "cpu" and x.shape[0] == 1:  # 1.4 x faster than the general product of one row
            return torch.mv(self.weight, half[0])[None]
        return F.linear(half, self.weight)


class PackedLinear(nn.Module):
    """x @ weight.T + bias, all in bfloat16 on a CPU, with the weight in the order in which oneDNN reads it.

    Else oneDNN puts it in order anew in every pass: 12 against 18 ms for SmolLM2's layers at 1 to 16 rows.
    """

    def __init__(self, weight: Tensor, *, bias: Tensor | None) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.register_buffer("packed", packed, persistent=False)
        self.bias = bias

    @property
    def weight(self) -> Tensor:
        """A plain copy (outputs, inputs)."""
        return self.packed.to_dense()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class Int8Embedding(nn.Embedding):
    """Rows of an int8 table (V, W), each times its own scale, in `computed`."""

    def __init__(self, weight: Tensor, scale: Tensor, *, computed: torch.dtype) -> None:
        super().__init__(*weight.shape, _weight=weight, _freeze=True)
        self.register_buffer("scale", scale)
        self.computed = computed

    def forward(self, ids: Tensor) -> Tensor:
        return (super().forward(ids) * self.scale[ids][..., None]).to(self.computed)


class Bfloat16Embedding(nn.Embedding):
    """Rows of a bfloat16 table (V, W), in `computed`."""

    def __init__(self, weight: Tensor, *, computed: torch.dtype) -> None:
        super().__init__(*weight.shape, _weight=weight, _freeze=True)
        self.computed = computed

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).to(self.computed)


@dataclass(frozen=True)
class Storage:
    """What a matrix (outputs, inputs) becomes, and the modules that take it: in a layer, as the token table,
    and as the head that shares the table's tensors."""

    stored: Callable[[Tensor], tuple[Tensor, ...]]
    layer: Callable[..., nn.Module]
    table: Callable[..., nn.Module]
    tied_head: Callable[..., nn.Module]


STORAGES = {
    "bfloat16": Storage(as_bfloat16, Bfloat16Linear, Bfloat16Embedding, Bfloat16Linear),
    "int8": Storage(quantize, Int8Linear, Int8Embedding, Int8Linear),
}
# A table cannot be packed, because rows are looked up in it, and a packed head beside it would be a copy.
PACKED = Storage(as_bfloat16, PackedLinear, Bfloat16Embedding, Bfloat16Linear)


def check_weights(weights: str) -> None:
    if weights not in WEIGHTS:
        raise InputError(f"weights must be one of {', '.join(WEIGHTS)}, not {weights!r:.40}.")


def store(model: CausalLM, weights: str) -> None:
    """Swap the matrices of `model`, ours or the adapter, for ones that are stored as `weights`.

    Every old matrix is let go before the next is converted, and none is changed: whoever else holds it keeps
    it. Raises InputError for an unknown `weights` and for a model that has been stored before.
    """
    check_weights(weights)
    module = inner(model)
    if is_stored(model):
        raise InputError(f"The weights of {model.spec.name} have been converted before: load it again.")
    storage = STORAGES.get(weights) or (PACKED if _gains_from_packing(model) else None)
    if storage is not None:
        kept = _store_table(module, storage, getattr(torch, model.spec.dtype))
        _store_layers(module, storage, kept)


def is_stored(model: Any) -> bool:
    """Whether the matrices of `model` have been swapped before, so that what they were is lost."""
    return any(isinstance(part, (StoredLinear, PackedLinear)) for part in inner(model).modules())


def shell(model: Any) -> Any:
    """A copy of `model` that shares its tensors, so that modules can be swapped in it alone."""
    module = inner(model)
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(model, shared)


def inner(model: Any) -> nn.Module:
    """The modules of `model`: itself, or what the adapter wraps."""
    return getattr(model, "model", model)


def ends(module: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
    """The token table and the output head, ours or transformers'."""
    if hasattr(module, "get_input_embeddings"):
        return module.get_input_embeddings(), module.get_output_embeddings()
    return getattr(module, "tokens", None), getattr(module, "head", None)


def _gains_from_packing(model: Any) -> bool:
    computed = getattr(torch, model.spec.dtype)
    ours = isinstance(model, nn.Module)
    return ours and computed == torch.bfloat16 and model.device.type == "cpu" and multiplies_bfloat16()


def _store_table(module: nn.Module, storage: Storage, computed: torch.dtype) -> nn.Module | None:
    """Swap the token table, and a head that is tied to it for one over the same tensors. A table that does
    more than look up stays, and so does a head that is tied to that one, which is given back."""
    table, head = ends(module)
    tied = table is not None and head is not None and head.weight.data_ptr() == table.weight.data_ptr()
    if type(table) is not nn.Embedding:
        return head if tied else None
    tensors = storage.stored(table.weight)
    _replace(module, table, storage.table(*tensors, computed=computed))
    if tied:
        _replace(module, head, storage.tied_head(*tensors, bias=getattr(head, "bias", None)))
    return None


def swap(module: nn.Module, made: Callable[[nn.Module], nn.Module | None]) -> None:
    """Each module within `module` for what `made` gives for it; None leaves it. Only parents are listed, so
    that each swap frees the old one before the next is made."""
    parents = [parent for parent in module.modules() if next(parent.children(), None) is not None]
    for parent in parents:
        for name in [name for name, _ in parent.named_children()]:  # named_children itself would keep them
            new = made(getattr(parent, name))
            if new is not None:
                setattr(parent, name, new)


def _replace(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    swap(module, lambda child: new if child is old else None)


def _store_layers(module: nn.Module, storage: Storage, kept: nn.Module | None) -> None:
    """Swap every matrix but that of `kept`."""

    def stored(child: nn.Module) -> nn.Module | None:
        rows = None if child is kept else _rows(child)
        return None if rows is None else storage.layer(*storage.stored(rows), bias=child.bias)

    swap(module, stored)


def _rows(module: nn.Module) -> Tensor | None:
    """The matrix of a linear module as (outputs, inputs); ours and Conv1D keep it the other way round."""
    if type(module) is nn.Linear:
        return module.weight
    return module.weight.t() if type(module) in (Linear, Conv1D) else None
