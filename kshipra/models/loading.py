"""From a name, a folder, a file or a model in memory to a CausalLM and its tokenizer.

Decides which implementation runs a config: ours where we have it, else the adapter over transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kshipra.errors import InputError, KshipraError, ModelError
from kshipra.models.base import CausalLM
from kshipra.models.counting import counted
from kshipra.models.gpt2 import GPT2
from kshipra.models.hf import TransformersModel
from kshipra.models.llama import Llama
from kshipra.models.shapes import describe, reason
from kshipra.models.sources import Accept, Source, locate, weight_files, whatever
from kshipra.models.weights import inner, shell, store
from kshipra.text import Tokenizer
from kshipra.types import Progress, silent

NATIVE: dict[str, type[GPT2 | Llama]] = {"gpt2": GPT2, "llama": Llama, "mistral": Llama, "qwen2": Llama}
IMPLEMENTATIONS = ("auto", "native", "transformers")


def load_model(
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    weights: str = "native",
    implementation: str = "auto",
    progress: Progress = silent,
    accept: Accept = whatever,
) -> tuple[CausalLM, Tokenizer]:
    """Find, fetch if need be, and build `name` on `device`, computing in `dtype`, stored as `weights`.

    `accept` may refuse it by its size. Raises ModelError with one sentence for what cannot be run, before its
    weights are fetched where that shows.
    """
    source = locate(name, progress=progress, accept=accept)
    progress(f"Loading {source.label}", None, None)
    if source.gguf is not None:
        model, tokenizer = _load_gguf(source, device, dtype, implementation, progress, accept)
    else:
        model, tokenizer = _load_folder(source, device, dtype, implementation, accept)
    _store(model, weights)  # here, where nobody holds the file's tensors any more
    return model, tokenizer


def _load_folder(
    source: Source, device: torch.device, dtype: torch.dtype, implementation: str, accept: Accept
) -> tuple[CausalLM, Tokenizer]:
    folder = source.folder
    assert folder is not None
    config, tokenizer, ends = _read_small_parts(folder, source.label)
    if native_class(config, implementation):
        model = build_native(_read_safetensors(folder), config, source.label, device, dtype)
    else:
        model = _load_adapter(folder, config, source.label, device, dtype, accept)
    model.eos_ids = frozenset(ends) | tokenizer.eos_ids
    return model, tokenizer


def _read_small_parts(folder: Path, label: str) -> tuple[Any, Tokenizer, set[int]]:
    """Config, tokenizer and end ids of a folder; whatever is wrong in them becomes one sentence."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        tokenizer = Tokenizer(AutoTokenizer.from_pretrained(folder, local_files_only=True))
        ends = end_ids(config.get_text_config())
        if (folder / "generation_config.json").exists():
            ends |= end_ids(GenerationConfig.from_pretrained(folder, local_files_only=True))
    except Exception as error:
        raise ModelError(
            f"The config or tokenizer files of {label} cannot be read ({reason(error)}): fetch them "
            "again or choose another model."
        ) from error
    return config, tokenizer, ends


def _store(model: CausalLM, weights: str) -> None:
    """Have `model` stored as `weights`, and its spec say so."""
    store(model, weights)
    model.spec = counted(dataclasses.replace(model.spec, weights=weights), inner(model))


def wrap_model(model: Any, implementation: str = "auto", weights: str = "native") -> CausalLM:
    """A CausalLM of a transformers model in memory, stored as `weights`; one that already has `spec` and
    `forward` stays as it is where nothing else is asked for. The matrices of `model` are never changed."""
    if hasattr(model, "spec"):
        if weights in ("native", model.spec.weights):
            return model
        wrapped = shell(model)
        _store(wrapped, weights)
        return wrapped
    config = model.config
    first = next(model.parameters())
    ends = end_ids(config.get_text_config()) | end_ids(getattr(model, "generation_config", None))
    name = config.name_or_path or config.model_type
    if native_class(config, implementation):
        wrapped = build_native(model.state_dict(), config, name, first.device, first.dtype)
    else:
        wrapped = adapt(shell(model).eval() if weights != "native" else model.eval(), name)
    wrapped.eos_ids = frozenset(ends)
    _store(wrapped, weights)
    return wrapped


def native_class(config: Any, implementation: str) -> type[GPT2 | Llama] | None:
    """Our class for this config, or None for the adapter. InputError where `native` is asked for and
    impossible."""
    if implementation not in IMPLEMENTATIONS:
        raise InputError(
            f"Implementation must be one of {', '.join(IMPLEMENTATIONS)}, not {implementation!r:.40}."
        )
    found = NATIVE.get(config.model_type)
    reason = found.refusal(config) if found else f"no {config.model_type} of our own"
    if implementation == "native" and reason:
        raise ModelError(
            f"Our own implementation does not cover this model ({reason}): use --implementation auto."
        )
    return None if reason or implementation == "transformers" else found


