"""What is done with a connection that is readable: its bytes become frames, and its frames calls of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trioserve_protocol import (
    READ_NBYTES,
    FatalError,
    FrameError,
    Infer,
    InferBegin,
    InferMany,
    InferRun,
    error_frame,
)

from ._body import BodyReader
from ._control import Control

if TYPE_CHECKING:
    from trioserve.config import ServerConfig
    from trioserve.engine import Engine, Intake
    from trioserve_protocol import Limits

    from ._peer import Peer
    from ._watch import Keeper, Watch

PREFIX_NBYTES: Final = 65_536
"""Most bytes of one read. A large body that nobody could expect is copied into its slot as far as it came with its
header; the rest of it, and all of the next one, is received in place."""


class Reader:
    """Reads and parses, within the budget of a turn.

    Args:
        group: closes and masks.
        engine: cancels.
        intake: takes requests.
        control: serves control frames.
        watch: keeps incomplete frames in mind.
        config: limits of connections and turns.
        wire_limits: what the protocol machines accept.
    """

    def __init__(
        self,
        group: Keeper,
        engine: Engine,
        intake: Intake,
        control: Control,
        watch: Watch,
        config: ServerConfig,
        wire_limits: Limits,
    ) -> None:
        limits = config.limits
        self._group: Final = group
        self._engine: Final = engine
        self._intake: Final = intake
        self._control: Final = control
        self._watch: Final = watch
        self._bodies: Final = BodyReader(intake, watch, limits.turn_nbytes)
        self._serve_after_fin: Final = config.on_fin == "serve"
        self._read_nbytes: Final = min(limits.connection_turn_nbytes, PREFIX_NBYTES)
        self._max_frames: Final = limits.connection_turn_frames
        # One buffer for all connections: a connection keeps only what is left of an incomplete frame.
        self._buffer: Final = memoryview(
            bytearray(
                self._read_nbytes
                + wire_limits.max_meta_nbytes
                + wire_limits.max_control_nbytes
                + 2 * PREFIX_NBYTES
            )
        )
        self._first_read: Final = self._buffer[: self._read_nbytes]
        self.ready: dict[int, Peer] = {}
        """Connections with unparsed bytes in user space, in the order of their turns; no poller reports them."""
        self.frames_left = 0
        """What is left of the turn's budget."""
        self.nbytes_left = 0

    def open(self, peer: Peer) -> None:
        """A connection is new."""
        peer.step = self._read_frames

    def parse_kept(self, peer: Peer, now_ns: int) -> None:
        """Goes on with bytes that were received in an earlier turn; the connection is not in `ready` any more."""
        kept = len(peer.tail)
        self._buffer[:kept] = peer.tail
        peer.unparsed = False
        self._parse(peer, self._buffer[:kept], now_ns)

    def resume(self, peer: Peer) -> None:
        """The connection is not paused any more: it goes on where it stopped."""
        if peer.unparsed:
            self.ready[peer.fd] = peer

    def stop(self, peer: Peer) -> None:
        """Takes nothing from a connection any more: what still comes is dropped."""
        peer.step = self._read_nothing
        peer.tail = b""
        peer.unparsed = peer.midway = False
        self.ready.pop(peer.fd, None)
        self._watch.frame_complete(peer)
        if peer.arrival is not None:
            self._bodies.drop(peer)

    # ---------------------------------------------------------------- a connection's `step`, if it is readable

    def _read_frames(self, peer: Peer, now_ns: int) -> None:
        """Between two frames, none of them large: the usual state."""
        received = peer.recv_into(self._first_read)
        if received:
            self.nbytes_left -= received
            self._parse(peer, self._buffer[:received], now_ns)
        else:
            self._end_of_stream(peer)

    def _read_more(self, peer: Peer, now_ns: int) -> None:
        """Inside a frame, or behind a large one.

        Then no more than the next header, so that a body that follows is received into its slot and not copied there.
        """
        kept = len(peer.tail)
        self._buffer[:kept] = peer.tail
        limit = min(peer.machine.wanted(kept), self._read_nbytes)
        received = peer.recv_into(self._buffer[kept : kept + limit])
        if received:
            self.nbytes_left -= received
            self._parse(peer, self._buffer[: kept + received], now_ns)
        else:
            self._end_of_stream(peer)

    def _read_body(self, peer: Peer, now_ns: int) -> None:
        """Inside a large body that is wanted."""
        self.nbytes_left -= self._bodies.read(peer, now_ns)
        if peer.finished:
            self._end_of_stream(peer)
        elif peer.arrival is None:
            peer.step = self._read_more

    def _read_later(self, peer: Peer, now_ns: int) -> None:
        """Before the bytes that are here already are parsed: nothing."""

    def _read_nothing(self, peer: Peer, now_ns: int) -> None:
        """After the last frame: what still comes is dropped."""
        del now_ns
        received = peer.recv_into(self._first_read)
        self.nbytes_left -= received
        if not received:
            peer.finished = True
            self._group.part(peer)

    # ---------------------------------------------------------------- frames

    def _parse(self, peer: Peer, data: memoryview, now_ns: int) -> None:
        events: list[Any]
        events, consumed = peer.machine.receive(data, max_frames=self._max_frames)
        intake = self._intake
        for event in events:
            kind = type(event)
            if kind is Infer:
                self.frames_left -= 1
                intake.admit(peer.session, event, now_ns)
            elif kind is InferRun:
                self.frames_left -= event.count
                intake.admit_run(peer.session, event, now_ns)
            elif kind is InferBegin:
                self.frames_left -= 1
                consumed += self._bodies.begin(peer, event, data[consumed:], now_ns)
            else:
                self.frames_left -= 1
                self._rare_event(peer, event, now_ns)
        if peer.midway or consumed != len(data):
            self._stop_midway(peer, data[consumed:], consumed, now_ns)

    def _stop_midway(self, peer: Peer, left: memoryview, consumed: int, now_ns: int) -> None:
        """Keeps what was received of a frame that is not complete, or not yet looked at, and chooses the next step."""
        if peer.step == self._read_nothing:
            return
        machine = peer.machine
        peer.tail = bytes(left)
        if not peer.tail:
            self._watch.frame_complete(peer)
        elif machine.more or (consumed and machine.body_remaining and peer.arrival is None):
            peer.unparsed = True
            if not peer.is_paused:
                self.ready[peer.fd] = peer
        elif consumed or not peer.stalled_since_ns:
            self._watch.frame_begun(peer, now_ns)
        if peer.unparsed:
            peer.step = self._read_later
        elif peer.arrival is not None:
            peer.step = self._read_body
        elif peer.tail or machine.wanted(0) < READ_NBYTES:
            peer.step = self._read_more
        else:
            peer.step = self._read_frames
        peer.midway = peer.step != self._read_frames

    def _rare_event(self, peer: Peer, event: Any, now_ns: int) -> None:  # noqa: ANN401  one of thirteen types
        if type(event) is InferMany:
            self._intake.admit_many(peer.session, event, now_ns)
        elif type(event) is FrameError:
            peer.session.taken += event.count
            peer.write_soon(error_frame(event.rid, event.code, event.message, count=event.count))
        elif type(event) is FatalError:
            self._group.dismiss(peer, event.reply, "protocol error", now_ns)
        elif self._control.handle(peer, event):
            self._watch.spend_control(peer, now_ns)
        else:
            raise AssertionError(f"no handler for {type(event).__name__}: this is a bug")

    def _end_of_stream(self, peer: Peer) -> None:
        """The client has sent all it will send; what it is owed is still sent."""
        peer.finished = True
        self.stop(peer)
        if not self._serve_after_fin:
            self._engine.cancel(peer.session)
        self._group.part(peer)
