"""Numbers of the wire: frame types, flags, TLV tags, features and reasons of a cut.

Everything here is append-only: a number once released never changes its meaning (SPEC section 11).
"""

from enum import IntEnum, IntFlag
from typing import Final

VERSION: Final = 1
"""The protocol version in byte 2 of every frame."""

IGNORABLE_TYPE: Final = 0x80
"""Frame types with this bit are skipped by a receiver that does not know them."""

IGNORABLE_TAG: Final = 0x8000
"""TLV tags with this bit are skipped by a receiver that does not know them."""

IGNORABLE_FLAGS: Final = 0xC000
"""Reserved flag bits a receiver skips; every other undefined bit must be understood."""

CLASS_MASK: Final = 3
"""Flag bits that hold the request's class."""

MAX_RID: Final = 0xFFFF_FFFF_FFFF_FFFF
"""Highest request id."""

MAX_TIMEOUT_US: Final = 0xFFFF_FFFE
"""Longest deadline that the header can carry, in µs; longer ones saturate here."""

RETRY_NEVER: Final = 0xFFFF_FFFF
"""`retry_after` of an ERROR that must not be retried."""

NAME_FOLLOWS: Final = 0xFFFF
"""Tensor index that says: the tensor is named, not numbered (TLV TENSOR); no tensor (TLV SHMREF)."""


class FrameType(IntEnum):
    """Byte 3 of the header."""

    HELLO = 0x01
    WELCOME = 0x02
    BIND = 0x03
    BOUND = 0x04
    UNBIND = 0x05
    INFER = 0x10
    INFER_PART = 0x11
    INFER_MANY = 0x12
    RESULT = 0x20
    PARTIAL = 0x21
    ERROR = 0x22
    RESULT_MANY = 0x23
    CANCEL = 0x30
    CREDIT = 0x31
    PING = 0x32
    PONG = 0x33
    GOAWAY = 0x34
    SHM_REG = 0x35
    SHM_UNREG = 0x36
    ADMIN = 0x37


class Flag(IntFlag):
    """The 16 flag bits of the header, after the two class bits."""

    END = 1 << 3
    CRC = 1 << 4
    COMPRESSED = 1 << 5
    SHM = 1 << 6
    SEQ = 1 << 7
    NOREPLY = 1 << 8
    RETRY = 1 << 9
    """On a request: an attempt of it was made before. On a reply the same bit is RETRYABLE."""
    RETRYABLE = 1 << 9
    SAMPLED = 1 << 10


class RequestClass(IntEnum):
    """Importance of a request (flag bits 0 and 1); CRITICAL is the default."""

    CRITICAL = 0
    CRITICAL_PLUS = 1
    SHEDDABLE_PLUS = 2
    SHEDDABLE = 3


class Tag(IntEnum):
    """TLV tags of the meta block."""

    MODEL = 1
    VERSION = 2
    TENSOR = 3
    OUTPUTS = 4
    TRACEPARENT = 5
    TENANT = 6
    SHMREF = 7
    PARAMS = 8
    SEQ_ID = 9
    COMPRESS = 10
    AUTH = 11
    ERRMSG = 12
    FEATURES = 13
    LIMITS = 14
    SIGNATURE = 15
    TIMING = 16
    CLIENT = 17
    SERVER = 18


class Feature(IntFlag):
    """Optional parts of version 1, agreed in HELLO and WELCOME."""

    PARTS = 1 << 0
    """INFER without END, continued by INFER_PART."""
    STREAM = 1 << 1
    """PARTIAL replies."""
    SHM = 1 << 2
    """SHM_REG, SHM_UNREG, flag SHM, TLV SHMREF."""
    SEQ = 1 << 3
    """Flag SEQ, TLV SEQ_ID."""
    COMPRESS = 1 << 4
    """Flag COMPRESSED, TLV COMPRESS."""
    AUTH = 1 << 5
    """TLV AUTH in HELLO."""


class CutReason(IntEnum):
    """Why a batch was cut (TLV TIMING). An open list: receivers keep numbers they do not know."""

    NONE = 0
    FULL = 1
    NO_GAIN = 2
    SLACK = 3
    WINDOW = 4
    DRAIN = 5


class Codec(IntEnum):
    """Compression of a body (TLV COMPRESS)."""

    ZLIB = 1
    LZ4_FRAME = 2
    ZSTD = 3
