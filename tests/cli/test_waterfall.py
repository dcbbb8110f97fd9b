from trioserve.cli._waterfall import BAR_COLUMNS, Phase, phases, waterfall
from trioserve_protocol import CutReason, Timing

BASE = 10**15
TIMING = Timing(
    received_ns=BASE,
    parsed_ns=BASE + 10_000,
    ready_ns=BASE,
    batched_ns=BASE + 10_000,
    input_copied_ns=BASE + 20_000,
    run_ns=BASE + 80_000,
    output_copied_ns=BASE + 85_000,
    sent_ns=BASE + 100_000,
    finished_ns=BASE + 90_000,
    predicted_finish_ns=BASE + 95_000,
    batch_id=7,
    batch_rows=1,
    cut_reason=CutReason.NO_GAIN,
)


def test_each_phase_starts_where_the_latest_one_ended() -> None:
    assert phases(TIMING) == [
        Phase("parse and admit", 0, 10_000),
        Phase("wait for payload", 10_000, 10_000),
        Phase("wait in queue", 10_000, 10_000),
        Phase("hand over", 10_000, 20_000),
        Phase("run", 20_000, 80_000),
        Phase("copy out", 80_000, 85_000),
        Phase("hand back", 85_000, 90_000),
        Phase("reply", 90_000, 100_000),
    ]


def test_bars_have_the_place_and_the_length_of_their_phase() -> None:
    lines = waterfall(TIMING, round_trip_us=150, server_us=100).splitlines()
    assert lines[0] == "round trip 150 µs: 50 µs on the way, 100 µs in the server"
    run = next(line for line in lines if line.strip().startswith("run"))
    assert "60.0 µs" in run
    assert run.count("█") == BAR_COLUMNS * 6 // 10
    assert lines[-1] == "batch 7: 1 row, padding 0, cut: no gain, 5.0 µs earlier than predicted"


def test_phases_without_time_are_a_dot_and_absent_ones_are_left_out() -> None:
    text = waterfall(TIMING, round_trip_us=150, server_us=100)
    assert "·" in text
    assert "tokenize" not in text


def test_numbers_of_a_newer_server_and_empty_timings_are_drawn_all_the_same() -> None:
    newer = TIMING._replace(cut_reason=99, batch_rows=3, finished_ns=BASE + 96_000)
    last = waterfall(newer, round_trip_us=1, server_us=9).splitlines()[-1]
    assert last == "batch 7: 3 rows, padding 0, cut: reason 99, 1.0 µs later than predicted"
    empty = waterfall(Timing(), round_trip_us=5, server_us=0).splitlines()
    assert empty[1:] == ["batch 0: 0 rows, padding 0, cut: none"]
