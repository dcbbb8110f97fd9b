import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.client.fake_server import LENGTHS, PAIR, SCALE
from trioserve_protocol import (
    Admin,
    Bind,
    Connection,
    ErrorCode,
    FatalError,
    Hello,
    Infer,
    InferMany,
    Role,
    check_request,
    parse_meta,
    parse_request_meta,
)
from trioserve_tools.netcat._build import (
    BadDescription,
    build,
    infer,
    parse_hex,
    parse_json,
    with_body_nbytes,
)
from trioserve_tools.netcat._tensors import from_texts, from_values, parse_tensor

WORKED_FRAME = """\
54 53 01 10 40 00 00 00 01 00 00 00 00 00 00 00    # "TS" 1 INFER, body 64, rid 1
00 00 08 00 40 42 0f 00 06 00 01 00 00 00 00 00
01 00 00 00 04 00 00 00 65 63 68 6f 00 00 00 00
03 00 00 00 18 00 00 00 0b 02 00 00 00 00 00 00
10 00 00 00 00 00 00 00 01 00 00 00 04 00 00 00

00 00 80 3f 00 00 00 40 00 00 40 40 00 00 80 40    # 1.0 2.0 3.0 4.0
"""


def event(data: bytes) -> Any:
    (found,), used = Connection(Role.SERVER).receive(memoryview(data))
    assert used == len(data)
    return found


def test_hex_with_comments_is_the_worked_frame_of_the_specification() -> None:
    worked = parse_hex(WORKED_FRAME)
    described = {
        "type": "INFER",
        "rid": 1,
        "timeout_us": 1_000_000,
        "meta": {"MODEL": "echo"},
        "tlvs": [[3, "0b02000000000000100000000000000001000000 04000000"]],
        "rows": 1,
        "handle": 0,
        "payload_hex": "0000803f 00000040 00004040 00008040",
    }
    assert build(described, 9) == worked
    assert check_request(SCALE, 1, 16, event(worked).meta, bound=False) is None


def test_hex_faults_name_their_line() -> None:
    with pytest.raises(BadDescription, match="line 2"):
        parse_hex("00 01\nzz\n")


def test_infer_by_name_describes_its_tensors_and_on_a_handle_says_nothing() -> None:
    tensors = [from_values([[1, 2, 3, 4], [5, 6, 7, 8]], name="x")]
    named: Infer = event(infer("scale", tensors, 3, flags=8, timeout_us=500))
    assert (named.rid, named.rows, named.timeout_us) == (3, 2, 500)
    assert parse_request_meta(named.meta, bound=False).model == "scale"
    assert check_request(SCALE, named.rows, len(named.payload), named.meta, bound=False) is None
    bound: Infer = event(infer(4, tensors, 3, flags=8, timeout_us=0))
    assert (bound.handle, bound.meta) == (4, b"")
    assert bytes(bound.payload) == bytes(named.payload)


def test_described_frames_of_many_kinds() -> None:
    bind: Bind = event(
        build({"type": "bind", "handle": 2, "meta": {"model": "m", "VERSION": 3, "PARAMS": {"a": 1}}}, 5)
    )
    assert (bind.rid, bind.model, bind.version, bind.params) == (5, "m", 3, {"a": 1})
    hello: Hello = event(build({"type": 1, "meta": {"FEATURES": {"must": 1}, "CLIENT": "me"}}, 5))
    assert (hello.client, hello.features.must) == ("me", 1)
    admin: Admin = event(build({"type": "ADMIN", "json": {"op": "models"}}, 5))
    assert json.loads(admin.payload) == {"op": "models"}
    tensors = {"a": {"dtype": "i4", "data": [[1, 2, 3]] * 2}, "b": {"dtype": "u1", "data": [1, 2]}}
    many: InferMany = event(
        build({"type": "INFER_MANY", "handle": 1, "flags": ["END"], "tensors": tensors}, 5)
    )
    assert check_request(PAIR, many.rows, len(many.payload), b"", many=True) is None
    wanted = build(
        {"type": "INFER", "meta": {"MODEL": "m", "OUTPUTS": [0]}, "tensors": {"x": [["a"]]}, "flags": 8}, 1
    )
    assert parse_meta(event(wanted).meta).outputs == (0,)


def test_fields_may_be_wrong_on_purpose() -> None:
    assert event(build({"type": "PING", "version": 2}, 1)).code is ErrorCode.UNSUPPORTED_VERSION
    assert event(build({"type": "PING", "body": 7}, 1)).code is ErrorCode.INVALID_SIZE
    assert isinstance(event(build({"type": "INFER", "meta8": 5}, 1)), FatalError)
    assert with_body_nbytes(build({"type": "PING"}, 1), 24)[4] == 24


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"type": "NOPE"}, "one of HELLO"),
        ({}, "type None"),
        ({"type": 256}, "up to 255"),
        ({"type": "PING", "bogus": 1}, "unknown fields"),
        ({"type": "PING", "flags": ["WAVE"]}, "unknown flags"),
        ({"type": "PING", "flags": "END"}, "expected a number or a list"),
        ({"type": "INFER", "tensors": [1]}, "expected an object"),
        ({"type": "BIND", "meta": "echo"}, "expected an object"),
        ({"type": "BIND", "meta": {"NAME": "echo"}}, "unknown TLV"),
        ({"type": "BIND", "meta": {"MODEL": 5}}, "expected text"),
    ],
)
def test_says_what_a_description_should_have_been(described: dict[str, Any], message: str) -> None:
    with pytest.raises(BadDescription, match=message):
        build(described, 1)


def test_json_may_be_lines_or_an_array() -> None:
    assert list(parse_json('{"type": 1}\n{"type": 2}')) == [{"type": 1}, {"type": 2}]
    assert list(parse_json('[{"type": 1}, {"type": 2}]')) == [{"type": 1}, {"type": 2}]
    with pytest.raises(ValueError, match="Expecting"):
        list(parse_json("{"))
    with pytest.raises(BadDescription, match="object for each frame"):
        list(parse_json("[1]"))


def test_tensors_of_the_command_line(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    path = tmp_path / "a.npy"
    np.save(path, array)
    tensor = parse_tensor(f"x={path}")
    assert (tensor.name, tensor.dtype.name, tensor.dims, tensor.data) == ("x", "I16", (2, 3), array.tobytes())
    assert parse_tensor(f":f4={path}").dtype.name == "F32"
    assert parse_tensor("[[1, 2]]").dtype.name == "F32"
    assert parse_tensor("x:i8=[[1, 2]]").data == np.array([[1, 2]]).tobytes()
    assert parse_tensor("[true]").dtype.name == "BOOL"
    assert parse_tensor('["a", "b"]').dtype.name == "BYTES"
    assert parse_tensor("[[1]]").name == ""
    text = from_texts(["häh", ""])
    assert text.dims == (2,)
    assert check_request(LENGTHS, 2, 16, b"") is None


@pytest.mark.parametrize(
    "text", ["5", "nonsense", "x:f9=[1]", "[[1], [2, 3]]", '[{"a": 1}]', "/nonexistent.npy"]
)
def test_what_is_no_tensor_is_refused(text: str) -> None:
    with pytest.raises((ValueError, OSError)):
        parse_tensor(text)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="pickle"):
        parse_tensor(str(tmp_path / "p.npy"))


def test_a_file_that_is_no_array_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.npy").write_text("these are not numbers")
    with pytest.raises(ValueError, match=r"p\.npy: the magic string"):
        parse_tensor(str(tmp_path / "p.npy"))
