"""Which class goes first, and that none starves."""

from __future__ import annotations

import pytest

from trioserve.admission import Classes
from trioserve.admission._classes import FLOOR_SHARE, SETTLE_NS

CRITICAL, CRITICAL_PLUS, SHEDDABLE_PLUS, SHEDDABLE = range(4)
SLA_NS = 1_000


def after(classes: Classes, *shares: float, times: int = 100) -> Classes:
    """Each class has been admitted such a part of the executors' time for a second."""
    for number in range(times):
        for klass, share in enumerate(shares):
            classes.pending_ns[klass] += share * SETTLE_NS
            classes.offered_ns[klass] += share * SETTLE_NS
        classes.settle((number + 1) * SETTLE_NS)
    return classes


def test_the_classes_are_ranked() -> None:
    classes = Classes(SLA_NS)
    assert classes.offsets_ns[CRITICAL_PLUS] == -SLA_NS
    assert classes.offsets_ns[CRITICAL] == 0
    assert classes.offsets_ns[SHEDDABLE_PLUS] == SLA_NS
    assert classes.offsets_ns[SHEDDABLE] == 2 * SLA_NS


def test_the_share_is_that_of_the_executors_time() -> None:
    assert after(Classes(SLA_NS), 0.3, 0.1).shares[:2] == pytest.approx([0.3, 0.1], rel=0.02)
    assert after(Classes(SLA_NS, executors=2), 0.3).shares[0] == pytest.approx(0.15, rel=0.02)


def test_who_gets_next_to_nothing_goes_first() -> None:
    classes = after(Classes(SLA_NS), 0.0, 0.95, 0.2, 0.04)
    assert classes.ranks == [0, 0, 2, 0]
    assert classes.offsets_ns[SHEDDABLE] == -SLA_NS
    assert classes.yields == [
        False,
        True,
        True,
        False,
    ]  # those who are served leave room for the one that is not
    after(classes, 0.0, 0.95, 0.2, 2 * FLOOR_SHARE)
    assert classes.ranks == [0, 0, 2, 3]


@pytest.mark.parametrize("share", [0.01, 0.9])
def test_a_class_that_is_alone_keeps_its_rank(share: float) -> None:
    classes = after(Classes(SLA_NS), share)
    assert classes.ranks[CRITICAL] == 1
    assert not any(classes.yields[:2])


def test_a_lesser_class_leaves_room_for_a_better_one_that_is_in_use() -> None:
    classes = after(Classes(SLA_NS), 0.3, 0.0, 0.5, 0.3)
    assert classes.yields == [False, False, True, True]
    assert classes.overrules == [True, True, True, False]
    after(classes, 0.5, 0.3, 0.0, 0.3)
    assert classes.yields[CRITICAL]
    assert classes.overtaking[CRITICAL] == pytest.approx(0.3, rel=0.02)
    assert classes.overtaking[SHEDDABLE] == pytest.approx(0.8, rel=0.02)


def test_nobody_leaves_room_while_there_is_enough_for_all() -> None:
    """One better request now and then must not have an idle server refuse the others."""
    classes = after(Classes(SLA_NS), 0.3, 0.01, 0.0, 0.1)
    assert not any(classes.yields)
    assert classes.overtaking[CRITICAL] == pytest.approx(0.01, rel=0.02)
    assert after(classes, 0.6, 0.2, 0.0, 0.1).yields == [True, False, False, True]


def test_nobody_leaves_room_because_of_what_lesser_classes_ask_for() -> None:
    classes = after(Classes(SLA_NS), 0.4, 0.1, 1.0, 1.5)
    assert classes.yields == [False, False, True, True]


def test_what_is_asked_of_other_models_counts_until_it_is_forgotten() -> None:
    classes = after(Classes(SLA_NS), 0.3, 0.1)
    now_ns = 100 * SETTLE_NS
    assert classes.load(now_ns) == pytest.approx(0.4, rel=0.02)
    assert classes.load(now_ns + 1_000_000_000) < 0.01
    classes.settle(now_ns + 1, beside=0.5)
    assert classes.yields[CRITICAL]
    classes.settle(now_ns + 2, beside=0.1)
    assert not classes.yields[CRITICAL]


def test_what_better_classes_ask_for_is_never_all() -> None:
    assert after(Classes(SLA_NS), 5.0, 0.0, 0.0, 0.5).overtaking[SHEDDABLE] == 0.995


def test_who_starves_leaves_no_room() -> None:
    classes = after(Classes(SLA_NS), 0.95, 0.0, 0.0, 0.01)
    assert not classes.yields[SHEDDABLE]


def test_what_a_class_had_is_forgotten() -> None:
    classes = after(Classes(SLA_NS), 0.5, 0.5)
    classes.settle(3_000_000_000)
    assert max(classes.shares) < 0.001
