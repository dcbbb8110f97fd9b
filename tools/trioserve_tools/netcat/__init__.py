"""A netcat that knows the protocol: frames out, replies in, for people who learn it or look for a fault."""

from ._command import EXIT_CODES, add_arguments, run

__all__ = ["EXIT_CODES", "add_arguments", "run"]
