"""Transports: bytes of TCP and Unix sockets to the engine's runs and back."""

from __future__ import annotations

from ._group import ConnectionGroup
from ._listen import Listener, listen_tcp, listen_unix

__all__ = ["ConnectionGroup", "Listener", "listen_tcp", "listen_unix"]
