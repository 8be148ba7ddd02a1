"""What Linux has and another system has not must not be missed there. Windows and macOS are imitated, as far
as that goes: what they lack is taken away."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from model_folders import write_gpt2
from test_gguf_file import write

from kshipra import machine
from kshipra.experiments.measure import memory
from kshipra.models import gguf_file
from kshipra.ui import reported

ROOT = Path(__file__).parents[1]
IMPORTED = """
import os, pkgutil, sys
import gradio, psutil, torch, transformers  # what others do about their systems is theirs
from importlib import import_module
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "getloadavg", "getuid", "killpg", "sched_getaffinity", "setsid", "uname"):
    delattr(os, name)
sys.platform = "win32"
import kshipra
count = 0
for module in pkgutil.walk_packages(kshipra.__path__, "kshipra."):
    if module.name not in ("kshipra.__main__", "kshipra.backends.zero"):  # the latter is for a Space alone
        import_module(module.name)
        count += 1
print(count)
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=os.environ | {"PYTHONPATH": "."} | environment,
        capture_output=True, timeout=240,
    )  # fmt: skip


@pytest.fixture
def windows(monkeypatch):
    """As there: no library without a name, no such modules and folders."""
    load = ctypes.CDLL

    def named(name, *arguments, **options):
        if name is None:
            raise TypeError("bad argument type for built-in operation")
        return load(name, *arguments, **options)

    monkeypatch.setattr(ctypes, "CDLL", named)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(machine, "_read", lambda path: None)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setitem(sys.modules, "resource", None)


def test_every_module_is_imported_without_what_posix_has():
    done = run("-c", IMPORTED)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert int(done.stdout) > 100


def test_facts_of_the_machine_are_those_that_there_are(windows):
    assert machine.threads() == os.cpu_count()
    assert machine.quota_cores() is None
    assert machine.memory_bytes() == psutil.virtual_memory().total
    assert machine.caches(Path("nowhere")) == {}
    assert machine.malloc_books() is None
    machine.release_free_memory()


def test_an_allocator_in_glibcs_place_is_looked_for_only_where_there_can_be_one(windows):
    assert memory.loaded_allocator() == memory.SYSTEM
    memory.give_back()


def test_a_report_is_drawn_where_memory_cannot_be_bounded(windows):
    reported._bound_memory()


def test_a_report_is_drawn_where_the_bound_is_not_taken(monkeypatch):
    resource = pytest.importorskip("resource")

    def refuses(*_):
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuses)
    reported._bound_memory()


def test_a_text_that_a_console_has_no_letters_for_is_shown_all_the_same(tmp_path):
    write_gpt2(tmp_path / "tiny")
    command = ("-m", "kshipra", "generate", "\N{SNOWMAN}", "--model", str(tmp_path / "tiny"))
    done = run(*command, "--max-new-tokens", "2", PYTHONIOENCODING="cp1252")
    assert done.returncode == 0, done.stderr.decode("cp1252")
    assert done.stdout.startswith(b"[1] ?")


@pytest.mark.skipif(sys.platform != "linux", reason="Looks into Linux's own list of what is mapped.")
def test_a_file_that_was_read_may_be_moved(tmp_path):
    """Windows moves no folder in which a file is still open or mapped, as a fetched model's would be."""
    write(tmp_path / "tiny.gguf")
    read = gguf_file.read_gguf(tmp_path / "tiny.gguf", progress=lambda *_: None)
    process = psutil.Process()
    held = [one.path for one in (*process.memory_maps(), *process.open_files())]
    assert read
    assert not [name for name in held if name.startswith(str(tmp_path))]
