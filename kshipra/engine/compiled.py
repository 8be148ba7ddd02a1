"""Compiled execution: a decode step as one call of machine code (decode_step/) instead of some 600 operations
that Python starts one by one.

A pass of one column over a cache is compiled whole. In one of many columns, which reads prompts and checks
guesses, the products are torch's (or that code's, where the processor has a matrix unit), and what lies
between them is compiled.
"""

from __future__ import annotations

import ctypes
import time
from ctypes import c_void_p
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from kshipra.engine import decode
from kshipra.engine.cache import KVCache
from kshipra.engine.captured import CapturedModel
from kshipra.engine.stepped import StepModel
from kshipra.errors import InputError
from kshipra.models.base import CausalLM, Linear
from kshipra.models.gpt2 import GPT2
from kshipra.models.llama import Llama
from kshipra.models.weights import Bfloat16Linear, multiplies_bfloat16, swap
from kshipra.types import Progress, silent

WIDE_ROWS = 32  # from how many on a product gains from tiles, which are laid out anew every time


def unavailable(model: CausalLM) -> str | None:
    """Why `model` cannot run compiled here, or None. Only looks whether there is a compiler, and starts
    none."""
    if not isinstance(model, (GPT2, Llama)):
        return "only Kshipra's own GPT-2 and Llama are compiled, not the adapter over transformers"
    if model.device.type == "cuda":
        return None
    if model.device.type != "cpu":
        return f"it is made for CPUs and for GPUs with CUDA, and the model is on {model.device}"
    if model.spec.dtype != "float32":
        return f"it computes in float32 and not in {model.spec.dtype}, though weights may be stored in less"
    return None if decode.compiler() else decode.NO_COMPILER


def require_compiled(model: CausalLM) -> None:
    """Raise InputError with the reason where `model` cannot run compiled here."""
    if reason := unavailable(model):
        raise InputError(f"Compiled execution is unavailable: {reason}; choose eager.")


def compiled(model: CausalLM, *, progress: Progress = silent) -> StepModel:
    """`model`, which it takes over, with decode passes that are machine code, or on a GPU a CUDA graph.
    Raises InputError with the reason where there can be neither."""
    require_compiled(model)
    return CapturedModel(model) if model.device.type == "cuda" else CompiledModel(model, progress=progress)


