"""GPT-2 from scratch (Radford et al. 2019): learned absolute positions, LayerNorm before each half of a
block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kshipra.models.base import KeyValues, Linear, attend
from kshipra.types import ModelSpec


class Block(nn.Module):
    def __init__(self, spec: ModelSpec, inner: int, epsilon: float) -> None:
        super().__init__()
        self.heads, self.head_size = spec.heads, spec.head_size
        self.attention_norm = nn.LayerNorm(spec.width, eps=epsilon)
        self.qkv = Linear(spec.width, 3 * spec.width)
        self.attention_out = Linear(spec.width, spec.width)
        self.mlp_norm = nn.LayerNorm(spec.width, eps=epsilon)
        self.mlp_in = Linear(spec.width, inner)
        self.mlp_out = Linear(inner, spec.width)

    def forward(
        self, x: Tensor, rows: int, layer: int, mask: Tensor | None, cache: KeyValues | None
    ) -> Tensor:
        """x (R, W), the R = B * T columns of all `rows` one after another, to the next layer's."""
        qkv = self.qkv(self.attention_norm(x)).view(rows, -1, 3, self.heads, self.head_size)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # 3 x (B, H, T, D)
        x = x + self.attention_out(attend(q, k, v, layer=layer, mask=mask, cache=cache))  # (R, W)
        inner = self.mlp_in(self.mlp_norm(x))
        return x + self.mlp_out(torch.ops.aten.gelu_(inner, approximate="tanh"))  # (R, W)


class GPT2(nn.Module):
    """Weights come in through `from_hugging_face`'s names; `refusal` says which configs are not this
    model."""

    def __init__(self, spec: ModelSpec, config: Any) -> None:
        super().__init__()
        self.spec = spec
        self.eos_ids: frozenset[int] = frozenset()
        inner = config.n_inner or 4 * spec.width
        self.tokens = nn.Embedding(spec.vocabulary, spec.width)
        self.places = nn.Embedding(config.n_positions, spec.width)
        self.blocks = nn.ModuleList(Block(spec, inner, config.layer_norm_epsilon) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width, eps=config.layer_norm_epsilon)
        self.head = nn.Linear(
            spec.width, spec.vocabulary, bias=False
        )  # tied to `tokens` in every published GPT-2

    @property
    def device(self) -> torch.device:
        return self.tokens.weight.device

    frequencies = None  # no rotary positions

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids (B, T) and positions (B, T) to the first layer's input (B, T, W)."""
        return self.tokens(ids) + self.places(positions)

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KeyValues | None, keep: int
    ) -> Tensor:
        x = self.embed(ids, positions).flatten(0, 1)  # (R, W): products take plain matrices
        for layer, block in enumerate(self.blocks):
            x = block(x, len(ids), layer, mask, cache)  # (R, W)
        return self.head(self.norm(x.view(*ids.shape, -1)[:, -keep:]))  # (B, keep, V)

    @staticmethod
    def refusal(config: Any) -> str | None:
        """Why this config needs the adapter, or None."""
        if config.activation_function not in ("gelu_new", "gelu_pytorch_tanh"):
            return f"activation {config.activation_function}"
        if not config.scale_attn_weights or config.scale_attn_by_inverse_layer_idx:
            return "attention scaling other than 1 / sqrt(head size)"
        return "cross-attention" if config.add_cross_attention else None

    @staticmethod
    def from_hugging_face(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
        """Our state dict from published names; the Conv1D weights there are (inputs, outputs) as ours are."""
        found = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        state = {
            "tokens.weight": found["wte.weight"],
            "places.weight": found["wpe.weight"],
            "norm.weight": found["ln_f.weight"],
            "norm.bias": found["ln_f.bias"],
            "head.weight": found.get("lm_head.weight", found["wte.weight"]),
        }
        parts = {
            "attention_norm": "ln_1",
            "qkv": "attn.c_attn",
            "attention_out": "attn.c_proj",
            "mlp_norm": "ln_2",
            "mlp_in": "mlp.c_fc",
            "mlp_out": "mlp.c_proj",
        }
        for layer in range(spec.layers):
            for ours, theirs in parts.items():
                for kind in ("weight", "bias"):
                    state[f"blocks.{layer}.{ours}.{kind}"] = found[f"h.{layer}.{theirs}.{kind}"]
        return state
