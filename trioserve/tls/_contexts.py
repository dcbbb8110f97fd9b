"""What a client trusts, and how it shows who it is."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

ALPN: Final = "trioserve/1"
"""The protocol's name in the handshake."""


def client_context(
    ca_file: str | Path | None = None, certificate: str | Path | None = None, key: str | Path | None = None
) -> ssl.SSLContext:
    """Return a context that checks the server's certificate and its name.

    Args:
        ca_file: Certificates of the authorities that are trusted (PEM); None: those of the system.
        certificate: The client's own, with those between it and its authority (PEM), if the server asks for one.
        key: Its private key; None: in the same file.

    Raises:
        OSError: a file cannot be read, or has no such thing in it.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols([ALPN])
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context
