import pytest

from trioserve import errors
from trioserve_protocol import ErrorCode


@pytest.mark.parametrize("code", [code for code in ErrorCode if code != ErrorCode.OK])
def test_every_code_has_its_class_below_its_family(code: ErrorCode) -> None:
    error = errors.error_for(code, "text", 0.5)
    assert error.code is code
    assert error.retryable is code.retryable
    assert (error.message, error.retry_after_s) == ("text", 0.5)
    assert isinstance(error, type(errors.error_for(code.grpc)))
    assert str(error) == f"text [{code.name.lower()}]"


def test_no_text_means_the_codes_title() -> None:
    assert errors.Shed().message == ErrorCode.SHED.title


def test_codes_of_a_newer_peer_are_of_their_family() -> None:
    assert type(errors.error_for(0x7F08)) is errors.ResourceExhausted
    unknown = errors.error_for(0x0063, retryable=True)
    assert type(unknown) is errors.TrioserveError
    assert unknown.retryable
    assert "0x0063" in unknown.message


def test_ok_is_not_an_error() -> None:
    assert type(errors.error_for(0, "odd")) is errors.TrioserveError


def test_what_the_peer_says_about_retrying_counts() -> None:
    assert errors.error_for(ErrorCode.INTERNAL, retryable=True).retryable
    assert not errors.error_for(ErrorCode.SHED, retryable=False).retryable


def test_a_code_can_be_given_to_a_family() -> None:
    error = errors.Unavailable("x", code=ErrorCode.LOADING)
    assert error.code is ErrorCode.LOADING
    assert error.retryable
