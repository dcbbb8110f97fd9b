"""What is done with a connection that is readable: its bytes become frames, and its frames calls of the engine.

What a connection takes of a turn's budget is counted in units: a frame is one, and so many bytes are another.
"""

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
)

from ._body import BodyReader
from ._control import Control
from ._gather import MAX_FRAME_NBYTES, MAX_GATHERS, SINGLES_TO_GATHER, Gather

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from trioserve.config import ServerConfig
    from trioserve.engine import Engine, Intake, Lane
    from trioserve_protocol import Limits

    from ._peer import Peer
    from ._watch import Keeper, Watch

PREFIX_NBYTES: Final = 65_536
"""Most bytes of one read. A large body that nobody could expect is copied into its slot as far as it came with its
header; the rest of it, and all of the next one, is received in place."""

SHARE_OF_BODY: Final = 4
"""Of a turn's bytes one body takes at most this part: those of several connections make a batch together."""

SPLIT_NS: Final = 1_000_000
"""How much earlier the first byte of a frame must have been read than its last for the frame to have a time of its own.
Below that its deadline is counted from the turn that completes it, with all frames behind it."""

SHARE_NS: Final = 200_000
"""What the frames of one connection may take of a turn, about, so that others wait no longer for theirs."""

MANY_FRAMES: Final = 16
"""Frames that a connection may have handled in one turn whatever they cost."""


