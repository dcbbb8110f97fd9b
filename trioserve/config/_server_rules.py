"""What the keys of a server's configuration must be together: pure checks on a `ServerConfig`."""

from __future__ import annotations

from trioserve.config._decode import Origin
from trioserve.config._model import MODEL_NAME
from trioserve.config._problem import Problem, shown
from trioserve.config._server import ServerConfig

MAX_UNIX_PATH_NBYTES = 107
"""Longest path of a Unix socket: `sun_path` has 108 bytes with its final zero."""


def server_problems(config: ServerConfig, origin: Origin) -> list[Problem]:
    """Everything that is wrong with a configuration whose single values are right.

    Args:
        config: The configuration.
        origin: Where a key's value came from, for the problems.
    """
    problems: list[Problem] = []
    if not config.host and not config.unix_path:
        hint = "a server has a TCP address, a Unix socket or both"
        problems.append(Problem(origin("host"), "host", "an address, because unix_path is empty", '""', hint))
    nbytes = len(config.unix_path.encode(errors="surrogateescape"))
    if nbytes > MAX_UNIX_PATH_NBYTES:
        expected = f"a path of at most {MAX_UNIX_PATH_NBYTES} bytes, as the kernel has it"
        problems.append(Problem(origin("unix_path"), "unix_path", expected, f"{nbytes} bytes"))
    limits = config.limits
    for low, high in (
        ("output_soft_nbytes", "output_hard_nbytes"),
        ("output_hard_nbytes", "output_total_nbytes"),
        ("max_meta_nbytes", "max_frame_nbytes"),
    ):
        least, most = getattr(limits, low), getattr(limits, high)
        if least > most:
            key = f"limits.{low}"
            problems.append(
                Problem(origin(key), key, f"at most limits.{high}, which is {most:,}", shown(least))
            )
    for name in config.tenants:
        if not MODEL_NAME.fullmatch(name):
            expected = "a letter or digit, then up to 63 letters, digits, `_`, `.` or `-`"
            problems.append(Problem(origin("tenants"), f"tenants.{name}", expected, shown(name)))
    return problems
