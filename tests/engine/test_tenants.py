"""Whom requests are counted for, and what a quota refuses."""

from __future__ import annotations

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import HANDLES
from tests.engine.test_columns import across
from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve.config import QuotaConfig, ServerConfig
from trioserve.engine import Session
from trioserve_protocol import ErrorCode, Tag, tlv

OK, QUOTA = ErrorCode.OK, ErrorCode.QUOTA_EXCEEDED
S = 1_000_000_000


@pytest.fixture
def limited(make_world: MakeWorld) -> World:
    """Everybody may send 10 requests a second, 3 at once; `big` 100 at once; `free` whatever it likes."""
    config = ServerConfig(
        quota=QuotaConfig(10.0, 3), tenants={"big": QuotaConfig(100.0), "free": QuotaConfig()}
    )
    return make_world(config=config)


def test_the_quota_of_a_connection(limited: World) -> None:
    one, other = limited.client(), limited.client()
    for rid in range(1, 6):
        one.infer(rid)
    assert one.codes() == [None, None, None, QUOTA, QUOTA]
    assert one.replies[4].frame.retryable
    assert one.replies[4].frame.retry_after_us == 100_000
    other.infer(1)
    assert other.waiting == {1}
    limited.settle()
    limited.pass_time(100 * MS)
    one.infer(10)
    one.infer(11)
    assert [one.code(10), one.code(11)] == [None, QUOTA]
    assert limited.lane("wide").stats.errors[QUOTA] == 3


def test_the_front_of_a_run_is_admitted(limited: World) -> None:
    client = limited.client()
    client.run(range(1, 9))
    assert client.codes() == [None] * 3 + [QUOTA] * 5
    limited.settle()
    assert client.codes() == [OK] * 3 + [QUOTA] * 5


def test_the_front_of_a_frame_of_many_is_admitted(limited: World) -> None:
    client = limited.client()
    client.many(1, 4)
    assert client.codes() == [None] * 3 + [QUOTA]
    client.texts(10, [3, 3], many=True)
    assert [client.code(10), client.code(11)] == [QUOTA, QUOTA]


def test_a_large_body_is_refused_from_its_header(limited: World) -> None:
    client = limited.client()
    client.many(1, 3)
    assert client.begin(10).arrival is None
    assert client.code(10) == QUOTA
    other = limited.client()
    body = other.begin(1, rows=4, many=True)
    assert other.code(4) == QUOTA
    body.send()
    limited.settle()
    assert other.codes() == [OK] * 3 + [QUOTA]


def test_what_is_refused_for_another_reason_is_not_charged(limited: World) -> None:
    client = limited.client()
    for rid in range(1, 9):
        client.infer(rid, payload=b"")
    client.infer(10)
    client.infer(11)
    client.many(20, 2, model="wide")
    assert [client.code(rid) for rid in (10, 11, 20, 21)] == [None, None, None, QUOTA]


def test_a_payload_that_is_no_text_is_not_charged(limited: World) -> None:
    client = limited.client()
    for rid in range(1, 9):
        client.texts(rid, payload=b"\xff\0\0\0abcd")
    client.texts(10, [5, 5], many=True, payload=b"\xff\0\0\0abcd")
    assert client.codes() == [ErrorCode.INVALID_BYTES] * 10
    client.texts(20, [5] * 4, many=True)
    assert client.codes(range(20, 24)) == [None] * 3 + [QUOTA]


def test_what_is_shed_of_a_run_is_not_charged(make_world: MakeWorld) -> None:
    """Eight slots for twelve requests."""
    world = make_world(config=ServerConfig(quota=QuotaConfig(0.001, 12)))
    client = world.client()
    client.run(range(1, 13), "narrow")
    assert client.codes() == [None] * 8 + [ErrorCode.SHED] * 4
    client.run(range(20, 26), "wide")
    assert client.codes(range(20, 26)) == [None] * 4 + [QUOTA] * 2


def test_a_quota_belongs_to_the_tenant_not_to_the_connection(limited: World) -> None:
    one, other = limited.client(), limited.client()
    for client in (one, other):
        limited.engine.name_tenant(client.session, "acme")
    one.run(range(1, 5))
    other.infer(1)
    assert one.codes() == [None] * 3 + [QUOTA]
    assert other.codes() == [QUOTA]


