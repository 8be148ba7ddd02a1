"""Stands in for the package `spaces` on ZeroGPU: a decorated generator runs in a process forked for the call,
and only pickled bytes go in and come out. How it is started, stopped and broken off is the package's own way
(its version 0.51).
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

HAD_TORCH = "torch" in sys.modules  # which must come later
FORK = multiprocessing.get_context("fork") if sys.platform != "win32" else None
END, IDLE_S = b"", 60.0


class Error(Exception):
    """As gr.Error: what is said is in `message`."""

    def __init__(self, message: str, title: str) -> None:
        super().__init__(repr(message))
        self.message, self.title = message, title


class Lender:
    """What a test asks of the next calls, and what it finds of them afterwards."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.kill_after: int | None = None  # values that come out before the GPU is taken back
        self.asked_s: list[float] = []
        self.sent: list[bytes] = []  # everything that crossed, both ways
        self.before_call: Callable[[], None] = lambda: None
        self.processes: list[Any] = []

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


lender = Lender()


def GPU(
    task: Callable[..., Iterator[Any]], *, duration: Callable[..., float]
) -> Callable[..., Iterator[Any]]:
    def call(*arguments: Any) -> Iterator[Any]:
        lender.before_call()
        lender.asked_s.append(duration(*arguments))
        if lender.refusal is not None:
            raise Error(lender.refusal, "ZeroGPU quota exceeded")
        sent = pickle.dumps(arguments)
        lender.sent.append(sent)
        here, there = FORK.Pipe()
        stop = FORK.Event()
        process = FORK.Process(target=_worker, args=(task, sent, there, stop), daemon=True)
        process.start()
        lender.processes.append(process)
        there.close()
        came = 0
        try:
            while (value := _receive(here)) is not None:
                lender.sent.append(value)
                yield pickle.loads(value)
                came += 1
                if came == lender.kill_after:
                    process.kill()
        except GeneratorExit:
            stop.set()
            while _receive(here) is not None:
                pass
            raise

    return call


def _receive(here: Connection) -> bytes | None:
    """A value's bytes; None at the end of the call. A process that is gone is an Error."""
    try:
        return here.recv_bytes() or None
    except (EOFError, ConnectionResetError):
        raise Error("GPU task aborted", "ZeroGPU worker error") from None


def _worker(task: Callable[..., Iterator[Any]], sent: bytes, there: Connection, stop: Any) -> None:
    def iterate() -> None:
        values = task(*pickle.loads(sent))
        for value in values:
            if stop.is_set():
                values.close()
                break
            there.send_bytes(pickle.dumps(value))

    thread = threading.Thread(target=iterate)  # never the thread that was forked
    thread.start()
    thread.join()
    there.send_bytes(END)
    time.sleep(IDLE_S)  # it may be used again: nothing in it ends with the call
