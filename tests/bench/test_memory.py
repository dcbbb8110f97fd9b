import pytest
import trio

from trioserve_tools.bench import _memory
from trioserve_tools.bench._scenarios import Setting


@pytest.mark.slow
@pytest.mark.e2e
async def test_a_small_form(monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    monkeypatch.setattr(_memory, "CONNECTIONS", 20)
    monkeypatch.setattr(_memory, "IDLE_S", 0.2)
    monkeypatch.setattr(_memory, "SETTLE_S", 0.2)
    with trio.fail_after(60):
        part = await _memory.measure_memory(setting)
    resident, each, wakes = part.figures
    assert "20 idle connections" in each.title
    assert resident.spread is not None
    assert 20 < resident.spread.median < 500
    assert wakes.spread is not None
