"""Which devices and precisions there are here, and what they are called."""

from __future__ import annotations

import dataclasses

import psutil
import torch

from kshipra import machine
from kshipra.errors import InputError
from kshipra.types import DTYPES, DeviceChoice, ModelChoice


def device_choices() -> tuple[DeviceChoice, ...]:
    """cpu, cuda and mps, in that order; a missing one with the reason."""
    cores = machine.threads()
    cpu = DeviceChoice("cpu", f"cpu, {cores} thread{'s' if cores > 1 else ''}")
    if torch.cuda.is_available():
        cuda = DeviceChoice("cuda", f"cuda, {torch.cuda.get_device_name()}")
    elif torch.version.cuda is None and torch.version.hip is None:
        cuda = DeviceChoice("cuda", "cuda", "this PyTorch was built without CUDA")
    else:
        cuda = DeviceChoice("cuda", "cuda", "no CUDA device was found")
    if torch.backends.mps.is_available():
        mps = DeviceChoice("mps", "mps, Apple GPU")
    elif not torch.backends.mps.is_built():
        mps = DeviceChoice("mps", "mps", "this PyTorch was built without MPS")
    else:
        mps = DeviceChoice("mps", "mps", "no Apple GPU was found")
    return cpu, cuda, mps


def pick_device(name: str) -> torch.device:
    """The device of that name, "auto" being the fastest there is. InputError names what is missing and
    why."""
    choices = device_choices()
    available = [choice.name for choice in choices if choice.unavailable is None]
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if kind in available))
    kind = name.split(":")[0]
    for choice in choices:
        if choice.name == kind and choice.unavailable:
            raise InputError(
                f"Device {name} is unavailable: {choice.unavailable}; choose {' or '.join(available)}."
            )
    if kind not in available:
        raise InputError(f"Device must be auto or one of {', '.join(available)}, not {name!r:.40}.")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"Device {name!r:.40} does not exist here: choose auto or {', '.join(available)}."
        ) from error


def pick_dtype(name: str) -> torch.dtype:
    """What is computed in; "auto" is float32 everywhere, where all modes agree to the token."""
    if name == "auto":
        return torch.float32
    if name not in DTYPES:
        raise InputError(f"Precision must be auto or one of {', '.join(DTYPES)}, not {name!r:.40}.")
    return getattr(torch, name)


def settled(choice: ModelChoice) -> ModelChoice:
    """`choice` with the device and the precision that it comes to here: two that ask for one engine in other
    words are equal. InputError for what there is not."""
    device, dtype = pick_device(choice.device), pick_dtype(choice.dtype)
    name = f"{device.type}:{device.index}" if device.index else device.type
    return dataclasses.replace(choice, device=name, dtype=str(dtype).removeprefix("torch."))


def free_bytes(device: torch.device) -> int:
    """Memory on `device` that nobody uses, within the container's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(psutil.virtual_memory().available, machine.memory_bytes() - machine.resident_bytes())
