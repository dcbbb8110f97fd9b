"""Connections that are not let in yet: they have said nothing that entitles them to be served.

They are kept apart from the others: few bytes, little time, a number of their own, and a step of their own, so that
those that are let in pay nothing for it.
"""

from __future__ import annotations

import ssl
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from trioserve_protocol import ErrorCode, FatalError, Hello, Ping, error_frame

from ._entrance import Access, Entrance, access_of
from ._tls_peer import TlsPeer

if TYPE_CHECKING:
    from trioserve.config import ServerConfig

    from ._control import Control
    from ._peer import Peer
    from ._reader import Reader
    from ._watch import Keeper, Watch

log = structlog.get_logger(__name__)

GREETING_NBYTES: Final = 8_192
"""Most bytes that are taken from a connection before it has authenticated: a HELLO with the longest token."""

PEEK_NBYTES: Final = 32
TLS_HANDSHAKE: Final = 0x16
"""First byte of a client that speaks TLS."""

HANDSHAKE_UNITS: Final = 64
"""What a step of a handshake takes of a turn's budget: a signature costs up to 0.7 ms, as much as many frames."""


class _Stranger:
    """A connection that is not let in yet."""

    __slots__ = ("entrance", "nbytes", "verdict")

    def __init__(self, entrance: Entrance) -> None:
        self.entrance: Final = entrance
        self.nbytes = 0
        """Taken off it so far."""
        self.verdict = ""
        """Why it will not be let in; empty while that is open."""