class CompiledModel(StepModel):
    """`model` with decode passes that run as compiled code. It takes the model over: its products are laid
    out for that code, in place, and no tensor is kept twice.

    `compile_s` is what compiling took, 0.0 where the code was on disk. Raises InputError with the reason
    where this is unavailable.
    """

    def __init__(self, model: CausalLM, *, progress: Progress = silent) -> None:
        require_compiled(model)
        assert isinstance(model, (GPT2, Llama))
        super().__init__(model)
        self.model: GPT2 | Llama
        started_s = time.perf_counter()
        self._code, compiled = decode.library(progress)
        if compiled:
            self.compile_s = time.perf_counter() - started_s
        swap(model, _turned)
        self._frequencies = model.frequencies
        self._layers = (decode.Layer * self.spec.layers)(*map(_layer, model.blocks))
        spec, first = self.spec, self._layers[0]
        self._model = decode.Model(
            layers=self._layers,
            layer_count=spec.layers,
            width=spec.width,
            inner=first.mlp_out.inputs,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_size=spec.head_size,
            gated=first.mlp_in.outputs != first.mlp_out.inputs,
            frequencies=_address(self._frequencies),
            norm=_norm(model.norm),
            head=_matrix(model.head),
        )
        for block, layer in zip(model.blocks, self._layers, strict=True):
            for name in ("qkv", "attention_out", "mlp_in", "mlp_out"):
                if self._code.kshipra_is_wide(getattr(layer, name)):
                    setattr(block, name, Wide(getattr(block, name), getattr(layer, name), self._code))

    def _columns(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache, keep: int
    ) -> Tensor:
        spec, (rows, columns) = self.spec, ids.shape
        count, threads = rows * columns, torch.get_num_threads()
        x = self.model.embed(ids, positions).view(count, spec.width)  # new, which the code works in
        cache.open(spec.layers, x.new_empty(rows, spec.kv_heads, columns, spec.head_size))
        layers = cache.reserve(columns)
        angles = positions[..., None].float() * self._frequencies if self._frequencies is not None else None
        cos, sin = (None, None) if angles is None else (angles.cos(), angles.sin())  # (B, T, D / 2)
        seen = None if mask is None else mask.contiguous()
        half = isinstance(self.model.blocks[0].qkv, Bfloat16Linear) and multiplies_bfloat16()
        normed, attended, active = (
            x.new_empty(count, size, dtype=torch.bfloat16 if half else x.dtype)
            for size in (spec.width, spec.heads * spec.head_size, self._model.inner)
        )  # what products take, and give, (R, size)
        queries = x.new_empty(attended.shape)
        added: Tensor | None = None
        own = decode.Columns(
            rows=rows,
            columns=columns,
            stored=cache.columns,
            capacity=layers[0][0].shape[2],
            threads=threads,
            cos=_address(cos),
            sin=_address(sin),
            mask=_address(seen),
            queries=_address(queries),
            attended=_address(attended),
        )

        def normalise(norm: decode.Norm) -> None:
            self._code.kshipra_normalise(
                norm, count, spec.width, _address(x), _address(added), _address(normed), threads, half
            )

        for block, layer, (keys, values) in zip(self.model.blocks, self._layers, layers, strict=True):
            normalise(layer.attention_norm)
            qkv = block.qkv(normed)  # (R, (H + 2G) D)
            own.qkv, own.keys, own.values = map(_address, (qkv, keys, values))
            with record_function("kshipra::attend"):
                self._code.kshipra_attend(self._model, own, half)
            added = block.attention_out(attended)  # (R, W)
            normalise(layer.mlp_norm)
            inner = block.mlp_in(normed)  # (R, I or 2I)
            self._code.kshipra_activate(self._model, count, _address(inner), _address(active), threads, half)
            added = block.mlp_out(active)  # (R, W)
        assert added is not None
        last = sum(part.view(rows, columns, -1)[:, -keep:] for part in (x, added))  # (B, keep, W)
        return self.model.head(self.model.norm(last))  # (B, keep, V)

    def _step(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache) -> Tensor:
        spec, rows = self.spec, ids.shape[0]
        tensors = [tensor for keys_values in cache.reserve(1) for tensor in keys_values]
        x = self.model.embed(ids, positions)  # (B, 1, W), new, which the code works in
        where = positions.contiguous()
        seen = None if mask is None else mask.contiguous()
        sizes = (
            (spec.heads + 2 * spec.kv_heads) * spec.head_size,
            spec.heads * spec.head_size,
            self._layers[0].mlp_in.outputs,
            spec.vocabulary,
        )
        qkv, attended, inner, logits = (torch.empty(rows, size) for size in sizes)
        step = decode.Step(
            rows=rows,
            stored=cache.columns,
            capacity=tensors[0].shape[2],
            threads=torch.get_num_threads(),
            positions=_address(where),
            mask=_address(seen),
            cache=ctypes.cast((c_void_p * len(tensors))(*map(_address, tensors)), c_void_p),
            x=_address(x),
            qkv=_address(qkv),
            attended=_address(attended),
            inner=_address(inner),
            logits=_address(logits),
        )
        with record_function("kshipra::decode_step"):  # a profile's one name for all of it
            self._code.kshipra_decode(self._model, step)
        return logits[:, None]  # (B, 1, V)


class Wide(nn.Module):
    """A linear module whose products of many rows are those of decode_step/wide.h."""

    def __init__(self, own: nn.Module, matrix: decode.Matrix, code: Any) -> None:
        super().__init__()
        self.own, self.matrix, self._code = own, matrix, code

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[:-1].numel()
        if rows < WIDE_ROWS:
            return self.own(x)
        x, y = x.contiguous(), x.new_empty(*x.shape[:-1], self.matrix.outputs)
        with record_function("kshipra::product"):
            self._code.kshipra_product(self.matrix, _address(x), rows, _address(y), torch.get_num_threads())
        return y


def _turned(module: nn.Module) -> nn.Module | None:
    """Our Linear, (inputs, outputs), as nn.Linear, (outputs, inputs): the code reads one row of weights after
    another, which it does faster than one input's share of all rows."""
    if not isinstance(module, Linear):
        return None
    turned = nn.Linear(*module.weight.shape, bias=module.bias is not None, device="meta")
    turned.weight = nn.Parameter(module.weight.t().contiguous(), requires_grad=False)
    turned.bias = module.bias
    return turned


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _matrix(module: nn.Module) -> decode.Matrix:
    weight: Tensor = module.weight  # (outputs, inputs)
    assert weight.is_contiguous()
    return decode.Matrix(
        weight=_address(weight),
        scale=_address(getattr(module, "scale", None)),
        bias=_address(module.bias),
        inputs=weight.shape[1],
        outputs=weight.shape[0],
        format=decode.FORMATS[str(weight.dtype).removeprefix("torch.")],
    )


def _norm(module: nn.Module) -> decode.Norm:
    epsilon = module.eps if isinstance(module, nn.LayerNorm) else module.epsilon
    return decode.Norm(_address(module.weight), _address(getattr(module, "bias", None)), epsilon)


def _layer(block: nn.Module) -> decode.Layer:
    return decode.Layer(
        _norm(block.attention_norm),
        _norm(block.mlp_norm),
        _matrix(block.qkv),
        _matrix(block.attention_out),
        _matrix(block.mlp_in),
        _matrix(block.mlp_out),
    )
