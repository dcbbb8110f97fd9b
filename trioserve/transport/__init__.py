"""Transports: bytes of TCP and Unix sockets to the engine's runs and back."""

from __future__ import annotations

from ._certificates import Certificates, server_context
from ._entrance import Access, AdminLevel, Entrance
from ._group import ConnectionGroup
from ._listen import Listener, listen_tcp, listen_unix
from ._model_order import ModelOrder
from ._poller import GONE, READABLE, WRITABLE, Poller
from ._reloaded import BadFile
from ._tokens import TokenFile, read_tokens

__all__ = [
    "GONE",
    "READABLE",
    "WRITABLE",
    "Access",
    "AdminLevel",
    "BadFile",
    "Certificates",
    "ConnectionGroup",
    "Entrance",
    "Listener",
    "ModelOrder",
    "Poller",
    "TokenFile",
    "listen_tcp",
    "listen_unix",
    "read_tokens",
    "server_context",
]
