"""A session and the server that a test plays, without I/O."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.client.fake_server import SCALE, encode_outputs
from trioserve.client._calls import ModelKey, SignatureCall
from trioserve.client._infer import InferCall
from trioserve.client._many import ManyCall
from trioserve.client._session import Session
from trioserve_protocol import (
    Bind,
    Buffer,
    Connection,
    Event,
    FrameType,
    Hello,
    Infer,
    InferRun,
    PeerLimits,
    Role,
    Signature,
    Tag,
    bound_frame,
    frame,
    frame_bytes,
    infer_flags,
    tlv,
)

KEY = ModelKey("scale", 0, None)
ROW = np.arange(4, dtype=np.float32)
NO_LIMITS = PeerLimits()


class Wire:
    """A session and the server that a test plays."""

    def __init__(self, *, welcome: PeerLimits | None = NO_LIMITS, **known: Signature) -> None:
        self.signatures = {ModelKey(name, 0, None): signature for name, signature in known.items()}
        self.session = Session(self.signatures)
        self.server = Connection(Role.SERVER)
        self.now_s = 100.0
        (hello,) = self.sent()
        assert isinstance(hello, Hello)
        if welcome is not None:
            self.reply(frame(FrameType.WELCOME, rid=hello.rid, meta=tlv(Tag.LIMITS, welcome.encode())))

    @property
    def idle(self) -> bool:
        """Whether nothing is left of any call."""
        out = self.session._out
        return not (
            out.flights
            or out._queue
            or out.controls
            or out.flights.credit.requests
            or out.flights.credit.nbytes
        )

    def sent(self) -> list[Event]:
        """What the client sends now, as a server sees it; runs as single events."""
        data = b""
        while buffers := self.session.take(self.now_s):
            data += frame_bytes(buffers)
        events, used = self.server.receive(memoryview(data))
        assert used == len(data)
        return [one for event in events for one in singles(event)]

    def reply(self, *frames: bytes | list[Buffer]) -> None:
        data = b"".join(part if isinstance(part, bytes) else frame_bytes(part) for part in frames)
        view = memoryview(bytearray(data))
        while view:
            used = self.session.receive(view, self.now_s)
            view = view[used:]
            body = self.session.body
            if body is not None:
                taken = body.fill_from(view)
                view = view[taken:]
                self.session.body_received(taken, self.now_s)
            elif not used:
                break
        assert not view

    def infer(self, inputs: Any = ROW, key: ModelKey = KEY, **options: Any) -> InferCall:
        call = InferCall(
            key, inputs, deadline_s=options.pop("deadline_s", math.inf), on_done=lambda: None, **options
        )
        self.session.submit(call)
        return call

    def many(self, inputs: Any, key: ModelKey = KEY, **options: Any) -> ManyCall:
        call = ManyCall(
            key, inputs, deadline_s=options.pop("deadline_s", math.inf), on_done=lambda: None, **options
        )
        self.session.submit(call)
        return call

    def bound(self, signature: Signature = SCALE, name: str = "scale") -> None:
        """Bind a model the short way."""
        self.session.submit(SignatureCall(ModelKey(name, 0, None), lambda: None))
        for event in self.sent():
            assert isinstance(event, Bind)
            self.reply(bound_frame(event.rid, event.handle, signature))


def singles(event: Event) -> list[Event]:
    if not isinstance(event, InferRun):
        return [event]
    return [
        Infer(
            int(rid),
            event.handle,
            int(flags),
            int(tmo),
            event.rows,
            event.meta,
            memoryview(payload.tobytes()),
        )
        for rid, flags, tmo, payload in zip(
            event.rids, event.flags, event.timeouts_us, event.payload, strict=True
        )
    ]


def result(rid: int, *outputs: Any, **fields: Any) -> bytes:
    arrays = [np.asarray(output) for output in outputs]
    rows = fields.pop("rows", len(arrays[0]))
    kind = fields.pop("kind", FrameType.RESULT)
    return frame_bytes(
        frame(kind, rid=rid, rows=rows, flags=infer_flags(), payload=encode_outputs(arrays), **fields)
    )


def many_results(rid: int, *outputs: Any) -> bytes:
    return result(rid, *outputs, kind=FrameType.RESULT_MANY)
