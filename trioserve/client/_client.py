"""The asynchronous client, for Trio and asyncio programs alike."""

from __future__ import annotations

import socket
import ssl
from types import TracebackType
from typing import Self, TypeVar, cast

import anyio
import anyio.abc
import anyio.lowlevel

from trioserve.errors import InternalError, TrioserveError
from trioserve.tls import TlsStream
from trioserve_protocol import Limits, RequestClass, Signature

from ._address import UnixAddress
from ._calls import Call
from ._core import Core
from ._dial import Endpoint, dial, found_endpoints, literal_endpoint, unix_endpoint
from ._failures import ClientClosed, ConnectFailed
from ._link import Link
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

T = TypeVar("T")

_FILLS_PER_WAKE = 8
"""Reads of one large payload in a row before other tasks get a turn."""


def connect(
    url: str,
    *,
    tenant: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    retry: RetryPolicy | None = None,
    limits: Limits | None = None,
) -> Client:
    """Return a client that connects when it is entered.

    Args:
        url: `tcp://host:port`, `tls://host:port` or `unix:///path`.
        tenant: Whom requests are counted for, unless a call says otherwise.
        token: What the server knows the client by, if it asks for that.
        tls: Whom an encrypted connection trusts, and as whom it appears; None: `client_context()`, the authorities of
            the system. The server's certificate is checked either way, unless this says otherwise.
        retry: What to do about errors that the server calls retryable; None: the defaults of `RetryPolicy`.
        limits: What is accepted from the server; None: the protocol's defaults.

    Raises:
        ValueError: the URL cannot be read.

    Example:
        ```python
        async with trioserve.client.connect("tcp://127.0.0.1:7001") as client:
            with trio.fail_after(0.05):
                y = await client.infer("scale", x)
        ```
    """
    return Client(url, tenant=tenant, token=token, tls=tls, retry=retry, limits=limits)


