"""Orders to change the models of a server: taken off an ADMIN frame in the turn that reads it, answered when obeyed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from trioserve_protocol import ErrorCode, admin_frame, error_frame

if TYPE_CHECKING:
    from trioserve_protocol import Admin

    from ._peer import Peer

ORDERS_HINT: Final = (
    ', or {"op": "load" | "unload" | "reload", "model": NAME, "version": N}, the version only if one is meant'
)


class _Order(msgspec.Struct, frozen=True):
    """What a client sends; members that nobody knows are left alone."""

    op: Literal["load", "unload", "reload"]
    model: str = ""
    version: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] = 0


class ModelOrder:
    """An order and the way back to who gave it, who may be gone by then.

    Args:
        op: what is to be done.
        model: the model's name; empty for all that the repository has.
        version: of it; 0 for those that its policy says.
        peer: who gave it; None for the server itself.
        rid: of the frame.
    """

    def __init__(
        self,
        op: Literal["load", "unload", "reload"],
        model: str = "",
        version: int = 0,
        *,
        peer: Peer | None = None,
        rid: int = 0,
    ) -> None:
        self.op: Final = op
        self.model: Final = model
        self.version: Final = version
        self._session: Final = peer.session if peer is not None else None
        self._rid: Final = rid

    def __str__(self) -> str:
        """For people: `reload of minilm version 2`."""
        version = f" version {self.version}" if self.version else ""
        return f"{self.op} of {self.model or 'all models'}{version}"

    def answer(self, value: Any) -> None:  # noqa: ANN401  any JSON value
        """It was obeyed. The group must settle afterwards."""
        if self._session is not None:
            self._session.sink.write_soon(admin_frame(self._rid, msgspec.json.encode(value)))

    def refuse(self, code: ErrorCode, message: str) -> None:
        """It could not be obeyed, and nothing has changed. The group must settle afterwards."""
        if self._session is not None:
            self._session.sink.write_soon(error_frame(self._rid, code, message))


def order_in(event: Admin, peer: Peer) -> ModelOrder | None:
    """The order in an ADMIN frame; None if it holds something else."""
    try:
        order = _ORDERS.decode(event.payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    return ModelOrder(order.op, order.model, order.version, peer=peer, rid=event.rid)


_ORDERS: Final = msgspec.json.Decoder(_Order)
