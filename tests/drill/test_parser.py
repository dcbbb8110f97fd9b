from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from trioserve_tools.drill import _parser
from trioserve_tools.drill._drill import Field, NotRun
from trioserve_tools.drill._parser import FIELDS, MUTANTS, OUTCOMES, VALID, parsed_outcome


def test_the_table_covers_the_header() -> None:
    offsets = [offset for field in FIELDS.values() for offset in field]
    assert sorted(offsets) == list(range(32))
    assert set(FIELDS) == set(OUTCOMES)
    assert len(set(MUTANTS)) == len(MUTANTS) == 8192


def test_the_parser_keeps_to_the_table() -> None:
    for name, offsets in FIELDS.items():
        seen = set()
        for offset in offsets:
            for value in range(256):
                data = bytearray(VALID)
                data[offset] = value
                seen.add(parsed_outcome(bytes(data)))
        assert seen <= OUTCOMES[name], name
    assert parsed_outcome(VALID) == "accepted"


async def test_without_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: Callable[..., Field]
) -> None:
    monkeypatch.setattr(_parser, "CHECKOUT", tmp_path)
    with pytest.raises(NotRun, match="part of a checkout"):
        await _parser.parser_fuzz(field(None))


async def test_a_fuzzer_that_says_nothing(
    monkeypatch: pytest.MonkeyPatch, field: Callable[..., Field]
) -> None:
    monkeypatch.setattr(_parser.sys, "executable", "/bin/false")  # type: ignore[attr-defined]
    with trio.fail_after(10), pytest.raises(NotRun, match="ended with status 1"):
        await _parser.parser_fuzz(field(None))


async def test_everything_is_acted_on_once() -> None:
    acted: list[int] = []

    async def act(item: int) -> None:
        await trio.lowlevel.checkpoint()
        acted.append(item)

    await _parser.in_parallel(range(50), act)
    assert sorted(acted) == list(range(50))
