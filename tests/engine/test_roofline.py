"""The machine's roofline: plausible, measured once for each of the things it depends on, and never in the
way."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import torch

from kshipra import machine
from kshipra.engine import roofline
from kshipra.engine.roofline import cached_roofline, measure
from kshipra.types import Roofline

CPU = torch.device("cpu")
TAKEN = Roofline("cpu", "float32", 1, 1.5e10, 2.5e11, "2026-01-01T00:00:00+00:00")


@pytest.fixture
def measured(monkeypatch, tmp_path) -> list[torch.dtype]:
    """The cache folder is a new one, and measuring only notes what for."""
    monkeypatch.setenv("KSHIPRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(roofline, "TAKES", 1)
    asked: list[torch.dtype] = []
    monkeypatch.setattr(roofline, "measure", lambda device, dtype: asked.append(dtype) or TAKEN)
    return asked


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_small_measurement_is_quick_and_plausible(dtype):
    started_s = time.perf_counter()
    taken = measure(CPU, dtype, read_bytes=4 * 2**20, largest=256, budget_s=0.02)
    assert time.perf_counter() - started_s < 2
    assert 1e8 < taken.bytes_per_s < 1e13
    assert 1e8 < taken.flops_per_s < 1e15
    assert (taken.device, taken.threads) == ("cpu", torch.get_num_threads())
    assert f"torch.{taken.dtype}" == str(dtype)
    assert datetime.fromisoformat(taken.taken_at).tzinfo is not None


def test_rates_are_bytes_and_flops_over_the_best_time(monkeypatch):
    """Every call takes 10 ms on this clock: 4 MiB and 2 x 256^3 operations of it."""
    monkeypatch.setattr(roofline, "_timed_s", lambda call, calls=1: 0.01)
    taken = measure(CPU, torch.float32, read_bytes=4 * 2**20, largest=256, budget_s=0)
    assert taken.bytes_per_s == pytest.approx(4 * 2**20 / 0.01)
    assert taken.flops_per_s == pytest.approx(2 * 256**3 / 0.01)


@pytest.mark.parametrize(("product_s", "size"), [(0.5, 256), (0.02 / 9, 512), (1e-6, 1024)])
def test_products_grow_until_they_take_long_enough(monkeypatch, product_s, size):
    """`product_s` is the time of a 256 x 256 product; one twice as large takes eight times as long."""
    monkeypatch.setattr(roofline, "TIMED_S", 0.015)

    def timed_s(call, calls=1):
        return product_s * (call().shape[0] / 256) ** 3

    monkeypatch.setattr(roofline, "_timed_s", timed_s)
    assert roofline._flops_per_s(CPU, torch.float32, 1024, 0.0) == pytest.approx(2 * 256**3 / product_s)
    sizes = []
    monkeypatch.setattr(roofline, "_best_s", lambda ways, budget_s: sizes.append(ways[0]().shape[0]) or 1.0)
    roofline._flops_per_s(CPU, torch.float32, 1024, 0.0)
    assert sizes == [size]


def test_the_memory_read_is_a_quarter_of_what_is_free_at_most(monkeypatch):
    monkeypatch.setattr(machine, "memory_bytes", lambda: machine.resident_bytes() + 400 * 2**20)
    assert roofline._room_bytes(CPU) == pytest.approx(100 * 2**20, rel=0.05)
    monkeypatch.setattr(machine, "memory_bytes", lambda: 0)  # more in use than allowed
    assert roofline._room_bytes(CPU) == 2**20
    monkeypatch.undo()
    assert roofline._room_bytes(CPU) <= 512 * 2**20


# Kept


def test_a_second_question_measures_nothing(measured):
    said = []
    assert cached_roofline(CPU, torch.float32, progress=lambda *told: said.append(told)) == TAKEN
    assert cached_roofline(CPU, torch.float32, progress=lambda *told: said.append(told)) == TAKEN
    assert measured == [torch.float32]
    assert said == [("Measuring this machine's memory and arithmetic", None, None)]


def test_the_best_of_the_first_measurements_is_kept(measured, monkeypatch):
    """A busy machine looks slow; each rate has its own best moment."""
    monkeypatch.setattr(roofline, "TAKES", 3)
    rates = iter([(1e10, 9e11), (3e10, 2e11), (2e10, 3e11)])

    def take(device, dtype):
        bytes_per_s, flops_per_s = next(rates)
        return replace(TAKEN, bytes_per_s=bytes_per_s, flops_per_s=flops_per_s)

    monkeypatch.setattr(roofline, "measure", take)
    found = [cached_roofline(CPU, torch.float32) for _ in range(5)]
    assert [one.bytes_per_s for one in found] == [1e10, 3e10, 3e10, 3e10, 3e10]
    assert [one.flops_per_s for one in found] == [9e11] * 5


def test_whatever_it_depends_on_is_measured_apart_and_nothing_is_lost(measured, monkeypatch):
    cached_roofline(CPU, torch.float32)
    cached_roofline(CPU, torch.bfloat16)
    assert measured == [torch.float32, torch.bfloat16]
    for owner, name, value in (
        (machine, "processor", lambda: "another processor"),
        (torch, "get_num_threads", lambda: 77),
        (torch, "__version__", "9.9.9"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value)
            cached_roofline(CPU, torch.float32)
            cached_roofline(CPU, torch.float32)
    assert len(measured) == 5
    cached_roofline(CPU, torch.float32)
    cached_roofline(CPU, torch.bfloat16)
    assert len(measured) == 5


def entry(**changes) -> bytes:
    """A file with one entry under KEY, which the tests replace: the key depends on this process' threads."""
    whole = {
        "takes": 1,
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "bytes_per_s": 1e9,
        "flops_per_s": 2e9,
    }
    return json.dumps({"KEY": whole | {"taken_at": ""} | changes}).encode()


def keep(folder: Path, content: bytes) -> None:
    folder.mkdir()
    key = json.dumps(roofline._key(CPU, torch.float32)).strip('"').encode()
    (folder / "roofline.json").write_bytes(content.replace(b"KEY", key))


def test_a_whole_file_is_believed(measured, tmp_path):
    keep(tmp_path / "cache", entry())
    assert cached_roofline(CPU, torch.float32) == Roofline("cpu", "float32", 1, 1e9, 2e9, "")
    assert measured == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"KEY": 5}',
        b'{"KEY": {"bytes_per_s": 1e9}}',
        entry(bytes_per_s=0),
        entry(flops_per_s=float("nan")),
        entry(flops_per_s=-1),
        entry(bytes_per_s="fast"),
        entry(bytes_per_s=10**400),
        entry(cores=3),
        entry(takes="often"),
        entry(takes=None),
    ],
)
def test_a_damaged_file_is_measured_again_and_mended(measured, tmp_path, content):
    keep(tmp_path / "cache", content)
    assert cached_roofline(CPU, torch.float32) == TAKEN
    assert cached_roofline(CPU, torch.float32) == TAKEN
    assert len(measured) == 1
    names = [file.name for file in (tmp_path / "cache").iterdir()]
    assert names == ["roofline.json"]  # and no unfinished one


def test_a_folder_that_cannot_be_written_costs_only_a_measurement(measured, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert cached_roofline(CPU, torch.float32) == TAKEN
    assert cached_roofline(CPU, torch.float32) == TAKEN
    assert len(measured) == 2
