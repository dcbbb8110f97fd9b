"""The normative text and the code say the same."""

import json
import re
from pathlib import Path

import pytest

from trioserve_protocol import (
    DEFAULT_LIMITS,
    DType,
    ErrorCode,
    Feature,
    Flag,
    FrameType,
    Tag,
)

FOLDER = Path(__file__).parents[2] / "protocol"
TEXT = (FOLDER / "SPEC.md").read_text("utf-8")
NUMBER = re.compile(r"^- \*\*(S(\d+(?:\.\d+)?)-(\d+))\*\* ")


def sections() -> dict[str, list[str]]:
    """Return the lines of each section by its number."""
    found: dict[str, list[str]] = {"": []}
    current = ""
    for line in TEXT.splitlines():
        heading = re.match(r"^##+ (?:(\d+(?:\.\d+)?)\.? |Annex)", line)
        if heading:
            current = heading.group(1) or "annex"
            found[current] = []
        else:
            found[current].append(line)
    return found


SECTIONS = sections()


def sentences() -> list[tuple[str, str]]:
    """Return (section, number) of every numbered sentence, in order."""
    return [
        (section, match.group(1))
        for section, lines in SECTIONS.items()
        for line in lines
        if (match := NUMBER.match(line))
    ]


def table(section: str, columns: int) -> list[list[str]]:
    """Return the cells of the rows with `columns` columns of a section's tables, headings left out."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in SECTIONS[section]
        if line.startswith("|")
    ]
    return [row for row in rows if len(row) == columns and not set(row[0]) <= set("-")]


def test_numbers_are_unique_count_up_and_stand_in_their_section() -> None:
    numbers = [number for _, number in sentences()]
    assert len(numbers) > 100
    assert len(set(numbers)) == len(numbers)
    for section in SECTIONS:
        own = [number for where, number in sentences() if where == section]
        assert own == [f"S{section}-{index}" for index in range(1, len(own) + 1)]


def test_every_must_has_a_number() -> None:
    for section, lines in SECTIONS.items():
        numbered = False
        for line in lines:
            if not line.startswith(" "):
                numbered = bool(NUMBER.match(line))
            if "MUST" in line and section:
                assert numbered, f"section {section}: {line}"


def test_vectors_refer_to_numbers_of_the_text() -> None:
    known = {number for _, number in sentences()}
    for path in sorted((FOLDER / "vectors").glob("*.json")):
        for vector in json.loads(path.read_text("utf-8")):
            assert set(vector["spec"]) <= known, vector["name"]
            assert vector["spec"], vector["name"]


def test_frame_types() -> None:
    rows = {(int(row[0], 16), row[1]) for row in table("6", 6)[1:]}
    assert rows == {(int(kind), kind.name) for kind in FrameType}


def test_tags() -> None:
    assert [(int(row[0]), row[1]) for row in table("4.1", 3)[1:]] == [(int(tag), tag.name) for tag in Tag]


def test_datatypes() -> None:
    rows = [(int(row[0]), row[1], int(row[2] or 0)) for row in table("5.2", 4)[1:]]
    assert rows == [(int(dtype), dtype.name, dtype.itemsize) for dtype in DType]


def test_features() -> None:
    assert [(1 << int(row[0]), row[1]) for row in table("6.1", 3)[1:]] == [(int(f), f.name) for f in Feature]


def test_flags() -> None:
    named = {
        row[1].split(" / ")[0]: int(row[0]) for row in table("3.3", 4)[1:] if row[1] and row[0].isdigit()
    }
    assert named == {str(flag.name): int(flag).bit_length() - 1 for flag in Flag}


@pytest.mark.parametrize("code", ErrorCode)
def test_status_codes(code: ErrorCode) -> None:
    rows = {row[0]: row[1:] for row in table("9", 6)[1:]}
    assert len(rows) == len(ErrorCode)
    assert rows[f"{code.grpc}.{code.subcode}"] == [
        code.name,
        "yes" if code.retryable else "no",
        code.blame,
        str(code.http_status),
        code.title,
    ]


def test_codes_that_close() -> None:
    [line] = [line for line in SECTIONS["9"] if line.startswith("- **S9-2**")]
    closing = set(re.findall(r"\b(\d+\.\d)\b", line.split("**")[2]))
    assert closing == {f"{code.grpc}.{code.subcode}" for code in ErrorCode if code.closes}


def test_default_limits() -> None:
    defaults = {row[0]: row[1] for row in table("10", 3)[1:]}
    wanted = {
        "body of a frame": f"{DEFAULT_LIMITS.max_frame_nbytes >> 20} MiB",
        "meta of a data frame": f"{DEFAULT_LIMITS.max_meta_nbytes >> 10} KiB",
        "body of a control frame": f"{DEFAULT_LIMITS.max_control_nbytes >> 10} KiB",
        "body of an ADMIN answer": f"{DEFAULT_LIMITS.max_admin_reply_nbytes >> 20} MiB",
        "TLVs of one meta": str(DEFAULT_LIMITS.max_tlvs),
        "ndim": str(DEFAULT_LIMITS.max_ndim),
        "tensors of a frame; inputs; outputs": str(DEFAULT_LIMITS.max_tensors),
        "elements of a BYTES tensor": f"{DEFAULT_LIMITS.max_bytes_elements:,}",
    }
    assert wanted.items() <= defaults.items()


def test_the_worked_frame_is_the_first_vector() -> None:
    [frame, shed] = [
        "".join(
            re.findall(r"\b[0-9a-f]{2}\b", "".join(line[:48] for line in block.splitlines(keepends=True)))
        )
        for block in re.findall(r"```\n(.*?)```", TEXT, re.DOTALL)
    ]
    requests = json.loads((FOLDER / "vectors" / "requests.json").read_text("utf-8"))
    assert frame == requests[0]["bytes"].replace(" ", "")
    replies = {v["name"]: v for v in json.loads((FOLDER / "vectors" / "replies.json").read_text("utf-8"))}
    assert shed == replies["a shed reply, as in annex A"]["bytes"].replace(" ", "")
