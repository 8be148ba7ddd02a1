"""GPT-2 in its published shapes with random weights: speed and memory do not depend on the values, text
does."""

from __future__ import annotations

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


def random_gpt2(shape: str, *, device: str = "auto", dtype: str = "auto", **changes: int) -> Engine:
    """An engine of that shape, seeded, weights as transformers starts to train them; `changes` to its config
    make it smaller."""
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads, width = SHAPES[shape]
    config = dict(n_layer=layers, n_head=heads, n_embd=width, bos_token_id=None, eos_token_id=None) | changes
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(**config, name_or_path=f"{shape}, random weights"))
    return Engine(model.to(device=pick_device(device), dtype=pick_dtype(dtype)), Numbers())


def load_or_random(choice: ModelChoice, *, progress: Progress = silent) -> tuple[Engine, str]:
    """The engine of `choice` and "published"; where a GPT-2 cannot be had, one of its shape and "random"."""
    try:
        return load_choice(choice, progress=progress), "published"
    except UnreachableError:
        if choice.model not in SHAPES:
            raise
        progress(f"Making {choice.model} with random weights", None, None)
        return random_gpt2(choice.model, device=choice.device, dtype=choice.dtype), "random"
