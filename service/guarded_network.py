"""Connections to whom a user has named: to public addresses only, and for a bounded time, whatever is there."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterable
from typing import Any

import httpcore

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")


class RefusedAddressError(Exception):
    """The host may not be told: it is private, and nobody has allowed it."""


def is_public(address: str) -> bool:
    """Whether an address is one of the open internet; an IPv6 one that stands for an IPv4 one is judged as that."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _NAT64:  # RFC 6052: a gateway makes it IPv4
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip not in _UNICAST:
            return False
    return ip.is_global and not ip.is_multicast


class GuardedBackend(httpcore.SyncBackend):
    """Connects to public addresses, and to what is allowed by name or network; each connection ends after `limit_s`."""

    def __init__(self, allowed: Iterable[str], limit_s: float = 20.0) -> None:
        given = list(allowed)
        self._networks = [ipaddress.ip_network(part) for part in given if "/" in part]
        self._hosts = {part for part in given if "/" not in part}
        self._limit_s = limit_s

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:
        """Raises RefusedAddressError when the name leads to any address that may not be told."""
        until = time.monotonic() + self._limit_s
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(f"there is no host {host}: {error}") from error
        addresses = [str(each[4][0]) for each in found]
        for address in addresses:
            if not self._may_tell(host, address):
                raise RefusedAddressError(
                    f"{host} is {address}, which is not public; if it may be told, name it in X5TUNE_WEBHOOK_ALLOW"
                )
        return _Bounded(super().connect_tcp(addresses[0], port, timeout, local_address, socket_options), until)

    def _may_tell(self, host: str, address: str) -> bool:
        ip = ipaddress.ip_address(address.partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        is_allowed = host.lower() in self._hosts or any(ip in network for network in self._networks)
        return is_allowed or is_public(address)


class _Bounded(httpcore.NetworkStream):
    """A stream that is over at a moment: a server that sends a byte now and then gets no more time for it."""

    def __init__(self, stream: httpcore.NetworkStream, until: float) -> None:
        self._stream, self._until = stream, until

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._left_s(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._left_s(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Bounded(self._stream.start_tls(ssl_context, server_hostname, self._left_s(timeout)), self._until)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _left_s(self, timeout: float | None) -> float:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise httpcore.ReadTimeout("the answer took too long")
        return left_s if timeout is None else min(timeout, left_s)
