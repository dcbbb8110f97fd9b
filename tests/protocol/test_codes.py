import pytest

from trioserve_protocol import ErrorCode, code_of

GRPC_NAMES = {
    0: "OK",
    1: "CANCELLED",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}


def test_the_general_form_of_each_family_has_grpcs_name() -> None:
    assert {int(code): code.name for code in ErrorCode if not code.subcode} == GRPC_NAMES


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_is_complete(code: ErrorCode) -> None:
    assert code == code.grpc | code.subcode << 8
    assert code.grpc in GRPC_NAMES
    assert code.blame in {"client", "server", "network", "model"}
    assert 200 <= code.http_status < 600
    assert code.title == code.title.strip(" .")
    assert isinstance(code.retryable, bool)


def test_subcodes_of_a_family_have_no_gaps() -> None:
    for grpc in GRPC_NAMES:
        subcodes = sorted(code.subcode for code in ErrorCode if code.grpc == grpc)
        assert subcodes == list(range(len(subcodes)))


def test_the_numbers_of_the_wire() -> None:
    assert int(ErrorCode.SHED) == 0x0108
    assert int(ErrorCode.INVALID_SHAPE) == 0x0103
    assert int(ErrorCode.UNKNOWN_TLV) == 0x030C
    assert int(ErrorCode.NOT_EXECUTED) == 0x040E


def test_what_was_not_executed_may_be_retried_and_what_is_wrong_may_not() -> None:
    assert {code for code in ErrorCode if code.retryable and code.blame == "client"} == {
        ErrorCode.QUOTA_EXCEEDED,
        ErrorCode.CREDIT_EXCEEDED,
    }
    assert ErrorCode.WORKER_LOST.retryable
    assert not ErrorCode.MODEL_RAISED.retryable


@pytest.mark.parametrize(
    "status, wanted",
    [
        (0x0108, ErrorCode.SHED),
        (0x7F08, ErrorCode.RESOURCE_EXHAUSTED),
        (0, ErrorCode.OK),
        (0x0002, None),
        (0x01FF, None),
    ],
)
def test_unknown_codes_fall_back_to_their_family(status: int, wanted: ErrorCode | None) -> None:
    assert code_of(status) is wanted
