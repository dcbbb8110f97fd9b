import numpy as np
import pytest

from trioserve_protocol import Connection, Result, ResultRun, Role, bind_frame, infer_flags, request_columns
from trioserve_tools.bench.baselines import echo, main, reflector


def test_echo_answers_whole_messages() -> None:
    answer = echo(10, 3)
    assert answer(memoryview(bytes(9))) == (0, b"")
    assert answer(memoryview(bytes(10))) == (10, bytes(3))
    assert answer(memoryview(bytes(25))) == (20, bytes(6))


@pytest.mark.parametrize("count", [1, 9])
def test_reflector_answers_with_the_ids(count: int) -> None:
    rids = np.arange(7, 7 + count, dtype=np.uint64)
    block = request_columns(1, rids, 0, infer_flags(), np.zeros((count, 512), np.uint8)).tobytes()
    used, reply = reflector(544, 288)(memoryview(block + b"rest"))
    assert used == len(block)
    events, _ = Connection(Role.CLIENT).receive(memoryview(bytes(reply)))
    got = [rid for event in events for rid in _rids(event)]
    assert got == rids.tolist()


def _rids(event: object) -> list[int]:
    if isinstance(event, ResultRun):
        return event.rids.tolist()
    assert isinstance(event, Result)
    return [event.rid]


def test_reflector_answers_a_bind_and_waits_for_the_rest() -> None:
    answer = reflector(544, 288)
    bind = bind_frame(5, 1, "w1")
    assert answer(memoryview(bind[:31])) == (0, b"")
    assert answer(memoryview(bind[:-1])) == (0, b"")
    used, reply = answer(memoryview(bind))
    assert used == len(bind)
    assert bytes(reply)[3] == 0x04
    assert bytes(reply)[8] == 5
    assert answer(memoryview(bytes(100)))[0] == 0


def test_unknown_kind() -> None:
    with pytest.raises(KeyError):
        main(["mirror", "1", "1"])
