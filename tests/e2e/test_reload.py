"""Models that are loaded, replaced and unloaded while a server serves."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.harness import END, ServerProcess, serving, wait_for
from trioserve.client import sync
from trioserve.errors import Aborted, ModelNotFound, TrioserveError, VersionNotFound
from trioserve_protocol import Bound, ErrorCode, FrameType, Result, bind_frame, frame, frame_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SOURCE = """\
import time
import numpy as np
import trioserve

class {name}(trioserve.Model):
    inputs = {{"x": trioserve.Tensor("f4", [-1, {width}])}}
    outputs = {{"y": trioserve.Tensor("f4", [-1, {width}])}}
    default_deadline_ms = 10_000

    def load(self, ctx):
        {load}

    def infer(self, x):
        if x[0, 0] == 7:
            time.sleep(0.15)
        return x * np.float32({factor})
"""
SLOW_LOAD = "time.sleep(1.0)"


class Rig:
    """A server, its repository and an administrator."""

    def __init__(self, server: ServerProcess, repository: Path) -> None:
        self.server = server
        self.repository = repository
        self.url = server.addresses[0]
        self.factor = 2

    def write(self, factor: float | str | None = None, *, width: int = 4, load: str = "pass") -> None:
        """The next model `scale`; by default one that gives other results than any before."""
        if factor is None:
            self.factor += 1
            factor = self.factor
        write(self.repository, "Scale", factor, width=width, load=load)

    def order(self, op: str, name: str = "scale", version: int = 0) -> Any:
        with sync.connect(f"unix://{self.repository}.sock", timeout_s=30) as client:
            return getattr(client, f"{op}_model")(name, version=version)

    def order_soon(self, op: str) -> Future[Any]:
        pool = ThreadPoolExecutor(1)
        future = pool.submit(self.order, op)
        pool.shutdown(wait=False)
        return future

    def ask(self, name: str = "scale", width: int = 4) -> float:
        with sync.connect(self.url, timeout_s=10) as client:
            return float(client.infer(name, np.ones((1, width), np.float32))[0, 0])

    def workers(self) -> set[int]:
        """Process ids, without the programs that look at Python files."""
        children = Path(f"/proc/{self.server.pid}/task").glob("*/children")
        pids = {int(pid) for file in children for pid in file.read_text().split()}
        return {pid for pid in pids if "execution.worker" in command_of(pid)}

    def both(self) -> set[int]:
        """The old worker and the new one, as soon as they are there."""
        return wait_for(lambda: found if len(found := self.workers()) == 2 else set())

    @contextmanager
    def traffic(self, *names: str) -> Iterator[list[Any]]:
        """Requests all the time; yields what they got: (model, factor) or an error."""
        got: list[Any] = []
        over = threading.Event()

        def ask(name: str) -> None:
            with sync.connect(self.url, timeout_s=10) as client:
                while not over.is_set():
                    try:
                        got.append((name, float(client.infer(name, np.ones((1, 4), np.float32))[0, 0])))
                    except TrioserveError as error:
                        got.append(error)
                    time.sleep(0.001)

        threads = [threading.Thread(target=ask, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        try:
            yield got
        finally:
            over.set()
            for thread in threads:
                thread.join(10)


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def write(repository: Path, name: str, factor: float | str, *, width: int = 4, load: str = "pass") -> None:
    text = SOURCE.format(name=name, factor=factor, width=width, load=load)
    # Python takes a module from its cache if size and second are the same, which happens here and not to people.
    (repository / f"{name.lower()}.py").write_text(f"{text}# {time.monotonic_ns()}\n")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    repository = tmp_path_factory.mktemp("repository")
    for name in ("Scale", "Steady"):
        write(repository, name, 2)
    paths = [str(repository / name) for name in ("scale.py", "steady.py")]
    with serving(*paths, models=str(repository), admin={"unix_path": f"{repository}.sock"}) as server:
        yield Rig(server, repository)


@pytest.fixture
def rig(shared: Rig) -> Iterator[Rig]:
    """At rest afterwards, and beforehand with a `scale` of width 4, whose file may be another one already."""
    try:
        shared.factor = int(shared.ask())
    except TrioserveError:
        shared.write()
        shared.order("reload")
    yield shared
    assert wait_for(lambda: len(shared.workers()) == 1)
    shared.server.assert_at_rest()


def test_traffic_does_not_notice(rig: Rig) -> None:
    first = rig.factor
    with rig.traffic("scale", "steady") as got:
        rig.write()
        answer = rig.order("reload")
        rig.write(load="raise ValueError('no weights')")
        with pytest.raises(Aborted, match="load: scale: ValueError: no weights"):
            rig.order("reload")
        assert rig.ask() == rig.factor - 1
    assert answer["changed"]
    assert answer["loaded"] == [{"name": "scale", "version": 1}]
    assert answer["unloaded"] == []
    assert not [one for one in got if isinstance(one, Exception)]
    assert {factor for name, factor in got if name == "steady"} == {2.0}
    factors = [factor for name, factor in got if name == "scale"]
    assert set(factors) == {first, first + 1}
    assert factors == sorted(factors), "the old model after the new one"


@pytest.mark.parametrize(
    ("factor", "load", "reason"),
    [
        ("1", "raise KeyError(", "configuration"),
        ("'nan'", "pass", "self-test: scale: output 'y' is not finite"),
        ("1) * np.float64(1", "pass", "warm-up: scale: output 'y' is float64"),
    ],
    ids=["does not parse", "not finite", "wrong datatype"],
)
def test_a_broken_model_changes_nothing(rig: Rig, factor: str, load: str, reason: str) -> None:
    before, workers = rig.ask(), rig.workers()
    rig.write(factor, load=load)
    with pytest.raises(Aborted, match=reason) as caught:
        rig.order("reload")
    assert "nothing has changed" in str(caught.value)
    assert rig.ask() == before
    assert rig.workers() == workers


def request(rid: int, first: float = 1, width: int = 4, handle: int = 1) -> bytes:
    row = np.full((1, width), first, np.float32)
    whole = frame(FrameType.INFER, rid=rid, handle=handle, flags=END, rows=1, payload=row.tobytes())
    return frame_bytes(whole)


def test_a_handle_of_a_changed_signature_is_not_valid_any_more(rig: Rig) -> None:
    with rig.server.connect() as wire:
        wire.send(bind_frame(1, 1, "scale"), bind_frame(2, 2, "steady"))
        assert all(isinstance(event, Bound) for event in wire.receive_many(2))
        rig.write(width=2)
        rig.order("reload")
        wire.send(request(3), request(4, handle=2))
        wire.expect_error(ErrorCode.SIGNATURE_CHANGED, 3)
        assert isinstance(wire.receive(), Result)
        wire.send(bind_frame(5, 1, "scale"), request(6, width=2))
        bound, result = wire.receive_many(2)
        assert isinstance(bound, Bound)
        assert bound.signature.inputs[0].dims == (-1, 2)
        assert isinstance(result, Result)


def test_what_is_queued_when_a_model_is_unloaded_is_answered(rig: Rig) -> None:
    with rig.server.connect() as wire:
        wire.send(bind_frame(1, 1, "scale"))
        assert isinstance(wire.receive(), Bound)
        wire.send(request(2, 7), request(3, 7))
        wait_for(lambda: scale_of(rig.server)["in_flight"] == 2)
        wire.send(request(4, 7), request(5, 7))
        wait_for(lambda: scale_of(rig.server)["in_flight"] >= 2)
        answer = rig.order("unload")
        assert answer["unloaded"] == [{"name": "scale", "version": 1}]
        results = wire.receive_many(4)
        assert sorted(event.rid for event in results if isinstance(event, Result)) == [2, 3, 4, 5]
        wire.send(request(6))
        wire.expect_error(ErrorCode.HANDLE_NOT_BOUND, 6)
    with pytest.raises(ModelNotFound):
        rig.ask()
    assert rig.ask("steady") == 2
    with pytest.raises(ModelNotFound):
        rig.order("unload")
    assert rig.order("load")["loaded"] == [{"name": "scale", "version": 1}]
    assert not rig.order("load")["changed"]
    with pytest.raises(VersionNotFound):
        rig.order("reload", version=3)


def scale_of(server: ServerProcess) -> dict[str, Any]:
    return next(model for model in server.statistics()["models"] if model["model"] == "scale")


def test_the_death_of_the_new_worker_changes_nothing(rig: Rig) -> None:
    before = rig.workers()
    rig.write(load=SLOW_LOAD)
    order = rig.order_soon("reload")
    [new] = rig.both() - before
    os.kill(new, signal.SIGKILL)
    with pytest.raises(Aborted, match="killed by SIGKILL"):
        order.result(30)
    assert rig.ask() == rig.factor - 1
    assert rig.workers() == before


def test_the_death_of_the_old_worker_does_not_stop_the_change(rig: Rig) -> None:
    before = rig.workers()
    rig.write(load=SLOW_LOAD)
    order = rig.order_soon("reload")
    [old] = rig.both() & before
    os.kill(old, signal.SIGKILL)
    assert order.result(30)["changed"]
    assert rig.ask() == rig.factor


def test_two_orders_at_once_are_obeyed_one_after_the_other(rig: Rig) -> None:
    rig.write()
    orders = [rig.order_soon("reload"), rig.order_soon("reload")]
    assert all(order.result(30)["changed"] for order in orders)
    assert rig.ask() == rig.factor


def test_a_repository_that_is_looked_at_is_followed(tmp_path: Path) -> None:
    write(tmp_path, "Scale", 2)
    path = tmp_path / "scale.py"
    with serving(str(path), models=str(tmp_path), repository={"poll_seconds": 0.05}) as server:
        rig = Rig(server, tmp_path)
        whole = SOURCE.format(name="Scale", factor=3, width=4, load="pass")
        path.write_text(whole[: whole.index("inputs")])
        failed = server.wait_event("model_order_failed")
        assert "configuration" in failed["reason"]
        assert rig.ask() == 2
        path.write_text(whole)
        server.wait_event("models_changed")
        assert rig.ask() == 3
        assert len(server.events("model_order_failed")) == 1, "what failed is not tried again and again"


def test_files_of_another_model_that_have_changed_are_not_loaded_by_the_way(rig: Rig) -> None:
    write(rig.repository, "Steady", 3)
    rig.write()
    with pytest.raises(Aborted, match="the files of steady have changed"):
        rig.order("reload")
    assert (rig.ask(), rig.ask("steady")) == (rig.factor - 1, 2)
    assert len(rig.order("reload", "")["loaded"]) == 2, "all that has changed"
    assert (rig.ask(), rig.ask("steady")) == (rig.factor, 3)
    assert not rig.order("reload", "")["changed"]
    write(rig.repository, "Steady", 2)
    rig.order("reload", "steady")
