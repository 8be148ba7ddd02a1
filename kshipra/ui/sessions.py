"""Which run belongs to which browser tab, so that Stop and a closed tab end that one and no other."""

from __future__ import annotations

from threading import Lock

from kshipra.backends.base import Run


class Sessions:
    """At most one run a session; a new one in the same session stops the old one first."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._lock = Lock()

    def begin(self, session: str, run: Run) -> None:
        with self._lock:
            old, self._runs[session] = self._runs.get(session), run
        if old is not None:
            old.stop()

    def stop(self, session: str) -> None:
        """Ask the session's run, if there is one, to end; it stays known until `end`."""
        with self._lock:
            run = self._runs.get(session)
        if run is not None:
            run.stop()

    def end(self, session: str, run: Run) -> None:
        """Stop `run` and forget it, unless the session has a newer one."""
        run.stop()
        with self._lock:
            if self._runs.get(session) is run:
                del self._runs[session]
