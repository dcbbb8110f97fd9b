"""Reference tables made from the code when the documentation is built, so that they cannot say something else.

Three directives: `error-codes`; `enum-table` with an enumeration's full name; `struct-table` with that of a dataclass
or msgspec struct.
"""

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from importlib import import_module
from typing import ClassVar

import msgspec
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from trioserve_protocol import ErrorCode

MIB, KIB = 1 << 20, 1 << 10


def documented(owner: type) -> dict[str, str]:
    """The docstrings that stand below the members of a class, joined to one line each."""
    docs = ModuleAnalyzer.for_module(owner.__module__).find_attr_docs()
    return {name: " ".join(lines).strip() for (scope, name), lines in docs.items() if scope == owner.__name__}


def shown(value: object, name: str = "") -> str:
    """A default as a reader writes it; bytes in binary units where they are whole."""
    if isinstance(value, int) and not isinstance(value, bool) and "nbytes" in name:
        for size, unit in ((MIB, "MiB"), (KIB, "KiB")):
            if value and value % size == 0:
                return f"{value // size} {unit}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if value >= 10_000 else f"{value}"  # a port is not 7,001
    if isinstance(value, Enum):
        return value.name
    return repr(value)


def fields_of(owner: type) -> Iterator[tuple[str, object]]:
    """Names and defaults of a dataclass or msgspec struct, in their order; a default that is missing is None."""
    if dataclasses.is_dataclass(owner):
        for member in dataclasses.fields(owner):
            yield member.name, None if member.default is dataclasses.MISSING else member.default
        return
    for field in msgspec.structs.fields(owner):
        if field.default_factory is not msgspec.NODEFAULT:
            yield field.encode_name, field.default_factory()
        else:
            yield field.encode_name, None if field.required else field.default


class TableDirective(SphinxDirective):
    """A table whose cells are text in the page's own markup."""

    has_content = False
    headings: ClassVar[Sequence[str]]

    def rows(self) -> Iterable[Sequence[str]]:
        """Cells of each row, as many as there are headings."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Build the table."""
        group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in self.headings), cols=len(self.headings))
        group += nodes.thead("", self.row(self.headings))
        group += nodes.tbody("", *(self.row(cells) for cells in self.rows()))
        return [nodes.table("", group, classes=["colwidths-auto"])]

    def row(self, cells: Sequence[str]) -> nodes.row:
        """One row."""
        return nodes.row("", *(self.entry(text) for text in cells))

    def entry(self, text: str) -> nodes.entry:
        """One cell."""
        cell = nodes.entry()
        self.state.nested_parse(StringList([text], source=self.env.docname), 0, cell)
        return cell

    def target(self) -> type:
        """The class that the directive's argument names."""
        module, _, name = self.arguments[0].rpartition(".")
        found: type = getattr(import_module(module), name)
        return found


class ErrorCodes(TableDirective):
    """The registry of status codes."""

    headings = ("status", "code", "name", "meaning", "retryable", "blame", "closes", "gRPC", "HTTP")

    def rows(self) -> Iterable[Sequence[str]]:
        """One row a code, in wire order of family and subcode."""
        for code in sorted(ErrorCode, key=lambda code: (code.grpc, code.subcode)):
            yes_no = ("yes" if code.retryable else "", code.blame, "yes" if code.closes else "")
            number = f"{code.grpc}.{code.subcode}" if code.subcode else f"{code.grpc}"
            wire = f"`{code.value:#06x}`"
            yield number, wire, f"`{code.name}`", code.title, *yes_no, f"{code.grpc}", f"{code.http_status}"


class EnumTable(TableDirective):
    """Names and numbers of an enumeration, with the docstring below each member."""

    required_arguments = 1
    headings = ("number", "name", "meaning")

    def rows(self) -> Iterable[Sequence[str]]:
        """One row a member."""
        target = self.target()
        if not issubclass(target, Enum):
            raise self.error(f"{self.arguments[0]} is not an enumeration")
        docs = documented(target)
        for name, member in target.__members__.items():
            yield f"`{member.value:#04x}` ({member.value})", f"`{name}`", docs.get(name, "")


class StructTable(TableDirective):
    """Fields of a frozen structure: name, default, and the docstring below each."""

    required_arguments = 1
    headings = ("name", "default", "meaning")

    def rows(self) -> Iterable[Sequence[str]]:
        """One row a field; a field that is a structure itself is left to its own table."""
        target = self.target()
        docs = documented(target)
        for name, default in fields_of(target):
            if isinstance(default, msgspec.Struct):
                continue
            if name not in docs and inspect.isclass(target):
                # `class` and other keys whose Python name differs.
                docs[name] = next((text for key, text in docs.items() if key.startswith(name)), "")
            yield f"`{name}`", "" if default is None else f"`{shown(default, name)}`", docs[name]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives."""
    app.add_directive("error-codes", ErrorCodes)
    app.add_directive("enum-table", EnumTable)
    app.add_directive("struct-table", StructTable)
    return {"version": "1", "parallel_read_safe": True}
