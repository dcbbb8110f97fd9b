from hypothesis import given
from hypothesis import strategies as st

from trioserve_tools.markdown_table import parse, render

COLUMNS = ("name", "value")
cells = st.text(
    st.characters(exclude_categories=["Z", "C"], exclude_characters="\\"), min_size=1, max_size=12
)


@given(st.lists(st.tuples(cells, cells), max_size=5))
def test_what_is_written_is_read(rows: list[tuple[str, str]]) -> None:
    page = f"# Title\n\ntext | with a bar\n\n{render(COLUMNS, rows)}\nmore text\n"
    assert parse(COLUMNS, page) == [list(row) for row in rows]


def test_line_breaks_become_blanks() -> None:
    assert parse(COLUMNS, render(COLUMNS, [("a\nb", " c  d ")])) == [["a b", "c d"]]
    assert parse(COLUMNS, render(COLUMNS, [("", "x")])) == [["", "x"]]


def test_other_tables_are_not_read() -> None:
    assert parse(COLUMNS, render(("x", "y"), [("1", "2")])) == []
    assert parse(COLUMNS, "no table") == []
