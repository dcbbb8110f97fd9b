import trio
import trio.testing

from trioserve_tools.drill._until import until


async def test_until(autojump_clock: trio.testing.MockClock) -> None:
    began_s = trio.current_time()
    assert await until(lambda: trio.current_time() - began_s > 1, within_s=5)
    assert trio.current_time() - began_s < 1.1
    assert not await until(lambda: False, within_s=5)
    assert trio.current_time() - began_s > 6
