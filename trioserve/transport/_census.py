"""How many connections each address has."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Final


class Census:
    """Counts connections by where they come from."""

    def __init__(self) -> None:
        self._counts: Final[Counter[str]] = Counter()

    @property
    def addresses(self) -> int:
        """How many addresses have a connection."""
        return len(self._counts)

    def of(self, address: str) -> int:
        """Connections of an address; 0 of one that is not counted."""
        return self._counts.get(address, 0)

    def enter(self, address: str) -> None:
        """One more."""
        if address:
            self._counts[address] += 1

    def leave(self, address: str) -> None:
        """One less."""
        if address:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]


def counted_address(peername: object) -> str:
    """What a connection is counted under.

    Args:
        peername: what its socket says. Of IPv6 the network counts: each of its users has 2^64 addresses.

    Returns:
        An address, or an empty text for what has none: a Unix socket.
    """
    if not isinstance(peername, tuple):
        return ""
    host = str(peername[0])
    if ":" not in host:
        return host
    return str(ipaddress.ip_network((host.partition("%")[0], 64), strict=False))
