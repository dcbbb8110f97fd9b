"""Defaults < file < environment < flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioserve.config import ConfigError, Problem, QuotaConfig, ServerConfig, load_server_config
from trioserve.config._sources import server_keys, variable_of


def problems_of(**sources: object) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        load_server_config(**sources)  # type: ignore[arg-type]
    return list(caught.value.problems)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "server.toml"
    path.write_text('host = "0.0.0.0"\nport = 1\n[limits]\nmax_binds = 7\nturn_us = 900\n')
    return path


def test_defaults() -> None:
    assert load_server_config() == ServerConfig()


def test_file_then_environment_then_flags(file: Path) -> None:
    env = {
        "TRIOSERVE_PORT": "2",
        "TRIOSERVE_LIMITS__MAX_BINDS": "8",
        "TRIOSERVE_GRACE_S": "1.5",
        "HOME": "/root",
    }
    config = load_server_config(file, env=env, flags={"port": 3, "unix_path": None})
    assert (config.host, config.port, config.unix_path) == ("0.0.0.0", 3, "")
    assert (config.limits.max_binds, config.limits.turn_us, config.limits.max_ndim) == (8, 900, 8)
    assert config.grace_s == 1.5


def test_nested_table_appears_where_there_was_none() -> None:
    assert load_server_config(flags={"workers.depth": 2}).workers.depth == 2


def test_problems_say_which_source(file: Path) -> None:
    file.write_text("[limits]\nmax_bind = 1\nmax_ndim = 0\n")
    problems = problems_of(file=file, env={"TRIOSERVE_PORT": "99999"}, flags={"host": 3})
    assert {(problem.file, problem.key) for problem in problems} == {
        (str(file), "limits.max_bind"),
        (str(file), "limits.max_ndim"),
        ("environment", "port"),
        ("command line", "host"),
    }


def test_variable_that_is_no_number() -> None:
    [problem] = problems_of(env={"TRIOSERVE_PORT": "http", "TRIOSERVE_GRACE_S": "2"})
    assert (problem.key, problem.expected, problem.given, problem.hint) == (
        "TRIOSERVE_PORT",
        "an integer",
        '"http"',
        "",
    )
    [problem] = problems_of(env={"TRIOSERVE_GRACE_S": "soon"})
    assert problem.expected == "a number"


def test_service_link_of_kubernetes_is_explained() -> None:
    [problem] = problems_of(env={"TRIOSERVE_PORT": "tcp://10.0.0.7:7001"})
    assert problem.hint == "set enableServiceLinks: false in the pod"


def test_misspelt_variable_is_a_problem_and_a_foreign_one_is_not() -> None:
    [problem] = problems_of(env={"TRIOSERVE_LIMIT__MAX_BINDS": "8"})
    assert problem.hint == 'did you mean "TRIOSERVE_LIMITS__MAX_BINDS"?'
    assert load_server_config(env={"TRIOSERVE_SERVICE_ACCOUNT": "x"}) == ServerConfig()


def test_missing_file(tmp_path: Path) -> None:
    [problem] = problems_of(file=tmp_path / "none.toml")
    assert problem.expected == "a file that exists"


def test_every_key_can_be_set_by_a_variable() -> None:
    defaults = {"str": "x", "int": "3", "float": "1.5"}
    keys = dict(server_keys())
    assert keys["limits.max_connections"] is int
    env = {variable_of(key): defaults[kind.__name__] for key, kind in keys.items()}
    env |= {"TRIOSERVE_ON_FIN": "cancel", "TRIOSERVE_LOG_LEVEL": "debug", "TRIOSERVE_LOG_FORMAT": "json"}
    env["TRIOSERVE_WORKERS__SPARE"] = "1"
    env |= {"TRIOSERVE_ADMIN__ON_DATA_PORT": "models", "TRIOSERVE_TLS__MIN_VERSION": "1.2"}
    env |= {
        f"TRIOSERVE_LIMITS__{key}": "5000" for key in ("MAX_FRAME_NBYTES", "MAX_META_NBYTES", "CREDIT_NBYTES")
    }
    config = load_server_config(env=env)
    assert config.limits.output_soft_s == 1.5
    assert config.workers.depth == 3
    assert config.on_fin == "cancel"


@pytest.mark.parametrize(
    "flags, key, words",
    [
        ({"host": ""}, "host", "unix_path is empty"),
        ({"unix_path": "/" + "x" * 107}, "unix_path", "107 bytes"),
        ({"admin.unix_path": "/" + "x" * 107}, "admin.unix_path", "107 bytes"),
        ({"tls.key": "k"}, "tls.certificate", "tls.key is"),
        ({"admin.on_data_port": "all"}, "admin.on_data_port", "auth.tokens is empty"),
        ({"limits.output_soft_nbytes": 1 << 25}, "limits.output_soft_nbytes", "16,777,216"),
        ({"limits.output_total_nbytes": 1 << 23}, "limits.output_hard_nbytes", "8,388,608"),
        ({"limits.max_frame_nbytes": 4096}, "limits.max_meta_nbytes", "4,096"),
    ],
)
def test_keys_that_do_not_go_together(flags: dict[str, object], key: str, words: str) -> None:
    [problem] = problems_of(flags=flags)
    assert problem.key == key
    assert words in problem.expected


@pytest.mark.parametrize(
    "key", ["models", "unix_path", "state_dir", "record", "auth.tokens", "admin.unix_path"]
)
def test_a_path_that_no_system_has(key: str) -> None:
    [problem] = problems_of(flags={key: "a\0b"})
    assert (problem.key, problem.given) == (key, '"a\\x00b"')


def test_no_tcp_is_fine_with_a_unix_socket() -> None:
    assert load_server_config(flags={"host": "", "unix_path": "/run/trioserve.sock"}).host == ""


@pytest.mark.parametrize(
    "key, value",
    [
        ("max_frame_nbytes", 4_095),
        ("max_frame_nbytes", 2**32),
        ("max_meta_nbytes", 511),
        ("max_meta_nbytes", 8 * 65_536),
        ("credit_requests", 2**32),
        ("credit_nbytes", 1_023),
        ("credit_nbytes", 2**42),
        ("max_bytes_elements", 2**32),
        ("control_frames_per_s", 2**32),
    ],
)
def test_a_limit_that_clients_cannot_be_told_of(key: str, value: int) -> None:
    [problem] = problems_of(flags={f"limits.{key}": value})
    assert problem.key == f"limits.{key}"


def test_quotas_of_tenants(file: Path) -> None:
    file.write_text("[quota]\nrequests_per_s = 5\n[tenants.acme]\nrequests_per_s = 10.5\nburst = 3\n")
    config = load_server_config(file)
    assert (config.quota.requests_per_s, config.quota.burst) == (5, 0)
    assert config.tenants == {"acme": QuotaConfig(10.5, 3)}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[tenants.acme]\nrate = 1\n", "tenants.acme.rate"),
        ("[tenants.acme]\nburst = -1\n", "tenants.acme.burst"),
        ('[tenants."a b"]\nrequests_per_s = 1\n', "tenants.a b"),
        ("[quota]\nrequests_per_s = -1\n", "quota.requests_per_s"),
        ("[quota]\nburst = 50\n", "quota.requests_per_s"),
        ("[tenants.acme]\nburst = 50\n", "tenants.acme.requests_per_s"),
        ("[quota]\nrequests_per_s = 9\n[tenants.acme]\nburst = 50\n", "tenants.acme.requests_per_s"),
        ("[tenants.acme]\nrequests_per_s = 0\nburst = 50\n", "tenants.acme.requests_per_s"),
    ],
)
def test_a_quota_that_is_none(file: Path, text: str, key: str) -> None:
    file.write_text(text)
    assert [problem.key for problem in problems_of(file=file)] == [key]


def test_a_tenant_without_a_quota(file: Path) -> None:
    file.write_text("[quota]\nrequests_per_s = 5\n[tenants.acme]\nrequests_per_s = 0\n[tenants.other]\n")
    assert load_server_config(file).tenants == {"acme": QuotaConfig(), "other": QuotaConfig()}


def test_a_burst_without_a_rate_is_explained() -> None:
    [problem] = problems_of(flags={"quota.burst": 50})
    assert problem.expected == "more than 0, because quota.burst is 50"
    assert problem.hint == "without a rate there is no quota, and nothing for a burst to be part of"