class Client:
    """A client of one server: any number of tasks may call it at once, over one connection.

    Entering connects. A connection that breaks, or that the server drains, is replaced at the next call. Leaving
    cancels what is still in flight, on the server too.

    Deadlines are the caller's cancel scopes: what is left of the innermost one is sent along, and the server keeps
    it. (In an asyncio program only AnyIO's scopes can be seen; `asyncio.timeout` still cancels.) A call without one
    gets the model's default.

    Cancellation:
        A cancelled call sends CANCEL; its reply, if it still comes, is dropped. Arrays that were passed in are not
        looked at any more once the call has ended, with one exception: the rest of a request that was being written
        when it was cancelled.
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
    ) -> None:
        """Make a client that is not connected; arguments as in `connect`."""
        self._core = Core(url, tenant=tenant, token=token, tls=tls, retry=retry, limits=limits)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._connecting = anyio.Lock()
        self._links: dict[Link, anyio.abc.TaskGroup] = {}
        self._link: Link | None = None

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            Unavailable: the server cannot be reached.
        """
        if self._tasks is not None:
            raise RuntimeError("a client can be entered once")
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            await self._usable_link()
        except BaseException:
            await self._close()  # noqa: ASYNC102  waits for tasks that are cancelled
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what is in flight and close the connection."""
        await self._close()  # noqa: ASYNC102  waits for tasks that are cancelled

    # -- calls -------------------------------------------------------------------------------------------------------

    async def infer(
        self,
        model: str,
        inputs: object,
        *,
        version: int = 0,
        priority: RequestClass = RequestClass.CRITICAL,
        tenant: str | None = None,
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

        Returns:
            The output of a model that has one, else a mapping from output name to value; `[rows, *row_shape]`, or
            `row_shape` if the inputs came without the batch dimension. BYTES come as object arrays of `bytes`, a
            single element as `bytes`.

        Raises:
            TrioserveError: what the server raised, or a subclass of `Unavailable` if it could not be asked.

        Ownership:
            Arrays that are contiguous and of the right datatype are sent without a copy: leave them alone until the
            call returns. Results own their memory.

        Cancellation:
            CANCEL is sent, unless the request never was.
        """
        request = InferRequest(self._core.key(model, version, tenant), inputs, priority)
        return (await self._perform(request)).output

    async def infer_with_timing(
        self,
        model: str,
        inputs: object,
        *,
        version: int = 0,
        priority: RequestClass = RequestClass.CRITICAL,
        tenant: str | None = None,
    ) -> Inference:
        """Run a model and ask when each phase ended; otherwise as `infer`."""
        request = InferRequest(self._core.key(model, version, tenant), inputs, priority, sampled=True)
        return await self._perform(request)

    async def infer_many(
        self,
        model: str,
        inputs: object,
        *,
        version: int = 0,
        priority: RequestClass = RequestClass.CRITICAL,
        tenant: str | None = None,
    ) -> ManyResult:
        """Run many independent requests of one row each; one that fails does not disturb the others.

        Costs a tenth of as many calls of `infer`, and gives the server whole batches. Arguments as there, `inputs`
        always with the batch dimension, of any length.

        Returns:
            Columns of results and statuses. Requests that no server took (drain, a lost connection) were sent
            again; others that failed were not.

        Raises:
            TrioserveError: nothing could be sent: unknown model, inputs that do not fit it, no server.
        """
        return await self._perform(ManyRequest(self._core.key(model, version, tenant), inputs, priority))

    async def signature(self, model: str, *, version: int = 0, tenant: str | None = None) -> Signature:
        """Return what a model takes and gives."""
        return await self._perform(SignatureRequest(self._core.key(model, version, tenant)))

    async def ping(self) -> float:
        """Return the time to the server's loop and back, in seconds."""
        return await self._perform(PingRequest(anyio.current_time))

    async def models(self) -> Json:
        """Return the server's models, as its administration describes them."""
        return await self._perform(AdminRequest({"op": "models"}))

    async def statistics(self) -> Json:
        """Return the server's counters."""
        return await self._perform(AdminRequest({"op": "statistics"}))

    async def health(self) -> Json:
        """Return whether the server and its models are ready."""
        return await self._perform(AdminRequest({"op": "health"}))

    async def load_model(self, model: str, *, version: int = 0) -> Json:
        """Load a model of the server's repository; nothing to do if it is served. Return what has changed."""
        return await self._perform(model_order("load", model, version))

    async def reload_model(self, model: str = "", *, version: int = 0) -> Json:
        """Load a model anew, and serve it in the place of the old one. Return what has changed.

        Args:
            model: its name; without it, all that has changed in the server's repository.
            version: of it; 0 for those that its policy says.

        Raises:
            Aborted: the new one cannot be served, and the old one is.
        """
        return await self._perform(model_order("reload", model, version))

    async def unload_model(self, model: str, *, version: int = 0) -> Json:
        """Serve a model no longer. Return what has changed."""
        return await self._perform(model_order("unload", model, version))

    # -- attempts ----------------------------------------------------------------------------------------------------

    async def _perform(self, request: Request[T]) -> T:
        core = self._core
        deadline_s = anyio.current_effective_deadline()
        attempts = core.budget.attempts()
        while True:
            error = await self._attempt(request, deadline_s, retry=attempts.retrying)
            if error is None:
                core.budget.succeeded()
                return request.result()
            pause_s = attempts.pause_s(error, anyio.current_time(), deadline_s)
            if pause_s is None:
                return request.give_up(error)
            await anyio.sleep(pause_s)

    async def _attempt(self, request: Request[T], deadline_s: float, *, retry: bool) -> TrioserveError | None:
        try:
            link = await self._usable_link()
        except ConnectFailed as error:
            return error
        done = anyio.Event()
        call = request.start(link.session, Attempt(deadline_s, retry, done.set))
        try:
            # Tasks that were woken together make their calls before the first of them writes for all: one `sendmsg`
            # for as many requests. It also keeps a call whose scope is cancelled already from being sent.
            await anyio.lowlevel.checkpoint()
            self._flush(link)
            if not call.done:
                await done.wait()
        finally:
            if not call.done:
                self._abandon(link, call)
        return request.settle(call)

    def _abandon(self, link: Link, call: Call) -> None:
        link.session.abandon(call)
        self._flush(link)

    # -- connections -------------------------------------------------------------------------------------------------

    async def _usable_link(self) -> Link:
        if self._link is not None and self._link.usable:
            return self._link
        ticket = self._core.reconnector.ticket()
        async with self._connecting:
            if self._tasks is None or self._tasks.cancel_scope.cancel_called:
                raise ClientClosed("the client is closed, or was never entered")
            if self._link is not None and self._link.usable:
                return self._link
            failure = self._core.reconnector.verdict(ticket)
            if failure is not None:
                raise failure
            await anyio.sleep(self._core.reconnector.pause_s(anyio.current_time()))
            self._link = Link(await self._connect(), self._core.session())
            self._tasks.start_soon(self._run_link, self._link)
            return self._link

    async def _connect(self) -> socket.socket | TlsStream:
        core = self._core
        failure: OSError | None = None
        with anyio.move_on_after(core.policy.connect_timeout_s):  # noqa: ASYNC912  may connect at once
            try:
                sock = await _secured(core, await _dialled(await self._endpoints()))
            except OSError as error:
                failure = error
            else:
                core.reconnector.succeeded()
                return sock
        raise core.connect_failed(failure, anyio.current_time())

    async def _endpoints(self) -> list[Endpoint]:
        address = self._core.address
        if isinstance(address, UnixAddress):
            return [unix_endpoint(address)]
        literal = literal_endpoint(address)
        if literal is not None:
            return [literal]
        return found_endpoints(await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))

    async def _run_link(self, link: Link) -> None:
        """Read for as long as the connection lives, and close it."""
        try:
            async with anyio.create_task_group() as writers:
                self._links[link] = writers
                self._flush(link)
                await self._read(link)
                writers.cancel_scope.cancel()
        finally:
            self._links.pop(link, None)
            link.part(ClientClosed("the client was closed"), anyio.current_time())
            link.close()

    async def _read(self, link: Link) -> None:
        session = link.session
        try:
            while not session.over:
                if link.holds_input:
                    await anyio.lowlevel.checkpoint()
                else:
                    await anyio.wait_readable(link.sock)
                for _ in range(_FILLS_PER_WAKE):
                    if not link.fill():
                        break
                    link.feed(anyio.current_time())
                    if session.body is None:
                        break
                self._flush(link)
        except Exception as error:  # noqa: BLE001 - a bug of ours must reach the callers, not tear down their tasks
            failure = InternalError(f"the client failed: {error!r}")
            failure.__cause__ = error
            session.lost(failure)

    def _flush(self, link: Link) -> None:
        """Write what the kernel takes; a task of the connection writes the rest."""
        if not link.blocked and link in self._links and not link.flush(anyio.current_time()):
            self._links[link].start_soon(self._write, link)

    async def _write(self, link: Link) -> None:
        while link.blocked:
            await anyio.wait_writable(link.sock)
            link.flush(anyio.current_time())

    async def _close(self) -> None:
        tasks = self._tasks
        if tasks is None:
            raise AssertionError("closed before it was entered: this is a bug")
        tasks.cancel_scope.cancel()
        # Without the body's exception: it passes by unchanged, and not in a group of our making.
        await tasks.__aexit__(None, None, None)


async def _dialled(endpoints: list[Endpoint]) -> socket.socket:
    steps = dial(endpoints)
    try:
        while True:
            await anyio.wait_writable(next(steps))
    except StopIteration as stop:
        connected: socket.socket = stop.value
        return connected
    finally:
        steps.close()


async def _secured(core: Core, sock: socket.socket) -> socket.socket | TlsStream:
    steps = core.secured(sock)
    try:
        while True:
            await (anyio.wait_writable if next(steps) else anyio.wait_readable)(sock)
    except StopIteration as stop:
        return cast("socket.socket | TlsStream", stop.value)
    finally:
        steps.close()
