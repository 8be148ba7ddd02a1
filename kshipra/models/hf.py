"""The adapter: any decoder-only model of transformers behind the same `forward`, on our mask, positions and
cache.

The only file that knows transformers' cache classes. What it cannot drive it refuses by the signature;
`kshipra.engine.check` then refuses what takes our mask and positions and does not follow them.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from kshipra.errors import ModelError
from kshipra.models.base import KeyValues
from kshipra.types import ModelSpec


class BridgeLayer(CacheLayerMixin):
    """One layer of transformers' cache that keeps nothing: keys and values go to ours."""

    is_sliding = False

    def __init__(self, cache: KeyValues, layer: int, stored: int) -> None:
        super().__init__()
        self.cache, self.layer, self.stored = cache, layer, stored
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.cache.append(self.layer, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.stored + query_length, 0

    def get_seq_length(self) -> int:
        return self.stored

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.20


class TransformersModel:
    """`model` is a PreTrainedModel in eval mode whose attention runs on SDPA."""

    def __init__(self, model: Any, spec: ModelSpec) -> None:
        self.model, self.spec = model, spec
        self.eos_ids: frozenset[int] = frozenset()
        config = model.config.get_text_config()
        accepted = inspect.signature(model.forward).parameters
        self.cache_argument = "cache" if "cache" in accepted else "past_key_values"
        kinds = set(getattr(config, "layer_types", None) or ())
        if "position_ids" not in accepted or self.cache_argument not in accepted:
            raise ModelError(
                f"{spec.name} ({spec.family}) takes no positions or no cache: choose another model."
            )
        if kinds - {"full_attention", "sliding_attention"}:
            odd = ", ".join(sorted(kinds - {"full_attention", "sliding_attention"}))
            raise ModelError(f"{spec.name} has layers without plain attention ({odd}): choose another model.")
        uses_window = getattr(config, "use_sliding_window", True)
        self.window: int | None = getattr(config, "sliding_window", None) if uses_window else None
        self.mixed = self.window is not None and "sliding_attention" in kinds

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KeyValues | None, keep: int
    ) -> Tensor:
        rows, columns = ids.shape
        stored = cache.columns if cache is not None else 0
        if mask is None:
            order = torch.ones(columns, stored + columns, dtype=torch.bool, device=ids.device).tril(stored)
            mask = order.expand(rows, 1, -1, -1)  # (B, 1, T, S)
        bridge = None
        if cache is not None:
            bridge = Cache(layers=[BridgeLayer(cache, layer, stored) for layer in range(self.spec.layers)])
        out = self.model(
            input_ids=ids,
            attention_mask=self._masks(mask),
            position_ids=positions,
            use_cache=cache is not None,
            logits_to_keep=keep,
            **{self.cache_argument: bridge},
        )
        return out.logits[:, -keep:]  # (B, keep, V)

    def _masks(self, full: Tensor) -> Tensor | dict[str, Tensor]:
        """transformers takes a 4-D mask as it is, so a sliding window is ours to cut: by the real tokens from
        a key to the query, because a row may have pads between them, where guesses were rejected."""
        if self.window is None:
            return full
        near = full.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1) <= self.window
        cut = full & near  # (B, 1, T, S)
        return {"full_attention": full, "sliding_attention": cut} if self.mixed else cut

    def plain_logits(self, ids: Tensor) -> Tensor:
        """ids (B, T) to logits (B, T, V) by transformers alone, without our cache, mask and positions."""
        return self.model(input_ids=ids, use_cache=False).logits

    def generate(
        self,
        ids: Tensor,
        *,
        cache: GenerateCache,
        max_new_tokens: int,
        processors: Sequence[LogitsProcessor],
        stop: StoppingCriteria,
    ) -> None:
        """Greedy text after ids (1, T) by transformers' own loop, until `stop` says so.

        Without the defaults that the model brings: they name end ids, and may ask for what nobody did.
        """
        own, self.model.generation_config = self.model.generation_config, GenerationConfig()
        try:
            self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_new_tokens,
                logits_processor=list(processors),
                stopping_criteria=[stop],
                **{self.cache_argument: cache.inner},
            )
        finally:
            self.model.generation_config = own


class GenerateCache:
    """The cache that transformers' generate would make for `model`, made here to see its bytes."""

    def __init__(self, model: TransformersModel) -> None:
        self.inner = DynamicCache(config=model.model.config)
        self.columns = 0

    def advance(self, columns: int) -> None:
        self.columns += columns

    @property
    def held_bytes(self) -> int:
        """Bytes of the real tensors, which a sliding window cuts."""
        layers = [layer for layer in self.inner.layers if layer.is_initialized]
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)

    used_bytes = held_bytes  # every step makes new tensors that fit
