"""Bytes and floating-point operations from a model's shape alone. Knows nothing of torch or of measured
time."""

from __future__ import annotations

from kshipra.types import ModelSpec


def kv_bytes_per_token(spec: ModelSpec) -> int:
    """Bytes of keys and values that one token of one row keeps: 2 x layers x kv heads x head size x dtype
    bytes."""
    return 2 * spec.layers * spec.kv_heads * spec.head_size * spec.dtype_bytes


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes of all weights as they are stored, shared ones once."""
    return spec.stored_bytes or spec.parameters * spec.dtype_bytes


def pass_flops(spec: ModelSpec, *, rows: int, columns: int, stored: int, kept: int) -> int:
    """FLOPs of one forward pass over `columns` new columns a row, `stored` columns in all, `kept` rows of
    logits.

    Two a multiply-add: 2 x weights a token, 4 x layers x (heads x head size) a query-key pair, and the output
    projection for the kept columns only. Counts what is computed, pads included (Kaplan et al. 2020, appendix
    B, without its embedding terms).
    """
    matrices = 2 * spec.block_parameters * rows * columns
    attention = 4 * spec.layers * spec.heads * spec.head_size * rows * columns * stored
    head = 2 * spec.width * spec.vocabulary * rows * kept
    return matrices + attention + head


def pass_bytes(spec: ModelSpec, *, kv_bytes: int) -> int:
    """Bytes that one forward pass must read: every weight it multiplies by, once however many tokens go in,
    and the `kv_bytes` of keys and values that it attends over.

    Weights: the layers' matrices and the output projection (width x vocabulary), 123.5 M for GPT-2, in the
    bytes that they are stored in, scales included. The input
    embedding is a lookup of a few rows and is left out, unless it is that projection itself (tied), which
    counts once either way. Left out too: biases and norms (under 0.1 %), and activations, a few vectors of
    `width` a token, which stay in the caches while a step takes one token a row; a pass over a long text
    without cache moves more than this says, and there arithmetic is the larger term anyway.
    """
    parameters = spec.block_parameters + spec.width * spec.vocabulary
    return (spec.pass_weight_bytes or parameters * spec.dtype_bytes) + kv_bytes
