"""An exception group becomes the error that matters most in it."""

from __future__ import annotations

import pytest
import trio

from trioserve.server._collapse import collapsed


async def fail(error: BaseException) -> None:
    await trio.lowlevel.checkpoint()
    raise error


async def fail_instead(error: BaseException) -> None:
    try:
        await trio.sleep_forever()
    finally:
        raise error


async def fail_deep_inside(error: BaseException) -> None:
    with collapsed():
        async with trio.open_nursery() as outer:
            outer.start_soon(trio.sleep_forever)
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep_forever)
                inner.start_soon(fail, error)


async def test_the_one_error_of_nested_nurseries_comes_out_as_it_was() -> None:
    error = OSError("address in use")
    error.__cause__ = cause = ValueError("deep")
    with pytest.raises(OSError, match="in use") as caught:
        await fail_deep_inside(error)
    assert caught.value is error
    assert error.__cause__ is cause
    assert not isinstance(error.__context__, BaseExceptionGroup)


def test_the_others_are_named_in_a_note() -> None:
    group = ExceptionGroup("", [ValueError("first"), ExceptionGroup("", [KeyError("second")])])
    with pytest.raises(ValueError, match="first") as caught, collapsed():
        raise group
    assert caught.value.__notes__ == ["At the same time: KeyError('second')"]


def test_what_the_user_wants_comes_before_errors() -> None:
    group = BaseExceptionGroup("", [ValueError("an error"), KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt), collapsed():
        raise group


async def fail_while_cancelled() -> None:
    with trio.CancelScope() as scope, collapsed():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_instead, RuntimeError("the cause"))
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()


async def test_cancellation_is_only_a_consequence() -> None:
    with pytest.raises(RuntimeError, match="the cause") as caught:
        await fail_while_cancelled()
    assert not hasattr(caught.value, "__notes__")


def test_without_a_group_nothing_changes() -> None:
    with pytest.raises(LookupError), collapsed():
        raise LookupError
    with collapsed():
        pass
