"""What callers ask for, apart from how often it takes to get it and how they wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from trioserve.errors import InternalError, SignatureChanged, TrioserveError
from trioserve_protocol import RequestClass, Signature

from ._calls import Call, ControlCall, ModelKey, SignatureCall
from ._failures import NotSent
from ._infer import InferCall
from ._many import ManyCall
from ._results import Failure, Inference, Json, ManyResult
from ._session import Session

T = TypeVar("T")


class Attempt(NamedTuple):
    """What calls of all kinds are told."""

    deadline_s: float
    """Absolute, on the clock that sessions are given; infinity for none."""
    retry: bool
    """Whether a server may have seen an earlier attempt."""
    on_done: Callable[[], object]
    """Called once, when the outcome is known; perhaps at once."""


class Request(ABC, Generic[T]):
    """One thing a caller asks for; each attempt at it is a call."""

    @abstractmethod
    def start(self, session: Session, attempt: Attempt) -> Call:
        """Make a call.

        Args:
            session: Where.
            attempt: How.
        """

    @abstractmethod
    def settle(self, call: Any) -> TrioserveError | None:  # noqa: ANN401  each kind takes its own calls
        """Take the outcome of a call that is done; returns what is still wrong."""

    @abstractmethod
    def result(self) -> T:
        """Return what was asked for, once `settle` said that nothing is wrong."""

    def give_up(self, error: TrioserveError) -> T:
        """Return what there is without another attempt; raises the error if there is nothing."""
        raise error


class InferRequest(Request[Inference]):
    """One request of any number of rows."""

    def __init__(
        self, key: ModelKey, inputs: object, priority: RequestClass, *, sampled: bool = False
    ) -> None:
        """Ask for a result; `sampled` asks for its timing too."""
        self._key = key
        self._inputs = inputs
        self._priority = priority
        self._sampled = sampled
        self._inference: Inference | None = None
        self._attempts = 0

    def start(self, session: Session, attempt: Attempt) -> InferCall:
        """Send it."""
        self._attempts += 1
        call = InferCall(
            self._key,
            self._inputs,
            deadline_s=attempt.deadline_s,
            on_done=attempt.on_done,
            priority=self._priority,
            sampled=self._sampled,
            retry=attempt.retry,
            attempt=self._attempts,
        )
        session.submit(call)
        return call

    def settle(self, call: InferCall) -> TrioserveError | None:
        """Take the result."""
        self._inference = call.inference
        return call.error

    def result(self) -> Inference:
        """Return the result."""
        if self._inference is None:
            raise AssertionError("a call ended without result and without error: this is a bug")
        return self._inference


class ManyRequest(Request[ManyResult]):
    """Many requests of one row each, over as many connections as it takes: rows that no server took are sent again.

    Rows that a server refused (overload, deadline, bad input) are not: they are in the result, for the caller to see.
    """

    def __init__(self, key: ModelKey, inputs: object, priority: RequestClass) -> None:
        """Ask for results."""
        self._key = key
        self._inputs = inputs
        self._priority = priority
        self._positions: npt.NDArray[np.intp] | None = None
        self._result: ManyResult | None = None

    def start(self, session: Session, attempt: Attempt) -> ManyCall:
        """Send the rows that have not been sent."""
        call = ManyCall(
            self._key,
            self._left(),
            deadline_s=attempt.deadline_s,
            on_done=attempt.on_done,
            priority=self._priority,
            retry=attempt.retry,
        )
        session.submit(call)
        return call

    def settle(self, call: ManyCall) -> TrioserveError | None:
        """Take what one connection gave; returns why some rows were not sent."""
        if not call.began:
            return call.error
        part, positions = call.collected, self._positions
        if self._result is None or positions is None:
            self._result = part
            positions = np.arange(len(part.codes))
        else:
            self._result = _merged(self._result, part, positions)
        unsent = [failure for failure in part.failures if isinstance(failure.error, NotSent)]
        if not unsent:
            return None
        rows = [np.arange(failure.first, failure.first + failure.count) for failure in unsent]
        self._positions = positions[np.concatenate(rows)]
        return unsent[0].error

    def result(self) -> ManyResult:
        """Return the columns."""
        if self._result is None:
            raise AssertionError("a call ended without result and without error: this is a bug")
        return self._result

    def give_up(self, error: TrioserveError) -> ManyResult:
        """Return the columns if anything was sent: rows that were not have the error."""
        if self._result is None or self._positions is None:
            raise error
        self._result.codes[self._positions] = int(error.code)
        kept = [failure for failure in self._result.failures if not isinstance(failure.error, NotSent)]
        rest = [Failure(position, 1, error) for position in self._positions.tolist()]
        return ManyResult(self._result.outputs, self._result.codes, (*kept, *rest))

    def _left(self) -> object:
        if self._positions is None:
            return self._inputs
        if isinstance(self._inputs, Mapping):
            return {name: _rows_of(value, self._positions) for name, value in self._inputs.items()}
        return _rows_of(self._inputs, self._positions)


class SignatureRequest(Request[Signature]):
    """What a model takes and gives."""

    def __init__(self, key: ModelKey) -> None:
        """Ask for a signature."""
        self._key = key
        self._signature: Signature | None = None

    def start(self, session: Session, attempt: Attempt) -> SignatureCall:
        """Bind the model, if it is not."""
        call = SignatureCall(self._key, attempt.on_done)
        session.submit(call)
        return call

    def settle(self, call: SignatureCall) -> TrioserveError | None:
        """Take the signature."""
        self._signature = call.signature
        return call.error

    def result(self) -> Signature:
        """Return the signature."""
        if self._signature is None:
            raise AssertionError("a call ended without result and without error: this is a bug")
        return self._signature


class PingRequest(Request[float]):
    """The time to the server and back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Ask for an answer; `clock` is the one that sessions are given the time of."""
        self._clock = clock
        self._started_s = 0.0
        self._round_trip_s = 0.0

    def start(self, session: Session, attempt: Attempt) -> ControlCall:
        """Send a PING."""
        call = ControlCall(attempt.on_done)
        self._started_s = self._clock()
        session.ping(call)
        return call

    def settle(self, call: ControlCall) -> TrioserveError | None:
        """Take the PONG."""
        self._round_trip_s = call.ended_s - self._started_s
        return call.error

    def result(self) -> float:
        """Return the round trip in seconds."""
        return self._round_trip_s


class AdminRequest(Request[Json]):
    """A question to the server's administration."""

    def __init__(self, question: Mapping[str, Any]) -> None:
        """Ask `question`, a JSON object."""
        self._json = msgspec.json.encode(question)
        self._answer: Any = None

    def start(self, session: Session, attempt: Attempt) -> ControlCall:
        """Send an ADMIN."""
        call = ControlCall(attempt.on_done)
        session.admin(call, self._json)
        return call

    def settle(self, call: ControlCall) -> TrioserveError | None:
        """Take the answer."""
        if call.error is None:
            try:
                self._answer = msgspec.json.decode(call.answer)
            except msgspec.DecodeError as error:
                return InternalError(f"the server's answer is not JSON: {error}")
        return call.error

    def result(self) -> Json:
        """Return the decoded JSON."""
        return self._answer


