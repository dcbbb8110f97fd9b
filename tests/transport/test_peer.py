"""A peer's sending side against a kernel that takes what it likes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trioserve.transport._backlog import Buffer
from trioserve.transport._peer import MAX_PARTS, Peer
from trioserve_protocol import Connection, Role


class Kernel:
    """A socket that takes `room` bytes, then none."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.sent = bytearray()
        self.error: OSError | None = None
        self.calls = 0
        self.shut_down: int | None = None

    def fileno(self) -> int:
        return 7

    def send(self, data: Buffer) -> int:
        self.calls += 1
        if self.error is not None:
            raise self.error
        if not self.room:
            raise BlockingIOError
        taken = min(self.room, len(data))
        self.sent += data[:taken]
        self.room -= taken
        return taken

    def sendmsg(self, parts: Sequence[Buffer]) -> int:
        assert len(parts) <= MAX_PARTS
        return self.send(b"".join(parts))

    def recv_into(self, buffer: memoryview) -> int:
        raise BlockingIOError

    def shutdown(self, how: int) -> None:
        self.shut_down = how
        raise OSError(107, "not connected")

    def getpeername(self) -> object:
        return None

    def close(self) -> None:
        pass


class Group:
    def __init__(self) -> None:
        self.dirty: list[Peer] = []
        self.reasons: list[str] = []
        self.backlog_nbytes = 0

    def doom(self, peer: Peer, reason: str) -> None:
        peer.doomed = peer.doomed or reason
        self.reasons.append(reason)

    def want_flush(self, peer: Peer) -> None:
        self.dirty.append(peer)

    def backlog_changed(self, peer: Peer, nbytes: int) -> None:
        self.backlog_nbytes += nbytes


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def peer(kernel: Kernel, group: Group) -> Peer:
    return Peer(group, kernel, Connection(Role.SERVER))


def test_what_the_kernel_takes_leaves_nothing_behind(peer: Peer, kernel: Kernel, group: Group) -> None:
    peer.write(b"abc")
    peer.write_parts([b"de", memoryview(b"f")])
    peer.write_soon(b"g")
    peer.write_soon(b"h")
    peer.flush_soon()
    assert kernel.sent == b"abcdefgh"
    assert kernel.calls == 3, "the small frames of a turn leave together"
    assert group.backlog_nbytes == peer.backlog_nbytes == 0


def test_what_it_does_not_take_waits_in_order(peer: Peer, kernel: Kernel, group: Group) -> None:
    kernel.room = 2
    peer.write(b"abc")
    peer.write(b"def")
    peer.write_parts([b"gh", b"i"])
    assert peer.backlog_nbytes == group.backlog_nbytes == 7
    kernel.room = 3
    peer.flush_backlog()
    assert kernel.sent == b"abcde"
    kernel.room = 100
    peer.flush_backlog()
    assert kernel.sent == b"abcdefghi"
    assert peer.backlog_nbytes == group.backlog_nbytes == 0
    peer.write(b"j")
    assert kernel.sent == b"abcdefghij"


@pytest.mark.parametrize("room", range(12))
def test_parts_are_cut_anywhere(peer: Peer, kernel: Kernel, room: int) -> None:
    kernel.room = room
    peer.write_parts([b"abc", b"", b"defg", b"hij"])
    kernel.room = 100
    peer.flush_backlog()
    assert kernel.sent == b"abcdefghij"


@pytest.mark.parametrize("room", [0, 1, MAX_PARTS - 1, MAX_PARTS, MAX_PARTS + 5, 2 * MAX_PARTS, 1300])
def test_more_parts_than_a_call_takes(peer: Peer, kernel: Kernel, room: int) -> None:
    parts = [bytes([number % 256]) for number in range(2 * MAX_PARTS + 100)]
    kernel.room = room
    peer.write_parts(parts)
    kernel.room = 1 << 20
    peer.flush_backlog()
    assert kernel.sent == b"".join(parts)


def test_small_frames_pass_whole_frames_that_wait(peer: Peer, kernel: Kernel) -> None:
    kernel.room = 1
    peer.write(b"abc")
    peer.write(b"def")
    peer.write_soon(b"!")
    peer.flush_soon()
    kernel.room = 100
    peer.flush_backlog()
    assert kernel.sent == b"abc!def"


@pytest.mark.parametrize("method", ["write", "write_parts", "flush_backlog"])
def test_a_broken_connection_is_doomed_and_nothing_else(
    peer: Peer, kernel: Kernel, group: Group, method: str
) -> None:
    kernel.room = 1
    if method == "flush_backlog":
        peer.write(b"abc")
    kernel.error = BrokenPipeError(32, "broken pipe")
    if method == "write":
        peer.write(b"abc")
    elif method == "write_parts":
        peer.write_parts([b"abc"])
    else:
        peer.flush_backlog()
    assert group.reasons == ["disconnected"]


def test_a_given_up_backlog_is_never_followed_by_more(peer: Peer, kernel: Kernel, group: Group) -> None:
    """The client would read the middle of a frame, then the start of another."""
    kernel.room = 1
    peer.write(b"abc")
    group.doom(peer, "unread")
    peer.drop_backlog()
    assert peer.backlog_nbytes == group.backlog_nbytes == 0
    kernel.room = 100
    peer.write(b"def")
    peer.write_parts([b"ghi"])
    peer.write_soon(b"j")
    peer.flush_soon()
    peer.flush_backlog()
    assert kernel.sent == b"a"
    assert peer.backlog_nbytes == group.backlog_nbytes == 0


def test_a_finished_client_is_looked_at_when_it_has_got_something(
    peer: Peer, kernel: Kernel, group: Group
) -> None:
    """It may be owed nothing any more."""
    peer.finished = True
    peer.write(b"abc")
    peer.write_parts([b"abc"])
    kernel.room = 1
    peer.write(b"abc")
    assert len(group.dirty) == 2
    kernel.room = 10
    peer.flush_backlog()
    assert len(group.dirty) == 3


def test_shutting_down_a_broken_connection_is_no_error(peer: Peer, kernel: Kernel) -> None:
    peer.shut_down()
    assert kernel.shut_down == 1


def test_a_name_for_the_log(peer: Peer, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert peer.name == "unix"
    monkeypatch.setattr(kernel, "getpeername", lambda: ("127.0.0.1", 5))
    assert peer.name == "('127.0.0.1', 5)"

    def gone() -> object:
        raise OSError(107, "not connected")

    monkeypatch.setattr(kernel, "getpeername", gone)
    assert peer.name == "disconnected, descriptor 7"
