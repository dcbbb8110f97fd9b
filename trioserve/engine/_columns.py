"""Runs of plain requests as columns: one copy and four column writes for all of them.

A request of a run of 16 costs 0.6 us to admit, one that comes alone 1.7 us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trioserve_protocol import CLASS_MASK, ErrorCode, pad8

from ._lane import OK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trioserve.admission import Account
    from trioserve_protocol import InferRun

    from ._lane import Lane
    from ._session import Session


class Terms(NamedTuple):
    """What is asked for a run."""

    account: Account | None
    """Whom it is counted for; see `Door.reserve`."""
    klass: int
    """The class bits of all its requests."""
    deadlines_ns: int | NDArray[np.int64]
    """Deadline of all, or of each: the latter only if the model `is_calm` about them all."""
    earliest_ns: int
    """The earliest of them."""
    is_calm: bool
    """Whether all of it is admitted without asking the rule."""


def terms_of(lane: Lane, account: Account | None, run: InferRun, flags: int, now_ns: int) -> Terms | None:
    """What is asked for a run that can be admitted as columns.

    Args:
        lane: the model.
        account: whom it is counted for.
        run: plain requests.
        flags: of all of them, joined by or.
        now_ns: when the turn began that read it.

    Returns:
        That; None if each request is to be asked for by itself, because the rule would have to be asked and they are
        not alike.
    """
    klass = flags & CLASS_MASK
    if klass and ((run.flags & CLASS_MASK) != klass).any():
        return None
    deadlines_ns, earliest_ns = _deadlines_of(lane, run, now_ns)
    is_calm = (
        earliest_ns - now_ns >= lane.calm_ns
        and lane.gate.rows.taken + run.count <= lane.calm_rows
        and not klass
    )
    if not is_calm and not isinstance(deadlines_ns, int):
        return None
    return Terms(account, klass, deadlines_ns, earliest_ns, is_calm)


def admit_run(
    lane: Lane, session: Session, run: InferRun, terms: Terms, now_ns: int
) -> tuple[int, ErrorCode]:
    """Admits the front of a run of plain requests with ascending ids that are not in flight.

    Args:
        lane: the model.
        session: where the run came from.
        run: columns; its payload is read here and not kept.
        terms: what is asked for it.
        now_ns: when the turn began that read it.

    Returns:
        How many were admitted, and why the others were not (OK if all were).
    """
    body_nbytes = lane.body_nbytes
    if run.payload.shape[1] != body_nbytes:
        return 0, ErrorCode.INVALID_SIZE
    allowed = min(run.count, session.credit(body_nbytes))
    account = terms.account or session.account
    granted = account.grant(allowed, now_ns)
    done, code = admit_columns(lane, session.index, run, terms, granted, now_ns)
    session.inflight += done
    session.inflight_nbytes += done * body_nbytes
    if done < granted:
        account.give_back(granted - done)
    elif granted < allowed:
        code = ErrorCode.QUOTA_EXCEEDED
    elif allowed < run.count:
        code = ErrorCode.CREDIT_EXCEEDED
    return done, code


def admit_columns(
    lane: Lane, sessions: int | NDArray[np.uint32], run: InferRun, terms: Terms, allowed: int, now_ns: int
) -> tuple[int, ErrorCode]:
    """Admits the front of a run, as far as permits and slots go; sizes, ids and credit have been checked.

    Args:
        lane: the model.
        sessions: index of the session, or u32[run.count] of each request's. What they are charged is the caller's.
        run: plain requests.
        terms: what is asked for them.
        allowed: how many of them the credit admits.
        now_ns: when the turn began that read it.

    Returns:
        How many were admitted, and why the others of `allowed` were not.
    """
    if lane.closed_code:
        return 0, lane.closed_code
    asked, code = allowed, OK
    if allowed and not terms.is_calm:
        timeout_ns = terms.earliest_ns - now_ns
        asked, code = lane.door.reserve(terms.account, terms.klass, (allowed, 1), timeout_ns, now_ns)
    admitted = lane.gate.admit_run(asked, lane.body_nbytes)
    done = 0
    while done < admitted:
        first, count = lane.slots.lease_run(admitted - done)
        if not count:
            raise AssertionError("there are fewer slots than permits: this is a bug")
        _fill_run(lane, sessions, run, terms, (done, first, count), now_ns)
        done += count
    if done:
        lane.next_deadline_ns = min(lane.next_deadline_ns, terms.earliest_ns)
    return done, OK if done == allowed else code or ErrorCode.SHED


def _deadlines_of(lane: Lane, run: InferRun, now_ns: int) -> tuple[int | NDArray[np.int64], int]:
    """Deadlines of a run, one number where all are the same, and the earliest of them."""
    timeouts_us = run.timeouts_us
    if timeouts_us.tobytes() == timeouts_us[:1].tobytes() * run.count:
        same_ns = now_ns + (int(timeouts_us[0]) * 1000 or lane.default_deadline_ns)
        return same_ns, same_ns
    deadlines_ns = timeouts_us.astype(np.int64) * 1000
    deadlines_ns[deadlines_ns == 0] = lane.default_deadline_ns
    deadlines_ns += now_ns
    return deadlines_ns, int(deadlines_ns.min())


def _fill_run(
    lane: Lane,
    sessions: int | NDArray[np.uint32],
    run: InferRun,
    terms: Terms,
    place: tuple[int, int, int],
    now_ns: int,
) -> None:
    """Rows `done` to `done + count` of a run into slots `first` on; `place` is done, first and count."""
    done, first, count = place
    slots, end, upto = lane.slots, first + count, done + count
    offset = 0
    for rows in lane.slab.input_bytes:
        nbytes = rows.shape[1]
        rows[first:end] = run.payload[done:upto, offset : offset + nbytes]
        offset += pad8(nbytes)
    slots.rids[first:end] = run.rids[done:upto]
    slots.sessions[first:end] = sessions if isinstance(sessions, int) else sessions[done:upto]
    slots.readies_ns[first:end] = now_ns
    deadlines_ns, offset_ns = terms.deadlines_ns, lane.offsets_ns[terms.klass]
    if isinstance(deadlines_ns, int):
        slots.deadlines_ns[first:end] = deadlines_ns
        lane.queue.push(first, count, deadlines_ns, offset_ns)
        return
    part_ns = slots.deadlines_ns[first:end] = deadlines_ns[done:upto]
    _enqueue(lane, first, part_ns.tolist(), offset_ns)


def _enqueue(lane: Lane, first: int, deadlines_ns: list[int], offset_ns: int) -> None:
    """Enters one-row requests that differ in their deadlines, as few ranges of one key."""
    queue = lane.queue
    grain_mask = queue.grain_mask
    if min(deadlines_ns) & grain_mask == max(deadlines_ns) & grain_mask:
        queue.push(first, len(deadlines_ns), deadlines_ns[0], offset_ns)
        return
    start = 0
    key_ns = deadlines_ns[0] & grain_mask
    for row, deadline_ns in enumerate(deadlines_ns):
        if deadline_ns & grain_mask != key_ns:
            queue.push(first + start, row - start, deadlines_ns[start], offset_ns)
            start, key_ns = row, deadline_ns & grain_mask
    queue.push(first + start, len(deadlines_ns) - start, deadlines_ns[start], offset_ns)
