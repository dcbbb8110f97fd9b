"""Limits that need time: stalled headers, slow bodies, slow readers, floods of control frames.

Connections that are in none of these states cost nothing here: while there is nothing to watch there is no sweep,
and an idle server does not wake up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from trioserve_protocol import HEADER, HEADER_NBYTES, ErrorCode, error_frame

if TYPE_CHECKING:
    from trioserve.config import ServerLimits

    from ._peer import Peer

NEVER_NS: Final = 2**63 - 1
SWEEP_NS: Final = 100_000_000
"""How exactly these limits are kept. They are seconds long."""

LINGER_NS: Final = 1_000_000_000
"""How long a refused client's bytes are still read: closing with unread bytes would make the kernel drop our answer."""


class Closer(Protocol):
    """What the watch may do to a connection."""

    def doom(self, peer: Peer, reason: str) -> None:
        """Closes it at the end of the turn."""
        ...

    def update_mask(self, peer: Peer) -> None:
        """Reads from it, or does not, as its state says."""
        ...


class Watch:
    """The connections of a group that are in a state with a time limit.

    Args:
        group: closes and masks.
        limits: the limits.
    """

    def __init__(self, group: Closer, limits: ServerLimits) -> None:
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
        """The connection has been told why it is being closed."""
        peer.lingers_until_ns = now_ns + LINGER_NS
        self._watched[peer.fd] = peer

    def spend_control(self, peer: Peer, now_ns: int) -> None:
        """One control frame. A connection whose bucket is empty is not read from until it has filled again: a flood
        of them slows down its sender and nobody else.
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
            peer.backlog_since_ns = 0
        elif not peer.backlog_since_ns:
            peer.backlog_since_ns = now_ns
            self._watched[peer.fd] = peer
        if peer.backlog_nbytes > limits.output_hard_nbytes:
            self._group.doom(peer, f"{peer.backlog_nbytes} reply bytes unread")
        elif self.backlog_nbytes > limits.output_total_nbytes:
            largest = max(peers, key=lambda other: other.backlog_nbytes)
            self._group.doom(largest, f"{largest.backlog_nbytes} reply bytes unread, the most of all")

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
                self._group.doom(peer, "lingered long enough")
            return True
        if peer.control_tokens < 0:
            rate = self._limits.control_frames_per_s
            peer.control_tokens += (now_ns - peer.control_tokens_ns) / 1e9 * rate
            peer.control_tokens_ns = now_ns
            self._group.update_mask(peer)
        fault = self._fault(peer, now_ns)
        if fault:
            peer.write_soon(error_frame(0, ErrorCode.DEADLINE_EXCEEDED, fault))
            self._group.doom(peer, fault)
        return bool(
            peer.stalled_since_ns or peer.arrival or peer.backlog_since_ns or peer.control_tokens < 0 or fault
        )

    def _fault(self, peer: Peer, now_ns: int) -> str:
        limits = self._limits
        if peer.backlog_since_ns and now_ns - peer.backlog_since_ns > self._soft_ns:
            return f"{peer.backlog_nbytes} reply bytes unread for {limits.output_soft_s} s"
        if peer.arrival is not None:
            return self._slow_body(peer, peer.arrival_since_ns, peer.arrival.received_nbytes, now_ns)
        if not peer.stalled_since_ns or peer.control_tokens < 0 or peer.backlog_since_ns:
            return ""
        if len(peer.tail) >= HEADER_NBYTES and HEADER.unpack_from(peer.tail)[1]:
            return self._slow_body(peer, peer.stalled_since_ns, len(peer.tail), now_ns)
        if now_ns - peer.stalled_since_ns > self._stall_ns:
            return f"a header did not arrive within {limits.header_stall_s} s"
        return ""

    def _slow_body(self, peer: Peer, since_ns: int, nbytes: int, now_ns: int) -> str:
        late_ns = now_ns - since_ns - self._body_grace_ns
        if late_ns <= 0 or nbytes >= late_ns / 1e9 * self._limits.body_min_nbytes_per_s:
            return ""
        return f"a body arrives at less than {self._limits.body_min_nbytes_per_s} bytes/s"
