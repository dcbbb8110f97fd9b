"""What the engine keeps of one connection: its bindings, its credit and the way back to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from trioserve.admission import Account
from trioserve.errors import PermissionDenied

if TYPE_CHECKING:
    from ._lane import Lane

Buffer = bytes | bytearray | memoryview


class ReplySink(Protocol):
    """Where replies go.

    No method waits, and none keeps a reference to what it was given: what the peer cannot take now is copied, so that
    the slots a reply was sent from are free in the same turn.
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
        "account",
        "accounts",
        "changed",
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
        "may_infer",
        "named",
        "pinned",
        "sink",
        "taken",
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
        self.pinned: set[int] = set()
        """Of these, the ones that were bound to a version and not to the newest."""
        self.changed: set[int] = set()
        """Handles whose model has another signature by now; whoever uses one is told to bind it again."""
        self.named: dict[tuple[bool, int, int, int, bytes], tuple[Lane, Account]] = {}
        """Requests that were checked before, their model and tenant: a client by name pays for the look-up once. The
        key is all that the check looks at: whether it is an INFER_MANY, handle, rows, payload size and raw meta."""
        self.account = Account()
        """Of the connection's tenant."""
        self.accounts: dict[int, Account] = {}
        """Of the bound handles that have a tenant of their own."""
        self.last_rid = 0
        """Highest id seen. A higher one cannot be in flight, so clients that count up are never searched for."""
        self.inflight = 0
        """Requests not answered yet."""
        self.inflight_nbytes = 0
        """Body bytes of those and of the ghosts."""
        self.ghosts = 0
        """Requests answered while a batch still held their slot. They count against the credit: else a client
        could start and cancel work faster than it ends."""
        self.taken = 0
        """Requests taken off the connection since it opened, refused ones included: the count in GOAWAY."""
        self.may_infer = True
        """Whether it may use models. Looked at where a model is looked up, so not once a request."""
        self.closed = False

    def check_may_infer(self) -> None:
        """Raises.

        Raises:
            PermissionDenied: it may not use models.
        """
        if not self.may_infer:
            raise PermissionDenied("the role infer is needed for this")

    def credit(self, body_nbytes: int) -> int:
        """How many requests of `body_nbytes` each may be admitted now. An idle session may always send one."""
        if not self.inflight and not self.ghosts:
            return max(1, min(self.max_inflight, self.max_inflight_nbytes // max(1, body_nbytes)))
        requests = self.max_inflight - self.inflight - self.ghosts
        if body_nbytes:
            requests = min(requests, (self.max_inflight_nbytes - self.inflight_nbytes) // body_nbytes)
        return max(0, requests)

    def may_send(self, requests: int, body_nbytes: int) -> bool:
        """Whether a frame of so many requests is within the credit; an idle session may always send one frame."""
        return not (self.inflight or self.ghosts) or requests <= self.credit(body_nbytes)

    def takes_result(self, lane: Lane, rows: int, meta_nbytes: int = 0) -> bool:
        """Whether a result of `rows` rows and so much meta is no larger than the client takes."""
        return meta_nbytes + lane.signature.output_nbytes(rows) <= self.max_body_nbytes

    def bind(self, handle: int, lane: Lane, account: Account | None, *, pinned: bool = False) -> None:
        """Gives a model a handle, for later frames; an earlier meaning of it ends.

        Args:
            handle: what the client calls it.
            lane: the model.
            account: of the handle's tenant, if it has one of its own.
            pinned: whether the client asked for just this version.
        """
        self.unbind(handle)
        self.lanes[handle] = lane
        if pinned:
            self.pinned.add(handle)
        if account is not None:
            self.accounts[handle] = account

    def unbind(self, handle: int) -> bool:
        """Forgets a handle; False if it was not bound."""
        self.named.clear()
        self.accounts.pop(handle, None)
        self.pinned.discard(handle)
        was_changed = handle in self.changed
        self.changed.discard(handle)
        return self.lanes.pop(handle, None) is not None or was_changed


class SessionTable:
    """All sessions by their index, which slots carry instead of a reference.

    An index is given to the next session only when no slot carries it any more: a closed session keeps it until the
    last of its ghosts is gone.
    """

    def __init__(self) -> None:
        self.by_index: Final[list[Session]] = []
        self._free: list[int] = []
        self._haunted: set[int] = set()
        """Closed sessions with ghosts."""

    def open(
        self, sink: ReplySink, max_inflight: int, max_inflight_nbytes: int, max_body_nbytes: int
    ) -> Session:
        """Registers a session; for the arguments see `Session`."""
        index = self._free.pop() if self._free else len(self.by_index)
        session = Session(index, sink, max_inflight, max_inflight_nbytes, max_body_nbytes)
        if index == len(self.by_index):
            self.by_index.append(session)
        else:
            self.by_index[index] = session
        return session

    def remove(self, session: Session) -> None:
        """Forgets a closed session whose requests are all answered."""
        if session.ghosts:
            self._haunted.add(session.index)
        else:
            self._free.append(session.index)

    def ghosts_gone(self, session: Session) -> None:
        """The last ghost of a closed session is gone; it may happen before the session is removed."""
        if session.index in self._haunted:
            self._haunted.remove(session.index)
            self._free.append(session.index)
