"""The addresses that a server listens on, and what each of them demands and allows."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from trioserve.config import LOOPBACK_HOSTS, admin_socket, run_dir
from trioserve.transport import (
    Access,
    AdminLevel,
    Certificates,
    Entrance,
    Listener,
    TokenFile,
    listen_tcp,
    listen_unix,
)

if TYPE_CHECKING:
    from trioserve.config import ServerConfig

log = structlog.get_logger(__name__)

ADMIN_BACKLOG: Final = 16


class Way(NamedTuple):
    """A bound address and what it leads to."""

    listener: Listener
    entrance: Entrance


class Ways(NamedTuple):
    """All bound addresses of a server. Closing the listeners is their owner's business."""

    data: list[Way]
    """Where requests are served."""

    admin: list[Way]
    """Where the administration is: one, or none."""


async def open_ways(config: ServerConfig, now_ns: int) -> Ways:
    """Binds to every address of a configuration.

    Raises:
        OSError: one is taken, or a file that says who may come in cannot be read; then nothing is left open.
        BadFile: such a file makes no sense.
        ValueError: there is no address.
    """
    tokens = TokenFile(config.auth.tokens, now_ns) if config.auth.tokens else None
    level = AdminLevel[config.admin.on_data_port.upper()]
    entrance = Entrance(Access(admin=level), tokens)
    tls = Certificates(config.tls, now_ns) if config.tls.certificate else None
    if tokens is not None and tls is None and config.host and config.host not in LOOPBACK_HOSTS:
        log.warning("tokens_unprotected", host=config.host, hint="tokens travel as they are")
    with contextlib.ExitStack() as opened:
        data: list[Listener] = []
        if config.unix_path:
            data.append(opened.enter_context(listen_unix(config.unix_path, config.backlog)))
        if config.host:
            scheme = "tcp" if tls is None else "tls"
            data[:0] = await listen_tcp(config.host, config.port, config.backlog, scheme=scheme)
            for listener in data:
                opened.enter_context(listener)
        if not data:
            raise ValueError("host, unix_path: expected at least one address to listen on, got none")
        admin = _open_admin(config, data[0].address)
        for listener in admin:
            opened.enter_context(listener)
        opened.pop_all()
    all_of_it = Entrance(Access(may_infer=False, admin=AdminLevel.ALL))
    return Ways(
        [Way(listener, entrance if listener.is_local else entrance._replace(tls=tls)) for listener in data],
        [Way(listener, all_of_it) for listener in admin],
    )


def _open_admin(config: ServerConfig, address: str) -> list[Listener]:
    """Binds to the administration's socket, if there is to be one.

    One that was asked for by name must come to be; without the usual one a server can do its work.
    """
    path = config.admin.unix_path
    if not path:
        return []
    if path != "auto":
        return [listen_unix(path, ADMIN_BACKLOG, private=True)]
    port = address.rpartition(":")[2] if not address.startswith("unix:") else str(os.getpid())
    try:
        folder = run_dir()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (found := folder.stat()).st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not private")
        return [listen_unix(str(admin_socket(port)), ADMIN_BACKLOG, private=True)]
    except (OSError, RuntimeError) as error:
        log.warning("no_admin_socket", reason=str(error), hint="admin.unix_path names another place")
        return []
