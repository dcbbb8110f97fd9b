"""Transports: bytes of TCP and Unix sockets to the engine's runs and back."""

from __future__ import annotations

from ._group import ConnectionGroup
from ._listen import Listener, listen_tcp, listen_unix
from ._model_order import ModelOrder
from ._poller import GONE, READABLE, WRITABLE, Poller

__all__ = [
    "GONE",
    "READABLE",
    "WRITABLE",
    "ConnectionGroup",
    "Listener",
    "ModelOrder",
    "Poller",
    "listen_tcp",
    "listen_unix",
]
