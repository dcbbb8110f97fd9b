"""What a worker has to say to people goes to standard error, which it shares with the server."""

from __future__ import annotations

import os
import sys
import traceback


def report(message: str, error: BaseException | None = None) -> None:
    """Write a line, and the traceback of an error below it. In one piece, so that workers do not mix within a line."""
    text = f"trioserve worker {os.getpid()}: {message}\n"
    if error is not None:
        text += "".join(traceback.format_exception(error))
    sys.stderr.write(text)
    sys.stderr.flush()
