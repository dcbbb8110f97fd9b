"""The trioserve wire protocol, version 1, without I/O."""
