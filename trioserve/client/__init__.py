"""Clients of a trioserve server.

`connect` is for asynchronous programs, Trio's and asyncio's; `trioserve.client.sync.connect` for blocking ones.
Neither loads any part of the server.
"""

from trioserve.tls import client_context
from trioserve_protocol import RequestClass

from ._address import Address, TcpAddress, UnixAddress, parse_url
from ._client import Client, connect
from ._failures import ClientClosed, ConnectFailed, ConnectionLost, NotSent, TlsFailed
from ._results import Failure, Inference, ManyResult
from ._retry import RetryPolicy

__all__ = [
    "Address",
    "Client",
    "ClientClosed",
    "ConnectFailed",
    "ConnectionLost",
    "Failure",
    "Inference",
    "ManyResult",
    "NotSent",
    "RequestClass",
    "RetryPolicy",
    "TcpAddress",
    "TlsFailed",
    "UnixAddress",
    "client_context",
    "connect",
    "parse_url",
]
