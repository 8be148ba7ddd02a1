"""Our GPT-2 and Llama against transformers' on random weights, in float64, plain and left-padded; and the
adapter."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    OPTForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from checks import all_modes_agree
from conftest import NO_SPECIAL, SMALL, VOCABULARY, Letters, loud, make_gpt2, make_llama, make_qwen2
from kshipra.engine.geometry import attention_mask, left_pad, positions
from kshipra.engine.runner import Engine
from kshipra.errors import ModelError
from kshipra.models.gpt2 import GPT2
from kshipra.models.hf import TransformersModel
from kshipra.models.llama import Llama
from kshipra.models.loading import fill_adapter

# transformers computes rotary angles and RMSNorm in fp32 whatever the model's dtype, and so do we for the
# angles.
BOUND = 1e-5
VARIANTS = {
    "gpt2": make_gpt2,
    "gpt2, untied": lambda: make_gpt2(tie_word_embeddings=False),
    "gpt2, other inner width": lambda: make_gpt2(n_inner=48),
    "llama, grouped": make_llama,
    "llama, one group": lambda: make_llama(num_key_value_heads=1),
    "llama, no groups": lambda: make_llama(num_key_value_heads=4),
    "llama, tied": lambda: make_llama(tie_word_embeddings=True),
    "llama, biases": lambda: make_llama(attention_bias=True, mlp_bias=True),
    "llama, wide heads": lambda: make_llama(head_dim=16),
    "llama, other theta": lambda: make_llama(
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0}
    ),
    "llama, other epsilon": lambda: make_llama(rms_norm_eps=1e-2),
    "qwen2": make_qwen2,
}
ADAPTED = {
    "opt": lambda: OPTForCausalLM(
        OPTConfig(
            hidden_size=32,
            word_embed_proj_dim=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=64,
            vocab_size=VOCABULARY,
            max_position_embeddings=256,
            pad_token_id=1,
            **NO_SPECIAL,
        )
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=16)),
    "gemma3 with windows": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SMALL, head_dim=16, sliding_window=8)
    ),
    "phi": lambda: PhiForCausalLM(PhiConfig(**SMALL)),
}


@pytest.mark.parametrize("name", VARIANTS)
@torch.inference_mode()
def test_logits_of_our_own(name):
    reference = VARIANTS[name]()
    model = Engine(reference, Letters(), implementation="native").model
    assert isinstance(model, (GPT2, Llama))
    rows = [[7, 8, 9, 400, 2], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9]]
    for row in rows:
        ids = torch.tensor([row])
        ours = model.forward(ids, torch.arange(len(row))[None], None, None, len(row))
        theirs = reference(ids).logits
        assert (ours - theirs).abs().max() < BOUND
        assert ours.std() > 0.1  # a model that says nothing would agree too
    ids, valid = left_pad(rows, 0, torch.device("cpu"))
    padded = model.forward(ids, positions(valid, ids.shape[1]), attention_mask(valid, ids.shape[1]), None, 1)
    for row, own in zip(rows, padded, strict=True):
        assert (own[-1] - reference(torch.tensor([row])).logits[0, -1]).abs().max() < BOUND


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_are_counted_once(name):
    reference = VARIANTS[name]()
    spec = Engine(reference, Letters(), implementation="native").model.spec
    assert spec.parameters == sum(weight.numel() for weight in reference.parameters())
    assert Engine(reference, Letters(), implementation="transformers").model.spec == spec


@pytest.mark.parametrize("name", ADAPTED)
def test_the_adapter_drives_other_families(name):
    model = loud(ADAPTED[name]())
    engine = Engine(model, Letters())
    assert isinstance(engine.model, TransformersModel)
    all_modes_agree(engine)
    prompt = torch.tensor([list(range(100, 130))])
    theirs = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False, pad_token_id=0
    )
    ours = engine.generate([prompt[0].tolist()], mode="static_batch").rows[0].token_ids
    assert tuple(theirs[0, 30:].tolist()) == ours[:24]


def test_a_model_that_takes_no_positions_is_refused():
    bloom = BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=VOCABULARY))
    with pytest.raises(ModelError, match="choose another model"):
        Engine(bloom, Letters())


def test_a_model_that_ignores_the_mask_is_refused(monkeypatch):
    """What no signature tells: the check of the adapter runs the model."""
    monkeypatch.setattr(TransformersModel, "_masks", lambda self, full: torch.ones_like(full))
    with pytest.raises(ModelError, match="does not follow the mask"):
        Engine(make_llama(), Letters(), implementation="transformers")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GPT2Config(activation_function="relu"), "activation"),
        (GPT2Config(scale_attn_by_inverse_layer_idx=True), "scaling"),
        (LlamaConfig(hidden_act="gelu"), "activation"),
        (LlamaConfig(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}), "linear"),
        (MistralConfig(sliding_window=8), "window"),
    ],
)
def test_configs_that_are_not_ours_go_to_the_adapter(config, reason):
    kind = GPT2 if isinstance(config, GPT2Config) else Llama
    assert reason in kind.refusal(config)


def test_an_adapter_is_not_filled_up_with_random_numbers():
    """What a GGUF lacks, such as one bias of many, must not be what transformers happened to draw."""
    qwen2 = make_qwen2()
    tensors = qwen2.state_dict()
    filled = fill_adapter(tensors, qwen2.config, "tiny", torch.device("cpu"), torch.float64)
    all_modes_agree(Engine(filled, Letters()))
    del tensors["model.layers.1.self_attn.k_proj.bias"]
    with pytest.raises(ModelError, match=r"lacks 1 of its weights.*layers\.1\.self_attn\.k_proj\.bias"):
        fill_adapter(tensors, qwen2.config, "tiny", torch.device("cpu"), torch.float64)


def test_a_scaled_rotation_runs_through_the_adapter():
    scaled = make_llama(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})
    engine = Engine(scaled, Letters())
    assert isinstance(engine.model, TransformersModel)
    all_modes_agree(engine)
