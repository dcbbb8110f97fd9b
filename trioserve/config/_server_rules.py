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
    problems += _path_problems(config, origin)
    for key in ("key", "client_ca"):
        if (value := getattr(config.tls, key)) and not config.tls.certificate:
            expected = f"a file, because tls.{key} is {shown(value)}"
            problems.append(Problem(origin(f"tls.{key}"), "tls.certificate", expected, '""'))
    if config.admin.on_data_port == "all" and not config.auth.tokens:
        hint = "anybody who can connect could change the server"
        expected = "at most statistics, because auth.tokens is empty"
        key = "admin.on_data_port"
        problems.append(Problem(origin(key), key, expected, '"all"', hint))
    return problems + _quota_problems(config, origin)


def _path_problems(config: ServerConfig, origin: Origin) -> list[Problem]:
    """Paths that no system has."""
    problems: list[Problem] = []
    for key, path in (("unix_path", config.unix_path), ("admin.unix_path", config.admin.unix_path)):
        nbytes = len(path.encode(errors="surrogateescape"))
        if nbytes > MAX_UNIX_PATH_NBYTES:
            expected = f"a path of at most {MAX_UNIX_PATH_NBYTES} bytes, as the kernel has it"
            problems.append(Problem(origin(key), key, expected, f"{nbytes} bytes"))
    paths = {key: getattr(config, key) for key in ("models", "unix_path", "state_dir", "record")}
    paths |= {f"tls.{key}": getattr(config.tls, key) for key in ("certificate", "key", "client_ca")}
    paths |= {"auth.tokens": config.auth.tokens, "admin.unix_path": config.admin.unix_path}
    for key, path in paths.items():
        if "\0" in path:
            problems.append(Problem(origin(key), key, "a path without a NUL character", shown(path)))
    return problems


def _quota_problems(config: ServerConfig, origin: Origin) -> list[Problem]:
    """A burst without a rate, which would be no quota at all."""
    quotas = {"quota": config.quota} | {f"tenants.{name}": quota for name, quota in config.tenants.items()}
    hint = "without a rate there is no quota, and nothing for a burst to be part of"
    return [
        Problem(
            origin(f"{table}.burst"),
            f"{table}.requests_per_s",
            f"more than 0, because {table}.burst is {quota.burst}",
            shown(quota.requests_per_s),
            hint,
        )
        for table, quota in quotas.items()
        if quota.burst and not quota.requests_per_s
    ]
