"""Values of the TLVs that are structures, with their binary forms."""

from struct import Struct
from typing import Final, NamedTuple

from ._codes import ErrorCode
from ._dtypes import DType, dtype_of
from ._errors import RemoteProtocolError
from ._limits import DEFAULT_LIMITS, Limits
from ._registry import NAME_FOLLOWS
from ._signature import NAME_PATTERN

_TENSOR: Final = Struct("<BBHIQ")
_DIMS: Final = tuple(Struct(f"<{ndim}I") for ndim in range(256))
_FEATURES: Final = Struct("<QQ")
_WINDOW: Final = Struct("<8I")
_SHMREF: Final = Struct("<IHHQQ")
_SEQ_ID: Final = Struct("<QII")
_COMPRESS: Final = Struct("<HHIQ")
_SERVER: Final = Struct("<QQ")
_TIMING: Final = Struct("<12QIIHHI")

FAST_BYTES: Final = 1
"""TENSOR flag bit 0: a BYTES tensor in the fast form (offsets, then blob)."""

SHMREF_OUTPUT: Final = 1
"""SHMREF flag bit 0: `tensor` numbers an output, which the server writes."""

SEQ_START: Final = 1
SEQ_END: Final = 2


def bad_meta(message: str) -> RemoteProtocolError:
    """Return the error for a malformed value: 3.4."""
    return RemoteProtocolError(ErrorCode.INVALID_META, message)


class TensorDecl(NamedTuple):
    """TLV TENSOR: what one tensor of the payload is. `dims` include the batch dimension."""

    dtype: DType
    dims: tuple[int, ...]
    nbytes: int
    """Bytes in the payload, padding excluded."""
    index: int = NAME_FOLLOWS  # type: ignore[assignment]  # hides tuple.index
    """Position in the signature; NAME_FOLLOWS if `name` is given instead."""
    name: str = ""
    fast: bool = False
    """BYTES in the fast form."""

    def encode(self) -> bytes:
        """Return the TLV's value."""
        head = _TENSOR.pack(self.dtype, len(self.dims), self.index, int(self.fast), self.nbytes)
        return head + _DIMS[len(self.dims)].pack(*self.dims) + self.name.encode("ascii")

    @classmethod
    def decode(cls, value: bytes, limits: Limits = DEFAULT_LIMITS) -> "TensorDecl":
        """Return the declaration of a TLV value; raises RemoteProtocolError (3.1 ndim, 3.2 dtype, 3.4 else)."""
        if len(value) < _TENSOR.size:
            raise bad_meta("TLV TENSOR is shorter than 16 bytes")
        number, ndim, index, flags, nbytes = _TENSOR.unpack_from(value)
        dtype = dtype_of(number)
        if dtype is None:
            raise RemoteProtocolError(ErrorCode.INVALID_DTYPE, f"TLV TENSOR: no dtype {number}")
        if not 1 <= ndim <= limits.max_ndim:
            raise RemoteProtocolError(
                ErrorCode.INVALID_SHAPE, f"TLV TENSOR: ndim {ndim} is not 1 to {limits.max_ndim}"
            )
        end = _TENSOR.size + 4 * ndim
        if len(value) < end:
            raise bad_meta(f"TLV TENSOR is too short for {ndim} dims")
        if flags & ~FAST_BYTES or (flags and dtype != DType.BYTES):
            raise bad_meta(f"TLV TENSOR: flags {flags:#x} are not defined for {dtype.label}")
        name = _decode_name(value[end:], index)
        return cls(dtype, _DIMS[ndim].unpack_from(value, _TENSOR.size), nbytes, index, name, fast=bool(flags))


def _decode_name(tail: bytes, index: int) -> str:
    if index != NAME_FOLLOWS:
        if tail:
            raise bad_meta("TLV TENSOR has an index and bytes after its dims")
        return ""
    return decode_name(tail, "TLV TENSOR")


def decode_name(value: bytes, what: str) -> str:
    """Return a name of the protocol's grammar; `what` says in an error where it stood."""
    name = value.decode("latin-1")
    if not NAME_PATTERN.fullmatch(name):
        raise bad_meta(f"{what}: not a name of 1 to 64 characters A-Z a-z 0-9 _ . -")
    return name


class Features(NamedTuple):
    """TLV FEATURES: bit sets of `Feature`. In WELCOME `must` are those agreed and `may` all the server has."""

    must: int = 0
    may: int = 0

    def encode(self) -> bytes:
        """Return the TLV's value."""
        return _FEATURES.pack(*self)

    @classmethod
    def decode(cls, value: bytes) -> "Features":
        """Return the features of a TLV value."""
        if len(value) != _FEATURES.size:
            raise bad_meta("TLV FEATURES is not 16 bytes")
        return cls(*_FEATURES.unpack(value))


