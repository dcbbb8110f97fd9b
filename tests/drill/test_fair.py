from __future__ import annotations

import numpy as np
import pytest

from trioserve_tools.drill._fair import fair_shares, jain


def test_jain() -> None:
    assert jain(np.full(8, 3.0)) == pytest.approx(1)
    assert jain(np.array([1.0, 0, 0, 0])) == pytest.approx(0.25)


def test_what_one_leaves_the_others_divide() -> None:
    assert fair_shares(np.array([10, 80, 500]), 300).tolist() == [10, 80, 210]
    assert fair_shares(np.array([200, 200, 10]), 310).tolist() == [150, 150, 10]
    assert fair_shares(np.array([1, 2]), 100).tolist() == [1, 2]
