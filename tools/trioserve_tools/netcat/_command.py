"""The command line of `trioserve nc`."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from trioserve.client import Address, UnixAddress, client_context, parse_url
from trioserve_protocol import (
    FrameType,
    ProtocolError,
    RequestClass,
    Tag,
    bind_frame,
    frame,
    frame_bytes,
    infer_flags,
    ping_frame,
    tlv,
)

from ._build import build, infer, parse_hex, parse_json, with_body_nbytes
from ._exchange import Exchange, Manners, Outcome
from ._explain import Explainer, not_a_frame
from ._tensors import Tensor, from_texts, parse_tensor
from ._wire import Frame, Splitter

USAGE_ERROR = 2
NOT_CONNECTED = 3

EXIT_CODES = {
    0: "every frame that calls for an answer got one, and no answer was an error",
    1: "at least one answer was an error",
    2: "the command line or a file it names cannot be understood",
    3: "the server cannot be reached",
    4: "the server closed the connection, or it broke, before all answers had come",
    5: "the server said nothing for --wait seconds while an answer was due",
}

_DESCRIPTION = """\
Send frames of the trioserve protocol and show what comes back. Frames go out in the order in which they stand
on the command line; without any, hex is read from standard input. Ids count up from 1.
"""

_EPILOG = """\
tensors (-t)   [NAME][:DTYPE]=VALUE or VALUE; a VALUE is a .npy file or JSON with the batch dimension:
               -t x=batch.npy    -t 'x=[[1, 2, 3, 4]]'    -t ':i4=[[1], [2]]'
json frames    objects, one a frame: type and whatever of rid, handle, flags, timeout_us, rows, aux,
               meta {"MODEL": "echo"}, tensors {"x": [[1, 2]]}, json, payload_hex; and to be wrong on purpose
               body, meta8, version, tlvs [[99, "00ff"]]
hex            blanks are free, # starts a comment: the output of `xxd -p` does, and so does a line of a dump

examples
  trioserve nc --ping
  trioserve nc --infer echo -t '[[1, 2, 3, 4]]' --show-sent
  trioserve nc --bind minilm --infer minilm --text 'hello' --output json
  trioserve nc --infer slow -t '[[1, 2, 3, 4]]' --cancel-after 0.1
  trioserve nc --json-frame '{"type": "ADMIN", "json": {"op": "models"}}'
  xxd -r -p request.hex | nc -q1 127.0.0.1 7001 | trioserve nc --explain -