class PeerLimits(NamedTuple):
    """TLV LIMITS: what the sender takes; 0 = not stated."""

    max_frame_nbytes: int = 0
    max_meta_nbytes: int = 0
    window_requests: int = 0
    window_kib: int = 0
    max_tensors: int = 0
    max_binds: int = 0
    max_bytes_elements: int = 0
    control_per_s: int = 0

    def encode(self) -> bytes:
        """Return the TLV's value."""
        return _WINDOW.pack(*self)

    @classmethod
    def decode(cls, value: bytes) -> "PeerLimits":
        """Return the limits of a TLV value; bytes after the known fields are ignored."""
        if len(value) < _WINDOW.size:
            raise bad_meta("TLV LIMITS is shorter than 32 bytes")
        return cls(*_WINDOW.unpack_from(value))


class ShmRef(NamedTuple):
    """TLV SHMREF: where in a registered region a tensor lies. Lengths in bytes."""

    region: int
    tensor: int
    flags: int
    offset: int
    nbytes: int

    def encode(self) -> bytes:
        """Return the TLV's value."""
        return _SHMREF.pack(*self)

    @classmethod
    def decode(cls, value: bytes) -> "ShmRef":
        """Return the reference of a TLV value."""
        if len(value) != _SHMREF.size:
            raise bad_meta("TLV SHMREF is not 24 bytes")
        ref = cls(*_SHMREF.unpack(value))
        if ref.flags & ~SHMREF_OUTPUT or ref.offset + ref.nbytes > 0xFFFF_FFFF_FFFF_FFFF:
            raise bad_meta("TLV SHMREF: undefined flags or a range past 2^64")
        return ref


class SeqId(NamedTuple):
    """TLV SEQ_ID: the sequence a request belongs to; `flags` of SEQ_START and SEQ_END."""

    sequence: int
    flags: int = 0

    def encode(self) -> bytes:
        """Return the TLV's value."""
        return _SEQ_ID.pack(self.sequence, self.flags, 0)

    @classmethod
    def decode(cls, value: bytes) -> "SeqId":
        """Return the sequence of a TLV value."""
        if len(value) != _SEQ_ID.size:
            raise bad_meta("TLV SEQ_ID is not 16 bytes")
        sequence, flags, _ = _SEQ_ID.unpack(value)
        if flags & ~(SEQ_START | SEQ_END):
            raise bad_meta("TLV SEQ_ID: undefined flags")
        return cls(sequence, flags)


class Compress(NamedTuple):
    """TLV COMPRESS: codec number and the payload's size in bytes before compression."""

    codec: int
    raw_nbytes: int

    def encode(self) -> bytes:
        """Return the TLV's value."""
        return _COMPRESS.pack(self.codec, 0, 0, self.raw_nbytes)

    @classmethod
    def decode(cls, value: bytes) -> "Compress":
        """Return the compression of a TLV value."""
        if len(value) != _COMPRESS.size:
            raise bad_meta("TLV COMPRESS is not 16 bytes")
        codec, _, _, raw_nbytes = _COMPRESS.unpack(value)
        return cls(codec, raw_nbytes)


class ServerId(NamedTuple):
    """TLV SERVER: a random number of the server process, its epoch (rises with each restart), its name."""

    server_id: int
    epoch: int
    name: str = ""

    def encode(self) -> bytes:
        """Return the TLV's value."""
        return _SERVER.pack(self.server_id, self.epoch) + self.name.encode()

    @classmethod
    def decode(cls, value: bytes) -> "ServerId":
        """Return the server of a TLV value."""
        if len(value) < _SERVER.size:
            raise bad_meta("TLV SERVER is shorter than 16 bytes")
        server_id, epoch = _SERVER.unpack_from(value)
        return cls(server_id, epoch, value[_SERVER.size :].decode("utf-8", "replace"))


class Timing(NamedTuple):
    """TLV TIMING: when each phase of a request ended, ns on the server's monotonic clock, 0 = did not happen."""

    received_ns: int = 0
    parsed_ns: int = 0
    tokenized_ns: int = 0
    ready_ns: int = 0
    batched_ns: int = 0
    input_copied_ns: int = 0
    run_ns: int = 0
    output_copied_ns: int = 0
    sent_ns: int = 0
    predicted_finish_ns: int = 0
    """When the batcher expected the batch to finish, as it was cut."""
    finished_ns: int = 0
    """When the batch's completion reached the server process."""
    batch_id: int = 0
    batch_rows: int = 0
    padding: int = 0
    """Padding of the batch, in rows (fixed shapes) or tokens (text)."""
    cut_reason: int = 0
    """A `CutReason`, or a number that this version does not know."""

    def encode(self) -> bytes:
        """Return the TLV's value."""
        return _TIMING.pack(*self, 0, 0)

    @classmethod
    def decode(cls, value: bytes) -> "Timing":
        """Return the timing of a TLV value; bytes after the known fields are ignored."""
        if len(value) < _TIMING.size:
            raise bad_meta(f"TLV TIMING is shorter than {_TIMING.size} bytes")
        return cls(*_TIMING.unpack_from(value)[:15])
