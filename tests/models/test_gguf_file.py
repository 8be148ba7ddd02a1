"""GGUF files written here, with values that are known, and the default model's against transformers' own
reading."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from model_folders import is_one_sentence

import kshipra
from kshipra import machine
from kshipra.errors import ModelError
from kshipra.models import catalogue, gguf_file
from kshipra.models.gguf_file import read_gguf
from kshipra.models.wheel import fetched
from kshipra.types import SamplingParams

HEADS, GROUPS, SIZE, WIDTH, INNER, WORDS = 4, 2, 8, 32, 64, 96
SHAPES = {
    "self_attn.q_proj.weight": (HEADS * SIZE, WIDTH),
    "self_attn.k_proj.weight": (GROUPS * SIZE, WIDTH),
    "self_attn.v_proj.weight": (GROUPS * SIZE, WIDTH),
    "self_attn.o_proj.weight": (WIDTH, HEADS * SIZE),
    "mlp.gate_proj.weight": (INNER, WIDTH),
    "mlp.up_proj.weight": (INNER, WIDTH),
    "mlp.down_proj.weight": (WIDTH, INNER),
    "input_layernorm.weight": (WIDTH,),
    "post_attention_layernorm.weight": (WIDTH,),
}
BIASES = {
    "self_attn.q_proj.bias": (HEADS * SIZE,),
    "self_attn.k_proj.bias": (GROUPS * SIZE,),
    "self_attn.v_proj.bias": (GROUPS * SIZE,),
}
IN_THE_FILE = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def as_llama_cpp_stores(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row 2i of a head is the published row i, and row 2i + 1 the published row i + D/2, spelt out row by
    row."""
    size = weight.shape[0] // heads
    stored = np.empty_like(weight)
    for head in range(heads):
        for i in range(size // 2):
            stored[head * size + 2 * i] = weight[head * size + i]
            stored[head * size + 2 * i + 1] = weight[head * size + i + size // 2]
    return stored


def write(
    path: Path,
    kind: str = "llama",
    *,
    tied: bool = True,
    q8: bool = False,
    layers: int = 2,
    without: str = "",
    odd: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
    **extra: str,
) -> dict[str, np.ndarray]:
    """A random GGUF of that kind, and its tensors as Hugging Face would name and order them.

    `odd` adds what a plain file does not have, and the tensor `without` is left out.
    """
    random = np.random.default_rng(0)
    published = {"model.embed_tokens.weight": (WORDS, WIDTH), "model.norm.weight": (WIDTH,)}
    if not tied:
        published["lm_head.weight"] = (WORDS, WIDTH)
    for layer in range(layers):
        for name, shape in (SHAPES | (BIASES if kind == "qwen2" else {})).items():
            published[f"model.layers.{layer}.{name}"] = shape
    values = {name: random.normal(size=shape).astype(np.float32) for name, shape in published.items()}
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50_000.0)
    writer.add_eos_token_id(2)
    for key, value in extra.items():
        writer.add_string(f"{kind}.{key.replace('__', '.')}", value)
    odd(writer)
    for name, value in values.items():
        stored = value
        if file_name(name) == without:
            continue
        if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            stored = as_llama_cpp_stores(value, HEADS if "q_proj" in name else GROUPS)
        if q8 and value.ndim == 2:
            packed = gguf.quants.quantize(stored, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(file_name(name), packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(file_name(name), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def file_name(name: str) -> str:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, *middle, kind = name.split(".")
    return f"blk.{layer}.{IN_THE_FILE['.'.join(middle)]}.{kind}"


def read(path: Path):
    return read_gguf(path, progress=lambda *_: None)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_values_come_back_as_published(tmp_path, kind, tied):
    path = tmp_path / "tiny.gguf"
    expected = write(path, kind, tied=tied)
    config, tensors = read(path)
    assert set(tensors) == set(expected)
    for name, value in expected.items():
        assert torch.equal(tensors[name], torch.from_numpy(value)), name
    assert config["model_type"] == kind
    assert config["tie_word_embeddings"] is tied
    assert config["vocab_size"] == WORDS
    assert config["num_key_value_heads"] == GROUPS
    assert config["head_dim"] == SIZE
    assert config["rope_parameters"]["rope_theta"] == 50_000.0
    assert config["eos_token_id"] == 2


def test_q8_comes_back_within_its_own_steps(tmp_path):
    path = tmp_path / "tiny.gguf"
    expected = write(path, q8=True)
    _, tensors = read(path)
    for name, value in expected.items():
        step = np.abs(value).max() / 127
        assert (tensors[name] - torch.from_numpy(value)).abs().max() <= step, name


def test_what_the_engine_makes_of_it_is_the_published_model(tmp_path):
    """The order of q's and k's rows matters only with the rotation, so the logits are the proof."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from kshipra.models.loading import build_native

    path = tmp_path / "tiny.gguf"
    expected = write(path)
    config, tensors = read(path)
    config = LlamaConfig(**config)
    reference = LlamaForCausalLM(config).eval()
    reference.load_state_dict({name: torch.from_numpy(v) for name, v in expected.items()}, strict=False)
    ours = build_native(tensors, config, "tiny", torch.device("cpu"), torch.float32)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    with torch.inference_mode():
        found = ours.forward(ids, torch.arange(6)[None], None, None, 6)
        assert (found - reference(ids).logits).abs().max() < 1e-3


def test_what_is_not_read_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "tiny.gguf"
    write(path, rope__scaling__type="yarn")
    with pytest.raises(ModelError, match="scales its rotary positions"):
        read(path)
    write(path, "gemma")
    with pytest.raises(ModelError, match="only llama and qwen2 are read"):
        read(path)


ODD = {
    "positions scaled by the old key": (lambda w: w.add_float32("llama.rope.scale_linear", 4.0), "rotary"),
    "positions scaled by a tensor": (
        lambda w: w.add_tensor("rope_freqs.weight", np.ones(4, np.float32)),
        "rotary",
    ),
    "a part of each head turned": (lambda w: w.add_rope_dimension_count(4), "rotates a part of each head"),
    "experts": (lambda w: w.add_expert_count(4), "mixture of experts"),
    "one part of several": (lambda w: w.add_uint16("split.count", 3), "one part of several"),
    "a tensor of no known name": (
        lambda w: w.add_tensor("blk.0.what.weight", np.ones(4, np.float32)),
        "tiny",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_what_would_be_read_wrong_is_refused(tmp_path, name):
    odd, words = ODD[name]
    write(tmp_path / "tiny.gguf", odd=odd)
    with pytest.raises(ModelError, match=words) as told:
        read(tmp_path / "tiny.gguf")
    assert is_one_sentence(str(told.value))


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.1.ffn_up.weight"])
def test_a_gap_is_named(tmp_path, name):
    write(tmp_path / "tiny.gguf", without=name)
    with pytest.raises(ModelError, match=re.escape(f"such as {name}")):
        read(tmp_path / "tiny.gguf")


def test_tensors_outlive_the_file(tmp_path):
    """The file is mapped into memory; what was read must not change or fault with it."""
    path = tmp_path / "tiny.gguf"
    expected = write(path)
    _, tensors = read(path)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    for name, value in expected.items():
        assert torch.equal(tensors[name], torch.from_numpy(value)), name


def test_rows_that_are_not_put_back_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file, "_halves_from_neighbours", lambda rows, heads: rows)
    with pytest.raises(AssertionError, match="q_proj"):
        test_values_come_back_as_published(tmp_path, "llama", True)
    test_values_come_back_as_published(tmp_path, "qwen2", True)  # stored as published


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_an_engine_from_a_file(tmp_path, monkeypatch, implementation):
    """The whole way, with a tokenizer that is read from the file."""
    monkeypatch.setattr(machine, "threads", lambda: 1)
    path = tmp_path / "tiny.gguf"
    words = [*(chr(code) for code in range(33, 33 + WORDS - 2)), "ab", "<|end|>"]

    def tokenizer(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(words)
        writer.add_token_types([1] * (WORDS - 1) + [3])
        writer.add_token_merges(["a b"])

    expected = write(path, odd=tokenizer)
    engine = kshipra.load(str(path), device="cpu", dtype="float32", implementation=implementation)
    assert engine.model.spec.name == "tiny"
    assert engine.tokenizer.encode("ab!") == [words.index("ab"), words.index("!")]
    assert 2 in engine.model.eos_ids
    weights = engine.model.tokens if implementation == "native" else engine.model.model.model.embed_tokens
    assert torch.equal(weights.weight, torch.from_numpy(expected["model.embed_tokens.weight"]))
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    ids = engine.generate(["ab!"], mode="static_batch", params=params).rows[0].token_ids
    assert ids == engine.generate(["ab!"], mode="no_cache", params=params).rows[0].token_ids


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_refused_in_one_sentence(tmp_path, share):
    path = tmp_path / "tiny.gguf"
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=r"tiny\.gguf is damaged") as told:
        read(path)
    assert "\n" not in str(told.value)


@pytest.mark.slow
def test_the_default_model_is_read_as_transformers_reads_it():
    from transformers import AutoModelForCausalLM

    folder = fetched(catalogue.find(catalogue.DEFAULT), lambda *_: None)
    path = next(folder.glob("*.gguf"))
    _, tensors = read(path)
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=path.name, dtype=torch.float32
    ).state_dict()
    assert len(tensors) == 272
    for name, tensor in tensors.items():
        assert torch.equal(tensor, theirs[name]), name
