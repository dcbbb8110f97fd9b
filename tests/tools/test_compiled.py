from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trioserve_tools import compiled
from trioserve_tools.compiled import NoProgram


@pytest.mark.skipif(not any(map(shutil.which, compiled.COMPILERS)), reason="no C compiler")
def test_a_source_that_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "bad.c"
    source.write_text("nonsense")
    with pytest.raises(NoProgram, match="failed"):
        compiled.compiled(source, tmp_path / "cache")
