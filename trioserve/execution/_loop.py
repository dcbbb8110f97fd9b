"""A worker's end of the data pair: take a batch, run it, say what became of it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from trioserve.execution._descriptors import (
    MAX_MESSAGE_NBYTES,
    CorruptDescriptor,
    is_echo,
    pack_result,
    unpack_batch,
)
from trioserve.execution._orders import Orders, abandoned

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from trioserve.execution._descriptors import ModelBounds
    from trioserve.execution._runner import Runner


class DataLoop:
    """Serves batches one after the other, in the order in which they were sent."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        epoch: int,
        runners: Sequence[Runner],
        bounds: Sequence[ModelBounds],
        orders: Orders | None = None,
    ) -> None:
        """Wrap the worker's end of a pair.

        Args:
            sock: SEQPACKET. Blocking in a worker process.
            epoch: That of this start.
            runners: One a model, by the index that descriptors carry.
            bounds: What descriptors may name, one a model.
            orders: Which batches nobody waits for any more; another thread writes to it.
        """
        self._sock = sock
        self._epoch = epoch
        self._runners = runners
        self._bounds = bounds
        self._orders = orders or Orders()
        self._last_seq = -1
        self._buffer = bytearray(MAX_MESSAGE_NBYTES + 8)
        self._view = memoryview(self._buffer)

    def serve(self) -> None:
        """Serve until the server closes its end, or shuts this one down for reading; what was queued then is served.

        Raises:
            CorruptDescriptor: The server cannot have sent what came. The worker must end: a message whose sender is not
                sound could name any rows.
        """
        while self.step():
            pass

    def step(self) -> bool:
        """Serve one message; False at the end of the stream.

        Raises:
            CorruptDescriptor: As for `serve`.
            BlockingIOError: The socket does not block and nothing is there.
        """
        nbytes = self._sock.recv_into(self._buffer)
        if nbytes == 0:
            return False
        message = self._view[:nbytes]
        if is_echo(message):
            self._send(message)
            return True
        batch = unpack_batch(message, epoch=self._epoch, bounds=self._bounds)
        if batch.seq <= self._last_seq:
            raise CorruptDescriptor(f"batch {batch.seq} after batch {self._last_seq}")
        self._last_seq = batch.seq
        runner, orders = self._runners[batch.model], self._orders
        if orders.begin(batch.seq, runner):
            result = runner.run(batch)
            orders.end()
        else:
            result = abandoned(batch, time.monotonic_ns())
        self._send(pack_result(result, self._epoch, batch.rows))
        return True

    def _send(self, message: bytes | memoryview) -> None:
        # The server may be gone; the next receive says so in order.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._sock.send(message)
