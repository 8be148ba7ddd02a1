"""Folders of tiny models, and folders of what is no model, as a person or the Hub would have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from conftest import byte_level_tokenizer, make_gpt2

PICKLE = b"\x80\x04cos\nsystem\n"  # what would run code if it were opened
NOT_OURS = {
    "t5": ({"model_type": "t5", "is_encoder_decoder": True, "architectures": ["T5Model"]}, "encoder-decoder"),
    "bert": ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "no decoder-only language model"),
    "vit": ({"model_type": "vit", "architectures": ["ViTForImageClassification"]}, "no decoder-only"),
    "own code": (
        {"model_type": "novel", "auto_map": {"AutoModelForCausalLM": "modeling_novel.Novel"}},
        "code of its own repository, which Kshipra never runs",
    ),
    "unknown kind": ({"model_type": "novel\n<b>"}, "unknown kind"),
    "no kind": ({"architectures": ["X"]}, "unknown kind"),
    "kind is a list": ({"model_type": ["gpt2"]}, "unknown kind"),
}
NO_MODEL = {
    "empty": ([], "no config.json"),
    "pickle only": (["config.json", "vocab.json", "pytorch_model.bin"], "pickled weights only"),
    "pickle beside an adapter": (
        ["config.json", "vocab.json", "pytorch_model.bin", "adapter_model.safetensors"],
        "pickled weights only",
    ),
    "pickle, safetensors for another runtime": (
        ["config.json", "vocab.json", "pytorch_model.bin", "onnx/model.safetensors"],
        "pickled weights only",
    ),
    "gguf only": (["README.md", "model.Q4_K_M.gguf"], "GGUF files only"),
    "adapter only": (["adapter_config.json", "adapter_model.safetensors", "vocab.json"], "an adapter"),
    "no weights": (["config.json", "vocab.json"], "no safetensors weights"),
    "no tokenizer": (["config.json", "model.safetensors"], "no tokenizer"),
}


def write_gpt2(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """Tiny GPT-2 weights (about 200 KiB in fp32), config and tokenizer in `folder`."""
    return write_model(make_gpt2(vocab_size=259, **changes).to(dtype), folder)


def write_model(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    model.save_pretrained(folder)
    byte_level_tokenizer().save_pretrained(folder)
    return model


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Everything that a model has, but with this config and with weights that nobody may read."""
    write_files(folder, ["vocab.json", "model.safetensors", "modeling_novel.py"])
    (folder / "config.json").write_text(json.dumps(config))


def write_files(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(PICKLE if name.endswith(".bin") else b"{}")


def greedy(model: PreTrainedModel, ids: list[int], count: int) -> tuple[int, ...]:
    """What transformers itself continues `ids` with."""
    prompt = torch.tensor([ids])
    out = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return tuple(out[0, len(ids) :].tolist())


def is_one_sentence(message: str) -> bool:
    return message.endswith(".") and message.isprintable() and 20 < len(message) < 400
