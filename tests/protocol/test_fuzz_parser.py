import json
import random

import pytest

from tests.protocol import fuzz_parser
from trioserve_protocol import Role


@pytest.mark.slow
def test_twenty_thousand_streams_give_only_events() -> None:
    record = fuzz_parser.fuzz(20_000, seed=20_240)
    assert record["failures"] == 0, record["first_failure"]
    assert record["executions"] == 20_000
    # The streams must reach what they are meant to reach.
    for name in (
        "InferRun",
        "ResultRun",
        "InferBegin",
        "FatalError",
        "FrameError INVALID_META",
        "Bound",
        "Hello",
    ):
        assert record["events"][name] > 20, name


def test_a_failure_is_recorded_with_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_parser, "examine", lambda event: [][event])
    record = fuzz_parser.fuzz(100, seed=1)
    assert record["failures"] == 10
    assert bytes.fromhex(record["first_failure"]["stream"])
    assert record["executions"] < 100


def test_equal_seeds_make_equal_streams() -> None:
    streams = [fuzz_parser.make_stream(random.Random(5), Role.SERVER) for _ in range(2)]
    assert streams[0] == streams[1]


def test_the_command_prints_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_parser.main(["--executions", "50", "--seed", "3"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["executions"], record["seed"], record["failures"]) == (50, 3, 0)
