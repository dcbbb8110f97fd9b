"""The blocking client, for scripts, notebooks and threaded programs.

The same protocol machine and the same rules as the asynchronous client; deadlines are given as `timeout_s`, since
blocking code has no cancel scopes.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from queue import SimpleQueue
from types import TracebackType
from typing import Self, TypeVar, cast

from trioserve.errors import DeadlineExceeded, TrioserveError
from trioserve.tls import TlsStream
from trioserve_protocol import Limits, RequestClass, Signature

from ._address import UnixAddress
from ._core import Core
from ._dial import Endpoint, dial, found_endpoints, literal_endpoint, unix_endpoint
from ._failures import ClientClosed, ConnectFailed
from ._link import Link
from ._pump import Pump, Waiter
from ._requests import (
    AdminRequest,
    Attempt,
    InferRequest,
    ManyRequest,
    PingRequest,
    Request,
    SignatureRequest,
    model_order,
)
from ._results import Inference, Json, ManyResult, Outputs
from ._retry import RetryPolicy

__all__ = ["SyncClient", "connect"]

T = TypeVar("T")


def connect(
    url: str,
    *,
    tenant: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    retry: RetryPolicy | None = None,
    limits: Limits | None = None,
    timeout_s: float | None = None,
) -> SyncClient:
    """Connect to the server at `url`; use the client in a `with` block, or close it.

    Args:
        url: `tcp://host:port`, `tls://host:port` or `unix:///path`.
        tenant: Whom requests are counted for, unless a call says otherwise.
        token: What the server knows the client by, if it asks for that.
        tls: Whom an encrypted connection trusts, and as whom it appears; None: `client_context()`.
        retry: What to do about errors that the server calls retryable; None: the defaults of `RetryPolicy`.
        limits: What is accepted from the server; None: the protocol's defaults.
        timeout_s: How long a call may take that does not say so itself, in seconds; None: the model's default holds.

    Raises:
        ValueError: the URL cannot be read.
        Unavailable: the server cannot be reached.
    """
    return SyncClient(
        url, tenant=tenant, token=token, tls=tls, retry=retry, limits=limits, timeout_s=timeout_s
    )


class SyncClient:
    """A blocking client of one server. Any number of threads may call it at once, over one connection.

    A connection that breaks, or that the server drains, is replaced at the next call. Closing cancels what other
    threads have in flight; they get `ClientClosed`.
    """

    def __init__(
        self,
        url: str,
        *,
        tenant: str | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        retry: RetryPolicy | None = None,
        limits: Limits | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Connect; arguments as in `connect`."""
        self._core = Core(url, tenant=tenant, token=token, tls=tls, retry=retry, limits=limits)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._pumps: list[Pump] = []
        self._closed = False
        self._usable_pump(_deadline_s(timeout_s))

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Cancel what is in flight and close the connection. May be called twice, and from any thread."""
        with self._lock:
            self._closed = True
            for pump in self._pumps:
                pump.part(ClientClosed("the client was closed"))
            self._pumps.clear()

    # -- calls -------------------------------------------------------------------------------------------------------

    def infer(
        self,
        model: str,
        inputs: object,
        *,
        version: int = 0,
        priority: RequestClass = RequestClass.CRITICAL,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> Outputs:
        """Run a model.

        Args:
            model: Its name.
            inputs: A mapping from input name to value, or the value itself if the model has one input. A value is
                an array or what numpy makes one of; for BYTES `str`, `bytes` or (nested) lists of them. With the
                batch dimension in front or without it, in all inputs alike.
            version: Of the model; 0 = the newest.
            priority: Who is served first, and shed last, under overload.
            tenant: Whom the request is counted for; None: what `connect` was told.
            timeout_s: How long it may take, retries included; sent along, so that the server keeps it too. None:
                what `connect` was told.

        Returns:
            The output of a model that has one, else a mapping from output name to value; `[rows, *row_shape]`, or
            `row_shape` if the inputs came without the batch dimension. BYTES come as object arrays of `bytes`, a
            single element as `bytes`.

        Raises:
            DeadlineExceeded: `timeout_s` has passed; the server was told to cancel.
            TrioserveError: what the server raised, or a subclass of `Unavailable` if it could not be asked.

        Ownership:
            Arrays that are contiguous and of the right datatype are sent without a copy: leave them alone until the
            call returns. Results own their memory.
        """
        request = InferRequest(self._core.key(model, version, tenant), inputs, priority)
        return self._perform(request, timeout_s).output

    def infer_with_timing(
        self,
        model: str,
        inputs: object,
        *,
        version: int = 0,
        priority: RequestClass = RequestClass.CRITICAL,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> Inference:
        """Run a model and ask when each phase ended; otherwise as `infer`."""
        request = InferRequest(self._core.key(model, version, tenant), inputs, priority, sampled=True)
        return self._perform(request, timeout_s)

    def infer_many(
        self,
        model: str,
        inputs: object,
        *,
        version: int = 0,
        priority: RequestClass = RequestClass.CRITICAL,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> ManyResult:
        """Run many independent requests of one row each; one that fails does not disturb the others.

        Arguments as in `infer`, `inputs` always with the batch dimension, of any length.

        Returns:
            Columns of results and statuses. Requests that no server took (drain, a lost connection) were sent
            again; others that failed were not.

        Raises:
            TrioserveError: nothing could be sent (unknown model, inputs that do not fit it, no server), or
                `timeout_s` has passed.
        """
        request = ManyRequest(self._core.key(model, version, tenant), inputs, priority)
        return self._perform(request, timeout_s)

    def signature(
        self, model: str, *, version: int = 0, tenant: str | None = None, timeout_s: float | None = None
    ) -> Signature:
        """Return what a model takes and gives."""
        return self._perform(SignatureRequest(self._core.key(model, version, tenant)), timeout_s)

    def ping(self, *, timeout_s: float | None = None) -> float:
        """Return the time to the server's loop and back, in seconds."""
        return self._perform(PingRequest(time.monotonic), timeout_s)

    def models(self, *, timeout_s: float | None = None) -> Json:
        """Return the server's models, as its administration describes them."""
        return self._perform(AdminRequest({"op": "models"}), timeout_s)

    def statistics(self, *, timeout_s: float | None = None) -> Json:
        """Return the server's counters."""
        return self._perform(AdminRequest({"op": "statistics"}), timeout_s)

    def health(self, *, timeout_s: float | None = None) -> Json:
        """Return whether the server and its models are ready."""
        return self._perform(AdminRequest({"op": "health"}), timeout_s)

    def load_model(self, model: str, *, version: int = 0, timeout_s: float | None = None) -> Json:
        """Load a model of the server's repository; nothing to do if it is served. Return what has changed."""
        return self._perform(model_order("load", model, version), timeout_s)

    def reload_model(self, model: str = "", *, version: int = 0, timeout_s: float | None = None) -> Json:
        """Load a model anew, and serve it in the place of the old one. Return what has changed.

        Args:
            model: its name; without it, all that has changed in the server's repository.
            version: of it; 0 for those that its policy says.
            timeout_s: as for every call.

        Raises:
            Aborted: the new one cannot be served, and the old one is.
        """
        return self._perform(model_order("reload", model, version), timeout_s)

    def unload_model(self, model: str, *, version: int = 0, timeout_s: float | None = None) -> Json:
        """Serve a model no longer. Return what has changed."""
        return self._perform(model_order("unload", model, version), timeout_s)

    # -- attempts ----------------------------------------------------------------------------------------------------

    def _perform(self, request: Request[T], timeout_s: float | None) -> T:
        deadline_s = _deadline_s(self._timeout_s if timeout_s is None else timeout_s)
        attempts = self._core.budget.attempts()
        while True:
            error = self._attempt(request, deadline_s, retry=attempts.retrying)
            with self._lock:
                if error is None:
                    self._core.budget.succeeded()
                    return request.result()
                pause_s = attempts.pause_s(error, time.monotonic(), deadline_s)
            if pause_s is None:
                return request.give_up(error)
            time.sleep(pause_s)

    def _attempt(self, request: Request[T], deadline_s: float, *, retry: bool) -> TrioserveError | None:
        try:
            pump = self._usable_pump(deadline_s)
        except ConnectFailed as error:
            return error
        waiter: Waiter = SimpleQueue()
        session = pump.link.session
        with self._lock:
            call = request.start(session, Attempt(deadline_s, retry, lambda: waiter.put(None)))
            pump.flush()
        try:
            pump.wait(call, waiter, deadline_s)
        finally:
            with self._lock:
                expired = not call.done
                if expired:
                    session.abandon(call)
                    pump.flush()
        if expired:
            raise _too_late()
        return request.settle(call)

    # -- connections -------------------------------------------------------------------------------------------------

    def _usable_pump(self, deadline_s: float) -> Pump:
        with self._lock:
            ticket = self._core.reconnector.ticket()
            pump = self._current()
        if pump is not None:
            return pump
        if not self._connecting.acquire(timeout=_wait_s(deadline_s)):
            raise _too_late()
        try:
            with self._lock:
                pump = self._current()
                failure = self._core.reconnector.verdict(ticket)
                pause_s = self._core.reconnector.pause_s(time.monotonic())
            if pump is not None:
                return pump
            if failure is not None:
                raise failure
            _sleep(pause_s, deadline_s)
            return self._add_pump(self._connect(deadline_s))
        finally:
            self._connecting.release()

    def _current(self) -> Pump | None:
        if self._closed:
            raise ClientClosed("the client is closed")
        if not self._pumps:
            return None
        pump = self._pumps[-1]
        pump.look()
        return pump if pump.link.usable else None

    def _add_pump(self, sock: socket.socket | TlsStream) -> Pump:
        with self._lock:
            if self._closed:
                sock.close()
                raise ClientClosed("the client is closed")
            pump = Pump(Link(sock, self._core.session()), self._lock)
            # A drained connection is kept until the threads that wait for it have their answers.
            self._pumps = [old for old in self._pumps if old.link.session.ended is None]
            self._pumps.append(pump)
            return pump

    def _connect(self, deadline_s: float) -> socket.socket | TlsStream:
        core = self._core
        give_up_s = min(deadline_s, time.monotonic() + core.policy.connect_timeout_s)
        failure: OSError | None = None
        try:
            sock = _secured(core, _dialled(self._endpoints(), give_up_s), give_up_s)
        except TimeoutError:
            if time.monotonic() >= deadline_s:
                raise _too_late() from None
        except OSError as error:
            failure = error
        else:
            with self._lock:
                core.reconnector.succeeded()
            return sock
        with self._lock:
            raise core.connect_failed(failure, time.monotonic())

    def _endpoints(self) -> list[Endpoint]:
        address = self._core.address
        if isinstance(address, UnixAddress):
            return [unix_endpoint(address)]
        if (literal := literal_endpoint(address)) is not None:
            return [literal]
        return found_endpoints(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))