class Doorkeeper:
    """Lets connections in.

    Args:
        group: closes them.
        reader: serves those that are let in.
        control: answers HELLO and PING.
        watch: keeps the time.
        config: limits and manners.
    """

    def __init__(
        self, group: Keeper, reader: Reader, control: Control, watch: Watch, config: ServerConfig
    ) -> None:
        self._group: Final = group
        self._reader: Final = reader
        self._control: Final = control
        self._watch: Final = watch
        self._limit_s: Final = config.limits.unauthenticated_s
        self._pause_ns: Final = int(config.auth.failure_pause_s * 1e9)
        self._strangers: Final[dict[int, _Stranger]] = {}
        self._buffer: Final = memoryview(bytearray(GREETING_NBYTES))
        self._let_in: Final[Counter[str]] = Counter()
        self._refused = 0
        self._handshakes: Final[Counter[str]] = Counter()

    @property
    def waiting(self) -> int:
        """Connections that are not let in yet."""
        return len(self._strangers)

    def statistics(self) -> dict[str, Any]:
        """What is counted, as JSON values; names of tokens, never what they are."""
        return {
            "unauthenticated": len(self._strangers),
            "refused": self._refused,
            "let_in": dict(self._let_in),
            "handshakes": dict(self._handshakes),
        }

    def meet(self, peer: Peer, entrance: Entrance, now_ns: int) -> None:
        """A connection is new, and the reader's from when it is let in: at once, if nothing is demanded."""
        if entrance.is_open:
            self._admit(peer, entrance.access)
            return
        self._strangers[peer.fd] = _Stranger(entrance)
        peer.step = self._greet
        if isinstance(peer, TlsPeer):
            peer.step = self._shake_hands
            peer.tls.on_more = partial(self._reader.resume, peer)
        self._watch.expect(peer, now_ns + int(self._limit_s * 1e9))

    def forget(self, peer: Peer) -> None:
        """The connection is closed."""
        self._strangers.pop(peer.fd, None)

    def overdue(self, peer: Peer, now_ns: int) -> None:
        """A connection's time is over, be it to authenticate or to be told that it could not."""
        verdict = self._strangers[peer.fd].verdict
        if peer.step == self._shake_hands:
            self._end_handshake(peer, "timeout")
            return
        if not verdict:
            self._refused += 1
            verdict = f"expected a token within {self._limit_s:g} s"
        reply = error_frame(0, ErrorCode.UNAUTHENTICATED, verdict)
        self._group.dismiss(peer, reply, "unauthenticated", now_ns)

    def _welcome(self, peer: Peer, access: Access) -> None:
        del self._strangers[peer.fd]
        self._watch.expect(peer, 0)
        self._admit(peer, access)

    def _admit(self, peer: Peer, access: Access) -> None:
        peer.access = access
        peer.session.may_infer = access.may_infer
        self._reader.open(peer)

    # ---------------------------------------------------------------- a stranger's `step`, if it is readable

    def _shake_hands(self, peer: Peer, now_ns: int) -> int:
        """Goes on with a TLS handshake; nothing is parsed before it is complete."""
        if not isinstance(peer, TlsPeer):
            raise AssertionError("a handshake without TLS: this is a bug")  # noqa: TRY004  no caller's fault
        stranger = self._strangers[peer.fd]
        if not stranger.nbytes:
            first = peer.tls.peek(PEEK_NBYTES)
            stranger.nbytes = len(first)
            if first and first[0] != TLS_HANDSHAKE:
                self._decline(peer, first, now_ns)
                return 1
        try:
            peer.tls.handshake()
        except BlockingIOError:
            peer.note_unsent()
            return HANDSHAKE_UNITS
        except ssl.SSLError as error:
            self._end_handshake(peer, error.reason or "broken off")
            return HANDSHAKE_UNITS
        self._handshakes[peer.tls.version] += 1
        stranger.nbytes = 0
        peer.note_unsent()
        peer.step = self._greet
        if stranger.entrance.tokens is None:
            self._welcome(peer, stranger.entrance.access)
        self._reader.resume(peer)
        return HANDSHAKE_UNITS

    def _end_handshake(self, peer: Peer, reason: str) -> None:
        self._handshakes[reason.lower()] += 1
        log.debug("handshake_failed", client=peer.name, reason=reason)
        self._group.doom(peer, "handshake failed")

    def _decline(self, peer: TlsPeer, first: bytes, now_ns: int) -> None:
        """Tells a client that does not speak TLS so in words that it can read, whatever it speaks."""
        self._handshakes["not tls"] += 1
        peer.become_plain()
        events, _ = peer.machine.receive(memoryview(first))
        event = events[0] if events else None
        text = "this address speaks TLS: connect to tls://HOST:PORT"
        reply = (
            event.reply if type(event) is FatalError else error_frame(0, ErrorCode.FAILED_PRECONDITION, text)
        )
        self._group.dismiss(peer, reply, "handshake failed", now_ns)

    def _greet(self, peer: Peer, now_ns: int) -> int:
        """Takes the first frames of a connection, up to the one with its token."""
        stranger, kept = self._strangers[peer.fd], len(peer.tail)
        self._buffer[:kept] = peer.tail
        room = GREETING_NBYTES - stranger.nbytes
        received = peer.recv_into(self._buffer[kept : kept + room])
        if not received:
            peer.finished = True
            self._group.part(peer)
            return 1
        stranger.nbytes += received
        data = self._buffer[: kept + received]
        while len(data) and not stranger.verdict:
            events, consumed = peer.machine.receive(data, max_frames=1)
            data = data[consumed:]
            event = events[0] if events else None
            if type(event) is Hello:
                if self._judge(peer, stranger, event, now_ns):
                    return 1 + (self._reader.parse(peer, data, now_ns) if len(data) else 0)
            elif type(event) is Ping:
                self._control.handle(peer, event)
            elif event is not None:
                self._refuse(peer, stranger, "expected a HELLO with a token first", now_ns)
            elif not consumed:
                break
        if stranger.nbytes == GREETING_NBYTES:
            self._refuse(peer, stranger, f"expected a token within {GREETING_NBYTES:,} bytes", now_ns)
        if not stranger.verdict:
            peer.tail = bytes(data)
        return 1

    def _judge(self, peer: Peer, stranger: _Stranger, hello: Hello, now_ns: int) -> bool:
        """Lets a connection in whose token is right."""
        entrance = stranger.entrance
        if entrance.tokens is None:
            raise AssertionError("a token that nobody asked for: this is a bug")
        if hello.auth is None:
            self._refuse(peer, stranger, "expected a token in HELLO, got none", now_ns)
            return False
        token = entrance.tokens.find(hello.auth, now_ns)
        if token is None:
            self._refuse(peer, stranger, "the token is not one of this server's", now_ns)
            return False
        self._let_in[token.name] += 1
        peer.tail = b""
        self._welcome(peer, access_of(token.roles, entrance.access))
        self._control.handle(peer, hello)
        return True

    def _refuse(self, peer: Peer, stranger: _Stranger, verdict: str, now_ns: int) -> None:
        """Takes nothing more from a connection, and tells it why a while later: who guesses, waits."""
        if stranger.verdict:
            return
        self._refused += 1
        stranger.verdict = verdict
        self._reader.stop(peer)
        self._watch.expect(peer, now_ns + self._pause_ns)
        log.info("client_refused", client=peer.name, reason=verdict)
