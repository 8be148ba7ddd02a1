"""Models of the Hugging Face Hub: a complete cached copy without any network call, else what is needed and no
more.

`refusal` turns every way in which the Hub can fail into one sentence; a token never appears in one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import tqdm

from kshipra.errors import KshipraError, ModelError
from kshipra.models.sources import TOKENIZER_FILES, check_config, check_folder, check_names, read_config

Progress = Callable[[str, int | None, int | None], None]
TIMEOUT_S = 10
WANTED = (".safetensors", ".json", ".model", ".txt", ".jinja")


def fetched(repo: str, progress: Progress) -> Path:
    """A folder with config, tokenizer and weights of `repo`. ModelError says in one sentence why there is
    none."""
    if (cached := _cached(repo)) is not None:
        return cached
    if constants.HF_HUB_OFFLINE:
        raise ModelError(f"{repo} is not on this machine and the Hub is switched off: unset HF_HUB_OFFLINE.")
    try:
        info = HfApi().model_info(repo, files_metadata=True, timeout=TIMEOUT_S)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        check_names(sizes, repo)
        config = hf_hub_download(repo, "config.json", revision=info.sha, etag_timeout=TIMEOUT_S)
        check_config(read_config(Path(config).parent), repo)
        wanted = [name for name in sizes if "/" not in name and _is_wanted(name)]
        return _download(repo, info.sha, wanted, sizes, progress)
    except KshipraError:
        raise
    except Exception as error:
        raise ModelError(refusal(repo, error)) from error


def refusal(repo: str, error: Exception) -> str:
    """What a person is told when the Hub, or the way to it, fails."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, GatedRepoError) or status == 403:
        return f"{repo} is gated: ask for access on its Hub page, then set HF_TOKEN and try again."
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)) or status in (401, 404):
        return f"{repo} was not found on the Hub, or is private: check the id, or set HF_TOKEN."
    if status == 429:
        return f"The Hub answers that it was asked too often: wait a few minutes and load {repo} again."
    if status is not None and status >= 500:
        return f"The Hub has a fault of its own (status {status}): try {repo} again later."
    if isinstance(error, (httpx.TransportError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError)):
        return (
            f"{repo} is not on this machine and the Hub cannot be reached: check the network and try again."
        )
    if isinstance(error, (HfHubHTTPError, httpx.HTTPError)):
        return f"The Hub refused {repo} (status {status}): check the id and try again."
    return f"{repo} could not be fetched ({type(error).__name__}): try again."


def _cached(repo: str) -> Path | None:
    """A complete copy in the Hub's own cache, found without asking anybody."""
    try:
        folder = Path(snapshot_download(repo, local_files_only=True))
        check_folder(folder, repo)
    except (LocalEntryNotFoundError, HFValidationError, OSError, ModelError):
        return None
    return folder


def _is_wanted(name: str) -> bool:
    return name.endswith(WANTED) or name in TOKENIZER_FILES


def _download(
    repo: str, revision: str | None, names: list[str], sizes: dict[str, int], progress: Progress
) -> Path:
    """All `names` of one revision, small files first; a file is in the cache only when it is whole."""
    total = sum(sizes[name] for name in names)
    done = 0
    for name in sorted(names, key=lambda name: sizes[name]):
        bar = _bar(f"Fetching {repo}", done, total, progress)
        path = hf_hub_download(repo, name, revision=revision, etag_timeout=TIMEOUT_S, tqdm_class=bar)
        done += sizes[name]
    return Path(path).parent


def _bar(what: str, before: int, total: int, progress: Progress) -> type[tqdm]:
    """A silent tqdm, which is what the Hub library counts bytes with, that tells `progress` instead."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            self._sink = open(os.devnull, "w")  # noqa: SIM115
            super().__init__(*args, **(options | {"file": self._sink, "disable": False}))

        def update(self, n: float | None = 1) -> bool | None:
            updated = super().update(n)
            progress(what, min(before + int(self.n), total), total)
            return updated

        def close(self) -> None:
            super().close()
            self._sink.close()

    return Bar
