"""Connections that live in memory, and a poller for them: a connection group runs over both in virtual time.

The kernel's bad manners are kept, because code that is tested against kind sockets is not tested: descriptor numbers
are used again at once, reads and writes may be short, a full peer blocks, and closing with unread bytes takes back
what the peer has not read.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import trio

from trioserve.request import NEVER_NS
from trioserve.transport import GONE, READABLE, WRITABLE

if TYPE_CHECKING:
    from trioserve.request import Clock

Buffer = bytes | bytearray | memoryview

UNLIMITED: Final = 1 << 62


class Source(Protocol):
    """Something with a descriptor number in a `MemoryNetwork`."""

    def events(self) -> int:
        """What it is ready for now, as a mask."""
        ...

    def due_ns(self) -> int:
        """When it becomes readable by the passing of time alone; `NEVER_NS` if it does not."""
        ...


class MemoryNetwork:
    """Descriptor numbers, connections, and the `Poller` that watches them.

    Args:
        clock: whose time the timer and the workers keep; `TrioClock` under a mock clock makes it virtual.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock: Final = clock
        self._sources: dict[int, Source] = {}
        self._masks: dict[int, int] = {}
        self._changed = trio.Event()
        self.polls = 0
        """Calls of `poll`: an idle group makes none."""
        self._timer: Final = _Timer(clock)
        self.timer_fd = self.open(self._timer)
        self.register(self.timer_fd, READABLE)

    # ---------------------------------------------------------------- descriptors

    def open(self, source: Source) -> int:
        """Gives a source the lowest number that is free."""
        fd = next(number for number in range(3, len(self._sources) + 4) if number not in self._sources)
        self._sources[fd] = source
        return fd

    def free(self, fd: int) -> None:
        """Takes a number back; it leaves the poller, as a closed descriptor does."""
        del self._sources[fd]
        self._masks.pop(fd, None)

    @property
    def open_fds(self) -> int:
        """Numbers in use, that of the timer included."""
        return len(self._sources)

    def changed(self) -> None:
        """Wakes whoever waits: a source may be ready for something new."""
        self._changed.set()

    def connect(
        self, *, room_nbytes: int = UNLIMITED, address: str = ""
    ) -> tuple[MemorySocket, MemoryClient]:
        """Both ends of a new connection: the server's, for `ConnectionGroup.add`, and the client's.

        Args:
            room_nbytes: how much the server may send beyond what the client has read.
            address: where the client is, as the server sees it; empty for nowhere.
        """
        client = MemoryClient(self, room_nbytes)
        return MemorySocket(self, client, address), client

    # ---------------------------------------------------------------- the poller

    def register(self, fd: int, mask: int, /) -> None:
        """See `Poller.register`."""
        if fd not in self._sources:
            raise OSError(errno.EBADF, "no such descriptor")
        if fd in self._masks:
            raise FileExistsError(errno.EEXIST, "registered already")
        self._masks[fd] = mask
        self.changed()

    def modify(self, fd: int, mask: int, /) -> None:
        """See `Poller.modify`."""
        if fd not in self._masks:
            raise FileNotFoundError(errno.ENOENT, "not registered")
        self._masks[fd] = mask
        self.changed()

    def unregister(self, fd: int, /) -> None:
        """See `Poller.unregister`."""
        self._masks.pop(fd, None)

    def poll(self, timeout_s: float, max_events: int, /) -> list[tuple[int, int]]:
        """See `Poller.poll`; virtual time does not pass while a thread is blocked, so it never is."""
        del timeout_s
        self.polls += 1
        return self._ready()[:max_events]

    def _ready(self) -> list[tuple[int, int]]:
        found = [(fd, self._sources[fd].events() & (mask | GONE)) for fd, mask in self._masks.items()]
        return [(fd, events) for fd, events in found if events]

    async def wait(self) -> None:
        """See `Poller.wait`."""
        await trio.lowlevel.checkpoint()
        while not self._ready():
            self._changed = trio.Event()
            due_ns = min(self._sources[fd].due_ns() for fd in self._masks)
            with trio.move_on_at(float("inf") if due_ns == NEVER_NS else self.clock.to_trio(due_ns)):
                await self._changed.wait()

    def arm(self, at_ns: int, /) -> None:
        """See `Poller.arm`."""
        self._timer.at_ns = at_ns
        self.changed()

    def acknowledge(self) -> None:
        """See `Poller.acknowledge`."""
        self._timer.at_ns = NEVER_NS

    def pause(self, duration_s: float, /) -> None:
        """See `Poller.pause`; no time passes here but where a task waits."""

    def close(self) -> None:
        """See `Poller.close`."""
        self._masks.clear()


