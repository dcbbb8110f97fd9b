"""Limits that need time: stalled headers, slow bodies, slow readers, floods of control frames.

Connections that are in none of these states cost nothing here: while there is nothing to watch there is no sweep,
and an idle server does not wake up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from trioserve.request import NEVER_NS
from trioserve_protocol import HEADER, HEADER_NBYTES, ErrorCode, error_frame

if TYPE_CHECKING:
    from trioserve.config import ServerLimits

    from ._peer import Peer

SWEEP_NS: Final = 100_000_000
"""How exactly these limits are kept. They are seconds long."""

LINGER_NS: Final = 1_000_000_000
"""How long a refused client's bytes are still read: closing with unread bytes would make the kernel drop our answer."""


class Keeper(Protocol):
    """What may be done to a connection of a group."""

    def doom(self, peer: Peer, reason: str) -> None:
        """Closes it at the end of the turn."""
        ...

    def dismiss(self, peer: Peer, reply: bytes, reason: str, now_ns: int) -> None:
        """Tells the client why the connection ends, takes nothing from it any more, and closes it a little later."""
        ...

    def part(self, peer: Peer) -> None:
        """The client has closed its side: closes the connection once the client has got all it is owed."""
        ...

    def update_mask(self, peer: Peer) -> None:
        """Reads from it, or does not, as its state says."""
        ...

    def overdue(self, peer: Peer, now_ns: int) -> None:
        """The time is over that a connection had to authenticate."""
        ...


