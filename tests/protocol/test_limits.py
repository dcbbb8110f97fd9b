from dataclasses import fields

import pytest

from trioserve_protocol import DEFAULT_LIMITS, Limits


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_out_of_range_values_are_refused(name: str) -> None:
    for value in (0, -1, 1 << 40):
        with pytest.raises(ValueError, match=name):
            Limits(**{name: value})


def test_defaults_are_those_of_version_1() -> None:
    assert (
        Limits(
            max_frame_nbytes=67_108_864,
            max_meta_nbytes=65_536,
            max_control_nbytes=65_536,
            max_admin_reply_nbytes=1_048_576,
            max_tlvs=128,
            max_ndim=8,
            max_tensors=32,
            max_bytes_elements=65_536,
        )
        == DEFAULT_LIMITS
    )