def _dialled(endpoints: list[Endpoint], give_up_s: float) -> socket.socket:
    steps = dial(endpoints)
    try:
        while True:
            _wait_for(next(steps), select.POLLOUT, give_up_s)
    except StopIteration as stop:
        return cast("socket.socket", stop.value)
    finally:
        steps.close()


def _secured(core: Core, sock: socket.socket, give_up_s: float) -> socket.socket | TlsStream:
    steps = core.secured(sock)
    try:
        while True:
            _wait_for(sock, select.POLLOUT if next(steps) else select.POLLIN, give_up_s)
    except StopIteration as stop:
        return cast("socket.socket | TlsStream", stop.value)
    finally:
        steps.close()


def _wait_for(sock: socket.socket, events: int, give_up_s: float) -> None:
    poller = select.poll()
    poller.register(sock, events)
    if not poller.poll(max(0.0, give_up_s - time.monotonic()) * 1000):
        raise TimeoutError


def _deadline_s(timeout_s: float | None) -> float:
    return float("inf") if timeout_s is None else time.monotonic() + timeout_s


def _wait_s(deadline_s: float) -> float:
    """Return how long a lock may be waited for; -1 means for ever."""
    return -1 if deadline_s == float("inf") else max(0.0, deadline_s - time.monotonic())


def _sleep(pause_s: float, deadline_s: float) -> None:
    left_s = deadline_s - time.monotonic()
    if pause_s >= left_s:
        time.sleep(max(0.0, left_s))
        raise _too_late()
    time.sleep(pause_s)


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("timeout_s has passed")
