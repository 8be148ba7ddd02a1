"""A real nginx before the page, from a folder of its own and without rights: TLS, and the page under a path.
On a second port it serves another site, whose only page frames ours as a Space is framed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

from serving import free_port

# As huggingface.co frames a Space.
FRAME = (
    'sandbox="allow-downloads allow-forms allow-modals allow-popups allow-same-origin allow-scripts"'
    ' style="width: 1400px; height: 900px"'
)
CONFIG = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log warn;
events {{}}
http {{
  access_log off; default_type text/html;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  ssl_certificate {folder}/own.pem; ssl_certificate_key {folder}/own.key;
  server {{
    listen 127.0.0.1:{port} ssl http2;
    location {path} {{
      proxy_pass http://127.0.0.1:{app_port}/;
      proxy_http_version 1.1;
      proxy_buffering off; {more}
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-Proto $scheme;
    }}
  }}
  server {{
    listen 127.0.0.1:{other_port} ssl;
    location / {{ return 200 '<!doctype html><title>Other</title><iframe {frame} src="{framed}"></iframe>'; }}
  }}
}}
"""


class Nginx:
    """`address`: the page's. `other`: that of the other site's page, under another name of this machine."""

    def __init__(self, folder: Path, app_port: int, path: str, query: str, more: str) -> None:
        port, other_port = free_port(), free_port()
        self.address = f"https://127.0.0.1:{port}{path}"
        self.other = f"https://localhost:{other_port}/"
        config = CONFIG.format(
            folder=folder, port=port, path=path, more=more, app_port=app_port, other_port=other_port,
            frame=FRAME, framed=escape(self.address + query),
        )  # fmt: skip
        (folder / "nginx.conf").write_text(config)
        _certify(folder)
        self._process = subprocess.Popen(
            ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
        )
        time.sleep(0.5)
        assert self._process.poll() is None, (folder / "error.log").read_text()

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)


def _certify(folder: Path) -> None:
    """A certificate that nobody else has signed."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-keyout", str(folder / "own.key"), "-out", str(folder / "own.pem")],
        check=True, capture_output=True,
    )  # fmt: skip


@contextmanager
def nginx_before(app_port: int, folder: Path, path: str, query: str, more: str) -> Iterator[Nginx]:
    folder.mkdir()
    one = Nginx(folder, app_port, path, query, more)
    try:
        yield one
    except Exception:
        print((folder / "error.log").read_text(), end="")
        raise
    finally:
        one.end()
