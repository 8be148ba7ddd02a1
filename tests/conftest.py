"""Tiny models and tokenizers made in memory, shared by all tests. Nothing here touches the network."""

from __future__ import annotations

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import pytest
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from browser import FLAGS, find_chromium
from kshipra.engine.runner import Engine

torch.set_num_threads(1)  # tiny models gain nothing from more, and lose much where cores are shared
VOCABULARY = 1000
NO_SPECIAL = dict(bos_token_id=None, eos_token_id=None)
SMALL = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=64,
    vocab_size=VOCABULARY,
    max_position_embeddings=256,
    pad_token_id=None,
    **NO_SPECIAL,
)


def loud(model: torch.nn.Module) -> torch.nn.Module:
    """float64 weights under which every position and every key moves the winner: large matrices, quiet
    biases.

    With loud biases one token would win everywhere and every fault would pass.
    """
    model = model.double().eval()
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            weight.data.normal_(0.0, 0.3, generator=generator)
        else:
            weight.data.normal_(0.0 if "bias" in name else 1.0, 0.05, generator=generator)
    return model


def make_gpt2(**changes) -> GPT2LMHeadModel:
    shape = dict(n_layer=2, n_embd=32, n_head=4, vocab_size=VOCABULARY, n_positions=256, **NO_SPECIAL)
    return loud(GPT2LMHeadModel(GPT2Config(**(shape | changes))))


def make_llama(**changes) -> LlamaForCausalLM:
    return loud(LlamaForCausalLM(LlamaConfig(**(SMALL | changes))))


def make_qwen2(**changes) -> Qwen2ForCausalLM:
    return loud(Qwen2ForCausalLM(Qwen2Config(**(SMALL | changes))))


FAMILIES = {
    "gpt2": make_gpt2,
    "llama": make_llama,
    "llama-untied-one-group": lambda: make_llama(num_key_value_heads=1, tie_word_embeddings=False),
    "qwen2": make_qwen2,
}


class Letters:
    """The plainest tokenizer: an id a character, and a letter an id."""

    eos_token_id = None

    def encode(self, text: str) -> list[int]:
        return [ord(character) % VOCABULARY for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + id % 26) for id in ids)


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """GPT-2's kind: one token a byte, 256 of them, and three control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: id for id, character in enumerate(alphabet)}
    fast = FastTokenizer(models.BPE(vocabulary, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(t, special=True) for t in ("<|end|>", "<|im_start|>", "<|im_end|>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Llama's kind: words with a mark for the space before them, and bytes for what has no word."""
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    words += ["▁", "▁▁", "▁Hello", "▁world", "Hello", ",", ".", "▁it", "'s", "\n", "▁x", "▁=", "▁1", "▁end"]
    words += list("abcdefghijklmnopqrstuvwxyzHW'=1")
    vocabulary = {word: id for id, word in enumerate(words)}
    fast = FastTokenizer(
        models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)  # no merges: letters
    )
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast.pre_tokenizer = pre_tokenizers.Split(Regex("(?<=.)(?=▁)"), "isolated")
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.fixture(scope="session", params=list(FAMILIES))
def reference(request):
    """A tiny transformers model of each family, float64, in eval mode."""
    return FAMILIES[request.param]()


@pytest.fixture(scope="session")
def engine(reference) -> Engine:
    """Our implementation of `reference`."""
    return Engine(reference, Letters(), implementation="native")


@pytest.fixture(scope="session")
def byte_level() -> PreTrainedTokenizerFast:
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def byte_fallback() -> PreTrainedTokenizerFast:
    return byte_fallback_tokenizer()


@pytest.fixture(scope="session")
def chromium():
    """A running Chromium. Where CI=true its absence is a failure, so that no gap hides behind a skip."""
    found = find_chromium()
    if found is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("There is no Chromium here.")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # one process for all tabs of a profile: what one has compiled, the next need not
        browser = playwright.chromium.launch(executable_path=found, args=[*FLAGS, "--process-per-site"])
        yield browser
        browser.close()
