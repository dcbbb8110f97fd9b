"""Control frames: everything that is not a request for a model. Answered in the turn that reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trioserve.errors import TrioserveError
from trioserve_protocol import (
    Admin,
    Bind,
    Cancel,
    ErrorCode,
    Features,
    FrameType,
    Hello,
    PeerLimits,
    Ping,
    Pong,
    RemoteProtocolError,
    ServerId,
    Tag,
    Unbind,
    admin_frame,
    bound_frame,
    done_frame,
    error_frame,
    frame,
    frame_bytes,
    pong_frame,
    tlv,
)

from ._entrance import AdminLevel
from ._model_order import ORDERS_HINT, ModelOrder, order_in

if TYPE_CHECKING:
    from trioserve.engine import Engine, Intake
    from trioserve_protocol import Event, TensorSpec

    from ._peer import Peer

KIB: Final = 1024


ANSWERED_FROM: Final = {
    "health": AdminLevel.HEALTH,
    "models": AdminLevel.MODELS,
    "statistics": AdminLevel.STATISTICS,
}
"""What a connection must be entitled to for each operation; for one that is not listed, to all."""


class Control:
    """Serves control frames.

    Args:
        engine: what they ask about.
        intake: knows which requests a client can make.
        server_id: random number of this server process.
        connections: what is counted of connections, as JSON values.
    """

    def __init__(
        self, engine: Engine, intake: Intake, server_id: int, connections: Callable[[], dict[str, Any]]
    ) -> None:
        self._engine: Final = engine
        self._intake: Final = intake
        self._connections: Final = connections
        self._server: Final = ServerId(server_id, 1, "trioserve")
        self._handlers: Final[dict[type, Callable[[Peer, Any], None]]] = {
            Hello: self._hello,
            Bind: self._bind,
            Unbind: self._unbind,
            Cancel: self._cancel,
            Ping: self._ping,
            Pong: self._pong,
            Admin: self._admin,
        }
        self.obey: Callable[[ModelOrder], None] | None = None
        """Takes orders to change the models; None if nobody does."""
        self._admin_handlers: Final[dict[str, Callable[[], Any]]] = {
            "health": self._health,
            "models": self._models,
            "statistics": self._statistics,
        }

    def handle(self, peer: Peer, event: Event) -> bool:
        """Serves one event; False if it is not a control frame that a server takes."""
        handler = self._handlers.get(type(event))
        if handler is None:
            return False
        handler(peer, event)
        return True

    def _hello(self, peer: Peer, event: Hello) -> None:
        served = int(peer.access.features)
        missing = event.features.must & ~served
        if missing:
            message = f"features: expected a subset of {served:#x}, got {event.features.must:#x}"
            peer.write_soon(error_frame(event.rid, ErrorCode.UNSUPPORTED_FEATURE, message))
            return
        agreed = (event.features.must | event.features.may) & served
        session, limits = peer.session, self._engine.config.limits
        if event.tenant is not None:
            self._engine.name_tenant(session, event.tenant)
        if event.limits.max_frame_nbytes:
            session.max_body_nbytes = event.limits.max_frame_nbytes
        if event.limits.window_requests:
            session.max_inflight = min(session.max_inflight, event.limits.window_requests)
        if event.limits.window_kib:
            session.max_inflight_nbytes = min(session.max_inflight_nbytes, event.limits.window_kib * KIB)
        welcome = PeerLimits(
            max_frame_nbytes=limits.max_frame_nbytes,
            max_meta_nbytes=limits.max_meta_nbytes,
            window_requests=session.max_inflight,
            window_kib=session.max_inflight_nbytes // KIB,
            max_tensors=limits.max_tensors,
            max_binds=limits.max_binds,
            max_bytes_elements=limits.max_bytes_elements,
            control_per_s=limits.control_frames_per_s,
        )
        meta = (
            tlv(Tag.FEATURES, Features(agreed, served).encode())
            + tlv(Tag.LIMITS, welcome.encode())
            + tlv(Tag.SERVER, self._server.encode())
        )
        peer.write_soon(frame_bytes(frame(FrameType.WELCOME, rid=event.rid, meta=meta)))

    def _bind(self, peer: Peer, event: Bind) -> None:
        session = peer.session
        session.unbind(event.handle)
        limit = self._engine.config.limits.max_binds
        if len(session.lanes) + len(session.changed) >= limit:
            message = f"binds: expected at most {limit}"
            peer.write_soon(error_frame(event.rid, ErrorCode.QUOTA_EXCEEDED, message))
            return
        if event.params is not None:
            message = f"{Tag.PARAMS.name}: expected none, models take no parameters"
            peer.write_soon(error_frame(event.rid, ErrorCode.UNKNOWN_TLV, message))
            return
        try:
            session.check_may_infer()
            lane = self._engine.find(event.model, event.version)
            self._intake.check_takes_result(session, lane)
        except (TrioserveError, RemoteProtocolError) as error:
            peer.write_soon(error_frame(event.rid, error.code, error.message))
            return
        session.bind(event.handle, lane, self._engine.account(event.tenant), pinned=bool(event.version))
        peer.write_soon(bound_frame(event.rid, event.handle, lane.signature))

    def _unbind(self, peer: Peer, event: Unbind) -> None:
        if peer.session.unbind(event.handle):
            peer.write_soon(done_frame(FrameType.UNBIND, event.rid))
        else:
            message = f"handle {event.handle} is not bound"
            peer.write_soon(error_frame(event.rid, ErrorCode.HANDLE_NOT_BOUND, message))

    def _cancel(self, peer: Peer, event: Cancel) -> None:
        self._engine.cancel(peer.session, event.rid, event.count)

    def _ping(self, peer: Peer, event: Ping) -> None:
        peer.write_soon(pong_frame(event.rid, event.payload))

    def _pong(self, peer: Peer, event: Pong) -> None:
        """Nothing: the server sends no PING, and an answer to none does no harm."""

    # ---------------------------------------------------------------- ADMIN

    def _admin(self, peer: Peer, event: Admin) -> None:
        if self.obey is not None and (order := order_in(event, peer)) is not None:
            if peer.access.admin < AdminLevel.ALL:
                self._deny(peer, event.rid, order.op)
            else:
                self.obey(order)
            return
        try:
            request = msgspec.json.decode(event.payload)
            name = request["op"]
            answer = self._admin_handlers[name]
            needed = ANSWERED_FROM.get(name, AdminLevel.ALL)
        except (msgspec.DecodeError, RecursionError, TypeError, KeyError):
            known = ", ".join(self._admin_handlers)
            message = f'ADMIN: expected {{"op": NAME}} with NAME one of {known}{ORDERS_HINT}'
            peer.write_soon(error_frame(event.rid, ErrorCode.INVALID_ARGUMENT, message))
            return
        if peer.access.admin < needed:
            self._deny(peer, event.rid, name)
            return
        peer.write_soon(admin_frame(event.rid, msgspec.json.encode(answer())))

    @staticmethod
    def _deny(peer: Peer, rid: int, name: str) -> None:
        message = f"ADMIN {name} is not answered here; see `admin` in the server's configuration"
        peer.write_soon(error_frame(rid, ErrorCode.PERMISSION_DENIED, message))

    def _health(self) -> dict[str, Any]:
        engine = self._engine
        ready = not engine.draining and all(not lane.closed_code for lane in engine.served)
        return {"live": True, "ready": ready, "draining": engine.draining}

    def _statistics(self) -> dict[str, Any]:
        return self._engine.statistics() | {"connections": self._connections()}

    def _models(self) -> list[dict[str, Any]]:
        return [
            {
                "name": lane.config.name,
                "version": lane.config.version,
                "ready": not lane.closed_code,
                "max_rows": lane.max_rows,
                "inputs": [_described(spec) for spec in lane.signature.inputs],
                "outputs": [_described(spec) for spec in lane.signature.outputs],
            }
            for lane in self._engine.served
        ]


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype.name, "dims": list(spec.dims)}
