from __future__ import annotations

import pytest
import trio

from trioserve_tools.drill._beside import beside


@pytest.mark.slow
async def test_a_bare_timer_says_how_late_it_was() -> None:
    with trio.fail_after(20):
        async with beside("trioserve_tools.drill.bare_timer") as timer:
            assert (timer.line, timer.said) == ("", None)
            await trio.sleep(0.2)
    late_ms = timer.said
    assert 3 <= len(late_ms) <= 20
    assert min(late_ms) >= 0


@pytest.mark.slow
async def test_a_program_that_does_not_end_is_killed() -> None:
    with trio.fail_after(20), pytest.raises(KeyError):
        async with beside("trioserve_tools.drill.bare_timer"):
            raise KeyError


@pytest.mark.slow
async def test_a_program_may_say_where_it_is_and_no_more() -> None:
    with trio.fail_after(20):
        async with beside("trioserve_tools.bench.baselines", "echo", "8", "8") as echo:
            assert int(echo.line) > 0
    assert echo.said is None
