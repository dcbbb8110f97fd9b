"""Logs: levels, formats, and what a client must not be able to do with them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
import structlog

from trioserve.observability import _logging as module
from trioserve.observability import configure_logging
from trioserve.observability._logging import LossyStream, escape_values


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_json_is_one_object_a_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    structlog.get_logger().info("something", text="a\nb\x1b[31m", number=1, odd=object)
    [line] = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert entry["event"] == "something"
    assert entry["text"] == "a\nb\x1b[31m"
    assert entry["level"] == "info"
    assert entry["timestamp"].endswith("Z")
    assert "\x1b" not in line


def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning", "json")
    log = structlog.get_logger()
    log.info("quiet")
    log.warning("loud")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["loud"]


def test_auto_is_json_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "auto")
    structlog.get_logger().info("something")
    assert json.loads(capsys.readouterr().err)["event"] == "something"


def test_on_a_console_no_value_reaches_the_terminal_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "console")
    log = structlog.get_logger()
    log.info("refused", model="\x1b]0;owned\x07", other="two\nlines", plain="fine")
    try:
        raise ValueError("\x1b[2Jgone")
    except ValueError:
        log.exception("failed")
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\\x1b]0;owned" in text
    assert "two\\nlines" in text
    assert "fine" in text
    assert "ValueError: \\x1b[2Jgone" in text
    assert text.count("\n") > 3, "a traceback stays readable"


def test_values_that_are_no_text_stay_what_they_are() -> None:
    event = {"a": 1, "b": b"\x1b", "c": "ok", "exception": "x\ny"}
    assert escape_values(None, "info", dict(event)) == event


def test_a_stream_that_cannot_be_written_loses_lines_and_stops_nothing() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "no space left on device")

        def flush(self) -> None:
            raise OSError(28, "no space left on device")

    stream = LossyStream(Full())
    assert stream.write("abc") == 3
    stream.flush()
    assert stream.lost == 1
    closed = io.StringIO()
    closed.close()
    stream = LossyStream(closed)
    stream.write("abc")
    stream.flush()
    assert stream.lost == 1


def test_a_console_with_colours(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    configure_logging("debug", "auto")
    structlog.get_logger().debug("something", model="\x1b[2J")
    assert "\x1b[2J" not in capsys.readouterr().err
    assert module.LossyStream is LossyStream
