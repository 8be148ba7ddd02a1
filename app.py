"""The page: python app.py [--model NAME] [--device auto] [--host 127.0.0.1] [--port 7860] [--share]
[--public] [--log-level warning]."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # nothing leaves the machine unasked
os.environ.setdefault("GRADIO_HEARTBEAT_INTERVAL", "5")  # seconds until a caller is missed who just went

if os.getenv("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true"):  # as `spaces` itself reads it
    from kshipra.backends.zero import ZeroBackend as Backend  # first of all: it must come before torch
else:
    from kshipra.backends.local import LocalBackend as Backend
from kshipra.limits import OWN, public
from kshipra.models.catalogue import DEFAULT
from kshipra.models.sources import HUB_ID
from kshipra.types import ModelChoice


def is_name(model: str) -> bool:
    """Whether `model` says nothing about this machine's folders."""
    return HUB_ID.fullmatch(model) is not None and not Path(model).exists()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="app.py", description="Kshipra, a laboratory bench for LLM inference."
    )
    parser.add_argument("--model", default=DEFAULT, help="catalogue name, Hub id, folder or .gguf file")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--implementation", default="auto", help="auto, native or transformers")
    parser.add_argument("--host", default="0.0.0.0" if os.getenv("SYSTEM") == "spaces" else "127.0.0.1")
    parser.add_argument("--port", type=int, default=int(os.getenv("GRADIO_SERVER_PORT", "7860")))
    parser.add_argument(
        "--public",
        action="store_true",
        default=os.getenv("SYSTEM") == "spaces",
        help="strangers use it: a few models by name, lower limits, nothing said about this machine",
    )
    parser.add_argument(
        "--log-level",
        default="warning",
        choices=("debug", "info", "warning", "error"),
        help="info writes one line of JSON a run, never a prompt",
    )
    parser.add_argument("--share", action="store_true", help="a public address through Gradio's relay")
    arguments = parser.parse_args()
    if arguments.public and not is_name(arguments.model):
        parser.error("--public needs a catalogue name or Hub id as --model, because strangers see it.")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("kshipra").setLevel(arguments.log_level.upper())  # the libraries' own stay at warning
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    choice = ModelChoice(
        arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        implementation=arguments.implementation,
    )
    backend = Backend(public(arguments.model) if arguments.public else OWN)

    from kshipra.ui.build import build_page, launch_options

    page = build_page(backend, choice)
    try:
        page.launch(
            server_name=arguments.host,
            server_port=arguments.port,
            share=arguments.share,
            prevent_thread_lock=True,
            **launch_options(),
        )
        backend.preload(choice)  # after the port answers, which it would delay; the page shows how far it is
        page.block_thread()
    finally:  # the run under way ends with its pass, a load or a download at once
        page.close(verbose=False)
        backend.close()


if __name__ == "__main__":
    main()