class Reader:
    """Reads and parses.

    Args:
        group: closes and masks.
        engine: cancels.
        intake: takes requests.
        control: serves control frames.
        watch: keeps incomplete frames in mind.
        config: limits of connections and turns.
        wire_limits: what the protocol machines accept.
        max_peers: the most connections that one turn reads from.
    """

    def __init__(
        self,
        group: Keeper,
        engine: Engine,
        intake: Intake,
        control: Control,
        watch: Watch,
        config: ServerConfig,
        *,
        wire_limits: Limits,
        max_peers: int,
    ) -> None:
        limits = config.limits
        self._group: Final = group
        self._engine: Final = engine
        self._intake: Final = intake
        self._control: Final = control
        self._watch: Final = watch
        self.bodies: Final = BodyReader(intake, watch, max(1, limits.turn_nbytes // SHARE_OF_BODY))
        self._serve_after_fin: Final = config.on_fin == "serve"
        self._read_nbytes: Final = min(limits.connection_turn_nbytes, PREFIX_NBYTES)
        self._max_frames: Final = limits.connection_turn_frames
        self._clock_ns: Final = engine.clock.now_ns
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
        self.is_gathering = False
        """Whether connections with one request each had a part in the last turn."""
        self.ready: dict[int, Peer] = {}
        """Connections with unparsed bytes in user space, in the order of their turns; no poller reports them."""
        self._unit_nbytes: Final = max(1, limits.turn_nbytes // limits.turn_frames)
        self._gathers: Final[dict[tuple[int, int], Gather]] = {}
        self._max_peers: Final = max_peers

    def open(self, peer: Peer) -> None:
        """A connection is new."""
        peer.step = self._read_frames

    def go_on(self, peer: Peer, now_ns: int) -> int:
        """Serves a connection with bytes in user space; it is not in `ready` any more."""
        if peer.unparsed:
            units = self.parse_kept(peer, now_ns)
        elif peer.finished or (peer.is_paused and not peer.lingers_until_ns):
            return 0
        else:
            units = peer.step(peer, now_ns)
        if peer.holds_input:
            self.ready[peer.fd] = peer
        return units

    def parse_kept(self, peer: Peer, now_ns: int) -> int:
        """Goes on with bytes that were received in an earlier turn; the connection is not in `ready` any more."""
        kept, read_ns = len(peer.tail), peer.tail_ns
        self._buffer[:kept] = peer.tail
        peer.unparsed = False
        units = self.parse(peer, self._buffer[:kept], now_ns, read_ns)
        peer.tail_ns = read_ns
        return units

    def admit_gathered(self, now_ns: int) -> list[tuple[Peer, memoryview]]:
        """Admits what several connections sent in this turn as one run.

        Returns:
            The connections that sent something else, each with what was received, to be parsed before the next read.
        """
        strays: list[tuple[Peer, memoryview]] = []
        self.is_gathering = False
        for gather in self._gathers.values():
            if gather.peers:
                self.is_gathering = True
                peers, run, others = gather.take()
                if run is not None:
                    self._intake.admit_across(gather.lane, [peer.session for peer in peers], run, now_ns)
                strays += others
        return strays

    def forget(self, lanes: Collection[Lane], peers: Iterable[Peer]) -> None:
        """Nothing is gathered for some models any more; between two turns."""
        for key in [key for key, gather in self._gathers.items() if gather.lane in lanes]:
            del self._gathers[key]
        for peer in peers:
            if peer.gather is not None and peer.gather.lane in lanes:
                peer.gather = None
                if peer.step == self._read_single:
                    peer.step = self._read_frames

    def resume(self, peer: Peer) -> None:
        """The connection is not paused any more: it goes on where it stopped."""
        if peer.unparsed or peer.holds_input:
            self.ready[peer.fd] = peer

    def stop(self, peer: Peer) -> None:
        """Takes nothing from a connection any more: what still comes is dropped."""
        peer.step = self._read_nothing
        peer.tail = b""
        peer.unparsed = peer.midway = False
        self.ready.pop(peer.fd, None)
        self._watch.frame_complete(peer)
        if peer.arrival is not None:
            self.bodies.drop(peer)

    # ---------------------------------------------------------------- a connection's `step`, if it is readable

    def _read_frames(self, peer: Peer, now_ns: int) -> int:
        """Between two frames, none of them large: the usual state."""
        received = peer.recv_into(self._first_read)
        if not received:
            return self._end_of_stream(peer)
        was_idle = not peer.session.inflight
        units = self.parse(peer, self._buffer[:received], now_ns)
        if was_idle and peer.session.inflight == 1 and peer.step == self._read_frames:
            self._note_single(peer, received)
        else:
            peer.singles = 0
        return units

    def _note_single(self, peer: Peer, received: int) -> None:
        """A read brought one request. Connections that keep doing so are gathered."""
        peer.singles += 1
        if peer.singles < SINGLES_TO_GATHER or received > MAX_FRAME_NBYTES:
            return
        peer.singles = 0
        for handle, lane in peer.session.lanes.items():
            key = id(lane), handle
            if lane.plain_frame_nbytes != received:
                continue
            if key not in self._gathers:
                if len(self._gathers) == MAX_GATHERS:
                    return
                self._gathers[key] = Gather(lane, handle, self._max_peers)
            peer.gather = self._gathers[key]
            peer.step = self._read_single
            return

    def _read_single(self, peer: Peer, now_ns: int) -> int:
        """From a client that has one request in flight at a time: into the next row of its gather."""
        gather = peer.gather
        if gather is None:
            raise AssertionError("gathering without a gather: this is a bug")
        view = gather.views[len(gather.peers)]
        received = peer.recv_into(view)
        session = peer.session
        if received == gather.stride and not session.inflight and not session.ghosts:
            gather.peers.append(peer)
            return 1
        peer.step = self._read_frames
        return self.parse(peer, view[:received], now_ns) if received else self._end_of_stream(peer)

    def _read_more(self, peer: Peer, now_ns: int) -> int:
        """Inside a frame, or behind a large one.

        Then no more than the next header, so that a body that follows is received into its slot and not copied there.
        """
        kept = len(peer.tail)
        self._buffer[:kept] = peer.tail
        limit = min(peer.machine.wanted(kept), self._read_nbytes)
        received = peer.recv_into(self._buffer[kept : kept + limit])
        if not received:
            return self._end_of_stream(peer)
        data = self._buffer[: kept + received]
        if kept and now_ns - peer.tail_ns > SPLIT_NS:
            return self.parse(peer, data, now_ns, peer.tail_ns, max_frames=1)
        return self.parse(peer, data, now_ns)

    def _read_body(self, peer: Peer, now_ns: int) -> int:
        """Inside a large body that is wanted."""
        received = self.bodies.read(peer, now_ns)
        if peer.finished:
            self._end_of_stream(peer)
        elif peer.arrival is None:
            peer.step = self._read_more
        return 1 + received // self._unit_nbytes

    def _read_later(self, peer: Peer, now_ns: int) -> int:
        """While its bytes are here already and wait to be parsed: nothing."""
        del peer, now_ns
        return 0

    def _read_nothing(self, peer: Peer, now_ns: int) -> int:
        """After the last frame: what still comes is dropped."""
        del now_ns
        received = peer.recv_into(self._first_read)
        if not received:
            peer.finished = True
            self._group.part(peer)
        return 1 + received // self._unit_nbytes

    # ---------------------------------------------------------------- frames

    def parse(self, peer: Peer, data: memoryview, now_ns: int, read_ns: int = 0, max_frames: int = 0) -> int:
        """Takes the frames at the start of `data`, and keeps what is left of it.

        Args:
            peer: where it came from.
            data: everything of it that is not consumed.
            now_ns: when the turn began.
            read_ns: when the first bytes of the frames were read, from which their deadlines count; 0 is `now_ns`.
            max_frames: the most frames to take; 0 is the limit of a connection and turn.

        Returns:
            Units.
        """
        event: Any
        read_ns = read_ns or now_ns
        events, consumed = peer.machine.receive(
            data, max_frames=max_frames or peer.max_frames or self._max_frames
        )
        many = len(events) >= MANY_FRAMES
        began_ns = self._clock_ns() if many else 0
        units = len(events) + consumed // self._unit_nbytes
        for event in events:
            kind = type(event)
            if kind is Infer:
                self._intake.admit(peer.session, event, read_ns)
            elif kind is InferRun:
                self._intake.admit_run(peer.session, event, read_ns)
                units += event[0]
            elif kind is InferBegin:
                consumed += self.bodies.begin(peer, event, data[consumed:], read_ns)
                peer.arrival_since_ns = now_ns
            elif kind is InferMany:
                self._intake.admit_many(peer.session, event, read_ns)
            else:
                self._rare_event(peer, event, now_ns)
        if many:
            self._ration(peer, len(events), self._clock_ns() - began_ns)
        elif peer.max_frames:
            peer.max_frames = 0
        if peer.midway or consumed != len(data):
            self._stop_midway(peer, data[consumed:], consumed, now_ns)
        return units

    def _ration(self, peer: Peer, frames: int, took_ns: int) -> None:
        """Allows a connection as many frames in its next turn as take about `SHARE_NS`.

        Frames differ a hundredfold in what they cost: a run of 256 is cheaper than ten pairs of INFER and CANCEL.
        """
        fitting = max(MANY_FRAMES, frames * SHARE_NS // max(1, took_ns))
        peer.max_frames = min(self._max_frames, fitting)

    def _stop_midway(self, peer: Peer, left: memoryview, consumed: int, now_ns: int) -> None:
        """Keeps what was received of a frame that is not complete, or not yet looked at, and chooses the next step."""
        if peer.step == self._read_nothing:
            return
        machine = peer.machine
        if consumed or not peer.tail:
            peer.tail_ns = now_ns
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

    def _rare_event(self, peer: Peer, event: Any, now_ns: int) -> None:  # noqa: ANN401  one of twelve types
        if peer.step == self._read_single:
            peer.step = self._read_frames  # a handle may mean another model afterwards
        if type(event) is FrameError:
            self._intake.refuse_frame(
                peer.session, event.rid, event.count, event.code, event.message, event.requests
            )
            if event.unbinds:
                peer.session.unbind(event.unbinds)
            if not event.requests:
                self._watch.spend_control(peer, now_ns)
        elif type(event) is FatalError:
            self._group.dismiss(peer, event.reply, "protocol error", now_ns)
        elif self._control.handle(peer, event):
            self._watch.spend_control(peer, now_ns)
        else:
            raise AssertionError(f"no handler for {type(event).__name__}: this is a bug")

    def _end_of_stream(self, peer: Peer) -> int:
        """The client has sent all it will send; what it is owed is still sent."""
        peer.finished = True
        self.stop(peer)
        if not self._serve_after_fin:
            self._engine.cancel(peer.session)
        self._group.part(peer)
        return 1
