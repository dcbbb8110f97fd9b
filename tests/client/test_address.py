import pytest

from trioserve.client._address import TcpAddress, UnixAddress, parse_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("tcp://127.0.0.1:7001", TcpAddress("127.0.0.1", 7001)),
        ("tcp://models.example:9/", TcpAddress("models.example", 9)),
        ("tcp://[::1]:80", TcpAddress("::1", 80)),
        ("localhost:7002", TcpAddress("localhost", 7002)),
        ("localhost", TcpAddress("localhost", 7001)),
        ("unix:///run/trioserve.sock", UnixAddress("/run/trioserve.sock")),
        ("unix://./here.sock", UnixAddress("./here.sock")),
        ("unix:///with%20space", UnixAddress("/with space")),
        ("unix://@name", UnixAddress("@name")),
    ],
)
def test_reads_each_form(url: str, expected: object) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:7001",
        "tcp://:7001",
        "tcp://host:0",
        "tcp://host:65536",
        "tcp://host:port",
        "tcp://host:1/path",
        "tcp://user@host:1",
        "tcp://host:1?x=1",
        "unix://",
        "unix://@",
        "",
    ],
)
def test_refuses_other_forms_and_names_the_right_ones(url: str) -> None:
    with pytest.raises(ValueError, match="expected tcp://host:port, tls://host:port or unix:///path"):
        parse_url(url)


@pytest.mark.parametrize(
    "url", ["tcp://127.0.0.1:7001", "tcp://[::1]:80", "tls://host:1", "unix:///run/x.sock", "unix://@name"]
)
def test_prints_the_url_it_was_read_from(url: str) -> None:
    assert str(parse_url(url)) == url


def test_an_abstract_name_starts_with_a_zero_byte() -> None:
    assert UnixAddress("@name").sockaddr == "\0name"
    assert UnixAddress("/run/x.sock").sockaddr == "/run/x.sock"
