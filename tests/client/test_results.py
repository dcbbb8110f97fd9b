import numpy as np
import pytest

from trioserve.client import Failure, Inference, ManyResult
from trioserve.errors import InvalidShape, Shed
from trioserve_protocol import ErrorCode


def test_the_one_output_or_all() -> None:
    assert Inference({"y": 5}, None, 0, 0, 0).output == 5
    assert Inference({"y": 5, "z": 6}, None, 0, 0, 0).output == {"y": 5, "z": 6}
    assert ManyResult({"y": 5}, np.zeros(1, np.uint16)).output == 5


def test_raises_the_first_error_and_says_how_many_there_are() -> None:
    codes = np.array([0, ErrorCode.SHED, ErrorCode.SHED, 0, ErrorCode.INVALID_SHAPE], np.uint16)
    failures = (Failure(4, 1, InvalidShape()), Failure(1, 2, Shed(retry_after_s=0.5)))
    result = ManyResult({"y": np.zeros(5)}, codes, failures)
    assert result.ok.tolist() == [True, False, False, True, False]
    for _ in range(2):
        with pytest.raises(Shed) as caught:
            result.raise_for_errors()
        assert caught.value.__notes__ == ["3 of 5 requests failed, the first is number 1"]


def test_does_not_raise_without_errors() -> None:
    ManyResult({"y": np.zeros(2)}, np.zeros(2, np.uint16)).raise_for_errors()
