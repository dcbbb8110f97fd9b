"""The dissector on a live capture of a server's loopback traffic; skips where capturing is not permitted."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from trioserve_protocol import Flag, FrameType, Tag, frame, tlv

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "docs" / "snippets" / "double.py"
NOT_PERMITTED = re.compile(
    r"permission|not permitted|no such device|there is no device|couldn't run", re.IGNORECASE
)
EXPECTED = [
    re.compile(pattern)
    for pattern in (
        r"BIND rid=\d+ double ",
        r"BOUND rid=\d+ double [^|]*\|\d+",
        r"INFER rid=\d+ double rows=1 ",
        r"RESULT rid=\d+ double rows=1 [^|]*\|\d+",
        r'ERROR rid=\d+ none rows=1 MODEL_NOT_FOUND "[^"]+"[^|]*\|\d+',
    )
]

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


@pytest.fixture
def server_port() -> Iterator[int]:
    """The port of a server process."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("", "protocol", "tools"))
    options = ["--models", str(MODEL), "--port", "0", "--log-format", "json"]
    command = [sys.executable, "-m", "trioserve.cli", "serve", *options]
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        events = (json.loads(line) for line in process.stderr)
        ready = next(event for event in events if event["event"] == "server_ready")
        yield int(ready["addresses"][0].rpartition(":")[2])
        process.terminate()


def request(rid: int) -> bytes:
    """Bind the model, ask it once by its handle, and ask another by name."""
    declared = tlv(Tag.TENSOR, bytes.fromhex("0b020000000000001000000000000000 0100000004000000"))
    named = tlv(Tag.MODEL, "none") + declared
    frames = [
        frame(FrameType.BIND, rid=rid, handle=1, meta=tlv(Tag.MODEL, "double")),
        frame(FrameType.INFER, rid=rid + 1, handle=1, flags=Flag.END, rows=1, payload=bytes(16)),
        frame(FrameType.INFER, rid=rid + 2, meta=named, flags=Flag.END, rows=1, payload=bytes(16)),
    ]
    return b"".join(bytes(part) for parts in frames for part in parts)


async def talk(client: trio.SocketStream) -> None:
    """Send requests until cancelled: tshark does not say when its capture has begun."""
    for number in itertools.count():
        await client.send_all(request(1 + 3 * number))
        await client.receive_some()
        await trio.sleep(0.05)


def missing(text: str) -> list[str]:
    return [pattern.pattern for pattern in EXPECTED if not pattern.search(text)]


async def read_all_expected(process: trio.Process) -> str:
    """Return what tshark printed as soon as nothing is missing, or all of it if tshark ends before."""
    assert process.stdout is not None
    text = ""
    async for chunk in process.stdout:
        text += chunk.decode()
        if not missing(text):
            break
    return text


async def capture(tshark: list[str], port: int) -> tuple[str, str]:
    """Return tshark's output, until it has what we want, on a conversation; and its complaints."""
    with trio.fail_after(40):
        fields = ["-T", "fields", "-E", "separator=|", "-e", "_ws.col.Info", "-e", "trioserve.request_in"]
        command = [*tshark, "-i", "lo", "-l", "-f", f"tcp port {port}", "-Y", "trioserve", *fields]
        client = await trio.open_tcp_stream("127.0.0.1", port)
        async with client, trio.open_nursery() as nursery:
            process = await trio.lowlevel.open_process(command, stdout=-1, stderr=-1)
            nursery.start_soon(talk, client)
            text = await read_all_expected(process)
            nursery.cancel_scope.cancel()
        process.terminate()
        await process.wait()
        assert process.stderr is not None
        return text, (await process.stderr.receive_some(65_536)).decode()


def test_a_server_s_traffic_is_dissected_live(tshark: list[str], server_port: int) -> None:
    text, complaint = trio.run(capture, tshark, server_port)
    refused = [line for line in complaint.splitlines() if NOT_PERMITTED.search(line)]
    if refused and not text:
        pytest.skip(f"cannot capture on lo: {refused[0]}")
    assert not missing(text), text + complaint
