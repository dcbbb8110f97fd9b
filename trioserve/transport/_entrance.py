"""What a listening address demands of a connection, and what the connection may do then."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from trioserve_protocol import Feature

if TYPE_CHECKING:
    from ._certificates import Certificates
    from ._tokens import TokenFile


class AdminLevel(IntEnum):
    """The most that a connection may ask of the administration."""

    HEALTH = 0
    MODELS = 1
    STATISTICS = 2
    ALL = 3


class Access(NamedTuple):
    """What a connection may do."""

    may_infer: bool = True
    """Whether it may bind models and send requests."""

    admin: AdminLevel = AdminLevel.STATISTICS
    """What ADMIN frames of it are answered."""

    features: Feature = Feature(0)
    """Optional parts of the protocol that it may agree on."""


class Entrance(NamedTuple):
    """One listening address."""

    access: Access = Access()
    """What a connection may do that need not authenticate; the most that one may do that must."""

    tokens: TokenFile | None = None
    """Who is let in; None: everybody."""

    tls: Certificates | None = None
    """What the server shows of itself; None: connections are not encrypted."""

    @property
    def is_open(self) -> bool:
        """Whether connections are served from their first byte on."""
        return self.tokens is None and self.tls is None


OPEN = Entrance()
"""An address that lets everybody in."""


def access_of(roles: frozenset[str], most: Access) -> Access:
    """What a token's roles allow at an entrance.

    Args:
        roles: `infer`, `admin` or both.
        most: what the entrance allows at most.
    """
    admin = most.admin if "admin" in roles else min(most.admin, AdminLevel.MODELS)
    return Access(may_infer=most.may_infer and "infer" in roles, admin=admin, features=Feature.AUTH)
