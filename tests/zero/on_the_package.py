# ruff: noqa: E402  (what is set before an import is the point)
"""A plan, one that is stopped, one that is refused and one of a page's visitor, over the real package
`spaces` on a machine without a GPU; prints what came of them as JSON.

The package runs as on ZeroGPU: it patches torch, asks an interface over HTTP for a GPU (a stand-in here, on
loopback), forks, pickles, and stops. Only what touches a CUDA device is left out: making a context, and
moving tensors there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LENT = {"idle": False, "nvidiaIndex": 0, "nvidiaUUID": "GPU-0", "allowToken": "token"}
asked: list[str] = []
over_quota = False


class Interface(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked.append(self.path)
        is_refused = over_quota and self.path.startswith("/schedule")
        body = json.dumps({"left": 40, "wait": 180} if is_refused else LENT).encode()
        self.send_response(429 if is_refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Interface)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ.update(
    SPACES_ZERO_GPU="true", SPACES_ZERO_DEVICE_API_URL=f"http://127.0.0.1:{server.server_address[1]}"
)

import torch  # first, for once: the package wants a build for CUDA

torch.version.cuda = torch.version.cuda or "12.8"
torch._C._cuda_init = lambda: None
torch.cuda._is_in_bad_fork = bool
has_cuda = torch.cuda.is_available()

import spaces

spaces.zero.torch.init = lambda uuid: None
spaces.zero.torch.move = lambda callback=None: None

from gradio_client import Client

from conftest import Letters, make_llama
from kshipra.backends import zero
from kshipra.engine import roofline, runner
from kshipra.engine.runner import Engine
from kshipra.types import Ended, Failed, Finished, ModelChoice, Plan, Roofline, SamplingParams, Stepped
from kshipra.ui.build import build_page, launch_options
from serving import free_port

zero.GPU = "cpu"
runner.load = lambda name, **_: Engine(make_llama(), Letters())
roofline.cached_roofline = lambda *_, **__: Roofline("cpu", "float32", 2, 1e10, 1e11, "2026-01-01")


TOKEN = "e30.e30.visitor"  # as a Space's proxy sends it, two empty parts and a signature


def of_a_visitor() -> list[list[int]]:
    """The ids of a run that comes over the page, with the visitor's own token."""
    page, port = build_page(backend, ModelChoice("tiny")), free_port()
    options = launch_options() | {"server_name": "127.0.0.1", "server_port": port, "quiet": True}
    page.launch(**options, prevent_thread_lock=True)
    client = Client(f"http://127.0.0.1:{port}", headers={"x-ip-token": TOKEN}, verbose=False)
    document = client.predict(["ab"], ["kv_cache"], 5, api_name="/compare")
    page.close(verbose=False)
    return [way["result"]["rows"][0]["token_ids"] for way in document["ways"]]


def run(new_tokens: int, stop_after: int = 0) -> list:
    plan = Plan(ModelChoice("tiny"), ("ab",), ("kv_cache", "static_batch"), SamplingParams(new_tokens))
    started, found, deadline = backend.submit(plan), [], time.monotonic() + 60
    while not (found and isinstance(found[-1], Ended)) and time.monotonic() < deadline:
        found += started.messages(0.1)
        if stop_after and sum(isinstance(message, Stepped) for message in found) >= stop_after:
            started.stop()
    return found


def told(messages: list) -> dict:
    finished = [message for message in messages if isinstance(message, Finished)]
    return {
        "ids": [list(message.result.rows[0].token_ids) for message in finished],
        "reasons": [message.result.rows[0].finish_reason for message in finished],
        "failed": [message.sentence for message in messages if isinstance(message, Failed)],
        "stopped": messages[-1].stopped,
    }


backend = zero.ZeroBackend()
said = {"emulates": torch.cuda.is_available() and not has_cuda, "whole": told(run(5))}
said["stopped"] = told(run(240, stop_after=8))
over_quota = True
said["refused"] = told(run(5))
over_quota = False
said["again"] = told(run(5))
asked.clear()
said["visitor"] = of_a_visitor()
said["asked"] = asked
backend.close()
print(json.dumps(said))
sys.stdout.flush()
