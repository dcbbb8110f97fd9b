"""The server's end of the pair to one worker: credits out, batches out, results in. Never waits.

Raw non-blocking calls on a SEQPACKET socket: the kernel keeps order, message boundaries and back-pressure, and
reports the death of the peer as end of stream.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import trio

from trioserve.errors import WorkerLost
from trioserve.execution._descriptors import (
    MAX_MESSAGE_NBYTES,
    CorruptDescriptor,
    StageBatch,
    StageResult,
    pack_batch,
    unpack_result,
)
from trioserve.execution._messages import Abandon, encode_control

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


class _InFlight(NamedTuple):
    model: int
    seq: int
    rows: int


class StageLink:
    """A bounded link to one worker.

    A credit is taken by `send_nowait` and returns with the *result* of that batch, so a full link means a busy
    worker, not a full pipe.

    Ordering:
        Results come back in the order of their batches; anything else is corruption.

    Ownership:
        Owns its socket. Used from one thread; whoever received the link closes it.
    """

    __slots__ = (
        "_buffer", "_control", "_epoch", "_in_flight", "_kill", "_last_seq", "_sock", "_view", "depth", "is_sound",
        "on_skipped",
    )  # fmt: skip

    depth: int
    """Batches that may be unfinished at a time."""

    is_sound: bool
    """Whether all that the worker has sent could be read."""

    on_skipped: Callable[[int], None] | None
    """Told the number of a batch that was abandoned before the worker began it: its rows are the server's again, before
    its result."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        epoch: int,
        depth: int,
        control: socket.socket | None = None,
        kill: Callable[[str], None] | None = None,
    ) -> None:
        """Wrap the server's end of a pair.

        Args:
            sock: SEQPACKET, non-blocking.
            epoch: That of the worker's start.
            depth: Credits, at least 1.
            control: The server's end of the control pair, non-blocking, owned by whoever started the worker.
            kill: Ends the worker at once, for a reason in words.
        """
        self._sock = sock
        self._control = control
        self.is_sound = True
        self._kill = kill
        self.on_skipped = None
        self._epoch = epoch
        self.depth = depth
        self._in_flight: deque[_InFlight] = deque()
        self._last_seq = -1
        # Longer than any message may be: one that was cut off shows by its length.
        self._buffer = bytearray(MAX_MESSAGE_NBYTES + 8)
        self._view = memoryview(self._buffer)

    def fileno(self) -> int:
        """The descriptor to poll for results and for the worker's death; -1 once closed."""
        return self._sock.fileno()

    @property
    def in_flight(self) -> int:
        """Batches sent whose result has not been received."""
        return len(self._in_flight)

    def send_nowait(self, batch: StageBatch) -> None:
        """Hand a batch to the worker. Its rows belong to the worker until its result, or until the worker is reaped.

        Raises:
            trio.WouldBlock: `depth` batches are unfinished.
            WorkerLost: The worker is gone; the batch was not sent.
            ValueError: The batch does not fit in a message.
        """
        in_flight = self._in_flight
        if len(in_flight) >= self.depth:
            raise trio.WouldBlock
        if batch.seq <= self._last_seq:
            raise AssertionError(f"batch {batch.seq} after batch {self._last_seq}: this is a bug")
        message = pack_batch(batch, self._epoch)
        try:
            self._sock.send(message)
        except BlockingIOError:
            raise AssertionError("a descriptor within its credits found no room: this is a bug") from None
        except OSError as error:
            raise WorkerLost(f"the worker is gone ({error.strerror})") from error
        self._last_seq = batch.seq
        in_flight.append(_InFlight(batch.model, batch.seq, batch.rows))

    def abandon(self, seq: int) -> None:
        """Tell the worker that nobody waits for a batch any more. Its result still comes, sooner if that is possible.

        The order goes by the control pair, which a thread of its own reads: it must overtake the batch. One that finds
        no room is dropped; the batch is then run to its end.

        Args:
            seq: Number of a batch in flight.
        """
        if self._control is not None:
            with suppress(OSError):
                self._control.send(encode_control(Abandon(seq)))

    def kill(self, why: str) -> None:
        """End the worker at once, since it does not answer.

        Args:
            why: In words for the log.
        """
        if self._kill is not None:
            self._kill(why)

    def skipped(self, seq: int) -> None:
        """The worker has said that it will not begin a batch."""
        if self.on_skipped is not None:
            self.on_skipped(seq)

    def receive_nowait(self) -> StageResult | None:
        """The next result, or None when none has arrived.

        Raises:
            WorkerLost: The worker is gone, or it sent what no sound worker sends: then the link is closed here,
                which ends the worker. What is in flight comes back no more. Its slots stay in use until the
                worker is reaped.
        """
        try:
            try:
                nbytes = self._sock.recv_into(self._buffer)
            except ConnectionResetError:
                # It died with a batch unread, which is told once and before what it had sent: results may be there.
                nbytes = self._sock.recv_into(self._buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            raise WorkerLost(f"the worker is gone ({error.strerror})") from error
        if nbytes == 0:
            raise WorkerLost("the worker is gone")
        try:
            return self._take(self._view[:nbytes])
        except CorruptDescriptor as error:
            self.is_sound = False
            self.close()
            raise WorkerLost(f"the worker was dropped: corrupt descriptor, {error}") from error

    def _take(self, message: memoryview) -> StageResult:
        if not self._in_flight:
            raise CorruptDescriptor("a result while nothing is in flight")
        model, seq, rows = self._in_flight[0]
        result = unpack_result(message, epoch=self._epoch, model=model, seq=seq, rows=rows)
        self._in_flight.popleft()
        return result

    def close(self) -> None:
        """Close the link; the worker ends once it has finished what it holds. Idempotent."""
        self._sock.close()