def model_order(op: Literal["load", "reload", "unload"], model: str, version: int) -> AdminRequest:
    """Return the request to change a model of the server, 0 for no special version."""
    return AdminRequest({"op": op, "model": model} | ({"version": version} if version else {}))


def _merged(whole: ManyResult, part: ManyResult, positions: npt.NDArray[np.intp]) -> ManyResult:
    if _layout(whole) != _layout(part):
        raise SignatureChanged("the model's outputs changed between two parts of one infer_many")
    for name, column in whole.outputs.items():
        column[positions] = part.outputs[name]
    whole.codes[positions] = part.codes
    kept = [failure for failure in whole.failures if not isinstance(failure.error, NotSent)]
    moved = [
        Failure(position, 1, failure.error)
        for failure in part.failures
        for position in positions[failure.first : failure.first + failure.count].tolist()
    ]
    return ManyResult(whole.outputs, whole.codes, (*kept, *moved))


def _layout(result: ManyResult) -> list[tuple[str, Any, tuple[int, ...]]]:
    return [(name, column.dtype, column.shape[1:]) for name, column in result.outputs.items()]


def _rows_of(value: Any, positions: npt.NDArray[np.intp]) -> object:  # noqa: ANN401  anything with an order
    if isinstance(value, np.ndarray):
        return value[positions]
    return [value[position] for position in positions.tolist()]
