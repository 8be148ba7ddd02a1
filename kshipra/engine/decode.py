"""decode_step/ seen from Python: building it with this machine's own compiler, and the structures it takes.

Refuses to know what a model is; `kshipra.engine.compiled` fills the structures in.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import POINTER, Structure, c_bool, c_float, c_int64, c_void_p
from pathlib import Path
from typing import Any

import psutil

from kshipra import machine
from kshipra.errors import InputError
from kshipra.models.wheel import cache_folder
from kshipra.types import Progress, silent

SOURCES = Path(__file__).with_name("decode_step")
COMPILE = ("-std=c++20", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-c")
LINK = ("-shared", "-fopenmp")  # where -ffast-math would turn off denormal numbers for the whole process
COMPILE_LIMIT_S = 300
POLL_S = 0.2
NO_COMPILER = "this machine has no C++ compiler (c++, g++ or clang++)"
FORMATS = {"float32": 0, "bfloat16": 1, "int8": 2}  # as products.h reads weights


def _all(names: str, kind: Any) -> Iterator[tuple[str, Any]]:
    return ((name, kind) for name in names.split())


class Matrix(Structure):
    _fields_ = (*_all("weight scale bias", c_void_p), *_all("inputs outputs format", c_int64))


class Norm(Structure):
    _fields_ = (*_all("weight bias", c_void_p), ("epsilon", c_float))


class Layer(Structure):
    _fields_ = (
        *_all("attention_norm mlp_norm", Norm),
        *_all("qkv attention_out mlp_in mlp_out", Matrix),
    )


class Model(Structure):
    _fields_ = (
        ("layers", POINTER(Layer)),
        *_all("layer_count width inner heads kv_heads head_size gated", c_int64),
        ("frequencies", c_void_p),
        ("norm", Norm),
        ("head", Matrix),
    )


class Columns(Structure):
    _fields_ = (
        *_all("rows columns stored capacity threads", c_int64),
        *_all("cos sin mask keys values queries qkv attended", c_void_p),
    )


class Step(Structure):
    _fields_ = (
        *_all("rows stored capacity threads", c_int64),
        *_all("positions mask cache x qkv attended inner logits", c_void_p),
    )


EXPORTS = {
    "kshipra_decode": (POINTER(Model), POINTER(Step)),
    "kshipra_attend": (POINTER(Model), POINTER(Columns), c_bool),
    "kshipra_normalise": (POINTER(Norm), c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_bool),
    "kshipra_activate": (POINTER(Model), c_int64, c_void_p, c_void_p, c_int64, c_bool),
    "kshipra_is_wide": (POINTER(Matrix),),
    "kshipra_product": (POINTER(Matrix), c_void_p, c_int64, c_void_p, c_int64),
}


def compiler() -> str | None:
    """The C++ compiler's path: CXX, else the first of the usual names that is there."""
    named = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in named if name and (path := shutil.which(name))), None)


def library(progress: Progress = silent) -> tuple[Any, bool]:
    """What decode_step/ exports, and whether it had to be compiled now. Its sources say what each does.

    It is kept under KSHIPRA_CACHE by source, flags, compiler and processor. Raises InputError, with
    the compiler's own first complaint, where it cannot be made.
    """
    program = compiler()
    assert program is not None
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    texts = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.iterdir())]
    said = "\n".join((*texts, *COMPILE, *LINK, version, machine.processor()))
    name = f"decode-{hashlib.sha256(said.encode()).hexdigest()[:16]}.so"
    path = cache_folder() / "compiled" / name
    missing = not path.exists()
    try:
        if missing:
            _compile(program, path, progress)
        code = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        complaints = str(getattr(error, "stderr", None) or error).splitlines()
        reason = next((line for line in complaints if "error" in line), complaints[0]).strip()
        raise InputError(
            f"Compiled execution is unavailable: {Path(program).name} could not make it ({reason:.160}); "
            "choose eager.",
            in_public="Compiled execution is unavailable: this server could not make it; choose eager.",
        ) from error
    for name, kinds in EXPORTS.items():
        function = getattr(code, name)
        function.argtypes, function.restype = kinds, None
    code.kshipra_is_wide.restype = c_bool
    return code, missing


def _compile(program: str, path: Path, progress: Progress) -> None:
    """Write the library `path` whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="compiling-") as folder:
        made, part = Path(folder) / path.name, Path(folder) / "step.o"
        for command in (
            (program, *COMPILE, SOURCES / "step.cpp", "-o", part),
            (program, *LINK, part, "-o", made),
        ):
            _run(command, progress)
        made.replace(path)


def _run(command: Sequence[Any], progress: Progress) -> None:
    """Run a compiler to its end; where `progress` raises, because somebody stopped it, it ends with all that
    it has started."""
    end_s = time.monotonic() + COMPILE_LIMIT_S
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            said = None
            while said is None:
                progress("Compiling the decode step", None, None)
                with suppress(subprocess.TimeoutExpired):
                    said = running.communicate(timeout=POLL_S)
                if time.monotonic() > end_s:
                    raise subprocess.TimeoutExpired(command, COMPILE_LIMIT_S)
        finally:
            if running.poll() is None:
                for process in (*psutil.Process(running.pid).children(recursive=True), running):
                    process.kill()
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command, *said)
