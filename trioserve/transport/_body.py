"""Large bodies: received by the kernel straight into the slots they will run from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trioserve_protocol import ErrorCode

if TYPE_CHECKING:
    from trioserve.engine import Arrival, Intake
    from trioserve_protocol import InferBegin

    from ._peer import Peer
    from ._watch import Watch


class BodyReader:
    """Moves the payloads of large frames.

    Args:
        intake: decides whether a body is wanted, and where.
        watch: keeps slow bodies in mind.
        max_nbytes: most bytes of one connection in one turn.
    """

    def __init__(self, intake: Intake, watch: Watch, max_nbytes: int) -> None:
        self._intake: Final = intake
        self._watch: Final = watch
        self._max_nbytes: Final = max_nbytes
        self.copied_nbytes = 0
        """Bytes of large bodies that came with their header and were copied into their slots."""
        self.direct_nbytes = 0
        """Bytes of large bodies that the kernel wrote into their slots."""

    def begin(self, peer: Peer, event: InferBegin, data: memoryview, now_ns: int) -> int:
        """Handles the header of a large frame and the part of its body that was read along with it.

        Args:
            peer: where it came from.
            event: header and meta.
            data: what was received after them.
            now_ns: when the first byte of its header was read.

        Returns:
            How many bytes of `data` belong to the body and are done with.
        """
        peer.midway = True
        arrival = self._intake.begin(peer.session, event, now_ns)
        if arrival is None:
            peer.machine.discard_body()
            return 0
        peer.machine.accept_body()
        peer.arrival = arrival
        self._watch.body_begun(peer)
        prefix = data[: peer.machine.body_remaining]
        at = 0
        while at < len(prefix):
            chunk = arrival.chunk
            part = prefix[at : at + len(chunk)]
            chunk[: len(part)] = part
            at += len(part)
            self._advance(peer, arrival, len(part), now_ns)
        self.copied_nbytes += at
        return at

    def read(self, peer: Peer, now_ns: int) -> int:
        """Receives more of a body.

        Returns:
            Bytes received.

        Raises:
            OSError: the connection is broken.
        """
        total = 0
        while (arrival := peer.arrival) is not None and total < self._max_nbytes:
            if arrival.abandoned:
                self.drop(peer)
                break
            chunk = arrival.chunk
            try:
                received = peer.recv_into(chunk)
            except BlockingIOError:
                break
            if not received:
                peer.finished = True
                break
            total += received
            self._advance(peer, arrival, received, now_ns)
            if received < len(chunk):
                break
        self.direct_nbytes += total
        return total

    def _advance(self, peer: Peer, arrival: Arrival, nbytes: int, now_ns: int) -> None:
        peer.machine.body_received(nbytes)
        if not arrival.advance(nbytes):
            return
        peer.arrival = None
        self._intake.arrived(arrival, now_ns)

    def drop(self, peer: Peer) -> None:
        """Gives a body up: nobody waits for it any more, or it will never be complete."""
        arrival = peer.arrival
        if arrival is None:
            return
        peer.arrival = None
        if peer.machine.body_remaining:
            peer.machine.discard_body()
        if not arrival.abandoned:
            self._intake.break_off(arrival, ErrorCode.CANCELLED_BY_CLIENT, "the body was not completed")
