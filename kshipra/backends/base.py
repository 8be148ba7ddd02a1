"""Where an engine lives is a backend's secret: the page and the shell submit a Plan and read messages."""

from __future__ import annotations

from typing import Protocol

from kshipra.backends.lobby import Lobby
from kshipra.limits import Limits
from kshipra.memory import Estimate
from kshipra.types import DeviceChoice, Failed, Kept, Loading, Message, ModelChoice, Plan, Ready


class Run(Protocol):
    """One submitted plan. Its messages come in order; `Ended` is always the last."""

    def messages(self, timeout_s: float) -> list[Message]:
        """All that arrived since the last call; waits up to `timeout_s` for the first, and may return
        none."""

    def stop(self) -> None:
        """Ask it to end: within two steps when it decodes. More than once is as good as once."""


class Backend(Protocol):
    limits: Limits  # what one visitor may ask for
    lobby: Lobby | None
    """Where visitors' requests join the live batch; None where requests cannot share one."""

    def submit(self, plan: Plan) -> Run:
        """Queue `plan`. Raises KshipraError at once for a plan out of its limits or a full queue."""

    def preload(self, choice: ModelChoice) -> Run:
        """Load a model without running anything: messages are Loading, then Ready or Failed, then Ended."""

    def model(self) -> Ready | Loading | Failed | None:
        """What the backend has loaded, is loading or failed to load last; None before the first."""

    def estimate(self, plan: Plan) -> Estimate:
        """What `plan` would need of memory, without loading or fetching its model; what does not fit by its
        `check` is refused before a load. Raises KshipraError for what `submit` or the load would refuse by
        name or config."""

    def devices(self) -> tuple[DeviceChoice, ...]:
        """Every device that Kshipra knows, those that are missing with the reason."""

    def unavailable(self) -> dict[str, str]:
        """The recipes that no model can run here, by key, with the reason: what is known before a model
        is."""

    def kept(self) -> Kept:
        """What runs with `reuse` may go on from."""

    def forget(self) -> None:
        """Give that up, whoever has asked for it; a run that goes on has what it began with."""

    def close(self) -> None:
        """End what runs and give the model's memory back."""
