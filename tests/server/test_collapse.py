"""Errors out of nurseries: the one that counts, as it was raised."""

from __future__ import annotations

import pytest
import trio

from trioserve.server._collapse import collapsed


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("several", errors)


def raised(*errors: BaseException) -> BaseException:
    with pytest.raises(BaseException) as failure, collapsed():
        raise group(*errors)
    return failure.value


def test_a_single_error_stands_for_its_group_at_any_depth() -> None:
    error = OSError("taken")
    assert raised(group(group(error))) is error


def test_what_is_not_in_a_group_passes_unchanged() -> None:
    with pytest.raises(OSError, match="taken"), collapsed():
        raise OSError("taken")


def test_cause_and_context_are_those_of_the_error() -> None:
    try:
        try:
            raise KeyError("before")
        except KeyError as cause:
            raise OSError("taken") from cause
    except OSError as error:
        found = raised(error)
    assert isinstance(found.__cause__, KeyError)
    assert isinstance(found.__context__, KeyError)


def test_the_others_are_named_in_a_note() -> None:
    error = raised(OSError("first"), group(ValueError("second")))
    assert isinstance(error, OSError)
    assert error.__notes__ == ["At the same time: ValueError('second')"]


@pytest.mark.parametrize("first", [KeyboardInterrupt, SystemExit])
def test_what_the_user_wants_comes_before_errors(first: type[BaseException]) -> None:
    assert isinstance(raised(OSError("x"), group(first())), first)


async def test_cancellation_is_only_a_consequence_of_an_error() -> None:
    """An outer scope is cancelled while a child fails: the failure is what matters, and nothing is swallowed."""

    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("while leaving")

    async def serve() -> None:
        with collapsed():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                await trio.sleep_forever()

    with pytest.raises(OSError, match="while leaving") as failure, trio.move_on_after(0):
        await serve()
    assert not hasattr(failure.value, "__notes__")


async def test_cancellation_alone_stays_cancellation() -> None:
    async def wait() -> None:
        with collapsed():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await trio.sleep_forever()

    with trio.move_on_after(0) as scope:
        await wait()
    assert scope.cancelled_caught
