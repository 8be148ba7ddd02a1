"""GPT-2 in its published shapes with random weights: speed and memory do not depend on the values, text
does."""

from __future__ import annotations

from typing import Any

import torch

from kshipra.engine.devices import pick_device, pick_dtype
from kshipra.engine.runner import Engine, load_choice
from kshipra.errors import UnreachableError
from kshipra.types import ModelChoice, Progress, silent

SHAPES: dict[str, tuple[int, int, int]] = {  # layers, heads, width (Radford et al. 2019, table 2)
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
}


class Numbers:
    """A tokenizer for models that know no text: a byte is an id, and an id is written as its number."""

    eos_token_id = None

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return "".join(f" {id}" for id in ids)


def random_gpt2(
    shape: str, *, device: str = "auto", dtype: str = "auto", implementation: str = "auto", **changes: int
) -> Engine:
    """An engine of that shape, seeded, weights as transformers starts to train them; `changes` to its config
    make it smaller."""
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads, width = SHAPES[shape]
    config = dict(n_layer=layers, n_head=heads, n_embd=width, bos_token_id=None, eos_token_id=None) | changes
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(**config, name_or_path=f"{shape}, random weights"))
    model = model.to(device=pick_device(device), dtype=pick_dtype(dtype))
    return Engine(model, Numbers(), implementation=implementation)


def tiny(family: str) -> Engine:
    """An engine of a few random layers, "gpt2" with learned or "llama" with rotary positions, seeded. Weights
    vary by 0.3, fifteen times what training starts from: only then do positions move the logits."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    shape = dict(vocab_size=1000, num_hidden_layers=4, hidden_size=64, num_attention_heads=4)
    rest = dict(max_position_embeddings=256, initializer_range=0.3, bos_token_id=None, eos_token_id=None)
    named = dict(name_or_path=f"tiny {family}, random weights")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if family == "gpt2":
            model: Any = GPT2LMHeadModel(GPT2Config(**shape, **rest, **named))
        else:
            model = LlamaForCausalLM(LlamaConfig(**shape, **rest, **named, intermediate_size=128))
    return Engine(model, Numbers())


def load_or_random(choice: ModelChoice, *, progress: Progress = silent) -> tuple[Engine, str]:
    """The engine of `choice` and "published"; where a GPT-2 cannot be had, one of its shape and "random"."""
    try:
        return load_choice(choice, progress=progress), "published"
    except UnreachableError:
        if choice.model not in SHAPES:
            raise
        progress(f"Making {choice.model} with random weights", None, None)
        return random_gpt2(
            choice.model, device=choice.device, dtype=choice.dtype, implementation=choice.implementation
        ), "random"
