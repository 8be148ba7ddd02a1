"""What this process may use (case E4): quotas and limits of containers, of both kinds, and affinity."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from kshipra import machine

HOST_BYTES = psutil.virtual_memory().total


def tree(root: Path, files: dict[str, str]) -> Path:
    """A cgroup tree with these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def version_1(quota: str, period: str = "100000") -> dict[str, str]:
    return {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": period}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "max"}, None),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "299999 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "30000 10000"}, 3),
        ({"cpu.max": "150000"}, 1),
        (version_1("-1"), None),
        (version_1("350000"), 3),
        (version_1("10000"), 1),
        (version_1("80000", "20000"), 4),
        ({"cpu/cpu.cfs_quota_us": "200000"}, 2),
        ({"cpu.max": "400000 100000"} | version_1("100000"), 4),
    ],
    ids=str,
)
def test_a_quota_is_whole_cores_rounded_down_and_at_least_one(tmp_path, files, cores):
    assert machine.quota_cores(tree(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("affinity", "quota", "threads"),
    [(64, "200000 100000", 2), (2, "800000 100000", 2), (64, "max 100000", 64), (1, "50000 100000", 1)],
)
def test_threads_are_the_least_of_affinity_and_quota(monkeypatch, tmp_path, affinity, quota, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert machine.threads(tree(tmp_path, {"cpu.max": quota})) == threads


def test_threads_where_the_system_has_no_affinity(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert machine.threads(tmp_path) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.threads(tmp_path) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_process_bound_to_one_core_uses_one_thread():
    core = min(os.sched_getaffinity(0))
    script = (
        f"import os, sys; os.sched_setaffinity(0, {{{core}}})\n"
        "from kshipra import machine\n"
        "print(machine.threads(), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["1", "False"]  # and asking does not load torch


def test_this_machine_has_at_least_a_thread_and_no_more_than_its_cores():
    assert 1 <= machine.threads() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("files", "total"),
    [
        ({}, HOST_BYTES),
        ({"memory.max": "max"}, HOST_BYTES),
        ({"memory.max": "104857600"}, 104_857_600),
        ({"memory.max": str(10**18)}, HOST_BYTES),
        ({"memory/memory.limit_in_bytes": "52428800"}, 52_428_800),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, HOST_BYTES),  # what v1 writes for none
    ],
    ids=str,
)
def test_memory_is_the_lesser_of_host_and_container(tmp_path, files, total):
    assert machine.memory_bytes(tree(tmp_path, files)) == total


GIB = 2**30
V2 = "0::/user.slice/session.scope"
V1 = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/"


@pytest.mark.parametrize(
    ("own", "files", "cores", "total"),
    [
        (V2, {"user.slice/cpu.max": "300000 100000", "user.slice/memory.max": str(GIB)}, 3, GIB),
        (V2, {"user.slice/session.scope/cpu.max": "200000 100000", "user.slice/cpu.max": "max 100000"}, 2, 0),
        (V2, {"user.slice/session.scope/cpu.max": "800000 100000", "cpu.max": "100000 100000"}, 1, 0),
        (
            V2,
            {"user.slice/session.scope/memory.max": str(2 * GIB), "user.slice/memory.max": str(GIB)},
            None,
            GIB,
        ),
        (V2, {"other.slice/cpu.max": "100000 100000", "other.slice/memory.max": str(GIB)}, None, 0),
        ("0::/", {"cpu.max": "200000 100000", "memory.max": str(GIB)}, 2, GIB),
        ("0::/../../outside", {"cpu.max": "200000 100000"}, 2, 0),  # seen from a namespace of its own
        (
            V1,
            {"cpu/docker/abc/cpu.cfs_quota_us": "150000", "memory/docker/memory.limit_in_bytes": "99"},
            1,
            99,
        ),
        (V1, version_1("400000") | {"memory/memory.limit_in_bytes": "99"}, 4, 99),  # only its own is mounted
        ("", {"cpu.max": "200000 100000"}, 2, 0),
    ],
)
def test_the_least_limit_of_all_groups_around_counts(tmp_path, own, files, cores, total):
    (tmp_path / "own").write_text(own)
    groups = tree(tmp_path / "groups", files)
    assert machine.quota_cores(groups, tmp_path / "own") == cores
    assert machine.memory_bytes(groups, tmp_path / "own") == (total or HOST_BYTES)


def test_resident_bytes_are_bytes_and_move_with_what_is_held():
    before = machine.resident_bytes()
    assert 10 * 2**20 < before < HOST_BYTES
    with mmap.mmap(-1, 64 * 2**20) as held:  # pages of its own, whatever the allocator still keeps
        held.write(b"x" * len(held))
        grown = machine.resident_bytes() - before
        assert 60 * 2**20 < grown < 160 * 2**20
    machine.release_free_memory()
    assert machine.resident_bytes() - before < 16 * 2**20


def test_the_processor_has_a_name():
    assert machine.processor().strip()
