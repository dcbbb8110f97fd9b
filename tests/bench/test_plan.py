from pathlib import Path

import numpy as np
import pytest

from trioserve_protocol import Bind, Connection, Infer, Role
from trioserve_tools.bench._maths import WORKS
from trioserve_tools.bench._plan import REQUESTS, Plan, fixed_plan, frames_plan, http_plan, request_rows


@pytest.mark.parametrize("make", [frames_plan, fixed_plan, lambda work: http_plan(work, "/inference")])
def test_what_is_written_is_read(make: object, tmp_path: Path) -> None:
    plan = make("w1")  # type: ignore[operator]
    plan.write(tmp_path / "plan")
    again = Plan.read(tmp_path / "plan")
    assert (again.kind, again.reply_nbytes, again.preamble) == (plan.kind, plan.reply_nbytes, plan.preamble)
    np.testing.assert_array_equal(again.requests, plan.requests)
    np.testing.assert_array_equal(again.expected, plan.expected)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(bytes(100))
    with pytest.raises(ValueError, match="not a plan"):
        Plan.read(tmp_path / "other")


@pytest.mark.parametrize(("work", "request_nbytes", "reply_nbytes"), [("w1", 544, 288), ("w2", 16_416, 288)])
def test_frames_are_requests_of_the_workload(work: str, request_nbytes: int, reply_nbytes: int) -> None:
    plan = frames_plan(work)
    assert plan.requests.shape == (REQUESTS, request_nbytes)
    assert plan.reply_nbytes == reply_nbytes
    machine = Connection(Role.SERVER)
    events, used = machine.receive(memoryview(plan.preamble + plan.requests[3].tobytes()))
    bind, request = events
    assert used == len(plan.preamble) + request_nbytes
    assert isinstance(bind, Bind)
    assert isinstance(request, Infer)
    assert (bind.model, request.handle, request.rows) == (work, bind.handle, 1)
    row = np.frombuffer(request.payload, np.float32).reshape(1, *WORKS[work].input_dims)
    np.testing.assert_array_equal(row[0], request_rows(work)[3])
    np.testing.assert_allclose(WORKS[work].function()(row).reshape(-1), plan.expected[3], atol=1e-5)


def test_a_plan_for_a_reflector_compares_nothing() -> None:
    plan = frames_plan("w1", compared=False)
    assert plan.expected.shape == (REQUESTS, 0)
    assert fixed_plan("w1").reply_nbytes == plan.reply_nbytes


def test_posts_carry_the_same_bytes() -> None:
    plan = http_plan("w1", "/x")
    head, _, body = plan.requests[5].tobytes().partition(b"\r\n\r\n")
    assert head.startswith(b"POST /x HTTP/1.1\r\n")
    assert b"Content-Length: 512" in head
    assert body == request_rows("w1")[5].tobytes()
