"""The exception tree: one class per status code of the wire.

The server raises these, sends their code, and the client raises the same classes. A class derives from the general
class of its family (the low byte of its code), so `except errors.ResourceExhausted` catches `Shed` and its siblings.
"""

from __future__ import annotations

from typing import Final

from trioserve_protocol import ErrorCode, code_of


class TrioserveError(Exception):
    """Base of all errors of trioserve.

    Attributes:
        code: The status code; unknown codes of a newer peer are mapped to their family.
        message: Text that is safe to send to the peer.
        retry_after_s: Earliest retry, in seconds from now; None = not stated or never.
    """

    code: ErrorCode = ErrorCode.INTERNAL
    _retryable: bool | None = None

    def __init__(
        self,
        message: str = "",
        *,
        code: ErrorCode | None = None,
        retry_after_s: float | None = None,
        retryable: bool | None = None,
    ) -> None:
        if code is not None:
            self.code = code
        self.message = message or self.code.title
        self.retry_after_s = retry_after_s
        self._retryable = retryable
        super().__init__(self.message)

    @property
    def retryable(self) -> bool:
        """Whether the same request may be sent again: what the server said, else what the registry says."""
        return self.code.retryable if self._retryable is None else self._retryable

    def __str__(self) -> str:
        return f"{self.message} [{self.code.name.lower()}]"


class Cancelled(TrioserveError):
    """Cancelled (1.0)."""

    code = ErrorCode.CANCELLED


class CancelledByClient(Cancelled):
    """Cancelled by the client (1.1)."""

    code = ErrorCode.CANCELLED_BY_CLIENT


class CancelledByDrain(Cancelled):
    """Cancelled because the server stops (1.2)."""

    code = ErrorCode.CANCELLED_BY_DRAIN


class InvalidArgument(TrioserveError):
    """Invalid request (3.0)."""

    code = ErrorCode.INVALID_ARGUMENT


class InvalidShape(InvalidArgument):
    """Wrong tensor shape (3.1)."""

    code = ErrorCode.INVALID_SHAPE


class InvalidDtype(InvalidArgument):
    """Wrong tensor datatype (3.2)."""

    code = ErrorCode.INVALID_DTYPE


class InvalidSize(InvalidArgument):
    """Wrong number of bytes (3.3)."""

    code = ErrorCode.INVALID_SIZE


class InvalidMeta(InvalidArgument):
    """Malformed header or meta (3.4)."""

    code = ErrorCode.INVALID_META


class TooManyRows(InvalidArgument):
    """More rows than the model takes (3.5)."""

    code = ErrorCode.TOO_MANY_ROWS


class InvalidBytes(InvalidArgument):
    """Malformed BYTES tensor (3.6)."""

    code = ErrorCode.INVALID_BYTES


class DeadlineExceeded(TrioserveError):
    """Deadline exceeded (4.0)."""

    code = ErrorCode.DEADLINE_EXCEEDED


class DeadlineInQueue(DeadlineExceeded):
    """Deadline passed in the queue, not executed (4.1)."""

    code = ErrorCode.DEADLINE_IN_QUEUE


class DeadlineAfterExecution(DeadlineExceeded):
    """Deadline passed while or after executing (4.2)."""

    code = ErrorCode.DEADLINE_AFTER_EXECUTION


class DeadlineInfeasible(DeadlineExceeded):
    """Deadline too short to be met, not executed (4.3)."""

    code = ErrorCode.DEADLINE_INFEASIBLE


class NotFound(TrioserveError):
    """Not found (5.0)."""

    code = ErrorCode.NOT_FOUND


class ModelNotFound(NotFound):
    """No such model (5.1)."""

    code = ErrorCode.MODEL_NOT_FOUND


class VersionNotFound(NotFound):
    """No such version of the model (5.2)."""

    code = ErrorCode.VERSION_NOT_FOUND


class HandleNotBound(NotFound):
    """Handle is not bound (5.3)."""

    code = ErrorCode.HANDLE_NOT_BOUND


class RegionNotFound(NotFound):
    """No such shared-memory region (5.4)."""

    code = ErrorCode.REGION_NOT_FOUND


class AlreadyExists(TrioserveError):
    """Already exists (6.0)."""

    code = ErrorCode.ALREADY_EXISTS


class RidInFlight(AlreadyExists):
    """Request id is in flight (6.1)."""

    code = ErrorCode.RID_IN_FLIGHT


class PermissionDenied(TrioserveError):
    """Permission denied (7.0)."""

    code = ErrorCode.PERMISSION_DENIED


class ResourceExhausted(TrioserveError):
    """Resource exhausted (8.0)."""

    code = ErrorCode.RESOURCE_EXHAUSTED


class Shed(ResourceExhausted):
    """Shed, the server is overloaded (8.1)."""

    code = ErrorCode.SHED


class QuotaExceeded(ResourceExhausted):
    """Quota exceeded (8.2)."""

    code = ErrorCode.QUOTA_EXCEEDED


class CreditExceeded(ResourceExhausted):
    """More in flight than the window allows (8.3)."""

    code = ErrorCode.CREDIT_EXCEEDED