def build_native(
    tensors: Mapping[str, Tensor], config: Any, name: str, device: torch.device, dtype: torch.dtype
) -> GPT2 | Llama:
    """Our model with a copy of `tensors`, which have Hugging Face names; memory is shared only where heads
    are tied."""
    spec = describe(config, name, dtype)
    if config.tie_word_embeddings:
        tensors = {key: tensor for key, tensor in tensors.items() if key != "lm_head.weight"}
    kind = NATIVE[config.model_type]
    given = {tensor.data_ptr() for tensor in tensors.values()}
    moved: dict[int, Tensor] = {}
    try:
        with torch.device("meta"):
            model = kind(spec, config)
        state = kind.from_hugging_face(tensors, spec)
        for key, tensor in state.items():
            pointer = tensor.data_ptr()
            if pointer not in moved:
                moved[pointer] = tensor.detach().to(device=device, dtype=dtype, copy=pointer in given)
            state[key] = moved[pointer]
        model.load_state_dict(state, assign=True)
    except (ArithmeticError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        what = str(error).strip().splitlines()[-1].strip()
        raise ModelError(
            f"{name}: its weights do not fit its config ({what:.160}); fetch the model again."
        ) from error
    model.requires_grad_(False).eval()
    model.spec = counted(spec, model)
    return model


def adapt(model: Any, name: str) -> TransformersModel:
    """`model`, a PreTrainedModel in eval mode, behind the adapter."""
    first = next(model.parameters())
    return TransformersModel(model, counted(describe(model.config, name, first.dtype), model))


def fill_adapter(
    tensors: Mapping[str, Tensor], config: Any, name: str, device: torch.device, dtype: torch.dtype
) -> TransformersModel:
    """A transformers model of `config` with the values of `tensors`, behind the adapter."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    missing = set(model.load_state_dict(tensors, strict=False).missing_keys)
    _refuse_missing(missing - ({"lm_head.weight"} if config.tie_word_embeddings else set()), name)
    return adapt(model.to(device).eval(), name)


def _refuse_missing(names: Iterable[str], label: str) -> None:
    """transformers goes on with random numbers where a checkpoint has no values; Kshipra does not."""
    if missing := sorted(names):
        raise ModelError(
            f"{label} lacks {len(missing)} of its weights, such as {missing[0]}: fetch it again or choose "
            "another model."
        )


def end_ids(config: Any) -> set[int]:
    """The end ids that a config or generation config names: none, one or a list."""
    named = getattr(config, "eos_token_id", None)
    return set() if named is None else {named} if isinstance(named, int) else set(named)


def _read_safetensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            tensors.update(load_file(path))
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{path.name} is damaged ({error}): delete it and fetch the model again."
            ) from error
    return tensors


def _load_gguf(
    source: Source,
    device: torch.device,
    dtype: torch.dtype,
    implementation: str,
    progress: Progress,
    accept: Accept,
) -> tuple[CausalLM, Tokenizer]:
    from transformers import AutoConfig, AutoTokenizer

    from kshipra.models.gguf_file import read_gguf

    path = source.gguf
    assert path is not None
    values, tensors = read_gguf(path, progress=progress, accept=accept)
    config = AutoConfig.for_model(**values)
    tokenizer = Tokenizer(
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    )
    if native_class(config, implementation):
        model = build_native(tensors, config, source.label, device, dtype)
    else:
        model = fill_adapter(tensors, config, source.label, device, dtype)
    model.eos_ids = frozenset(end_ids(config)) | tokenizer.eos_ids
    return model, tokenizer


def _load_adapter(
    folder: Path, config: Any, name: str, device: torch.device, dtype: torch.dtype, accept: Accept
) -> TransformersModel:
    from transformers import AutoModelForCausalLM

    describe(config, name, dtype)
    try:
        with torch.device("meta"):  # a config may ask for far more than its files hold
            shape = AutoModelForCausalLM.from_config(config)
        accept(name, sum(weight.numel() for weight in shape.parameters()))
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
        _refuse_missing(report["missing_keys"], name)
        return adapt(model.to(device).eval(), name)
    except KshipraError:
        raise
    except Exception as error:  # a model of somebody else: whatever it raises, the person gets one sentence
        raise ModelError(
            f"{name} ({config.model_type}) could not be loaded ({reason(error)}): "
            "fetch it again or choose another model."
        ) from error
