"""What to tell a peer that does not speak this protocol."""

from typing import Final

from ._codes import ErrorCode
from ._encode import error_frame
from ._events import FatalError
from ._header import MAGIC

_HTTP_STARTS: Final = frozenset(
    {b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI "}
)
_TLS_START: Final = b"\x16\x03"
# A TLS alert record: fatal, protocol_version. TLS clients show it as "tlsv1 alert protocol version".
_TLS_ALERT: Final = bytes.fromhex("15030100020246")
_HTTP_TEXT: Final = "This port speaks the trioserve binary protocol, not HTTP.\n"
_HTTP_REPLY: Final = (
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    f"Content-Length: {len(_HTTP_TEXT)}\r\n\r\n{_HTTP_TEXT}"
).encode("ascii")


def bad_start(word: bytes) -> FatalError:
    """Return the fatal error for a frame whose first four bytes are `word`."""
    code = ErrorCode.UNSUPPORTED_VERSION
    if word in _HTTP_STARTS:
        return FatalError(code, "HTTP request on a trioserve port", _HTTP_REPLY)
    if word.startswith(_TLS_START):
        return FatalError(code, "TLS handshake on a trioserve port without TLS", _TLS_ALERT)
    if word.startswith(MAGIC[:2]):
        return fatal(code, f"protocol version {word[2]}, this side speaks version {MAGIC[2]}")
    return fatal(code, f"a frame starts with 'TS' and the version, not with {word.hex(' ')}")


def fatal(code: ErrorCode, message: str) -> FatalError:
    """Return a fatal error that is answered with one ERROR frame of id 0."""
    return FatalError(code, message, error_frame(0, code, message))
