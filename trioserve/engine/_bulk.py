"""Frames of many requests, and frames whose body is still to come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trioserve.memory import FULL
from trioserve_protocol import ErrorCode, FrameType, pad8

from ._arrival import Arrival
from ._lane import MANY, OK, Lane

if TYPE_CHECKING:
    from trioserve.admission import Account
    from trioserve_protocol import InferBegin, InferMany

    from ._batch import Range
    from ._session import Session


def admit_many(
    lane: Lane, session: Session, account: Account, request: InferMany, now_ns: int, *, most: int = 65_535
) -> tuple[int, ErrorCode]:
    """Admits the front of an INFER_MANY of fixed-shape rows and copies its payload.

    Args:
        lane: the model.
        session: where it came from.
        account: whom it is counted for.
        request: the event, checked against the signature; its payload is read here and not kept.
        now_ns: when the turn began that read it.
        most: how many of its requests its tenant may have.

    Returns:
        How many of its requests were admitted, and why the others were not (OK if all were).
    """
    ranges, code = lease_many(lane, session, account, request, len(request.payload), now_ns, most=most)
    done = 0
    for first, count in ranges:
        offset = 0
        for view, nbytes in lane.tensors:
            start = offset + done * nbytes
            view[first * nbytes : (first + count) * nbytes] = request.payload[start : start + count * nbytes]
            offset += pad8(request.rows * nbytes)
        lane.slots.readies_ns[first : first + count] = now_ns
        lane.queue.push(first, count, lane.slots.deadline_ns[first], lane.offset_of(first))
        done += count
    return done, code


def lease_many(
    lane: Lane,
    session: Session,
    account: Account,
    request: InferMany | InferBegin,
    payload_nbytes: int,
    now_ns: int,
    *,
    most: int = 65_535,
) -> tuple[list[Range], ErrorCode]:
    """Admits the front of an INFER_MANY, as far as the permits go, and writes the columns of its requests.

    Args:
        lane: the model.
        session: where it came from.
        account: whom it is counted for.
        request: the event.
        payload_nbytes: size of its payload, of which each request counts for an equal share.
        now_ns: when the turn began that read it.
        most: how many of its requests there is other room for.

    Returns:
        The slots, one range a block, and why not all of the requests were admitted (OK if they were).
    """
    total = request.rows
    body_nbytes = payload_nbytes // total
    code = lane.refusal(session, total, body_nbytes, reply_rows=1)
    if code:
        return [], code
    timeout_ns = request.timeout_us * 1000 or lane.default_deadline_ns
    deadline_ns = now_ns + timeout_ns
    asked = min(total, most)
    eta_ns = lane.eta_ns(request)
    if asked and not lane.door.is_calm(asked, timeout_ns, request.flags, eta_ns):
        asked, code = lane.door.reserve(account, request.flags, (asked, 1), timeout_ns, now_ns, eta_ns)
    admitted = lane.gate.admit_run(asked, body_nbytes)
    lane.frame_serial = (lane.frame_serial + 1) & 0xFFFF_FFFF
    ranges: list[Range] = []
    done = 0
    while done < admitted:
        first, count = lane.slots.lease_run(admitted - done)
        if not count:
            raise AssertionError("there are fewer slots than permits: this is a bug")
        columns, rows = lane.slots, slice(first, first + count)
        _fill_columns(lane, first, count, request.rid + done, request.flags)
        columns.sessions[rows] = session.index
        columns.bodies_nbytes[rows] = body_nbytes
        columns.deadlines_ns[rows] = deadline_ns
        columns.receiveds_ns[rows] = columns.parseds_ns[rows] = now_ns
        ranges.append((first, count))
        done += count
    if done:
        lane.next_deadline_ns = min(lane.next_deadline_ns, deadline_ns)
        session.inflight += done
        session.inflight_nbytes += done * body_nbytes
    return ranges, OK if done == total else code or ErrorCode.SHED


def _fill_columns(lane: Lane, first: int, count: int, rid: int, flags: int) -> None:
    slots, end = lane.slots, first + count
    slots.rids[first:end] = range(rid, rid + count)
    slots.tokenizeds_ns[first:end] = 0
    slots.flag_column[first:end] = lane.marks_of(flags) | MANY
    slots.row_counts[first:end] = 1
    slots.frames[first:end] = lane.frame_serial
    slots.mark_special(first)


def begin(
    lane: Lane, session: Session, account: Account, request: InferBegin, now_ns: int, *, most: int = 65_535
) -> tuple[Arrival | None, int, ErrorCode]:
    """Admits a large frame from its header, and leases the slots its body is received into.

    Args:
        lane: the model.
        session: where it came from.
        account: whom it is counted for.
        request: header and meta, checked against the signature.
        now_ns: when the turn began that read it.
        most: how many of its requests its tenant may have.

    Returns:
        The arrival, None if nothing of it was admitted; how many of its requests were, from the front; and why the
        others were not.

    Ownership: the arrival holds its slots until `Intake.arrived` or until all its requests are answered.
    """
    if request.frame_type == FrameType.INFER_MANY:
        ranges, code = lease_many(lane, session, account, request, request.payload_nbytes, now_ns, most=most)
        requests = [(slot, 1) for first, count in ranges for slot in range(first, first + count)]
    elif not most:
        return None, 0, ErrorCode.SHED
    else:
        first, code = lane.enter(session, account, request, request.rows, request.payload_nbytes, now_ns)
        requests = ranges = [] if first == FULL else [(first, request.rows)]
    if not requests:
        return None, 0, code
    arrival = Arrival(lane, request, requests, ranges)
    lane.under_way[arrival] = now_ns
    for first, count in ranges:
        lane.slots.hold_for_batch(first, count)
        lane.announced_rows += count
    for first, _ in requests:
        lane.arrivals[first] = arrival
    return arrival, len(requests), code
