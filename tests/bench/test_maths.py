import math

import numpy as np
import pytest

from trioserve_tools.bench._maths import WORKS


@pytest.mark.parametrize("name", WORKS)
def test_shapes_and_rows_are_independent(name: str) -> None:
    work = WORKS[name]
    rows = np.random.default_rng(3).standard_normal((3, *work.input_dims), np.float32)
    function = work.function()
    together = function(rows)
    assert together.shape == (3, *work.output_dims)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.concatenate([function(row[None]) for row in rows]), together, atol=1e-5)


def test_weights_depend_on_the_seed_alone() -> None:
    row = np.ones((1, 128), np.float32)
    first, again, other = (WORKS["w1"].function(seed)(row) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01


def test_the_activation_of_w1_is_gelu() -> None:
    """With weights that pick single numbers, what comes out is the activation itself."""

    class Picking:
        def standard_normal(self, shape: tuple[int, int]) -> np.ndarray:
            return np.eye(*shape) * math.sqrt(shape[0])

    x = np.linspace(-4, 4, 128, dtype=np.float32)
    got = WORKS["w1"].make(Picking())(x[None])[0]  # type: ignore[arg-type]
    wanted = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x[:64].tolist()]
    np.testing.assert_allclose(got, wanted, atol=5e-4)  # the tanh form differs from the exact one by so much
