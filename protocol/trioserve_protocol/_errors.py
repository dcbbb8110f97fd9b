"""Protocol errors: Local (our bug) and Remote (the peer's fault)."""

from ._codes import ErrorCode


class ProtocolError(Exception):
    """Base of both kinds."""


class LocalProtocolError(ProtocolError):
    """This side used the protocol machine or an encoder wrongly: a bug in the caller."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow.

    Attributes:
        code: What is wrong.
        message: Text that is safe to send to the peer.
        rid: The request it concerns, 0 for none.
        fatal: True if the stream cannot be read any further.
    """

    def __init__(self, code: ErrorCode, message: str, rid: int = 0, *, fatal: bool = False) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.rid = rid
        self.fatal = fatal