@pytest.mark.parametrize(("tenant", "codes"), [("big", [None] * 12), ("free", [None] * 12)])
def test_a_tenant_with_a_table_of_its_own(limited: World, tenant: str, codes: list[None]) -> None:
    client = limited.client()
    limited.engine.name_tenant(client.session, tenant)
    client.run(range(1, 13))
    assert client.codes() == codes


def test_the_tenant_of_a_handle_goes_before_that_of_the_connection(limited: World) -> None:
    client = limited.client()
    limited.engine.name_tenant(client.session, "free")
    session: Session = client.session
    session.bind(HANDLES["wide"], limited.lane("wide"), limited.engine.account("acme"))
    client.run(range(1, 5))
    for rid in range(10, 15):
        client.infer(rid, "narrow")
    assert client.codes() == [None] * 3 + [QUOTA] + [None] * 5


def test_the_tenant_of_a_request_without_a_handle_goes_before_that_of_the_connection(limited: World) -> None:
    client = limited.client()
    limited.engine.name_tenant(client.session, "free")
    acme = tlv(Tag.MODEL, b"wide") + tlv(Tag.TENANT, b"acme")
    for rid in range(1, 6):
        client.infer(rid, handle=0, meta=acme)
    client.infer(10, handle=0, meta=tlv(Tag.MODEL, b"wide"))
    assert client.codes() == [None] * 3 + [QUOTA] * 2 + [None]


def test_a_connection_that_names_its_tenant_late_is_counted_for_it_from_then_on(limited: World) -> None:
    client = limited.client()
    meta = tlv(Tag.MODEL, b"wide")
    for rid in range(1, 4):
        client.infer(rid, handle=0, meta=meta)
    limited.engine.name_tenant(client.session, "free")
    client.infer(4, handle=0, meta=meta)
    assert client.codes() == [None] * 4


def test_requests_gathered_from_many_connections_are_counted_for_their_tenants(make_world: MakeWorld) -> None:
    world = make_world()
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 4 * MS, 4: 5 * MS})
    lane.calm_rows = 0
    clients = [world.client() for _ in range(3)]
    for client in clients[:2]:
        world.engine.name_tenant(client.session, "acme")
    across(world, clients, 1)
    pending_ns = [client.session.account.pending_ns for client in clients]
    assert pending_ns == pytest.approx([2.5 * MS, 2.5 * MS, 1.25 * MS])
    world.settle()


def test_who_is_refused_takes_part_in_the_division_however_it_came(make_world: MakeWorld) -> None:
    """Sixteen slots for requests of twenty connections, and four alone."""
    world = make_world()
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 4 * MS, 4: 5 * MS})
    lane.calm_rows = 0
    clients = [world.client() for _ in range(24)]
    across(world, clients[:20], 1)
    for client in clients[20:]:
        client.infer(1)
    codes = [client.code(1) for client in clients]
    assert codes == [None] * 16 + [ErrorCode.SHED] * 8
    tenants = world.engine.tenants
    tenants.settle(world.clock.ns + MS)
    assert tenants.active == 24


def test_nobody_is_counted_at_a_closed_door(make_world: MakeWorld) -> None:
    world = make_world()
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 4 * MS, 4: 5 * MS})
    lane.calm_rows = 0
    world.engine.drain()
    clients = [world.client() for _ in range(3)]
    across(world, clients[:2], 1)
    clients[2].infer(1)
    assert [client.code(1) for client in clients] == [ErrorCode.DRAINING] * 3
    assert world.engine.tenants.active == 0


def test_a_share_is_one_of_all_executors(make_world: MakeWorld) -> None:
    """Two tenants that have 60 % of an executor each are both within their part."""
    world = make_world()
    engine = world.engine
    engine.add_executor(engine.lanes)
    one, other = engine.tenants.account("one", S), engine.tenants.account("other", S)
    for number in range(300):
        for account in (one, other):
            engine.tenants.count(account, 0.6 * 5 * MS)
        engine.tenants.settle(S + number * 5 * MS)
    assert one.share == pytest.approx(0.3, rel=0.02)
    assert not one.leaves
    assert not other.leaves


def test_a_long_pause_gives_no_more_than_a_burst(limited: World) -> None:
    client = limited.client()
    limited.pass_time(100 * S)
    client.run(range(1, 9))
    assert client.codes() == [None] * 3 + [QUOTA] * 5
