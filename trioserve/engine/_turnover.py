"""Models that are replaced or unloaded while clients use them: what becomes of handles, and when the last is over.

A retired lane takes nothing new. What it has is served by the worker that serves it, within its deadlines; after that
nothing refers to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trioserve_protocol import ErrorCode

from ._executor import Executor

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trioserve_protocol import Signature

    from ._engine import Engine
    from ._lane import Lane
    from ._session import Session
    from ._text import TextLane
    from ._tokenizer import Tokenizer


def retire(engine: Engine, lanes: Collection[Lane]) -> None:
    """Nobody finds these models any more, and every handle of theirs goes where its client would find it now.

    A client that bound a name without a version follows to the newest one. One whose model has another signature now is
    told so when it uses the handle; one whose model is gone has no handle any more.
    """
    for lane in lanes:
        lane.is_retired = True
        lane.closed_code = ErrorCode.UNAVAILABLE
    for session in engine.sessions.by_index:
        if not session.closed:
            session.named.clear()
            for handle, lane in list(session.lanes.items()):
                if lane.is_retired:
                    _rebind(engine, session, handle, lane)


def _rebind(engine: Engine, session: Session, handle: int, lane: Lane) -> None:
    version = lane.config.version if handle in session.pinned else 0
    successor = engine.newest(lane.config.name, version)
    if successor is not None and _fits(successor.signature, lane.signature):
        session.lanes[handle] = successor
        return
    session.unbind(handle)
    if successor is not None:
        session.changed.add(handle)


def _fits(new: Signature, old: Signature) -> bool:
    """Whether who knows an old signature makes requests that a new one takes, and understands its results."""
    return new.inputs == old.inputs and new.outputs == old.outputs and new.max_rows >= old.max_rows


def hand_over(
    engine: Engine, lanes: list[Lane], texts: list[TextLane], leaving: Sequence[Executor | Tokenizer]
) -> tuple[Executor | None, Tokenizer | None]:
    """Makes the stages of new workers, to which models pass.

    Args:
        engine: what serves.
        lanes: the models of the new executor, in its order; none if there is none.
        texts: the models of the new tokenizer, in its order; none if it stays who it is.
        leaving: the stages that had those of them that are not new; each keeps its others.

    Returns:
        The new stages, which have no worker yet.
    """
    for stage in leaving:
        stage.part_with(lanes)
    executor = engine.add_executor(lanes) if lanes else None
    engine.tenants.executors = 1  # the old one only finishes what it has
    tokenizer = engine.add_tokenizer(texts) if texts else None
    return executor, tokenizer


def is_over(lane: Lane) -> bool:
    """Whether nothing of a retired model is left: no request, and no row that anybody holds."""
    return not lane.slots.leased


def give_up(engine: Engine, lanes: Collection[Lane], message: str) -> None:
    """Answers what is still unanswered of retired models."""
    for lane in lanes:
        for slot in lane.slots.live_requests().tolist():
            engine.terminal.fail(lane, slot, ErrorCode.UNAVAILABLE, message)


def dismiss(engine: Engine, stages: Sequence[Executor | Tokenizer], lanes: Collection[Lane]) -> None:
    """Forgets workers that have ended and models that are over."""
    for stage in stages:
        if isinstance(stage, Executor):
            engine.executors.remove(stage)
        else:
            engine.tokenizers.remove(stage)
    for lane in lanes:
        engine.lanes.remove(lane)
        engine.terminal.remove_lane(lane)
        # The rest of a lane is a small circle of objects, which a collection finds; its memory must not wait for that.
        lane.tensors.clear()
        del lane.slab
