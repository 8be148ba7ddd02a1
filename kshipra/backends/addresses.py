"""Which server may be asked: the address, model and key that a visitor gives or this machine's environment
has, checked. Decides that the environment's key goes to the environment's address and to no other, and that
on a page for strangers only listed addresses are asked, never one inside this machine's network.

    KSHIPRA_SERVER_URL, _MODEL, _KEY     the server of whoever gives none
    KSHIPRA_SERVER_ALLOW                 more addresses for a public page, separated by commas
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kshipra.errors import InputError, ServerError
from kshipra.types import Server

URL, MODEL, KEY, ALLOW = (f"KSHIPRA_SERVER_{name}" for name in ("URL", "MODEL", "KEY", "ALLOW"))
NONE_LISTED = "this page has no server on its list"
PORTS = {"http": 80, "https": 443}
MOST_CHARS = 500
NAT64 = ipaddress.ip_network("64:ff9b::/96")  # of IPv4 behind a translator, in the last 32 bits


@dataclass(frozen=True)
class Target:
    """A server that may be asked. `address` ends in /v1."""

    address: str
    model: str
    key: str = field(default="", repr=False)
    public: bool = False

    @property
    def name(self) -> str:
        """It in a sentence; strangers are not told where it is."""
        return "The server" if self.public else f"The server at {urlsplit(self.address).netloc}"

    async def resolved(self) -> tuple[str, dict[str, Any]]:
        """The address to connect to, and what a request takes beside its body. For strangers it is the very
        number that was checked: a name may be another one the next time it is looked up."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        if not self.public:
            return self.address, {"headers": headers}
        parts = urlsplit(self.address)
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            raise ServerError(f"{self.name} has no address that is known here: check its name.") from None
        numbers = [place[0] for *_, place in found]
        if not all(map(is_outside, numbers)):
            raise ServerError(f"{self.name} is inside a private network, which a public page does not ask.")
        number = f"[{numbers[0]}]" if ":" in numbers[0] else numbers[0]
        address = f"{parts.scheme}://{number}:{port}{parts.path}"
        return address, {
            "headers": {**headers, "Host": parts.netloc},
            "extensions": {"sni_hostname": host},  # whose certificate it must show
        }


def is_outside(number: str) -> bool:
    """Whether an IP address is one of the open internet, and no other dressed up as one."""
    address = ipaddress.ip_address(number.partition("%")[0])
    inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None) or address
    if address in NAT64:
        inner = ipaddress.ip_address(int(address) & 0xFFFF_FFFF)
    return all(each.is_global and not each.is_multicast for each in (address, inner))


def target_of(server: Server, *, public: bool) -> Target:
    """The server that is meant. Raises InputError with what is missing, wrong, or not allowed."""
    own = os.environ.get(URL, "").strip()
    address = base_of(server.address or own)
    is_own = bool(own) and address == base_of(own)
    if public and address not in allowed():
        raise InputError("Server address: this page asks only the servers on its own list.")
    model = (server.model or (os.environ.get(MODEL, "") if is_own else "")).strip()
    if not model or len(model) > MOST_CHARS:
        raise InputError(f"Server model: name the model as the server does, or set {MODEL} with {URL}.")
    key = (server.key or (os.environ.get(KEY, "") if is_own else "")).strip()
    if not (key.isascii() and key.isprintable()) and key:
        raise InputError("Server key: it has characters that no key has; copy it again.")
    return Target(address, model, key, public)


def allowed() -> set[str]:
    """The addresses that a public page may ask."""
    listed = (os.environ.get(URL, ""), *os.environ.get(ALLOW, "").split(","))
    return {base_of(each) for each in listed if each.strip()}


def base_of(address: str) -> str:
    """`address` in one form, up to /v1. Raises InputError for what is none."""
    address = address.strip()
    if not address:
        raise InputError(f"Server address: give one, as http://127.0.0.1:8000, or set {URL}.")
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    odd = parts.username or parts.password or parts.query or parts.fragment or not address.isascii()
    if parts.scheme not in PORTS or not parts.hostname or odd or len(address) > MOST_CHARS:
        raise InputError("Server address: give http:// or https://, a host and perhaps a port, and no more.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = f":{port}" if port not in (None, PORTS[parts.scheme]) else ""
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{host}{shown}{path}/v1"
