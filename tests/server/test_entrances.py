"""The addresses of a server: who finds the administration where, and what stands in its way."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from pathlib import Path

import pytest

from tests.e2e.harness import WAIT_S, Wire, infer, row, serving
from trioserve.config import AdminConfig, AuthConfig, ServerConfig, run_dir
from trioserve.server._entrances import Ways, open_ways
from trioserve.transport import AdminLevel
from trioserve_protocol import (
    Bound,
    Error,
    ErrorCode,
    FrameType,
    Tag,
    Welcome,
    admin_frame,
    bind_frame,
    frame,
    frame_bytes,
    tlv,
)


async def ways_of(admin: AdminConfig, **config: object) -> Ways:
    return await open_ways(ServerConfig(admin=admin, port=0, **config), 0)  # type: ignore[arg-type]


def close(ways: Ways) -> None:
    for way in (*ways.data, *ways.admin):
        way.listener.close()


async def test_the_administration_is_private_and_goes_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    before = os.umask(0)
    try:
        ways = await ways_of(AdminConfig())
        assert os.umask(0) == 0, "the umask is what it was"
    finally:
        os.umask(before)
    port = ways.data[0].listener.address.rpartition(":")[2]
    [way] = ways.admin
    path = tmp_path / "trioserve" / f"{port}.sock"
    assert way.listener.address == f"unix://{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert way.entrance.access.admin is AdminLevel.ALL
    assert not way.entrance.access.may_infer
    close(ways)
    assert not path.exists()


async def test_what_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    close(await ways_of(AdminConfig(unix_path=str(path))))
    assert not path.exists()


async def test_a_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "trioserve"
    folder.mkdir()
    folder.chmod(0o777)
    ways = await ways_of(AdminConfig())
    assert not ways.admin
    close(ways)
    assert not list(folder.iterdir())


async def test_an_address_that_was_asked_for_must_come_to_be(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot listen"):
        await ways_of(AdminConfig(unix_path=str(tmp_path / "missing" / "admin")))


async def test_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = await ways_of(AdminConfig(unix_path="", on_data_port="health"))
    assert not ways.admin
    assert {way.entrance.access.admin for way in ways.data} == {AdminLevel.HEALTH}
    close(ways)


async def test_files_of_tokens_are_read_before_anything_is_bound(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await ways_of(AdminConfig(unix_path=""), auth=AuthConfig(tokens=str(tmp_path / "none")))


def test_where_sockets_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setenv("HOME", "/home/me")
    found = [run_dir()]
    for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
        found.append(run_dir())
    assert list(map(str, found)) == [
        "/run/user/1/trioserve",
        "/cache/trioserve/run",
        "/home/me/.cache/trioserve/run",
    ]


@pytest.mark.e2e
@pytest.mark.slow
def test_a_server_with_tokens_and_an_administration(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"web infer {hashlib.sha256(b'one').hexdigest()}\n")
    hello = frame_bytes(frame(FrameType.HELLO, rid=1, meta=tlv(Tag.AUTH, b"one")))
    admin = tmp_path / "admin"
    config = {
        "auth": {"tokens": str(tokens), "failure_pause_s": 0.1},
        "admin": {"unix_path": str(admin)},
    }
    with serving("scale", **config) as server:
        with server.connect() as wire:
            wire.send(bind_frame(1, 1, "scale"))
            wire.expect_error(ErrorCode.UNAUTHENTICATED, 0)
            assert not wire.expect_closed()
        with server.connect() as wire:
            wire.send(
                hello, bind_frame(2, 1, "scale"), infer(3, row(3)), admin_frame(4, b'{"op":"statistics"}')
            )
            found = {event.rid: event for event in wire.receive_many(4)}
            assert isinstance(found[1], Welcome)
            assert isinstance(found[2], Bound)
            assert isinstance(found[4], Error)
            assert found[4].code == ErrorCode.PERMISSION_DENIED
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(WAIT_S)
        sock.connect(str(admin))
        with Wire(sock) as wire:
            counted = wire.admin("statistics")["connections"]["authentication"]
            assert (counted["let_in"], counted["refused"]) == ({"web": 1}, 1)
            wire.send(bind_frame(9, 1, "scale"))
            wire.expect_error(ErrorCode.PERMISSION_DENIED, 9)
    assert not admin.exists()
