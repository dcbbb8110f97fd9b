"""From a parsed table to a struct, collecting every problem instead of stopping at the first.

`msgspec` converts and checks one value; this module walks the tables, because a person who mends a file wants
to hear of all that is wrong with it at once, and in the words of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from trioserve.config._problem import Problem, did_you_mean, shown

S = TypeVar("S", bound=msgspec.Struct)

Origin = Callable[[str], str]
"""Tells for a dotted key which file or source its value came from."""


def decode(
    kind: type[S], table: Mapping[str, Any], origin: Origin, *, prefix: str = "", hidden: Iterable[str] = ()
) -> tuple[S | None, list[Problem]]:
    """Makes a struct of a table.

    Args:
        kind: The struct's type.
        table: What was read; values as `tomllib` or `json` give them.
        origin: Where a key's value came from.
        prefix: Dotted key of `table` itself with a trailing dot, empty at the top.
        hidden: Keys of the struct that a file must not set.

    Returns:
        The struct and no problem, or None and at least one.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind) if field.name not in hidden}
    problems = [_unknown(key, fields, origin, prefix) for key in table if key not in fields]
    values: dict[str, Any] = {}
    for key, field in fields.items():
        if key in table:
            value, found = _value(field.type, table[key], origin, prefix + key)
            values[field.name] = value
            problems += found
        elif field.required:
            problems.append(Problem(origin(prefix + key), prefix + key, expected(field.type), shown(None)))
    return (None, problems) if problems else (kind(**values), [])


def _unknown(key: str, known: Iterable[str], origin: Origin, prefix: str) -> Problem:
    names = ", ".join(sorted(known))
    hint = did_you_mean(key, known)
    return Problem(origin(prefix + key), prefix + key, f"one of the keys {names}", shown(key), hint)


def _value(kind: object, value: object, origin: Origin, key: str) -> tuple[Any, list[Problem]]:
    """Converts one value of any type that the configuration structs use."""
    kind = _without_none(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if not isinstance(value, dict):
            return None, [Problem(origin(key), key, "a table", shown(value))]
        return decode(kind, value, origin, prefix=f"{key}.")
    if get_origin(kind) is dict and isinstance(value, dict):
        return _mapping(get_args(kind)[1], value, origin, key)
    try:
        return msgspec.convert(value, kind), []
    except msgspec.ValidationError:
        return None, [Problem(origin(key), key, expected(kind), shown(value))]


def _mapping(
    kind: object, table: dict[str, Any], origin: Origin, key: str
) -> tuple[dict[str, Any], list[Problem]]:
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, item in table.items():
        values[name], found = _value(kind, item, origin, f"{key}.{name}")
        problems += found
    return values, problems


def _without_none(kind: object) -> object:
    """`X` for `X | None`: TOML cannot say None, so a key that is there has a value."""
    if get_origin(kind) in (Union, UnionType):
        [kind] = [member for member in get_args(kind) if member is not NoneType]
    return kind


def expected(kind: object) -> str:
    """The values that a type admits, in words: `an integer from 1 to 8`."""
    return _described(inspect.type_info(_without_none(kind)))


def _described(info: object) -> str:
    unit = ""
    if isinstance(info, inspect.Metadata):
        unit = (info.extra_json_schema or {}).get("description", "")
        info = info.type
    words = _words(info)
    return f"{words} ({unit})" if unit else words


def _words(info: object) -> str:
    match info:
        case inspect.LiteralType():
            return " or ".join(shown(value) for value in info.values)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "an integer" + _bounds(info)
        case inspect.FloatType():
            return "a number" + _bounds(info)
        case inspect.StrType():
            return "a text that is not empty" if info.min_length else "a text"
        case inspect.ListType():
            return "a list, each " + _described(info.item_type)
        case _:
            return "a table"


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    if info.gt is not None:
        return f" above {info.gt:,}" + (f", at most {info.le:,}" if info.le is not None else "")
    low = f" from {info.ge:,}" if info.ge is not None else ""
    return low + (f" to {info.le:,}" if info.le is not None else "")
