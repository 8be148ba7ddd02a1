"""Run an experiment: case after case into results.json, which is written after each, so that a stopped run
goes on where it was. Refuses to know what is measured."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from kshipra import machine
from kshipra.errors import KshipraError
from kshipra.experiments import Experiment
from kshipra.experiments.results import FILE, CaseResult, Results, read, write
from kshipra.experiments.rig import Case, Rig
from kshipra.types import plain

Counted = Callable[[str, int, int], None]  # (what is measured now, cases done, cases in all)


def commit() -> str | None:
    """The commit of the source tree that this runs from, "-dirty" where it was changed; None without git."""
    asked = ["git", "-C", str(Path(__file__).parents[2]), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def begun(experiment: Experiment, rig: Rig) -> Results:
    """Results without a case: all that the samples will depend on."""
    choice = rig.choice
    here = machine.describe()
    if rig.device.type == "cuda":
        here["gpu"] = torch.cuda.get_device_name(rig.device)
        here["gpu_bytes"] = torch.cuda.get_device_properties(rig.device).total_memory
    return Results(
        experiment=experiment.name,
        settings={
            "model": choice.model, "device": choice.device, "dtype": choice.dtype, "quick": rig.quick
        },
        model={
            **plain(rig.spec),
            "weights_from": rig.weights_from,
            "device": str(rig.engine.device),
            "threads": torch.get_num_threads(),
        },
        machine=here,
        versions=machine.versions(),
        commit=commit(),
    )  # fmt: skip


def resumed(fresh: Results, folder: Path) -> Results:
    """The unfinished results in `folder` that `fresh` can go on with, else `fresh`.

    Raises KshipraError where an unfinished run of other settings would be lost."""
    if not (folder / FILE).is_file():
        return fresh
    old = read(folder / FILE)
    if old.finished:
        return fresh
    if differing := fresh.differences(old):
        raise KshipraError(
            f"{folder / FILE} is an unfinished run with another {' and '.join(differing)}: delete it, or "
            "choose another folder with --out."
        )
    return old


def run(experiment: Experiment, rig: Rig, folder: Path, *, progress: Counted) -> Results:
    """Measure what is not in `folder` yet. A case that fails ends the experiment with its sentence; the cases
    before it stay."""
    module = experiment.measuring()
    results = resumed(begun(experiment, rig), folder)
    cases: list[Case] = module.cases(rig)
    for number, case in enumerate(cases):
        progress(case.name, number, len(cases))
        if results.case(case.name) is None:
            started_s = time.perf_counter()
            if case.environment is None:
                samples = module.measure(rig, case)
            else:
                samples = in_own_process(experiment, rig, case)
            took_s = time.perf_counter() - started_s
            taken_at = datetime.now(UTC).isoformat(timespec="seconds")
            results = results.extended(
                CaseResult(case.name, plain(case.settings), plain(samples), took_s, taken_at)
            )
            write(results, folder)
    progress("", len(cases), len(cases))
    results = dataclasses.replace(results, finished=True)
    write(results, folder)
    return results


def in_own_process(experiment: Experiment, rig: Rig, case: Case) -> dict[str, Any]:
    """`measure` of `case` in a new process, whose memory no other case has touched."""
    told = json.dumps(
        {
            "experiment": experiment.name,
            "choice": plain(rig.choice),
            "quick": rig.quick,
            "name": case.name,
            "settings": case.settings,
        }
    )
    done = subprocess.run(
        [sys.executable, "-m", "kshipra.experiments.child"],
        input=told,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | (case.environment or {}),
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise KshipraError(f"The process of {case.name} ended with status {done.returncode} ({last:.200}).")
    return json.loads(done.stdout.splitlines()[-1])
