"""Logs for people and machines, which neither stop the server nor obey a client."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
import structlog

from trioserve.observability import configure_logging
from trioserve.observability._logging import LossyStream, escape_values


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    log = structlog.get_logger("room")
    log.info("batch_cut", rows=3)
    log.debug("request_shed")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("connection_failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("batch_cut", "info"),
        ("connection_failed", "error"),
    ]
    assert lines[0]["rows"] == 3
    assert lines[0]["timestamp"].endswith("Z")
    assert "ValueError: two" in lines[1]["exception"]


@pytest.mark.parametrize("log_format", ["auto", "json"])
def test_what_is_no_terminal_gets_json(capsys: pytest.CaptureFixture[str], log_format: str) -> None:
    configure_logging("warning", log_format)
    structlog.get_logger().warning("accept_paused")
    assert json.loads(capsys.readouterr().err)["event"] == "accept_paused"


def test_the_console_shows_control_characters_instead_of_sending_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info", "console")
    structlog.get_logger().info("bind_refused", model="\x1b[2Jevil\r\n", exception="one\ntwo\x07")
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert r"\x1b[2Jevil\r\n" in shown
    assert "one" in shown
    assert r"two\x07" in shown


def test_lines_of_a_traceback_stay_lines() -> None:
    event = escape_values(None, "", {"exception": "one\ntwo\x07", "name": "a\nb", "fine": "é", "number": 3})
    assert event == {"exception": "one\ntwo\\x07", "name": "a\\nb", "fine": "é", "number": 3}


class Broken(io.StringIO):
    """A stream on a full disk."""

    def write(self, _: str) -> int:
        raise OSError("no space left")

    def flush(self) -> None:
        raise OSError("no space left")


def test_a_stream_that_cannot_be_written_loses_lines_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = LossyStream(Broken())
    assert stream.write("four") == 4
    stream.flush()
    assert stream.lost == 1
    closed = io.StringIO()
    closed.close()
    lossy = LossyStream(closed)
    assert lossy.write("x") == 1
    lossy.flush()
    monkeypatch.setattr(sys, "stderr", Broken())
    configure_logging("info", "json")
    structlog.get_logger().info("server_ready")
