"""Clients that tests play: they send through the protocol machine and keep account of what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.engine.play_account import Account
from tests.engine.play_models import HANDLES, body_of, input_rows, outputs_of, text_of, text_result
from trioserve.engine import Arrival, Session
from trioserve_protocol import (
    Connection,
    Flag,
    FrameType,
    Infer,
    InferBegin,
    InferMany,
    InferRun,
    Role,
    encode_bytes,
    frame,
    frame_bytes,
    pad8,
    request_columns,
)

if TYPE_CHECKING:
    from tests.engine.world import World

END = int(Flag.END)


class Client(Account):
    """One connection's client: sends requests through the protocol machine."""

    def __init__(self, world: World, *, vector_from: int = 4) -> None:
        super().__init__()
        self.world = world
        self.session: Session = world.engine.open_session(self)
        self.machine = Connection(Role.SERVER, vector_from=vector_from)
        self.arrival: Arrival | None = None

    # ------------------------------------------------------------ sending

    def bind(self, *names: str) -> Client:
        for name in names:
            self.session.bind(HANDLES[name], self.world.lane(name), None)
        return self

    def infer(
        self,
        rid: int,
        model: str = "wide",
        *,
        rows: int = 1,
        flags: int = 0,
        timeout_us: int = 0,
        handle: int | None = None,
        meta: bytes = b"",
        payload: bytes | None = None,
    ) -> None:
        """Sends one INFER, whole."""
        index = self.session.index
        if payload is None:
            payload = body_of(*input_rows(index, rid, rows))
        self._expect(rid, tuple(tensor.tobytes() for tensor in outputs_of(*input_rows(index, rid, rows))))
        self.owe([rid])
        self.send(
            frame_bytes(
                frame(
                    FrameType.INFER,
                    rid=rid,
                    handle=HANDLES[model] if handle is None else handle,
                    flags=flags | END,
                    timeout_us=timeout_us,
                    rows=rows,
                    meta=meta,
                    payload=payload,
                )
            )
        )

    def run(
        self,
        rids: Sequence[int],
        model: str = "wide",
        *,
        timeouts_us: int | Sequence[int] = 0,
        flags: int | Sequence[int] = 0,
        rows: int = 1,
    ) -> None:
        """Sends equal INFERs in one go; enough of them are a run of columns."""
        index = self.session.index
        bodies = []
        for rid in rids:
            x, tag = input_rows(index, rid, rows)
            self._expect(rid, tuple(tensor.tobytes() for tensor in outputs_of(x, tag)))
            bodies.append(np.frombuffer(body_of(x, tag), np.uint8))
        times = timeouts_us if isinstance(timeouts_us, int) else np.array(timeouts_us, np.uint32)
        bits = flags | END if isinstance(flags, int) else np.array([flag | END for flag in flags], np.uint16)
        block = request_columns(
            HANDLES[model], np.array(rids, np.uint64), times, bits, np.stack(bodies), rows=rows
        )
        self.owe(rids)
        self.send(block.tobytes())

    def many_body(self, rid: int, count: int) -> bytes:
        """The payload of an INFER_MANY; notes what its requests must get."""
        rows = [input_rows(self.session.index, rid + number, 1) for number in range(count)]
        for number, tensors in enumerate(rows):
            self._expect(rid + number, tuple(tensor.tobytes() for tensor in outputs_of(*tensors)))
        return body_of(*(np.concatenate(column) for column in zip(*rows, strict=True)))

    def many(
        self,
        rid: int,
        count: int,
        model: str = "wide",
        *,
        flags: int = 0,
        timeout_us: int = 0,
        meta: bytes = b"",
        handle: int | None = None,
    ) -> None:
        """Sends one INFER_MANY, whole."""
        payload = self.many_body(rid, count)
        self.owe(range(rid, rid + count), together=True)
        self.send(
            frame_bytes(
                frame(
                    FrameType.INFER_MANY,
                    rid=rid,
                    handle=HANDLES[model] if handle is None else handle,
                    flags=flags | END,
                    timeout_us=timeout_us,
                    rows=count,
                    meta=meta,
                    payload=payload,
                )
            )
        )

    def texts(
        self,
        rid: int,
        tokens: Sequence[int] = (5,),
        *,
        many: bool = False,
        flags: int = 0,
        timeout_us: int = 0,
        payload: bytes | None = None,
        meta: bytes = b"",
        handle: int | None = None,
    ) -> None:
        """Sends texts of so many tokens each: the rows of one INFER, or one request each."""
        payload = self.text_body(rid, tokens, many=many) if payload is None else payload
        kind = FrameType.INFER_MANY if many else FrameType.INFER
        self.owe(range(rid, rid + len(tokens)) if many else [rid], together=True)
        self.send(
            frame_bytes(
                frame(
                    kind,
                    rid=rid,
                    handle=HANDLES["text"] if handle is None else handle,
                    flags=flags | END,
                    timeout_us=timeout_us,
                    rows=len(tokens),
                    meta=meta,
                    payload=payload,
                )
            )
        )

    def text_body(
        self,
        rid: int,
        tokens: Sequence[int],
        *,
        many: bool,
        encode: Callable[[list[bytes]], bytes] = encode_bytes,
    ) -> bytes:
        """The payload of texts; notes what they must get."""
        index = self.session.index
        if many:
            texts = [text_of(index, rid + row, 0, count) for row, count in enumerate(tokens)]
            for row, text in enumerate(texts):
                self._expect(rid + row, text_result([text]))
        else:
            texts = [text_of(index, rid, row, count) for row, count in enumerate(tokens)]
            self._expect(rid, text_result(texts))
        return encode(texts)

    def send(self, data: bytes) -> None:
        """Whole frames reach the server."""
        events, consumed = self.machine.receive(memoryview(bytearray(data)))
        assert consumed == len(data)
        for event in events:
            self.offer(event)

    def offer(self, event: Any) -> None:
        """One event reaches the intake, as in a transport."""
        intake, now_ns = self.world.intake, self.world.clock.now_ns()
        if isinstance(event, Infer):
            intake.admit(self.session, event, now_ns)
        elif isinstance(event, InferRun):
            intake.admit_run(self.session, event, now_ns)
        else:
            assert isinstance(event, InferMany), event
            intake.admit_many(self.session, event, now_ns)

    def begin(
        self,
        rid: int,
        *,
        rows: int = 1,
        many: bool = False,
        model: str = "wide",
        payload: bytes | None = None,
        timeout_us: int = 0,
        flags: int = 0,
        crc: int | None = None,
        meta: bytes = b"",
    ) -> Body:
        """Sends the header of a large frame; the body is sent by what this returns."""
        if payload is None:
            if many:
                payload = self.many_body(rid, rows)
            else:
                tensors = input_rows(self.session.index, rid, rows)
                self._expect(rid, tuple(tensor.tobytes() for tensor in outputs_of(*tensors)))
                payload = body_of(*tensors)
        self.owe(range(rid, rid + rows) if many else [rid], together=True)
        payload += bytes(pad8(len(payload)) - len(payload))
        kind = FrameType.INFER_MANY if many else FrameType.INFER
        begun = InferBegin(kind, rid, HANDLES[model], flags, timeout_us, rows, meta, len(payload), crc)
        arrival = self.world.intake.begin(self.session, begun, self.world.clock.now_ns())
        return Body(self.world, arrival, payload)

    def cancel(self, rid: int = 0, count: int = 1) -> None:
        self.world.engine.cancel(self.session, rid, count)

    def close(self) -> None:
        self.gone = True
        self.world.engine.close_session(self.session)


@dataclass
class Body:
    """A large body on its way, sent as the test says."""

    world: World
    arrival: Arrival | None
    payload: bytes
    at: int = 0

    @property
    def accepted(self) -> Arrival:
        assert self.arrival is not None
        return self.arrival

    @property
    def is_open(self) -> bool:
        return self.arrival is not None and not self.arrival.abandoned and self.at < len(self.payload)

    def send(self, nbytes: int = 10**9) -> bool:
        """Sends up to `nbytes` more; whether the body is complete."""
        arrival = self.accepted
        while nbytes and self.at < len(self.payload):
            assert not arrival.abandoned
            chunk = arrival.chunk
            part = self.payload[self.at : self.at + min(nbytes, len(chunk))]
            chunk[: len(part)] = part
            self.at += len(part)
            nbytes -= len(part)
            if arrival.advance(len(part)):
                assert self.at == len(self.payload)
                self.world.intake.arrived(arrival, self.world.clock.now_ns())
                return True
        return False
