"""The app as a process of its own on a free port, for tests that need the real server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
ANSWERS_WITHIN_S = 120


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class App:
    """`python app.py` with `arguments`, or a `script` that stands in for it; what it says goes to the file
    `log`."""

    def __init__(
        self, *arguments: str, log: Path, script: str = "app.py", port: int | None = None, **environment: str
    ) -> None:
        self.port, self.log, self.started_s = port or free_port(), log, time.monotonic()
        self.address = f"http://127.0.0.1:{self.port}/"
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, script, "--port", str(self.port), *arguments],
                cwd=ROOT, env=os.environ | {"PYTHONPATH": "."} | environment, stdout=out, stderr=out,
            )  # fmt: skip

    def wait(self) -> float:
        """Until the page is served; seconds since the start."""
        while True:
            try:
                with urllib.request.urlopen(self.address, timeout=5) as answer:
                    assert answer.status == 200
                    return time.monotonic() - self.started_s
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < self.started_s + ANSWERS_WITHIN_S
                time.sleep(0.1)

    def resident_bytes(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def end(self) -> int:
        """Tell it to end, as a host does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        """As `kill -9` does, with what it has started."""
        alive = self.process.poll() is None
        started = psutil.Process(self.process.pid).children(recursive=True) if alive else []
        for process in (self.process, *started):
            process.kill()
        self.process.wait()
