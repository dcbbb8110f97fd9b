"""The registry of status codes: number, retryable, blame, closes, gRPC code, HTTP status, title."""

from enum import IntEnum
from typing import Final, Literal, NamedTuple

Blame = Literal["client", "server", "network", "model"]
"""Whose fault an error is: who has to change something so that it does not happen again."""


class ErrorCode(IntEnum):
    """A status of the wire: `gRPC code | subcode << 8`. Subcode 0 is the general form of its family."""

    OK = 0
    CANCELLED = 1
    CANCELLED_BY_CLIENT = 1 | 1 << 8
    CANCELLED_BY_DRAIN = 1 | 2 << 8
    INVALID_ARGUMENT = 3
    INVALID_SHAPE = 3 | 1 << 8
    INVALID_DTYPE = 3 | 2 << 8
    INVALID_SIZE = 3 | 3 << 8
    INVALID_META = 3 | 4 << 8
    TOO_MANY_ROWS = 3 | 5 << 8
    INVALID_BYTES = 3 | 6 << 8
    DEADLINE_EXCEEDED = 4
    DEADLINE_IN_QUEUE = 4 | 1 << 8
    DEADLINE_AFTER_EXECUTION = 4 | 2 << 8
    DEADLINE_INFEASIBLE = 4 | 3 << 8
    NOT_FOUND = 5
    MODEL_NOT_FOUND = 5 | 1 << 8
    VERSION_NOT_FOUND = 5 | 2 << 8
    HANDLE_NOT_BOUND = 5 | 3 << 8
    REGION_NOT_FOUND = 5 | 4 << 8
    ALREADY_EXISTS = 6
    RID_IN_FLIGHT = 6 | 1 << 8
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    SHED = 8 | 1 << 8
    QUOTA_EXCEEDED = 8 | 2 << 8
    CREDIT_EXCEEDED = 8 | 3 << 8
    FRAME_TOO_LARGE = 8 | 4 << 8
    DEVICE_MEMORY = 8 | 5 << 8
    TOO_MANY_CONNECTIONS = 8 | 6 << 8
    FAILED_PRECONDITION = 9
    UNSUPPORTED_VERSION = 9 | 1 << 8
    UNSUPPORTED_FEATURE = 9 | 2 << 8
    SIGNATURE_CHANGED = 9 | 3 << 8
    ABORTED = 10
    SEQUENCE_LOST = 10 | 1 << 8
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    UNKNOWN_TYPE = 12 | 1 << 8
    UNKNOWN_FLAG = 12 | 2 << 8
    UNKNOWN_TLV = 12 | 3 << 8
    UNKNOWN_CODEC = 12 | 4 << 8
    INTERNAL = 13
    MODEL_RAISED = 13 | 1 << 8
    POISON_INPUT = 13 | 2 << 8
    CORRUPT_IPC = 13 | 3 << 8
    UNAVAILABLE = 14
    WORKER_LOST = 14 | 1 << 8
    DRAINING = 14 | 2 << 8
    LOADING = 14 | 3 << 8
    NOT_EXECUTED = 14 | 4 << 8
    DATA_LOSS = 15
    CRC_MISMATCH = 15 | 1 << 8
    UNAUTHENTICATED = 16

    @property
    def grpc(self) -> int:
        """gRPC status code, the low byte."""
        return self & 0xFF

    @property
    def subcode(self) -> int:
        """The high byte; 0 for the general form of the family."""
        return self >> 8

    @property
    def title(self) -> str:
        """What went wrong, as a phrase in lower case without a full stop."""
        return _FACTS[self].title

    @property
    def retryable(self) -> bool:
        """Whether the same request may be sent again, after `retry_after`, and may then succeed."""
        return _FACTS[self].retryable

    @property
    def blame(self) -> Blame:
        """Whose fault it is."""
        return _FACTS[self].blame

    @property
    def closes(self) -> bool:
        """Whether the sender of this code always closes the connection after it."""
        return _FACTS[self].closes

    @property
    def http_status(self) -> int:
        """HTTP status for gateways."""
        return _FACTS[self].http_status


class _Facts(NamedTuple):
    blame: Blame
    http_status: int
    title: str
    retryable: bool = False
    closes: bool = False


