"""The engine's tests with the oldest and with the newest requirements that are allowed, for each Python that
is asked for: fresh venvs outside the tree, wheels only.

    python tests/versions.py                                    # this Python, both sets
    python tests/versions.py --python python3.12 python3.13 --sets newest
    python tests/versions.py --torch 2.13.0                     # where no older one can be had

PyPI's PyTorch for Linux brings several gigabytes of CUDA: a set that would is not installed. Name wheels for
the processor with pip's own PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS (PyTorch's install page has the address).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTING = ("pytest", "hypothesis", "accelerate")
TESTS = ("tests/engine", "tests/models", "tests/test_metrics.py", "tests/test_text.py")
SHOWN = ("torch", "transformers", "gradio", "plotly", "psutil", "pandas", "numpy", "safetensors", "gguf")
REQUIREMENT = re.compile(r"(?P<name>[\w-]+(\[\w+\])?)>=(?P<oldest>[\d.]+)(,<(?P<under>[\d.]+))?")


def requirements(which: str, torch: str | None) -> list[str]:
    """requirements.txt as it is, or each at its lower bound."""
    found = []
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").split():
        parts = REQUIREMENT.fullmatch(line)
        assert parts is not None, f"{line} has no lower bound."
        if parts["name"] == "torch" and torch is not None:
            line = f"torch=={torch}"
        elif which == "oldest":
            line = f"{parts['name']}=={parts['oldest']}"
        found.append(line)
    return found


def run(*command: str | Path, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(part) for part in command], check=True, text=True, **options)


def install(python: Path, wanted: list[str]) -> str | None:
    """Into the venv of `python`; why not, where it would bring CUDA."""
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:")
    asked = run(*pip, "--dry-run", "--report", "-", *wanted, capture_output=True).stdout
    names = [one["metadata"]["name"] for one in json.loads(asked)["install"]]
    if cuda := [name for name in names if name.startswith("nvidia-")]:
        return f"PyTorch here comes with {len(cuda)} packages of CUDA"
    run(*pip, *wanted)
    return None


def check(python: str, which: str, torch: str | None, folder: Path) -> str:
    """What came of one set: "passed", "failed", or why it was not tried."""
    venv = folder / f"{Path(python).name}-{which}"
    own = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    try:
        run(python, "-m", "venv", venv)
        if why := install(own, [*requirements(which, torch), *TESTING]):
            return f"not tried: {why}"
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return f"not installed: {said[-1]}"
    versions = f"from importlib.metadata import version; print(*[n + ' ' + version(n) for n in {SHOWN!r}])"
    print(run(own, "-c", versions, capture_output=True).stdout.strip(), flush=True)
    environment = os.environ | {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    tests = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *TESTS]
    ended = subprocess.run([str(part) for part in tests], cwd=ROOT, env=environment, check=False)
    return "passed" if ended.returncode == 0 else "failed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="PROGRAM")
    parser.add_argument("--sets", nargs="+", default=["oldest", "newest"], choices=["oldest", "newest"])
    parser.add_argument("--torch", metavar="VERSION", help="in place of the one that a set names")
    asked = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="kshipra-versions-") as folder:
        for python in asked.python:
            for which in asked.sets:
                print(f"\n{python}, {which}", flush=True)
                results[python, which] = check(python, which, asked.torch, Path(folder))
    print()
    for (python, which), result in results.items():
        print(f"{python}, {which}: {result}")
    return 0 if set(results.values()) == {"passed"} else 1


if __name__ == "__main__":
    sys.exit(main())
