from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from trioserve_tools.bench._client import LoadClient, LoadShape
from trioserve_tools.bench._measure import Sample, Spread, compared, measure, spread_of
from trioserve_tools.bench._subjects import bare

RECORD = (
    '{"answers": 100, "seconds": 0.5, "answers_all": 120, "cpu_s": 0.1, "p50_us": 1, "p90_us": 2, "p99_us": 3, '
    '"max_us": 4}'
)


def test_spread() -> None:
    spread = Spread([3.0, 1.0, 2.0, 9.0])
    assert (spread.median, spread.low, spread.high) == (2.5, 1.0, 9.0)


def test_rounds_are_compared_one_by_one(sample: Callable[..., Sample]) -> None:
    ours, theirs = [sample(200.0), sample(50.0)], [sample(100.0), sample(50.0)]
    assert compared(ours, theirs, lambda a, b: a.per_s / b.per_s).values == [2.0, 1.0]
    assert spread_of(ours, lambda one: one.client_cpus).values == [0.25, 0.25]
    assert ours[0].server_cpu_us == 12.0
    with pytest.raises(ValueError):
        compared(ours, theirs[:1], lambda a, b: 0.0)


@pytest.mark.slow
async def test_subjects_take_turns() -> None:
    told: list[str] = []
    subjects = {"a": bare("echo", "w1"), "b": bare("reflector", "w1")}
    client = LoadClient("sh", ("sh", "-c", f"echo '{RECORD}'"))
    with trio.fail_after(30):
        rounds = await measure(subjects, client, LoadShape(1, 1, 0.5, 0), rounds=2, progress=told.append)
    assert [text.partition(":")[0] for text in told] == [
        "round 1 of 2, a",
        "round 1 of 2, b",
        "round 2 of 2, a",
        "round 2 of 2, b",
    ]
    for samples in rounds.values():
        assert [one.per_s for one in samples] == [200.0, 200.0]
        for one in samples:
            assert 0 <= one.others <= 1
            assert 0 <= one.stolen <= 1
            assert one.cpu_us["workers"] == 0
