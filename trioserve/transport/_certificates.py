"""A server's certificate, its key, and whom it asks for one."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from trioserve.tls import ALPN

from ._reloaded import BadFile, Reloaded

if TYPE_CHECKING:
    from trioserve.config import TlsConfig

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class Certificates:
    """The certificates of a configuration, which may be replaced while the server runs.

    Args:
        config: has a certificate.
        now_ns: the time.

    Raises:
        OSError: a file cannot be read.
        BadFile: a file is not what it should be.
    """

    def __init__(self, config: TlsConfig, now_ns: int) -> None:
        paths = [path for path in (config.certificate, config.key, config.client_ca) if path]
        self._contexts: Final = Reloaded(paths, lambda: server_context(config), now_ns)

    def current(self, now_ns: int) -> ssl.SSLContext:
        """For a new connection."""
        return self._contexts.current(now_ns)


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """What a server presents and demands; raises as `Certificates` does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols([ALPN])
    path = config.certificate
    try:
        context.load_cert_chain(path, config.key or None, password=_no_password)
        if config.client_ca:
            path = config.client_ca
            context.load_verify_locations(cafile=path)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, ValueError) as error:
        raise BadFile(f"{path}: {getattr(error, 'reason', None) or error}") from error
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from error
    return context


def _no_password() -> str:
    """Without this OpenSSL would ask a person for it, and wait."""
    raise ValueError("the key has a password; expected one without")
