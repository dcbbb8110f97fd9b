"""What the demo prints, from known figures."""

from __future__ import annotations

import numpy as np

from trioserve_protocol import CutReason, Timing
from trioserve_tools.demo._report import Load, heading, latency_table, nearest, shortened, waterfall

TIMING = Timing(
    received_ns=1_000_000,
    parsed_ns=1_010_000,
    tokenized_ns=1_210_000,
    ready_ns=1_220_000,
    batched_ns=1_230_000,
    input_copied_ns=1_250_000,
    run_ns=4_800_000,
    output_copied_ns=4_850_000,
    sent_ns=5_000_000,
    predicted_finish_ns=5_100_000,
    finished_ns=5_000_000,
    batch_id=7,
    batch_rows=1,
    cut_reason=CutReason.NO_GAIN,
)


def test_heading() -> None:
    assert heading("Two words") == "Two words\n---------"


def test_nearest_are_the_best_in_order() -> None:
    stored = [("a", "one"), ("b" * 90, "two"), ("c", "three")]
    lines = nearest("what?", np.array([0.1, 0.9, 0.5], np.float32), stored, count=2).splitlines()
    assert lines[0] == "what?"
    assert lines[1].startswith("   0.90  bbb")
    assert lines[1].endswith("…  two")
    assert lines[2].split() == ["0.50", "c", "three"]


def test_shortened() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "ab…"


def test_waterfall_has_a_bar_a_phase() -> None:
    lines = waterfall(TIMING).splitlines()
    assert lines[0].split() == ["µs", "0", "µs", "4000"]
    names = [line[:24].strip() for line in lines[1:-1]]
    assert names == [
        "parsed", "tokenized", "ready", "waited for its batch", "input laid out", "model ran", "output stored",
        "reply written",
    ]  # fmt: skip
    ran = lines[6]
    assert ran[24:33].strip() == "3550"
    assert ran.count("█") == 36
    assert max(map(len, lines)) <= 78
    assert lines[-1] == "  batch 7 of 1 row, cut: no gain, done 100 µs before the forecast"


def test_waterfall_leaves_out_what_did_not_happen() -> None:
    timing = TIMING._replace(tokenized_ns=0, predicted_finish_ns=0, batch_rows=3, cut_reason=99)
    text = waterfall(timing)
    assert "tokenized" not in text
    assert text.endswith("batch 7 of 3 rows, cut: 99")


def test_waterfall_of_nothing_does_not_divide_by_zero() -> None:
    assert "batch 0" in waterfall(Timing())


def test_latency_table() -> None:
    load = Load("one at a time", np.arange(1, 101) * 1_000_000, 2_000_000_000)
    header, row = latency_table([load]).splitlines()
    assert header.split() == ["requests/s", "p50", "ms", "p90", "ms", "p99", "ms"]
    assert row.split() == ["one", "at", "a", "time", "50", "50.5", "90.1", "99.0"]
