"""Frames of many requests, and frames whose body is still to come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trioserve.memory import FULL
from trioserve_protocol import ErrorCode, FrameType, pad8

from ._arrival import Arrival, joined
from ._lane import MANY, OK, WIRE_FLAGS, Lane

if TYPE_CHECKING:
    from trioserve_protocol import InferBegin, InferMany

    from ._session import Session


def admit_many(lane: Lane, session: Session, request: InferMany, now_ns: int) -> tuple[int, ErrorCode]:
    """Admits the front of an INFER_MANY of fixed-shape rows and copies its payload.

    Args:
        lane: the model.
        session: where it came from.
        request: the event; its payload is read here and not kept.
        now_ns: when the turn began that read it.

    Returns:
        How many of its requests were admitted, and why the others were not (OK if all were).
    """
    total = request.rows
    if len(request.payload) != lane.signature.input_nbytes(total):
        return 0, ErrorCode.INVALID_SIZE
    if not session.takes_result(lane, 1):
        return 0, ErrorCode.OUT_OF_RANGE
    if lane.closed_code:
        return 0, lane.closed_code
    body_nbytes = len(request.payload) // total
    if session.credit(body_nbytes) < total and (session.inflight or session.ghosts):
        return 0, ErrorCode.CREDIT_EXCEEDED
    admitted = lane.gate.admit_run(total, body_nbytes)
    requests = lease_many(lane, session, request, admitted, body_nbytes, now_ns)
    lane.gate.release(admitted - len(requests), (admitted - len(requests)) * body_nbytes)
    done = 0
    for first, count in joined(requests):
        offset = 0
        for view, nbytes in lane.tensors:
            start = offset + done * nbytes
            view[first * nbytes : (first + count) * nbytes] = request.payload[start : start + count * nbytes]
            offset += pad8(total * nbytes)
        lane.slots.readies_ns[first : first + count] = now_ns
        for block_first, block_count in _by_block(first, count, lane.max_rows):
            lane.queue.push(block_first, block_count)
        done += count
    return done, OK if done == total else ErrorCode.SHED


def lease_many(
    lane: Lane,
    session: Session,
    request: InferMany | InferBegin,
    count: int,
    body_nbytes: int,
    now_ns: int,
) -> list[tuple[int, int]]:
    """Leases a slot for each of the first `count` requests of a frame whose permits are taken.

    Returns:
        (slot, 1) of each request that found one, in order; they may be fewer than `count`.
    """
    slots = lane.slots
    requests: list[tuple[int, int]] = []
    lane.frame_serial = (lane.frame_serial + 1) & 0xFFFF_FFFF
    deadline_ns = now_ns + (request.timeout_us * 1000 or lane.default_deadline_ns)
    while len(requests) < count:
        done = len(requests)
        first, leased = slots.lease_run(count - done)
        if not leased:
            break
        end = first + leased
        slots.rids[first:end] = range(request.rid + done, request.rid + done + leased)
        slots.sessions[first:end] = session.index
        slots.deadlines_ns[first:end] = deadline_ns
        slots.receiveds_ns[first:end] = now_ns
        slots.parseds_ns[first:end] = now_ns
        slots.tokenizeds_ns[first:end] = 0
        slots.flag_column[first:end] = (request.flags & WIRE_FLAGS) | MANY
        slots.row_counts[first:end] = 1
        slots.bodies_nbytes[first:end] = body_nbytes
        slots.frames[first:end] = lane.frame_serial
        slots.mark_special(first)
        requests += [(slot, 1) for slot in range(first, end)]
    if requests:
        lane.next_deadline_ns = min(lane.next_deadline_ns, deadline_ns)
        session.inflight += len(requests)
        session.inflight_nbytes += len(requests) * body_nbytes
    return requests


def begin(lane: Lane, session: Session, request: InferBegin, now_ns: int) -> Arrival | ErrorCode:
    """Admits a large frame from its header and leases the slots its body is received into, all or nothing.

    Args:
        lane: the model.
        session: where it came from.
        request: header and meta.
        now_ns: when the turn began that read it.

    Returns:
        The arrival, or what it is refused with.

    Ownership: the arrival holds its slots until `Engine.arrived` or until all its requests are answered.
    """
    many = request.frame_type == FrameType.INFER_MANY
    total = request.rows if many else 1
    if request.payload_nbytes != lane.signature.input_nbytes(request.rows):
        return ErrorCode.INVALID_SIZE if many else lane.misfit(request.rows)
    code = lane.reserve(session, request.rows, request.payload_nbytes // total * total, requests=total)
    if code:
        return code
    requests: list[tuple[int, int]] = []
    if many and lane.slots.total - lane.slots.leased >= total:
        requests = lease_many(lane, session, request, total, request.payload_nbytes // total, now_ns)
    elif not many:
        first = lane.enter(session, request, request.rows, request.payload_nbytes, now_ns)
        requests = [] if first == FULL else [(first, request.rows)]
    if not requests:
        lane.gate.release(request.rows, request.payload_nbytes // total * total)
        return ErrorCode.SHED
    arrival = Arrival(lane, requests, now_ns)
    for first, rows in requests:
        lane.slots.hold_for_batch(first, rows)
        lane.arrivals[first] = arrival
        lane.announced_rows += rows
    return arrival


def _by_block(first: int, count: int, block_rows: int) -> list[tuple[int, int]]:
    """A range cut where blocks end."""
    pieces: list[tuple[int, int]] = []
    while count:
        piece = min(count, block_rows - first % block_rows)
        pieces.append((first, piece))
        first, count = first + piece, count - piece
    return pieces