class Watch:
    """The connections of a group that are in a state with a time limit.

    Args:
        group: closes and masks.
        limits: the limits.
    """

    def __init__(self, group: Keeper, limits: ServerLimits) -> None:
        self._group: Final = group
        self._limits: Final = limits
        self._stall_ns: Final = int(limits.header_stall_s * 1e9)
        self._body_grace_ns: Final = int(limits.body_grace_s * 1e9)
        self._soft_ns: Final = int(limits.output_soft_s * 1e9)
        self._watched: dict[int, Peer] = {}
        self._next_ns = NEVER_NS
        self.backlog_nbytes = 0
        """Unsent bytes of all connections."""

    def next_sweep_ns(self, now_ns: int) -> int:
        """When `sweep` is due."""
        if not self._watched:
            self._next_ns = NEVER_NS
        elif self._next_ns == NEVER_NS:
            self._next_ns = now_ns + SWEEP_NS
        return self._next_ns

    def forget(self, peer: Peer) -> None:
        """The connection is closed."""
        self._watched.pop(peer.fd, None)
        self.backlog_nbytes -= peer.backlog_nbytes

    # ---------------------------------------------------------------- what puts a connection under watch

    def opened(self, peer: Peer) -> None:
        """The connection is new: it may send control frames for a second at once."""
        peer.control_tokens = float(self._limits.control_frames_per_s)

    def expect(self, peer: Peer, due_ns: int) -> None:
        """The connection has until then to authenticate; 0: it has done so."""
        peer.due_ns = due_ns
        self._watched[peer.fd] = peer

    def frame_begun(self, peer: Peer, now_ns: int) -> None:
        """The connection holds an incomplete frame that began now."""
        peer.stalled_since_ns = now_ns
        self._watched[peer.fd] = peer

    def frame_complete(self, peer: Peer) -> None:
        """The connection holds no incomplete frame any more."""
        peer.stalled_since_ns = 0

    def body_begun(self, peer: Peer) -> None:
        """A large body is being received."""
        self._watched[peer.fd] = peer

    def linger(self, peer: Peer, now_ns: int) -> None:
        """The connection has been told why it ends."""
        peer.due_ns = 0
        peer.lingers_until_ns = now_ns + LINGER_NS
        self._watched[peer.fd] = peer

    def spend_control(self, peer: Peer, now_ns: int) -> None:
        """One control frame.

        A connection whose bucket is empty is not read from until it has filled again: a flood of them slows down its
        sender and nobody else.
        """
        rate = self._limits.control_frames_per_s
        elapsed_s = (now_ns - peer.control_tokens_ns) / 1e9
        peer.control_tokens = min(float(rate), peer.control_tokens + elapsed_s * rate) - 1.0
        peer.control_tokens_ns = now_ns
        if peer.control_tokens < 0:
            self._watched[peer.fd] = peer
            self._group.update_mask(peer)

    def backlog_changed(self, peer: Peer, nbytes: int, now_ns: int, peers: Iterable[Peer]) -> None:
        """The unsent bytes of a connection grew or shrank by `nbytes`."""
        limits = self._limits
        self.backlog_nbytes += nbytes
        if peer.backlog_nbytes <= limits.output_soft_nbytes:
            if peer.backlog_since_ns:
                peer.backlog_since_ns = 0
                _resume(peer, now_ns)
        elif not peer.backlog_since_ns:
            peer.backlog_since_ns = now_ns
            self._watched[peer.fd] = peer
        if nbytes <= 0:
            return
        behind = peer.backlog_nbytes - nbytes > limits.output_soft_nbytes
        if behind and peer.backlog_nbytes > limits.output_hard_nbytes:
            # Not if it had read nearly all: a batch of large results is one write, and no fault of its client.
            self._give_up(peer)
        while self.backlog_nbytes > limits.output_total_nbytes:
            self._give_up(max(peers, key=lambda other: other.backlog_nbytes))

    def _give_up(self, peer: Peer) -> None:
        """Closes a connection whose client does not read; its bytes are given back at once."""
        self._group.doom(peer, "replies unread")
        peer.drop_backlog()

    # ---------------------------------------------------------------- the sweep

    def sweep(self, now_ns: int) -> None:
        """Checks every watched connection, if it is time to."""
        if now_ns < self._next_ns:
            return
        self._next_ns = NEVER_NS
        for peer in list(self._watched.values()):
            if not self._check(peer, now_ns):
                del self._watched[peer.fd]

    def _check(self, peer: Peer, now_ns: int) -> bool:
        """Enforces the limits of one connection; False if it needs no watching any more."""
        if peer.doomed:
            return True
        if peer.lingers_until_ns:
            if now_ns >= peer.lingers_until_ns:
                self._group.doom(peer, peer.ending)
            return True
        if peer.due_ns:
            if now_ns >= peer.due_ns:
                self._group.overdue(peer, now_ns)
            return True
        if peer.control_tokens < 0:
            self._refill(peer, now_ns)
        if peer.backlog_since_ns and now_ns - peer.backlog_since_ns > self._soft_ns:
            self._give_up(peer)
            return True
        fault = "" if peer.is_paused else self._fault(peer, now_ns)
        if fault:
            reply = error_frame(0, ErrorCode.DEADLINE_EXCEEDED, fault)
            self._group.dismiss(peer, reply, "too slow", now_ns)
        return bool(peer.stalled_since_ns or peer.arrival or peer.is_paused or fault)

    def _refill(self, peer: Peer, now_ns: int) -> None:
        rate = self._limits.control_frames_per_s
        peer.control_tokens += (now_ns - peer.control_tokens_ns) / 1e9 * rate
        peer.control_tokens_ns = now_ns
        if peer.control_tokens >= 0:
            _resume(peer, now_ns)
            self._group.update_mask(peer)

    def _fault(self, peer: Peer, now_ns: int) -> str:
        if peer.arrival is not None:
            return self._slow_body(peer.arrival_since_ns, peer.arrival.received_nbytes, now_ns)
        if not peer.stalled_since_ns:
            return ""
        if len(peer.tail) >= HEADER_NBYTES and HEADER.unpack_from(peer.tail)[1]:
            return self._slow_body(peer.stalled_since_ns, len(peer.tail), now_ns)
        if now_ns - peer.stalled_since_ns > self._stall_ns:
            return f"a header did not arrive within {self._limits.header_stall_s} s"
        return ""

    def _slow_body(self, since_ns: int, nbytes: int, now_ns: int) -> str:
        late_ns = now_ns - since_ns - self._body_grace_ns
        if late_ns <= 0 or nbytes >= late_ns / 1e9 * self._limits.body_min_nbytes_per_s:
            return ""
        return f"a body arrives at less than {self._limits.body_min_nbytes_per_s} bytes/s"


def _resume(peer: Peer, now_ns: int) -> None:
    """Restarts the clocks of a client that could not send: the pause was ours."""
    if peer.stalled_since_ns:
        peer.stalled_since_ns = now_ns
    if peer.arrival is not None:
        peer.arrival_since_ns = now_ns