class FrameTooLarge(ResourceExhausted):
    """Frame larger than the maximum (8.4)."""

    code = ErrorCode.FRAME_TOO_LARGE


class DeviceMemory(ResourceExhausted):
    """Device is out of memory (8.5)."""

    code = ErrorCode.DEVICE_MEMORY


class TooManyConnections(ResourceExhausted):
    """Too many connections (8.6)."""

    code = ErrorCode.TOO_MANY_CONNECTIONS


class FailedPrecondition(TrioserveError):
    """Not allowed in this state (9.0)."""

    code = ErrorCode.FAILED_PRECONDITION


class UnsupportedVersion(FailedPrecondition):
    """Not a frame of protocol version 1 (9.1)."""

    code = ErrorCode.UNSUPPORTED_VERSION


class UnsupportedFeature(FailedPrecondition):
    """Required feature is not supported (9.2)."""

    code = ErrorCode.UNSUPPORTED_FEATURE


class SignatureChanged(FailedPrecondition):
    """The model's signature changed, bind again (9.3)."""

    code = ErrorCode.SIGNATURE_CHANGED


class Aborted(TrioserveError):
    """Aborted (10.0)."""

    code = ErrorCode.ABORTED


class SequenceLost(Aborted):
    """Sequence state was lost (10.1)."""

    code = ErrorCode.SEQUENCE_LOST


class OutOfRange(TrioserveError):
    """Out of range (11.0)."""

    code = ErrorCode.OUT_OF_RANGE


class Unimplemented(TrioserveError):
    """Not implemented (12.0)."""

    code = ErrorCode.UNIMPLEMENTED


class UnknownType(Unimplemented):
    """Frame type is not implemented (12.1)."""

    code = ErrorCode.UNKNOWN_TYPE


class UnknownFlag(Unimplemented):
    """Flag is not implemented (12.2)."""

    code = ErrorCode.UNKNOWN_FLAG


class UnknownTlv(Unimplemented):
    """TLV is not implemented here (12.3)."""

    code = ErrorCode.UNKNOWN_TLV


class UnknownCodec(Unimplemented):
    """Codec is not implemented (12.4)."""

    code = ErrorCode.UNKNOWN_CODEC


class InternalError(TrioserveError):
    """Internal error (13.0)."""

    code = ErrorCode.INTERNAL


class ModelRaised(InternalError):
    """The model raised an exception (13.1)."""

    code = ErrorCode.MODEL_RAISED


class PoisonInput(InternalError):
    """This input makes the model's process die (13.2)."""

    code = ErrorCode.POISON_INPUT


class CorruptIpc(InternalError):
    """Corruption between the server's processes (13.3)."""

    code = ErrorCode.CORRUPT_IPC


class Unavailable(TrioserveError):
    """Unavailable (14.0)."""

    code = ErrorCode.UNAVAILABLE


class WorkerLost(Unavailable):
    """The worker process died (14.1)."""

    code = ErrorCode.WORKER_LOST


class Draining(Unavailable):
    """The server is draining, not executed (14.2)."""

    code = ErrorCode.DRAINING


class Loading(Unavailable):
    """The model is loading, not executed (14.3)."""

    code = ErrorCode.LOADING


class NotExecuted(Unavailable):
    """Not executed (14.4)."""

    code = ErrorCode.NOT_EXECUTED


class DataLoss(TrioserveError):
    """Data loss (15.0)."""

    code = ErrorCode.DATA_LOSS


class CrcMismatch(DataLoss):
    """CRC-32 of the body does not match (15.1)."""

    code = ErrorCode.CRC_MISMATCH


class Unauthenticated(TrioserveError):
    """Not authenticated (16.0)."""

    code = ErrorCode.UNAUTHENTICATED


def _classes(root: type[TrioserveError]) -> list[type[TrioserveError]]:
    return [found for child in root.__subclasses__() for found in (child, *_classes(child))]


_CLASS_OF: Final[dict[ErrorCode, type[TrioserveError]]] = {cls.code: cls for cls in _classes(TrioserveError)}

if set(_CLASS_OF) != set(ErrorCode) - {ErrorCode.OK} or len(_CLASS_OF) != len(_classes(TrioserveError)):
    raise AssertionError("not exactly one class per error code: this is a bug")


def error_for(
    code: int, message: str = "", retry_after_s: float | None = None, *, retryable: bool | None = None
) -> TrioserveError:
    """Return the exception for a status of the wire.

    Args:
        code: An `ErrorCode`, or a status that this version does not know: then the class of its family.
        message: Text of the error; empty = the code's title.
        retry_after_s: Earliest retry, seconds from now; None = not stated or never.
        retryable: What the peer said; None = what the registry says.
    """
    known = code_of(code)
    cls = _CLASS_OF.get(known) if known is not None else None
    if cls is None:
        return TrioserveError(
            message or f"status {code:#06x}", retry_after_s=retry_after_s, retryable=retryable
        )
    return cls(message, retry_after_s=retry_after_s, retryable=retryable)
