"""The request frames of a connection that have no terminal reply yet."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from trioserve_protocol import ErrorCode, RemoteProtocolError

from ._calls import DataCall, Flight, Piece
from ._credit import CreditWindow


class Flights:
    """Frames in flight by request id, with the credit that they hold.

    Attributes:
        credit: The window.
        requests_sent: Requests sent on the connection so far, as GOAWAY counts them.
    """

    __slots__ = ("_by_rid", "_many", "credit", "requests_sent")

    def __init__(self) -> None:
        self.credit = CreditWindow()
        self.requests_sent = 0
        self._by_rid: dict[int, Flight] = {}
        # First ids of the frames with several requests; ids only ever rise, so appending keeps them sorted.
        self._many: list[int] = []

    def __len__(self) -> int:
        return len(self._by_rid)

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._by_rid.values()))

    def add(self, call: DataCall, rid: int, piece: Piece) -> Flight:
        """Note a frame that is being sent."""
        flight = self._by_rid[rid] = Flight(call, rid, piece, self.requests_sent)
        if piece.requests > 1:
            self._many.append(rid)
        self.requests_sent += piece.requests
        self.credit.take(piece.requests, piece.nbytes)
        return flight

    def find(self, rid: int, count: int = 1) -> Flight:
        """Return the frame that ids `rid` to `rid + count - 1` came with.

        Raises:
            RemoteProtocolError: no such request is in flight.
        """
        flight = self._by_rid.get(rid)
        if flight is None and self._many:
            index = bisect_right(self._many, rid)
            flight = self._by_rid[self._many[index - 1]] if index else None
        if flight is None or not flight.rid <= rid <= rid + count <= flight.rid + flight.count:
            raise RemoteProtocolError(
                ErrorCode.INVALID_META, f"a reply for id {rid}, which is not in flight", rid
            )
        return flight

    def end(self, flight: Flight, count: int) -> None:
        """Note that `count` requests of a frame have ended, and let go of it with the last.

        Raises:
            RemoteProtocolError: more have ended than the frame had.
        """
        flight.left -= count
        if flight.left < 0:
            raise RemoteProtocolError(
                ErrorCode.INVALID_META, f"id {flight.rid} was answered twice", flight.rid
            )
        if flight.left:
            self.credit.give_back(count, 0)
            return
        self.credit.give_back(count, flight.nbytes)
        del self._by_rid[flight.rid]
        if flight.count > 1:
            self._many.remove(flight.rid)
        if flight.call is not None:
            flight.call.flights.remove(flight)