class _Timer:
    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self.at_ns = NEVER_NS

    def events(self) -> int:
        return READABLE if self._clock.now_ns() >= self.at_ns else 0

    def due_ns(self) -> int:
        return self.at_ns


class MemoryClient:
    """The client's end of a connection: bytes in, bytes out, never waiting.

    Args:
        network: where it is.
        room_nbytes: how much it takes unread.
    """

    def __init__(self, network: MemoryNetwork, room_nbytes: int) -> None:
        self._network: Final = network
        self.room_nbytes = room_nbytes
        self.to_server = bytearray()
        self.unread = bytearray()
        """What the server has sent and `read` has not taken."""
        self.finished = False
        self.broken = False
        """Whether the connection was reset, by whichever side."""
        self.ended = False
        """Whether the server has closed its side."""

    def send(self, data: Buffer) -> None:
        """Sends bytes."""
        self.to_server += data
        self._network.changed()

    def read(self, nbytes: int = UNLIMITED) -> bytes:
        """Takes up to `nbytes` of what has come."""
        taken = bytes(self.unread[:nbytes])
        del self.unread[:nbytes]
        self._network.changed()
        return taken

    def finish(self) -> None:
        """Closes its sending side."""
        self.finished = True
        self._network.changed()

    def reset(self) -> None:
        """Vanishes, with everything that is under way."""
        self.broken = True
        self.to_server.clear()
        self._network.changed()


class MemorySocket:
    """The server's end of a connection, with the methods of a non-blocking socket that a group uses.

    Args:
        network: where it is.
        client: the other end.
        address: where that is; empty for nowhere.

    Attributes:
        most_nbytes: called with what a read or write could do at once; what it returns is done, at least 1 byte.
    """

    def __init__(self, network: MemoryNetwork, client: MemoryClient, address: str = "") -> None:
        self._network: Final = network
        self._client: Final = client
        self._address: Final = address
        self.most_nbytes: Callable[[int], int] = lambda nbytes: nbytes
        self._shut = False
        self._fd = network.open(self)

    def fileno(self) -> int:
        """Its number, -1 once closed."""
        return self._fd

    def getpeername(self) -> object:
        """Where the client is."""
        return (self._address, 1) if self._address else "memory"

    def events(self) -> int:
        """See `Source.events`."""
        client = self._client
        if client.broken:
            return READABLE | WRITABLE | GONE
        ready = READABLE if client.to_server or client.finished else 0
        if len(client.unread) < client.room_nbytes:
            ready |= WRITABLE
        return ready | (GONE if client.finished and self._shut else 0)

    def due_ns(self) -> int:
        """See `Source.due_ns`."""
        return NEVER_NS

    def recv_into(self, buffer: memoryview, /) -> int:
        """See `socket.recv_into`."""
        client = self._client
        if client.broken:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        possible = min(len(buffer), len(client.to_server))
        if not possible:
            if client.finished or not len(buffer):
                return 0
            raise BlockingIOError
        received = max(1, min(possible, self.most_nbytes(possible)))
        buffer[:received] = client.to_server[:received]
        del client.to_server[:received]
        return received

    def recv(self, nbytes: int, flags: int = 0, /) -> bytes:
        """See `socket.recv`."""
        buffer = bytearray(min(nbytes, max(1, len(self._client.to_server))))
        before = bytes(self._client.to_server)
        received = self.recv_into(memoryview(buffer))
        if flags & socket.MSG_PEEK:
            self._client.to_server[:] = before
        return bytes(buffer[:received])

    def send(self, data: Buffer, /) -> int:
        """See `socket.send`."""
        client = self._client
        if client.broken or self._shut:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        possible = min(len(data), client.room_nbytes - len(client.unread))
        if possible <= 0 < len(data):
            raise BlockingIOError
        sent = max(1, min(possible, self.most_nbytes(possible)))
        client.unread += data[:sent]
        return sent

    def sendmsg(self, parts: Sequence[Buffer], /) -> int:
        """See `socket.sendmsg`."""
        return self.send(b"".join(parts))

    def shutdown(self, how: int, /) -> None:
        """See `socket.shutdown`."""
        if how != socket.SHUT_WR:
            raise AssertionError("only the sending side is ever shut down: this is a bug")
        self._shut = self._client.ended = True
        self._network.changed()

    def close(self) -> None:
        """See `socket.close`. With unread bytes it is a reset, and what the client has not read is lost."""
        client = self._client
        client.ended = True
        if client.to_server:
            client.broken = True
            client.unread.clear()
        self._network.free(self._fd)
        self._fd = -1