exit codes
""" + "".join(f"  {code}  {meaning}\n" for code, meaning in EXIT_CODES.items())


class _Step(argparse.Action):
    """Keeps options in their order: `args.steps` is a list of (option, value)."""

    def __call__(
        self, _: object, namespace: argparse.Namespace, values: object, __: str | None = None
    ) -> None:
        """Append the option."""
        namespace.steps = [*(namespace.steps or []), (self.dest, values)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments to `parser`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(steps=None)
    parser.add_argument(
        "url", nargs="?", default="tcp://127.0.0.1:7001", help="HOST:PORT, tcp://..., tls://..., unix:///path"
    )
    _add_frames(parser.add_argument_group("frames"))
    _add_request_options(parser.add_argument_group("requests of --infer"))
    _add_manners(parser.add_argument_group("manners"))
    parser.add_argument(
        "--ca-file",
        metavar="FILE",
        help="authorities that a tls:// server is trusted by (default: the system's)",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output", choices=("dump", "json", "raw"), default="dump", help="of what comes back"
    )
    output.add_argument("--show-sent", action="store_true", help="dump what is sent, too")
    output.add_argument(
        "--explain", metavar="FILE", help="send nothing: dump the frames in a file, - for stdin"
    )


def run(args: argparse.Namespace) -> int:
    """Do what was asked; returns one of `EXIT_CODES`."""
    try:
        if args.explain:
            _explain(args)
            return 0
        data = _frames(args)
        address = parse_url(args.url)
        manners = _manners(args, address)
    except (OSError, ValueError, ProtocolError) as error:
        print(f"trioserve nc: {error}", file=sys.stderr)
        return USAGE_ERROR
    try:
        sock = _connected(address, args.wait, args.ca_file)
    except OSError as error:
        print(f"trioserve nc: {address}: {error.strerror or error}", file=sys.stderr)
        return NOT_CONNECTED
    with sock:
        outcome = Exchange(sock, data, manners, _printer(args)).run()
    if outcome in (Outcome.LOST, Outcome.TIMED_OUT):
        print(f"trioserve nc: {EXIT_CODES[outcome]}", file=sys.stderr)
    return int(outcome)


def _add_frames(group: argparse._ArgumentGroup) -> None:
    def step(name: str, help_text: str, metavar: str | None = None) -> None:
        nargs = None if metavar else 0
        group.add_argument(name, action=_Step, nargs=nargs, metavar=metavar, help=help_text)

    step("--hex", "frames in hex, - for stdin", "FILE")
    step("--raw", "bytes as they are, - for stdin", "FILE")
    step("--json", "frames as JSON objects, - for stdin", "FILE")
    step("--json-frame", "one frame as a JSON object", "JSON")
    step("--hello", "HELLO, with the token in the variable TRIOSERVE_TOKEN if that is set")
    step("--ping", "PING")
    step("--bind", "BIND of a model, to handle 1, 2, ...", "MODEL")
    step("--infer", "INFER by name; without meta if the model was bound before", "MODEL")


def _add_request_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-t", "--tensor", action="append", default=[], metavar="TENSOR", help="an input, see below"
    )
    group.add_argument(
        "--text", action="append", default=[], metavar="TEXT", help="a row of a text input; repeatable"
    )
    group.add_argument(
        "--deadline-ms", type=float, default=0.0, metavar="MS", help="time left (default: the model's)"
    )
    group.add_argument("--sampled", action="store_true", help="ask for the timing")
    names = [member.name.lower() for member in RequestClass]
    group.add_argument(
        "--class", dest="request_class", choices=names, default="critical", help="(default critical)"
    )


def _add_manners(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--wait", type=float, default=5.0, metavar="S", help="patience, in seconds (default 5)"
    )
    group.add_argument(
        "--cancel-after", type=float, metavar="S", help="cancel everything S seconds after sending"
    )
    group.add_argument("--slow", type=float, metavar="BYTES_PER_S", help="send this slowly")
    group.add_argument("--half-close", action="store_true", help="close the sending half when all is sent")
    group.add_argument(
        "--bad-length", type=int, metavar="N", help="say N as the body length of the last frame"
    )


def _manners(args: argparse.Namespace, address: Address) -> Manners:
    if args.half_close and not isinstance(address, UnixAddress) and address.tls:
        # Python's `ssl` reads on after it has said goodbye, and drops what comes instead of a goodbye.
        raise ValueError("--half-close: expected an address without TLS")
    if args.slow is not None and not args.slow > 0:
        raise ValueError(f"--slow: expected more than 0 bytes a second, got {args.slow:g}")
    return Manners(
        wait_s=args.wait, bytes_per_s=args.slow, half_close=args.half_close, cancel_after_s=args.cancel_after
    )


def _frames(args: argparse.Namespace) -> bytes:
    """Return the bytes to send."""
    frames: list[bytes] = []
    handles: dict[str, int] = {}
    for name, value in args.steps or [("hex", "-")]:
        rid = sum(len(Splitter().feed(part)) for part in frames) + 1
        frames += _step(args, name, value, rid, handles)
    if args.bad_length is not None and frames:
        frames[-1] = with_body_nbytes(frames[-1], args.bad_length)
    return b"".join(frames)


def _step(args: argparse.Namespace, name: str, value: str, rid: int, handles: dict[str, int]) -> list[bytes]:
    if name == "hex":
        return _cut(parse_hex(_read(value).decode()))
    if name == "raw":
        return _cut(_read(value))
    if name in ("json", "json_frame"):
        text = value if name == "json_frame" else _read(value).decode()
        return [build(described, rid + offset) for offset, described in enumerate(parse_json(text))]
    if name == "hello":
        token = os.environ.get("TRIOSERVE_TOKEN")
        meta = tlv(Tag.AUTH, token) if token else b""
        return [frame_bytes(frame(FrameType.HELLO, rid=rid, meta=meta))]
    if name == "ping":
        return [ping_frame(rid)]
    if name == "bind":
        handle = handles.setdefault(value, len(handles) + 1)
        return [bind_frame(rid, handle, value)]
    return [_infer(args, value, rid, handles)]


def _infer(args: argparse.Namespace, model: str, rid: int, handles: dict[str, int]) -> bytes:
    flags = infer_flags(RequestClass[args.request_class.upper()], sampled=args.sampled)
    timeout_us = round(args.deadline_ms * 1000)
    return infer(handles.get(model, model), _tensors(args), rid, flags=flags, timeout_us=timeout_us)


def _tensors(args: argparse.Namespace) -> list[Tensor]:
    tensors = [parse_tensor(text) for text in args.tensor]
    if args.text:
        tensors.append(from_texts(args.text))
    if not tensors:
        raise ValueError("--infer: expected at least one input, by -t or --text")
    return tensors


def _cut(data: bytes) -> list[bytes]:
    splitter = Splitter()
    frames = [found.raw for found in splitter.feed(data)]
    return [*frames, splitter.rest] if splitter.rest else frames


def _read(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def _connected(address: Address, timeout_s: float, ca_file: str | None) -> socket.socket:
    if isinstance(address, UnixAddress):
        with ExitStack() as undo:
            sock = undo.enter_context(socket.socket(socket.AF_UNIX))
            sock.settimeout(timeout_s)
            sock.connect(address.sockaddr)
            undo.pop_all()
            return sock
    sock = socket.create_connection((address.host, address.port), timeout_s)
    if not address.tls:
        return sock
    try:
        # Only records of up to 16 KiB are read ahead of us, and reads are larger: polling the socket is enough.
        return client_context(ca_file).wrap_socket(sock, server_hostname=address.host)
    except BaseException:
        sock.close()
        raise


def _explain(args: argparse.Namespace) -> None:
    splitter, show = Splitter(), _printer(args)
    for found in splitter.feed(_read(args.explain)):
        show("<", found)
    if splitter.rest:
        show("<", splitter.rest)


def _printer(args: argparse.Namespace) -> Callable[[str, Frame | bytes], None]:
    explainer = Explainer()

    def show(mark: str, found: Frame | bytes) -> None:
        if isinstance(found, Frame):
            (explainer.sent if mark == ">" else explainer.received)(found)
        if mark == "<" and args.output == "raw":
            sys.stdout.buffer.write(found.raw if isinstance(found, Frame) else found)
            sys.stdout.buffer.flush()
        elif mark == "<" and args.output == "json":
            line = explainer.as_json(found) if isinstance(found, Frame) else {"bytes_hex": found.hex()}
            print(json.dumps(line), flush=True)
        elif mark == "<" or args.show_sent:
            text = explainer.as_dump(found, mark) if isinstance(found, Frame) else not_a_frame(found, mark)
            print(text, flush=True, file=sys.stdout if args.output == "dump" else sys.stderr)

    return show
