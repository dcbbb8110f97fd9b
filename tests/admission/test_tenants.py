"""Quotas of tenants, and who has more than its part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.admission import Account, Quota, Tenants
from trioserve.admission._tenants import ACTIVE_NS, MAX_TENANTS, MOST_LEFT, SETTLE_NS, USED, Bucket

S = 1_000_000_000
TEN_A_SECOND = Quota(10.0, 5)


# ---------------------------------------------------------------- quotas


def test_a_burst_and_then_the_rate() -> None:
    bucket = Bucket(TEN_A_SECOND)
    assert bucket.take_up_to(9, S) == 5
    assert bucket.take_up_to(1, S) == 0
    assert bucket.wait_us() == 100_000
    assert bucket.take_up_to(1, S + S // 20) == 0
    assert bucket.wait_us() == pytest.approx(50_000, abs=1)
    assert bucket.take_up_to(9, S + S // 5 + 1) == 2
    assert bucket.take_up_to(9, 100 * S) == 5


def test_what_was_not_used_can_be_used() -> None:
    bucket = Bucket(TEN_A_SECOND)
    assert bucket.take_up_to(5, S) == 5
    bucket.give_back(2)
    assert bucket.take_up_to(5, S) == 2


@given(st.lists(st.tuples(st.integers(0, S), st.integers(1, 9)), max_size=30))
def test_never_more_than_the_burst_and_the_rate(steps: list[tuple[int, int]]) -> None:
    bucket, now_ns, taken = Bucket(TEN_A_SECOND), 0, 0
    for passed_ns, count in steps:
        now_ns += passed_ns
        taken += bucket.take_up_to(count, now_ns)
        assert taken <= 5 + 10 * now_ns / S + 1e-6


def test_each_tenant_has_its_quota() -> None:
    tenants = Tenants(TEN_A_SECOND, {"big": Quota(100.0, 50), "free": Quota(0.0, 1)})
    assert tenants.has_quotas
    assert tenants.account("free", S).bucket is None
    for account, burst in ((tenants.account("big", S), 50), (tenants.account("x", S), 5), (tenants.own(), 5)):
        assert account.bucket is not None
        assert account.bucket.take_up_to(1_000, S) == burst


def test_without_quotas_nobody_has_one() -> None:
    tenants = Tenants()
    assert not tenants.has_quotas
    assert tenants.own().bucket is None
    assert tenants.account("x", S).bucket is None


def test_a_tenant_is_one_whatever_connections_it_has() -> None:
    tenants = Tenants()
    assert tenants.account("x", S) is tenants.account("x", S)
    assert tenants.own() is not tenants.own()


def test_names_are_kept_in_mind_up_to_a_bound() -> None:
    tenants = Tenants(quotas={"kept": TEN_A_SECOND})
    kept = tenants.account("kept", S)
    active = tenants.account("active", S)
    tenants.count(active, 1.0)
    for number in range(2 * MAX_TENANTS):
        tenants.account(f"t{number}", S)
    assert len(tenants._named) <= MAX_TENANTS + 1
    assert tenants.account("kept", S) is kept
    assert tenants.account("active", S) is active


def test_who_has_used_up_a_quota_is_not_forgotten_before_it_is_full_again() -> None:
    tenants = Tenants(TEN_A_SECOND)
    account = tenants.account("x", S)
    assert account.grant(9, S) == 5
    for number in range(2 * MAX_TENANTS):
        tenants.account(f"a{number}", S + S // 2 - 1)
    assert tenants.account("x", S) is account
    assert account.grant(9, S) == 0
    for number in range(2 * MAX_TENANTS):
        tenants.account(f"b{number}", S + S // 2)
    assert tenants.account("x", S + S // 2) is not account


def test_while_nobody_can_be_forgotten_strangers_share_a_quota() -> None:
    tenants = Tenants(TEN_A_SECOND, {"big": Quota(100.0, 50)})
    for number in range(MAX_TENANTS):
        assert tenants.account(f"t{number}", S).grant(5, S) == 5
    assert sum(tenants.account(f"s{number}", S).grant(5, S) for number in range(100)) == 5
    assert tenants.account("t0", S).grant(5, S) == 0
    assert tenants.account("big", S).grant(60, S) == 50
    later_ns = S + S // 2
    assert all(tenants.account(f"s{number}", later_ns).grant(5, later_ns) == 5 for number in range(100))
    assert len(tenants._named) == MAX_TENANTS


def test_among_many_who_are_active_a_newcomer_has_an_account_of_its_own() -> None:
    tenants = Tenants()
    accounts = [tenants.account(f"t{number}", S) for number in range(MAX_TENANTS)]
    for account in accounts:
        tenants.count(account, 1.0)
    newcomers = {tenants.account(f"n{number}", S) for number in range(10)}
    assert len(newcomers) == 10
    assert len(tenants._named) == MAX_TENANTS


# ---------------------------------------------------------------- shares


def use(tenants: Tenants, shares: dict[Account, float], start_ns: int = S) -> int:
    """Each has been admitted such a part of the executors' time for a second and a half; returns when that ends."""
    for number in range(300):
        for account, share in shares.items():
            tenants.count(account, share * SETTLE_NS)
        tenants.settle(start_ns + number * SETTLE_NS)
    return start_ns + 300 * SETTLE_NS


def test_who_has_more_than_its_part_is_over() -> None:
    tenants = Tenants()
    one, two, three = (tenants.account(name, S) for name in "abc")
    use(tenants, {one: 0.6, two: 0.3, three: 0.1})
    assert [account.leaves for account in (one, two, three)] == pytest.approx(
        [0.6 / USED * MOST_LEFT, 0, 0], rel=0.02
    )
    assert one.share == pytest.approx(0.6, rel=0.02)
    assert tenants.active == 3


def test_a_little_more_is_tolerated() -> None:
    tenants = Tenants()
    one, two = tenants.own(), tenants.own()
    use(tenants, {one: 0.53, two: 0.47})
    assert not one.leaves


def test_who_is_alone_may_have_all() -> None:
    tenants = Tenants()
    one, two = tenants.own(), tenants.own()
    now_ns = use(tenants, {one: 0.9, two: 0.1})
    assert one.leaves == pytest.approx(2 * 0.1 / USED * MOST_LEFT, rel=0.02)
    now_ns = use(tenants, {one: 0.99}, now_ns)
    assert not one.leaves
    tenants.settle(now_ns + 2 * ACTIVE_NS)
    assert tenants.active == 0
    assert one.share == 0