_C: Final = ErrorCode
_FACTS: Final[dict[ErrorCode, _Facts]] = {
    _C.OK: _Facts("client", 200, "success"),
    _C.CANCELLED: _Facts("client", 499, "cancelled"),
    _C.CANCELLED_BY_CLIENT: _Facts("client", 499, "cancelled by the client"),
    _C.CANCELLED_BY_DRAIN: _Facts("server", 503, "cancelled because the server stops", retryable=True),
    _C.INVALID_ARGUMENT: _Facts("client", 400, "invalid request"),
    _C.INVALID_SHAPE: _Facts("client", 400, "wrong tensor shape"),
    _C.INVALID_DTYPE: _Facts("client", 400, "wrong tensor datatype"),
    _C.INVALID_SIZE: _Facts("client", 400, "wrong number of bytes"),
    _C.INVALID_META: _Facts("client", 400, "malformed header or meta"),
    _C.TOO_MANY_ROWS: _Facts("client", 400, "more rows than the model takes"),
    _C.INVALID_BYTES: _Facts("client", 400, "malformed BYTES tensor"),
    _C.DEADLINE_EXCEEDED: _Facts("server", 504, "deadline exceeded"),
    _C.DEADLINE_IN_QUEUE: _Facts("server", 504, "deadline passed in the queue, not executed"),
    _C.DEADLINE_AFTER_EXECUTION: _Facts("server", 504, "deadline passed while or after executing"),
    _C.DEADLINE_INFEASIBLE: _Facts("client", 504, "deadline too short to be met, not executed"),
    _C.NOT_FOUND: _Facts("client", 404, "not found"),
    _C.MODEL_NOT_FOUND: _Facts("client", 404, "no such model"),
    _C.VERSION_NOT_FOUND: _Facts("client", 404, "no such version of the model"),
    _C.HANDLE_NOT_BOUND: _Facts("client", 404, "handle is not bound"),
    _C.REGION_NOT_FOUND: _Facts("client", 404, "no such shared-memory region"),
    _C.ALREADY_EXISTS: _Facts("client", 409, "already exists"),
    _C.RID_IN_FLIGHT: _Facts("client", 409, "request id is in flight"),
    _C.PERMISSION_DENIED: _Facts("client", 403, "permission denied"),
    _C.RESOURCE_EXHAUSTED: _Facts("server", 429, "resource exhausted", retryable=True),
    _C.SHED: _Facts("server", 503, "shed, the server is overloaded", retryable=True),
    _C.QUOTA_EXCEEDED: _Facts("client", 429, "quota exceeded", retryable=True),
    _C.CREDIT_EXCEEDED: _Facts("client", 429, "more in flight than the window allows", retryable=True),
    _C.FRAME_TOO_LARGE: _Facts("client", 413, "frame larger than the maximum", closes=True),
    _C.DEVICE_MEMORY: _Facts("server", 503, "device is out of memory", retryable=True),
    _C.TOO_MANY_CONNECTIONS: _Facts("server", 503, "too many connections", retryable=True, closes=True),
    _C.FAILED_PRECONDITION: _Facts("client", 400, "not allowed in this state"),
    _C.UNSUPPORTED_VERSION: _Facts("client", 400, "not a frame of protocol version 1", closes=True),
    _C.UNSUPPORTED_FEATURE: _Facts("client", 400, "required feature is not supported"),
    _C.SIGNATURE_CHANGED: _Facts("server", 409, "the model's signature changed, bind again"),
    _C.ABORTED: _Facts("server", 409, "aborted"),
    _C.SEQUENCE_LOST: _Facts("server", 409, "sequence state was lost"),
    _C.OUT_OF_RANGE: _Facts("client", 400, "out of range"),
    _C.UNIMPLEMENTED: _Facts("client", 501, "not implemented"),
    _C.UNKNOWN_TYPE: _Facts("client", 501, "frame type is not implemented"),
    _C.UNKNOWN_FLAG: _Facts("client", 501, "flag is not implemented"),
    _C.UNKNOWN_TLV: _Facts("client", 501, "TLV is not implemented here"),
    _C.UNKNOWN_CODEC: _Facts("client", 501, "codec is not implemented"),
    _C.INTERNAL: _Facts("server", 500, "internal error"),
    _C.MODEL_RAISED: _Facts("model", 500, "the model raised an exception"),
    _C.POISON_INPUT: _Facts("model", 500, "this input makes the model's process die"),
    _C.CORRUPT_IPC: _Facts("server", 500, "corruption between the server's processes"),
    _C.UNAVAILABLE: _Facts("server", 503, "unavailable", retryable=True),
    _C.WORKER_LOST: _Facts("server", 503, "the worker process died", retryable=True),
    _C.DRAINING: _Facts("server", 503, "the server is draining, not executed", retryable=True),
    _C.LOADING: _Facts("server", 503, "the model is loading, not executed", retryable=True),
    _C.NOT_EXECUTED: _Facts("server", 503, "not executed", retryable=True),
    _C.DATA_LOSS: _Facts("network", 500, "data loss"),
    _C.CRC_MISMATCH: _Facts("network", 500, "CRC-32 of the body does not match", retryable=True),
    _C.UNAUTHENTICATED: _Facts("client", 401, "not authenticated", closes=True),
}

# An alias (two names for one number) would silently merge two errors, and a missing row would fail only in production.
if set(_FACTS) != set(ErrorCode) or len(ErrorCode.__members__) != len(ErrorCode):
    raise AssertionError("the code registry has duplicates or gaps: this is a bug")


def code_of(status: int) -> ErrorCode | None:
    """Return the registered code of a `status`; else the general form of its family; None if that is unknown too."""
    return _BY_NUMBER.get(status) or _BY_NUMBER.get(status & 0xFF)


_BY_NUMBER: Final = {int(code): code for code in ErrorCode}
