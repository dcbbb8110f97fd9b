"""The registry of status codes: number, blame, HTTP status, title, retryable, closes."""

from enum import IntEnum, unique
from typing import Final, Literal, Self, TypeAlias

Blame: TypeAlias = Literal["client", "server", "network", "model"]
"""Whose fault an error is: who has to change something so that it does not happen again."""

_RETRY: Final = 1
_CLOSES: Final = 2


@unique
class ErrorCode(IntEnum):
    """A status of the wire: `gRPC code | subcode << 8`. Subcode 0 is the general form of its family.

    Attributes:
        grpc: gRPC status code, the low byte.
        subcode: The high byte.
        blame: Whose fault it is.
        http_status: HTTP status for gateways.
        title: What went wrong, as a phrase in lower case without a full stop.
        retryable: Whether the same request may be sent again, after `retry_after`, and may then succeed.
        closes: Whether the sender of this code always closes the connection after it.
    """

    grpc: int
    subcode: int
    blame: Blame
    http_status: int
    title: str
    retryable: bool
    closes: bool

    def __new__(
        cls, grpc: int, subcode: int, blame: Blame, http_status: int, title: str, traits: int = 0
    ) -> Self:
        """Make a member of its row in the table below."""
        number = grpc | subcode << 8
        code = int.__new__(cls, number)
        code._value_ = number
        code.grpc, code.subcode = grpc, subcode
        code.blame, code.http_status, code.title = blame, http_status, title
        code.retryable, code.closes = bool(traits & _RETRY), bool(traits & _CLOSES)
        return code

    # gRPC code, subcode, blame, HTTP status, title, traits
    OK = 0, 0, "client", 200, "success"
    CANCELLED = 1, 0, "client", 499, "cancelled"
    CANCELLED_BY_CLIENT = 1, 1, "client", 499, "cancelled by the client"
    CANCELLED_BY_DRAIN = 1, 2, "server", 503, "cancelled because the server stops", _RETRY
    INVALID_ARGUMENT = 3, 0, "client", 400, "invalid request"
    INVALID_SHAPE = 3, 1, "client", 400, "wrong tensor shape"
    INVALID_DTYPE = 3, 2, "client", 400, "wrong tensor datatype"
    INVALID_SIZE = 3, 3, "client", 400, "wrong number of bytes"
    INVALID_META = 3, 4, "client", 400, "malformed header or meta"
    TOO_MANY_ROWS = 3, 5, "client", 400, "more rows than the model takes"
    INVALID_BYTES = 3, 6, "client", 400, "malformed BYTES tensor"
    DEADLINE_EXCEEDED = 4, 0, "server", 504, "deadline exceeded"
    DEADLINE_IN_QUEUE = 4, 1, "server", 504, "deadline passed in the queue, not executed"
    DEADLINE_AFTER_EXECUTION = 4, 2, "server", 504, "deadline passed while or after executing"
    DEADLINE_INFEASIBLE = 4, 3, "client", 504, "deadline too short to be met, not executed"
    NOT_FOUND = 5, 0, "client", 404, "not found"
    MODEL_NOT_FOUND = 5, 1, "client", 404, "no such model"
    VERSION_NOT_FOUND = 5, 2, "client", 404, "no such version of the model"
    HANDLE_NOT_BOUND = 5, 3, "client", 404, "handle is not bound"
    REGION_NOT_FOUND = 5, 4, "client", 404, "no such shared-memory region"
    ALREADY_EXISTS = 6, 0, "client", 409, "already exists"
    RID_IN_FLIGHT = 6, 1, "client", 409, "request id is in flight"
    PERMISSION_DENIED = 7, 0, "client", 403, "permission denied"
    RESOURCE_EXHAUSTED = 8, 0, "server", 429, "resource exhausted", _RETRY
    SHED = 8, 1, "server", 503, "shed, the server is overloaded", _RETRY
    QUOTA_EXCEEDED = 8, 2, "client", 429, "quota exceeded", _RETRY
    CREDIT_EXCEEDED = 8, 3, "client", 429, "more in flight than the window allows", _RETRY
    FRAME_TOO_LARGE = 8, 4, "client", 413, "frame larger than the maximum", _CLOSES
    DEVICE_MEMORY = 8, 5, "server", 503, "device is out of memory", _RETRY
    TOO_MANY_CONNECTIONS = 8, 6, "server", 503, "too many connections", _RETRY | _CLOSES
    FAILED_PRECONDITION = 9, 0, "client", 400, "not allowed in this state"
    UNSUPPORTED_VERSION = 9, 1, "client", 400, "not a frame of protocol version 1", _CLOSES
    UNSUPPORTED_FEATURE = 9, 2, "client", 400, "required feature is not supported"
    SIGNATURE_CHANGED = 9, 3, "server", 409, "the model's signature changed, bind again"
    ABORTED = 10, 0, "server", 409, "aborted"
    SEQUENCE_LOST = 10, 1, "server", 409, "sequence state was lost"
    OUT_OF_RANGE = 11, 0, "client", 400, "out of range"
    UNIMPLEMENTED = 12, 0, "client", 501, "not implemented"
    UNKNOWN_TYPE = 12, 1, "client", 501, "frame type is not implemented"
    UNKNOWN_FLAG = 12, 2, "client", 501, "flag is not implemented"
    UNKNOWN_TLV = 12, 3, "client", 501, "TLV is not implemented here"
    UNKNOWN_CODEC = 12, 4, "client", 501, "codec is not implemented"
    INTERNAL = 13, 0, "server", 500, "internal error"
    MODEL_RAISED = 13, 1, "model", 500, "the model raised an exception"
    POISON_INPUT = 13, 2, "model", 500, "this input makes the model's process die"
    CORRUPT_IPC = 13, 3, "server", 500, "corruption between the server's processes"
    UNAVAILABLE = 14, 0, "server", 503, "unavailable", _RETRY
    WORKER_LOST = 14, 1, "server", 503, "the worker process died", _RETRY
    DRAINING = 14, 2, "server", 503, "the server is draining, not executed", _RETRY
    LOADING = 14, 3, "server", 503, "the model is loading, not executed", _RETRY
    NOT_EXECUTED = 14, 4, "server", 503, "not executed", _RETRY
    DATA_LOSS = 15, 0, "network", 500, "data loss"
    CRC_MISMATCH = 15, 1, "network", 500, "CRC-32 of the body does not match", _RETRY
    UNAUTHENTICATED = 16, 0, "client", 401, "not authenticated", _CLOSES


_BY_NUMBER: Final = {int(code): code for code in ErrorCode}


def code_of(status: int) -> ErrorCode | None:
    """Return the registered code of a `status`; else the general form of its family; None if that is unknown too."""
    return _BY_NUMBER.get(status) or _BY_NUMBER.get(status & 0xFF)
