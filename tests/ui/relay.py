"""A door between a browser and a server, which a test shuts and opens: as if the server had been killed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Relay:
    """Passes bytes from its own `address` on to the server of `url`, both ways, while it is open."""

    def __init__(self, url: str) -> None:
        self._target = "127.0.0.1", urlsplit(url).port
        self._pairs: set[socket.socket] = set()
        self._door = self._opened(0)
        self._port = self._door.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}/"

    def shut(self) -> None:
        """Break every connection; a new one is refused."""
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._door.close()
        for end in list(self._pairs):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        self._door = self._opened(self._port)

    def _opened(self, port: int) -> socket.socket:
        door = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(door,), daemon=True).start()
        return door

    def _accept(self, door: socket.socket) -> None:
        with suppress(OSError):  # it was shut
            while True:
                near, far = door.accept()[0], socket.create_connection(self._target)
                self._pairs |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
