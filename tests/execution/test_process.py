"""WorkerProcess: what it makes of workers that do not behave."""

import socket
import subprocess
from collections.abc import AsyncIterator

import pytest
import trio

from trioserve.execution import WorkerStartError
from trioserve.execution import _process as module
from trioserve.execution._messages import Failed, encode_control
from trioserve.execution._process import WorkerProcess

pytestmark = pytest.mark.slow


class Rig:
    """A process that does nothing, whose ends the test holds."""

    def __init__(self, process: trio.Process) -> None:
        control, self.control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        data, self.data = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        data.settimeout(0)
        self.data.settimeout(0)
        self.worker = WorkerProcess(process, trio.socket.from_stdlib_socket(control), data, epoch=1)

    def close(self) -> None:
        for sock in (self.control, self.data, self.worker.data):
            sock.close()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    process = await trio.lowlevel.open_process(["sleep", "60"], stdin=subprocess.DEVNULL)
    made = Rig(process)
    with trio.fail_after(10):
        yield made
        await made.worker.stop(0)
    assert process.returncode is not None
    made.close()


async def test_an_unknown_message_is_no_start(rig: Rig) -> None:
    rig.control.send(b"hello")
    with pytest.raises(WorkerStartError, match="unknown message"):
        await rig.worker.ready(1)


async def test_a_failure_is_told_on(rig: Rig) -> None:
    rig.control.send(encode_control(Failed("no arena")))
    with pytest.raises(WorkerStartError, match="cannot serve: no arena"):
        await rig.worker.ready(1)


async def test_a_worker_that_answers_no_echo(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOP_LIMIT_S", 0.01)
    with pytest.raises(WorkerStartError, match="does not answer"):
        await rig.worker.measure_hop()


async def test_a_worker_that_answers_something_else(rig: Rig) -> None:
    rig.data.send(b"something")
    with pytest.raises(WorkerStartError, match="answers what it was not asked"):
        await rig.worker.measure_hop()


async def test_a_worker_that_is_gone_at_the_first_echo(rig: Rig) -> None:
    rig.data.close()
    with pytest.raises(WorkerStartError, match="ended while it started"):
        await rig.worker.measure_hop()


async def test_a_worker_that_closes_its_end_and_lives_is_killed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REAP_LIMIT_S", 0.01)
    rig.control.send(b"something to ignore")
    rig.control.close()
    await rig.worker.ending()
    assert await rig.worker.reaped() == "killed by SIGKILL after it had closed its end"


async def test_the_end_of_the_process_is_enough(rig: Rig) -> None:
    rig.worker.process.kill()
    await rig.worker.ending()
    assert await rig.worker.reaped() == "killed by SIGKILL"
