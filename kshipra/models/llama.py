"""Llama from scratch (Touvron et al. 2023), with grouped key/value heads (Ainslie et al. 2023), rotary
positions (Su et al. 2021), tied or untied head, and the biases of Qwen2. Mistral without a window is the same
model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kshipra.models.base import KeyValues, Linear, attend
from kshipra.types import ModelSpec


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * weight, over the last dimension (Zhang and Sennrich 2019); the scale
    in float32 at least.

    Through the length of x it takes 6 operations, F.rms_norm 9 on a CPU: 3 % of a step of one row.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width), requires_grad=False)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)  # (..., 1)
        epsilon = length.new_full((), self.epsilon)
        scale = torch.addcmul(epsilon, length, length, value=1 / x.shape[-1]).rsqrt_()
        return (x * scale).to(x.dtype).mul_(self.weight)


def frequencies(theta: float, size: int, device: torch.device) -> Tensor:
    """(D/2): radians that each pair of dimensions turns a position."""
    return theta ** (torch.arange(0, size, 2, device=device).float() / -size)


class Rotation:
    """cos and signed sin of each position's angles, (B, T, 1, D), ready to turn queries and keys."""

    def __init__(self, positions: Tensor, theta: float, size: int, dtype: torch.dtype) -> None:
        angles = positions[:, :, None, None].float() * frequencies(theta, size, positions.device)
        cos, sin = angles.cos(), angles.sin()
        self.cos = torch.cat((cos, cos), dim=-1).to(dtype)  # (B, T, 1, D)
        self.sin = torch.cat((-sin, sin), dim=-1).to(dtype)  # (B, T, 1, D)

    def turn(self, x: Tensor) -> Tensor:
        """(B, T, heads, D) turned: dimension i is paired with i + D/2, so swapping halves gives the
        partner."""
        first, second = x.chunk(2, dim=-1)
        return (x * self.cos).addcmul_(torch.cat((second, first), dim=-1), self.sin)


class Block(nn.Module):
    def __init__(self, spec: ModelSpec, config: Any) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = spec.heads, spec.kv_heads, spec.head_size
        qkv_bias, out_bias, mlp_bias = biases(config)
        inner = config.intermediate_size
        self.attention_norm = RMSNorm(spec.width, config.rms_norm_eps)
        self.qkv = Linear(spec.width, (spec.heads + 2 * spec.kv_heads) * spec.head_size, bias=qkv_bias)
        self.attention_out = Linear(spec.heads * spec.head_size, spec.width, bias=out_bias)
        self.mlp_norm = RMSNorm(spec.width, config.rms_norm_eps)
        self.mlp_in = Linear(spec.width, 2 * inner, bias=mlp_bias)  # gate and up, side by side
        self.mlp_out = Linear(inner, spec.width, bias=mlp_bias)

    def forward(
        self, x: Tensor, rotation: Rotation, layer: int, mask: Tensor | None, cache: KeyValues | None
    ) -> Tensor:
        """x (R, W), the R = B * T columns of all rows one after another, to the next layer's."""
        rows, columns = rotation.cos.shape[:2]
        qkv = self.qkv(self.attention_norm(x)).view(rows, columns, -1, self.head_size)  # (B, T, H + 2G, D)
        qk, v = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=2)
        q, k = rotation.turn(qk).split((self.heads, self.kv_heads), dim=2)  # (B, T, H, D), (B, T, G, D)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D), 2 x (B, G, T, D)
        x = x + self.attention_out(attend(q, k, v, layer=layer, mask=mask, cache=cache))  # (R, W)
        gate, up = self.mlp_in(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.mlp_out(F.silu(gate, inplace=True).mul_(up))  # (R, W)


class Llama(nn.Module):
    def __init__(self, spec: ModelSpec, config: Any) -> None:
        super().__init__()
        self.spec = spec
        self.eos_ids: frozenset[int] = frozenset()
        self.theta = config.rope_parameters["rope_theta"]
        self.tokens = nn.Embedding(spec.vocabulary, spec.width)
        self.blocks = nn.ModuleList(Block(spec, config) for _ in range(spec.layers))
        self.norm = RMSNorm(spec.width, config.rms_norm_eps)
        self.head = nn.Linear(
            spec.width, spec.vocabulary, bias=False
        )  # the same tensor as `tokens` where tied

    @property
    def device(self) -> torch.device:
        return self.tokens.weight.device

    @property
    def frequencies(self) -> Tensor:
        """(D/2), of the rotary positions."""
        return frequencies(self.theta, self.spec.head_size, self.device)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids (B, T) to the first layer's input (B, T, W); positions come in later, by rotation."""
        return self.tokens(ids)

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KeyValues | None, keep: int
    ) -> Tensor:
        x = self.embed(ids, positions).flatten(0, 1)  # (R, W): products take plain matrices
        rotation = Rotation(positions, self.theta, self.spec.head_size, x.dtype)
        for layer, block in enumerate(self.blocks):
            x = block(x, rotation, layer, mask, cache)  # (R, W)
        return self.head(self.norm(x.view(*ids.shape, -1)[:, -keep:]))  # (B, keep, V)

    @staticmethod
    def refusal(config: Any) -> str | None:
        """Why this config needs the adapter, or None."""
        rope = config.rope_parameters
        if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
            return f"rotary scaling {rope.get('rope_type')}"
        if config.hidden_act not in ("silu", "swish"):
            return f"activation {config.hidden_act}"
        windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        return "sliding-window attention" if windowed else None

    @staticmethod
    def from_hugging_face(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
        """Our state dict from published names: q, k, v and gate, up side by side, all turned to (inputs,
        outputs)."""
        found = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        state = {
            "tokens.weight": found["embed_tokens.weight"],
            "norm.weight": found["norm.weight"],
            "head.weight": found.get("lm_head.weight", found["embed_tokens.weight"]),
        }
        products = {
            "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "attention_out": ("self_attn.o_proj",),
            "mlp_in": ("mlp.gate_proj", "mlp.up_proj"),
            "mlp_out": ("mlp.down_proj",),
        }
        for layer in range(spec.layers):
            ours, theirs = f"blocks.{layer}", f"layers.{layer}"
            state[f"{ours}.attention_norm.weight"] = found[f"{theirs}.input_layernorm.weight"]
            state[f"{ours}.mlp_norm.weight"] = found[f"{theirs}.post_attention_layernorm.weight"]
            for name, parts in products.items():
                stacked = torch.cat([found[f"{theirs}.{part}.weight"] for part in parts])  # (outputs, inputs)
                state[f"{ours}.{name}.weight"] = stacked.t().contiguous()
                if f"{theirs}.{parts[0]}.bias" in found:
                    state[f"{ours}.{name}.bias"] = torch.cat(
                        [found[f"{theirs}.{part}.bias"] for part in parts]
                    )
        return state


def biases(config: Any) -> tuple[bool, bool, bool]:
    """Whether q/k/v, the attention's output and the MLP have biases; Qwen2 always has the first alone."""
    if config.model_type == "qwen2":
        return True, False, False
    attention = bool(getattr(config, "attention_bias", False))
    return attention, attention, bool(getattr(config, "mlp_bias", False))
