"""What the engine keeps of one connection: its bindings, its credit and the way back to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ._lane import Lane

Buffer = bytes | bytearray | memoryview


class ReplySink(Protocol):
    """Where replies go. No method waits, and none keeps a reference to what it was given: what the peer cannot
    take now is copied, so that the slots a reply was sent from are free in the same turn.
    """

    def write(self, data: Buffer) -> None:
        """Sends whole frames."""
        ...

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        """Sends whole frames that lie in several buffers."""
        ...

    def write_soon(self, data: bytes) -> None:
        """Sends small frames together with others of this turn."""
        ...


class Session:
    """One connection, or one embedded user, as the engine sees it.

    Args:
        index: its number in the sessions table and in the slots' `session` column.
        sink: where its replies go.
        max_inflight: credit in requests.
        max_inflight_nbytes: credit in body bytes.
        max_body_nbytes: largest body that it takes.
    """

    __slots__ = (
        "closed",
        "ghosts",
        "index",
        "inflight",
        "inflight_nbytes",
        "lanes",
        "last_rid",
        "max_body_nbytes",
        "max_inflight",
        "max_inflight_nbytes",
        "named",
        "sink",
        "taken",
        "tenants",
    )

    def __init__(
        self, index: int, sink: ReplySink, max_inflight: int, max_inflight_nbytes: int, max_body_nbytes: int
    ) -> None:
        self.index = index
        self.sink = sink
        self.max_inflight = max_inflight
        self.max_inflight_nbytes = max_inflight_nbytes
        self.max_body_nbytes = max_body_nbytes
        self.lanes: dict[int, Lane] = {}
        """Bound handles."""
        self.named: dict[tuple[int, int, int, bytes], Lane] = {}
        """Handle, rows, payload size and raw meta of requests that were checked before, and their model: a client
        by name pays for the look-up once."""
        self.tenants: dict[int, str] = {}
        """Tenant of the connection (key 0) and of each bound handle."""
        self.last_rid = 0
        """Highest id seen. A higher one cannot be in flight, so clients that count up are never searched for."""
        self.inflight = 0
        """Requests not answered yet."""
        self.inflight_nbytes = 0
        """Body bytes of those."""
        self.ghosts = 0
        """Requests answered while a batch still held their slot. They count against the credit: else a client
        could start and cancel work faster than it ends."""
        self.taken = 0
        """Requests taken off the connection since it opened, refused ones included: the count in GOAWAY."""
        self.closed = False

    def credit(self, body_nbytes: int) -> int:
        """How many requests of `body_nbytes` each may be admitted now. An idle session may always send one."""
        if not self.inflight and not self.ghosts:
            return max(1, min(self.max_inflight, self.max_inflight_nbytes // max(1, body_nbytes)))
        requests = self.max_inflight - self.inflight - self.ghosts
        if body_nbytes:
            requests = min(requests, (self.max_inflight_nbytes - self.inflight_nbytes) // body_nbytes)
        return max(0, requests)

    def takes_result(self, lane: Lane, rows: int) -> bool:
        """Whether a result of `rows` rows is no larger than the client takes."""
        return lane.signature.output_nbytes(rows) <= self.max_body_nbytes

    def bind(self, handle: int, lane: Lane, tenant: str | None) -> None:
        """Gives a model a handle, for later frames; an earlier meaning of it ends."""
        self.unbind(handle)
        self.lanes[handle] = lane
        if tenant is not None:
            self.tenants[handle] = tenant

    def unbind(self, handle: int) -> bool:
        """Forgets a handle; False if it was not bound."""
        self.named.clear()
        self.tenants.pop(handle, None)
        return self.lanes.pop(handle, None) is not None
