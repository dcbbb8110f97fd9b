"""The dissector on a live capture of the loopback device; skips where capturing is not permitted."""

import itertools
import re

import pytest
import trio

from trioserve_protocol import Flag, FrameType, Tag, frame, tlv

pytestmark = pytest.mark.slow

NOT_PERMITTED = re.compile(
    r"permission|not permitted|no such device|there is no device|couldn't run", re.IGNORECASE
)


def request(rid: int) -> bytes:
    meta = tlv(Tag.MODEL, "echo")
    parts = frame(FrameType.INFER, rid=rid, flags=Flag.END, rows=1, meta=meta, payload=bytes(512))
    return b"".join(bytes(part) for part in parts)


def reply(rid: int) -> bytes:
    return b"".join(bytes(part) for part in frame(FrameType.RESULT, rid=rid, flags=Flag.END, rows=1))


async def talk(client: trio.SocketStream, server: trio.SocketStream) -> None:
    """Exchange requests and replies until cancelled: tshark does not say when its capture has begun."""
    for rid in itertools.count(1):
        await client.send_all(request(rid))
        await server.receive_some()
        await server.send_all(reply(rid))
        await client.receive_some()
        await trio.sleep(0.05)


async def read_until(process: trio.Process, wanted: re.Pattern[str]) -> str:
    """Return what tshark printed as soon as `wanted` is in it, or all of it if tshark ends before."""
    assert process.stdout is not None
    text = ""
    async for chunk in process.stdout:
        text += chunk.decode()
        if wanted.search(text):
            break
    return text


WANTED = re.compile(r"RESULT rid=\d+ echo rows=1 +\|\d+\n")


async def capture(tshark: list[str]) -> tuple[str, str]:
    """Return tshark's output, until it has what we want, on a conversation; and its complaints."""
    with trio.fail_after(40):
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        client = await trio.open_tcp_stream("127.0.0.1", port)
        server = await listener.accept()
        fields = ["-T", "fields", "-E", "separator=|", "-e", "_ws.col.Info", "-e", "trioserve.request_in"]
        command = [*tshark, "-i", "lo", "-l", "-f", f"tcp port {port}", "-Y", "trioserve", *fields]
        async with client, server, listener, trio.open_nursery() as nursery:
            process = await trio.lowlevel.open_process(command, stdout=-1, stderr=-1)
            nursery.start_soon(talk, client, server)
            text = await read_until(process, WANTED)
            nursery.cancel_scope.cancel()
        process.terminate()
        await process.wait()
        assert process.stderr is not None
        return text, (await process.stderr.receive_some(65_536)).decode()


def test_loopback_traffic_is_dissected_live(tshark: list[str]) -> None:
    text, complaint = trio.run(capture, tshark)
    refused = [line for line in complaint.splitlines() if NOT_PERMITTED.search(line)]
    if refused and not text:
        pytest.skip(f"cannot capture on lo: {refused[0]}")
    assert WANTED.search(text), complaint
    assert re.search(r"INFER rid=\d+ echo rows=1", text)
