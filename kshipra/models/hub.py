"""Models of the Hugging Face Hub: a complete cached copy without any network call, else what is needed and no
more.

`refusal` turns every way in which the Hub can fail into one sentence; a token never appears in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

from kshipra.errors import KshipraError, ModelError, UnreachableError
from kshipra.models.sources import (
    SAFETENSORS_INDEX,
    Accept,
    check_config,
    check_folder,
    check_names,
    listed_parameters,
    read_config,
    shard_names,
    stored_parameters,
    whatever,
)
from kshipra.types import Progress

TIMEOUT_S = 10
SMALL_KINDS = (".json", ".model", ".txt", ".jinja")


def fetched(repo: str, progress: Progress, accept: Accept = whatever) -> Path:
    """A folder with config, tokenizer and weights of `repo`. ModelError says in one sentence why there is
    none."""
    if (cached := _cached(repo)) is not None:
        accept(repo, stored_parameters(cached))
        return cached
    with _told_in_one_sentence(repo):
        return _fetch(repo, progress, accept)


def listed(repo: str) -> tuple[dict[str, Any], int]:
    """The config of `repo` and its number of weights, none of which is fetched."""
    if (cached := _cached(repo)) is not None:
        return read_config(cached), stored_parameters(cached)
    with _told_in_one_sentence(repo):
        found = _list(repo)
        return found.config, found.parameters


@contextmanager
def _told_in_one_sentence(repo: str) -> Iterator[None]:
    """Ask the Hub in here: whatever fails is an UnreachableError."""
    if constants.HF_HUB_OFFLINE:
        raise UnreachableError(
            f"{repo} is not on this machine and the Hub is switched off: unset HF_HUB_OFFLINE."
        )
    try:
        yield
    except KshipraError:
        raise
    except Exception as error:
        raise UnreachableError(
            refusal(repo, error),
            in_public=f"{repo} cannot be fetched by this server now: choose another model.",
        ) from error


def refusal(repo: str, error: Exception) -> str:
    """What a person is told when the Hub, or the way to it, fails."""
    status = _status(error)
    if isinstance(error, GatedRepoError) or status == 403:
        return f"{repo} is gated: ask for access on its Hub page, then set HF_TOKEN and try again."
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)) or status in (401, 404):
        return f"{repo} was not found on the Hub, or is private: check the id, or set HF_TOKEN."
    if status == 429:
        return f"The Hub answers that it was asked too often: wait a few minutes and load {repo} again."
    if status is not None and status >= 500:
        return f"The Hub has a fault of its own (status {status}): try {repo} again later."
    if status is not None:
        return f"The Hub refused {repo} (status {status}): check the id and try again."
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return (
            f"{repo} cannot be kept in {constants.HF_HUB_CACHE} ({error.strerror}): free some space "
            "there, or set HF_HOME to another folder."
        )
    http_error = HfHubHTTPError.__bases__[0]  # which HTTP client it uses is the library's own choice
    if isinstance(error, (OSError, http_error)):
        return (
            f"{repo} is not on this machine and the Hub cannot be reached: check the network and try again."
        )
    return f"{repo} could not be fetched ({type(error).__name__}): try again."


def _status(error: BaseException | None) -> int | None:
    """The HTTP status behind an error, which the library may have wrapped in another one."""
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            return response.status_code
        error = error.__cause__
    return None


def _cached(repo: str) -> Path | None:
    """A complete copy in the Hub's own cache, found without asking anybody."""
    try:
        config = try_to_load_from_cache(repo, "config.json")
        if not isinstance(config, str):
            return None
        folder = Path(config).parent
        check_folder(folder, repo)
    except (HFValidationError, OSError, ModelError):
        return None
    half_a_tokenizer = (folder / "vocab.json").exists() and not (
        (folder / "tokenizer.json").exists() or (folder / "merges.txt").exists()
    )
    return None if half_a_tokenizer else folder


@dataclass(frozen=True)
class Listed:
    """What a repository says before its weights are fetched. `sizes` in bytes, by file."""

    folder: Path
    config: dict[str, Any]
    sizes: dict[str, int]
    weights: list[str]

    @property
    def parameters(self) -> int:
        return listed_parameters(self.config, sum(self.sizes[name] for name in self.weights))


def _list(repo: str) -> Listed:
    """Refused as early as possible: by its files, config, index.

    The config is asked for as the newest one, which notes its revision in the cache; the rest follows it.
    """
    info = HfApi().model_info(repo, files_metadata=True, timeout=TIMEOUT_S)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    check_names(sizes, repo)
    folder = _file(repo, "config.json", None).parent
    config = read_config(folder)
    check_config(config, repo)
    weights = ["model.safetensors"]
    if weights[0] not in sizes:
        weights = shard_names(_file(repo, SAFETENSORS_INDEX, folder.name))
    if missing := [name for name in weights if name not in sizes]:
        raise ModelError(f"{repo} lacks {', '.join(missing)[:120]}: choose another model.")
    return Listed(folder, config, sizes, weights)


def _fetch(repo: str, progress: Progress, accept: Accept) -> Path:
    """Everything that `repo` needs, unless it is refused by its size."""
    found = _list(repo)
    folder, sizes, weights = found.folder, found.sizes, found.weights
    accept(repo, found.parameters)
    small = [name for name in sizes if _is_small_part(name)]
    total = sum(sizes[name] for name in small + weights)
    done = 0
    for name in small + weights:  # weights last: a copy that has them has everything
        _file(repo, name, folder.name, _bar(f"Fetching {repo}", done, total, progress))
        done += sizes[name]
        progress(f"Fetching {repo}", done, total)
    return folder


def _is_small_part(name: str) -> bool:
    """Config, tokenizer and templates; never a file in a folder of the repository, nor other indexes."""
    foreign_index = name.endswith(".index.json") and name != SAFETENSORS_INDEX
    return "/" not in name and name.endswith(SMALL_KINDS) and not foreign_index


def _file(repo: str, name: str, revision: str | None, bar: type[Any] | None = None) -> Path:
    """One file in the cache, there only when it is whole.

    Its headers are asked for once before: the library repeats that question for minutes where nobody answers.
    """
    known = try_to_load_from_cache(repo, name, revision=revision) if revision else None
    if not isinstance(known, str):
        get_hf_file_metadata(hf_hub_url(repo, name, revision=revision), timeout=TIMEOUT_S)
    path = hf_hub_download(repo, name, revision=revision, etag_timeout=TIMEOUT_S, tqdm_class=bar or _Silent)
    return Path(path)


class _Silent:
    """The part of tqdm's interface that the Hub library calls, showing nothing."""

    def __init__(self, *_: Any, **options: Any) -> None:
        self.n = options.get("initial") or 0

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: float | None = 1) -> None:
        self.n += count or 0

    def update_transfer(self, count: float | None = 1) -> None:
        """Bytes on the wire, which the library counts beside those that are written."""

    def set_postfix_str(self, *_: Any, **__: Any) -> None:
        pass

    def set_transfer_postfix_str(self, *_: Any, **__: Any) -> None:
        pass

    def close(self) -> None:
        pass


def _bar(what: str, before: int, total: int, progress: Progress) -> type[_Silent]:
    """What the library counts bytes with, telling `progress` of the whole model."""

    class Bar(_Silent):
        def update(self, count: float | None = 1) -> None:
            super().update(count)
            progress(what, min(before + int(self.n), total), total)

    return Bar
