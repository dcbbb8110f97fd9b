"""What a connection is counted under, and that counting leaves nothing behind."""

from __future__ import annotations

import pytest

from trioserve.transport._census import Census, counted_address


@pytest.mark.parametrize(
    "peername, expected",
    [
        (("192.0.2.7", 1234), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        (("::1", 1, 0, 0), "::/64"),
        ("", ""),
        (b"\0abstract", ""),
        ("/run/client.sock", ""),
    ],
)
def test_address(peername: object, expected: str) -> None:
    assert counted_address(peername) == expected


def test_counting() -> None:
    census = Census()
    for address in ("a", "b", "a", ""):
        census.enter(address)
    assert (census.of("a"), census.of("b"), census.of(""), census.addresses) == (2, 1, 0, 2)
    for address in ("a", "b", "a", ""):
        census.leave(address)
    assert (census.of("a"), census.addresses) == (0, 0)
