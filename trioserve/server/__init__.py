"""The composition root: wires the rooms, and owns their lifetimes."""

from __future__ import annotations

from ._run import run, serve_forever
from ._server import Server

__all__ = ["Server", "run", "serve_forever"]
