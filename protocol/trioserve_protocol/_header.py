"""The fixed 32-byte header.

| off | type | name   | meaning                                             |
|-----|------|--------|-----------------------------------------------------|
| 0   | u32  | w0     | bytes 'T' 'S' version type                          |
| 4   | u32  | body   | bytes after the header, a multiple of 8             |
| 8   | u64  | rid    | request id                                          |
| 16  | u16  | handle | model handle; status in replies                     |
| 18  | u16  | flags  |                                                     |
| 20  | u32  | tmo    | deadline in µs; server µs or retry_after in replies |
| 24  | u16  | meta8  | meta length / 8                                     |
| 26  | u16  | rows   |                                                     |
| 28  | u32  | aux    | CRC-32; queue µs in replies                         |
"""

from struct import Struct
from typing import Final

import numpy as np

from ._registry import VERSION, FrameType

HEADER: Final = Struct("<IIQHHIHHI")
HEADER_NBYTES: Final = HEADER.size
HEADER_DTYPE: Final = np.dtype(
    [
        ("w0", "<u4"),
        ("body", "<u4"),
        ("rid", "<u8"),
        ("handle", "<u2"),
        ("flags", "<u2"),
        ("tmo", "<u4"),
        ("meta8", "<u2"),
        ("rows", "<u2"),
        ("aux", "<u4"),
    ]
)
MAGIC: Final = b"TS" + bytes([VERSION])
MAGIC_WORD: Final = int.from_bytes(MAGIC + b"\0", "little")
"""First word of a version-1 frame without its type: `w0 & 0xFFFFFF`."""


def w0_of(frame_type: int) -> int:
    """Return the first header word of a frame type (0..255)."""
    return MAGIC_WORD | frame_type << 24


W0_HELLO: Final = w0_of(FrameType.HELLO)
W0_WELCOME: Final = w0_of(FrameType.WELCOME)
W0_BIND: Final = w0_of(FrameType.BIND)
W0_BOUND: Final = w0_of(FrameType.BOUND)
W0_UNBIND: Final = w0_of(FrameType.UNBIND)
W0_INFER: Final = w0_of(FrameType.INFER)
W0_INFER_PART: Final = w0_of(FrameType.INFER_PART)
W0_INFER_MANY: Final = w0_of(FrameType.INFER_MANY)
W0_RESULT: Final = w0_of(FrameType.RESULT)
W0_PARTIAL: Final = w0_of(FrameType.PARTIAL)
W0_ERROR: Final = w0_of(FrameType.ERROR)
W0_RESULT_MANY: Final = w0_of(FrameType.RESULT_MANY)
W0_CANCEL: Final = w0_of(FrameType.CANCEL)
W0_CREDIT: Final = w0_of(FrameType.CREDIT)
W0_PING: Final = w0_of(FrameType.PING)
W0_PONG: Final = w0_of(FrameType.PONG)
W0_GOAWAY: Final = w0_of(FrameType.GOAWAY)
W0_SHM_REG: Final = w0_of(FrameType.SHM_REG)
W0_SHM_UNREG: Final = w0_of(FrameType.SHM_UNREG)
W0_ADMIN: Final = w0_of(FrameType.ADMIN)


def pad8(nbytes: int) -> int:
    """Return `nbytes` rounded up to a multiple of 8."""
    return (nbytes + 7) & ~7
