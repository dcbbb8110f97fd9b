"""Captures for the dissector: written from bytes by a tiny pcap writer, and read back through tshark."""

import shutil
import struct
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISSECTOR = ROOT / "protocol" / "dissector" / "trioserve.lua"
CLIENT_PORT = 50_000
LINKTYPE_RAW = 101
TO_SERVER, TO_CLIENT = 0, 1

Segment = tuple[int, bytes] | tuple[int, bytes, int]
"""Direction, data, and for all but the first TCP stream its number."""
Rows = list[dict[str, str]]


def write_pcap(path: Path, segments: Iterable[Segment], *, server_port: int) -> None:
    """Write TCP conversations over IPv4, a millisecond between two segments."""
    records = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, LINKTYPE_RAW)]
    sequence: dict[int, list[int]] = {}
    for number, (direction, data, *stream) in enumerate(segments):
        client_port = CLIENT_PORT + sum(stream)
        sent = sequence.setdefault(client_port, [1, 1])
        ports = (client_port, server_port) if direction == TO_SERVER else (server_port, client_port)
        tcp = struct.pack(
            "!HHIIBBHHH", *ports, sent[direction], sent[1 - direction], 5 << 4, 0x18, 65_535, 0, 0
        )
        sent[direction] += len(data)
        total = 20 + len(tcp) + len(data)
        ip = struct.pack("!BBHHHBBHII", 0x45, 0, total, 0, 0, 64, 6, 0, 0x7F000001, 0x7F000001)
        packet = ip + tcp + data
        records.append(struct.pack("<IIII", 0, 1000 * number, len(packet), len(packet)) + packet)
    path.write_bytes(b"".join(records))


@pytest.fixture(scope="session")
def tshark() -> list[str]:
    """The command line of tshark with our dissector; skips where tshark is not installed."""
    program = shutil.which("tshark")
    if program is None:
        pytest.skip("tshark is not installed")
    return [program, "-X", f"lua_script:{DISSECTOR}"]


@pytest.fixture
def dissect(tshark: list[str], tmp_path: Path) -> Callable[..., Rows]:
    """A function: segments and field names in, one dict per packet out; commas join a field seen twice."""

    def run(segments: Iterable[Segment], *fields: str, server_port: int = 7001) -> Rows:
        capture = tmp_path / "conversation.pcap"
        write_pcap(capture, segments, server_port=server_port)
        names = [*fields, "_ws.expert"]
        wanted = [word for name in names for word in ("-e", name)]
        # Two passes, as Wireshark does: a reply's frame is known when its request is shown.
        command = [*tshark, "-2", "-r", str(capture), "-T", "fields", "-E", "separator=|", *wanted]
        # tshark cuts long labels at a number of bytes, also within a character.
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, errors="replace", timeout=60
        )
        assert "Lua" not in done.stderr, done.stderr
        rows = [dict(zip(names, line.split("|"), strict=True)) for line in done.stdout.splitlines()]
        assert not [row for row in rows if "Lua Error" in row.pop("_ws.expert")]
        return rows

    return run
