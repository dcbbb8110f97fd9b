import pytest

from trioserve.client._credit import CreditWindow


def test_admits_up_to_both_limits() -> None:
    window = CreditWindow(3, 100)
    window.take(1, 40)
    assert window.admits(2, 60)
    assert not window.admits(3, 10)
    assert not window.admits(1, 61)


def test_an_idle_connection_may_always_send_one_frame() -> None:
    window = CreditWindow(1, 10)
    assert window.admits(50, 10_000)
    window.take(50, 10_000)
    assert not window.admits(1, 0)
    window.give_back(50, 10_000)
    assert window.admits(50, 10_000)


def test_a_lower_window_waits_for_what_is_in_flight() -> None:
    window = CreditWindow(4, 100)
    window.take(3, 30)
    window.requests_limit = 2
    assert not window.admits(1, 8)
    window.give_back(2, 20)
    assert window.admits(1, 8)


def test_credit_cannot_come_back_twice() -> None:
    window = CreditWindow()
    window.take(1, 8)
    window.give_back(1, 8)
    with pytest.raises(AssertionError, match="this is a bug"):
        window.give_back(1, 0)
