"""Read a GGUF file of the Llama kind into a Hugging Face config and tensors, dequantized to fp32.

llama.cpp stores the rows of q and k of `llama` files so that rotation pairs neighbours (2i, 2i + 1); the
published weights pair i with i + D/2, so those rows are put back. Everything else keeps its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from torch import Tensor

from kshipra.errors import ModelError
from kshipra.models.sources import Accept, whatever
from kshipra.types import Progress

ARCHITECTURES = ("llama", "qwen2")
WHOLE_MODEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_A_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_gguf(
    path: Path, *, progress: Progress, accept: Accept = whatever
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config with Hugging Face names, tensors with Hugging Face names in fp32).

    Raises ModelError for a damaged file or an architecture other than ARCHITECTURES.
    """
    with _damage_told(path):
        reader = GGUFReader(path)
        return _read(reader, path, progress, accept)


def shape_of_gguf(path: Path) -> tuple[dict[str, Any], int]:
    """(config with Hugging Face names, number of weights), from the head alone. ModelError as above."""
    with _damage_told(path):
        reader = GGUFReader(path)
        return _described(reader, path), sum(int(tensor.n_elements) for tensor in reader.tensors)


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """Read in here: what the reader fails with is told in one sentence."""
    try:
        yield
    except ModelError:
        raise
    except NotImplementedError as error:
        raise ModelError(
            f"{path.name} is quantized in a way that is not read: choose another, such as Q8_0 or Q4_K_M."
        ) from error
    except Exception as error:  # the reader's own errors for damaged files are of many kinds
        raise ModelError(f"{path.name} is damaged or no GGUF file: fetch it again.") from error


def _described(reader: GGUFReader, path: Path) -> dict[str, Any]:
    fields = {name: field.contents() for name, field in reader.fields.items() if "tokens" not in name}
    architecture = fields.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"{path.name} is of the kind {architecture!r:.40}, and of GGUF files only "
            f"{' and '.join(ARCHITECTURES)} are read: give the folder of the model with safetensors."
        )
    shapes = {tensor.name: tensor.shape for tensor in reader.tensors}
    _refuse(fields, architecture, set(shapes), path.name)
    config = _config(fields, architecture, set(shapes))
    config["vocab_size"] = int(shapes["token_embd.weight"][1])  # (W, V): dimensions are reversed in the file
    return config


def _read(
    reader: GGUFReader, path: Path, progress: Progress, accept: Accept
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = _described(reader, path)
    accept(path.stem, sum(int(tensor.n_elements) for tensor in reader.tensors))
    total = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    done = 0
    tensors: dict[str, Tensor] = {}
    with ThreadPoolExecutor(2) as pool:  # numpy leaves the interpreter free while it works
        values = pool.map(lambda tensor: _dequantized(tensor, config), reader.tensors)
        for tensor, value in zip(reader.tensors, values, strict=True):
            tensors[hugging_face_name(tensor.name)] = value
            done += int(tensor.n_bytes)
            progress(f"Reading {path.stem}", done, total)
    return config, tensors


def _refuse(fields: dict[str, Any], architecture: str, names: set[str], label: str) -> None:
    """Raise ModelError for what these architectures may hold and our reading does not cover, or for gaps."""

    def of(name: str, default: Any = None) -> Any:
        return fields.get(f"{architecture}.{name}", default)

    scaled = of("rope.scaling.type", "none") != "none" or of("rope.scale_linear", 1.0) != 1.0
    if scaled or "rope_freqs.weight" in names:
        raise ModelError(
            f"{label} scales its rotary positions, which is not read from GGUF: give a safetensors folder."
        )
    if of("expert_count", 0) or "blk.0.ffn_gate_inp.weight" in names:
        raise ModelError(
            f"{label} is a mixture of experts, which is not read from GGUF: give a safetensors folder."
        )
    if fields.get("split.count", 1) > 1:
        raise ModelError(
            f"{label} is one part of several, which are not read: give the model as one .gguf file."
        )
    head_size = of("attention.key_length", of("embedding_length") // of("attention.head_count"))
    if of("rope.dimension_count", head_size) != head_size:
        raise ModelError(
            f"{label} rotates a part of each head only, which is not read: give a safetensors folder."
        )
    blocks = {f"blk.{layer}.{part}.weight" for layer in range(of("block_count")) for part in IN_A_BLOCK}
    if missing := sorted((blocks | {"token_embd.weight", "output_norm.weight"}) - names):
        raise ModelError(
            f"{label} lacks {len(missing)} of its tensors, such as {missing[0]}: fetch it again."
        )


def _config(fields: dict[str, Any], architecture: str, names: set[str]) -> dict[str, Any]:
    def of(name: str, default: Any = None) -> Any:
        return fields.get(f"{architecture}.{name}", default)

    heads, width = of("attention.head_count"), of("embedding_length")
    return {
        "model_type": architecture,
        "architectures": ["LlamaForCausalLM" if architecture == "llama" else "Qwen2ForCausalLM"],
        "hidden_size": width,
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv", heads),
        "head_dim": of("attention.key_length", width // heads),
        "max_position_embeddings": of("context_length"),
        "rms_norm_eps": of("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": of("rope.freq_base", 10_000.0)},
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
    }


def hugging_face_name(name: str) -> str:
    """ "blk.3.attn_q.weight" to "model.layers.3.self_attn.q_proj.weight"."""
    if name in WHOLE_MODEL:
        return WHOLE_MODEL[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{IN_A_BLOCK[part]}.{kind}"


def _dequantized(tensor: ReaderTensor, config: dict[str, Any]) -> Tensor:
    value = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    part = tensor.name.split(".")[-2]
    if config["model_type"] == "llama" and part in heads:
        value = _halves_from_neighbours(value, heads[part])
    return torch.from_numpy(np.array(value))  # a copy: plain fp32 tensors are views of the mapped file


def _halves_from_neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    """(heads * D, ...) with each head's rows in the order 0, 2, 4, ..., 1, 3, 5, ..."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def save_as_folder(path: Path, folder: Path, *, progress: Progress) -> None:
    """Write the config, the tokenizer and the fp32 values of a GGUF into `folder` as transformers does."""
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoTokenizer

    values, tensors = read_gguf(path, progress=progress)
    AutoConfig.for_model(**values).save_pretrained(folder)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True).save_pretrained(
        folder
    )
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
