"""Limits that the parser enforces."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a receiver takes; the defaults are those of protocol version 1. Lengths in bytes."""

    max_frame_nbytes: int = 64 << 20
    """Largest body. A larger one is fatal (8.4): the stream is not read any further."""

    max_meta_nbytes: int = 64 << 10
    """Largest meta block of one frame; a larger one is 3.4."""

    max_control_nbytes: int = 64 << 10
    """Largest body of a control frame, which is always buffered whole; a larger one is skipped with 3.3."""

    max_admin_reply_nbytes: int = 1 << 20
    """Largest body of an ADMIN frame that a client receives."""

    max_tlvs: int = 128
    """TLVs in one meta block; bounds the work that one frame can cause."""

    max_ndim: int = 8
    """Dimensions of a tensor, the batch dimension included."""

    max_tensors: int = 32
    """TENSOR TLVs of one request; inputs or outputs of a signature."""

    max_bytes_elements: int = 65_536
    """Elements of one BYTES tensor."""

    def __post_init__(self) -> None:
        """Refuse values that the header could not carry or the parser could not work with."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low}..{high}, not {value}")


_RANGES: Final = (
    ("max_frame_nbytes", 4096, 0xFFFF_FFF8),
    ("max_meta_nbytes", 512, 0xFFFF * 8),
    ("max_control_nbytes", 512, 16 << 20),
    ("max_admin_reply_nbytes", 512, 64 << 20),
    ("max_tlvs", 1, 65_536),
    ("max_ndim", 1, 255),
    ("max_tensors", 1, 0xFFFE),
    ("max_bytes_elements", 1, 0xFFFF_FFFF),
)

DEFAULT_LIMITS: Final = Limits()
