"""Handles: which models a connection has bound, and which calls wait for their signatures."""

from __future__ import annotations

from trioserve_protocol import Signature, Tag, bind_frame, encode_version, tlv

from ._calls import ModelCall, ModelKey

DEFAULT_MAX_BINDS = 1024


class Binding:
    """One handle of a connection.

    Attributes:
        handle: Its number, 1 and up.
        signature: What BOUND said; None until it comes.
        waiting: Calls made before BOUND came: sent by a guess, or held back.
    """

    __slots__ = ("handle", "key", "signature", "waiting")

    def __init__(self, key: ModelKey, handle: int) -> None:
        self.key = key
        self.handle = handle
        self.signature: Signature | None = None
        self.waiting: list[ModelCall] = []

    def frame(self, rid: int) -> bytes:
        """Return the BIND."""
        meta = tlv(Tag.VERSION, encode_version(self.key.version)) if self.key.version else b""
        if self.key.tenant is not None:
            meta += tlv(Tag.TENANT, self.key.tenant)
        return bind_frame(rid, self.handle, self.key.model, meta)


class Bindings:
    """The handles of one connection, at most `max_binds`; after that the oldest is given anew.

    Attributes:
        max_binds: What the server keeps for a connection.
    """

    __slots__ = ("_by_key", "_free", "_highest", "max_binds")

    def __init__(self) -> None:
        self._by_key: dict[ModelKey, Binding] = {}
        self._free: list[int] = []
        self._highest = 0
        self.max_binds = DEFAULT_MAX_BINDS

    def get(self, key: ModelKey) -> Binding | None:
        """Return the binding of a model, if there is one."""
        return self._by_key.get(key)

    def add(self, key: ModelKey) -> Binding | None:
        """Give a model that is not bound a handle; None while every handle waits for its BOUND."""
        if not self._free and self._highest >= self.max_binds:
            self._forget_oldest()
        if self._free:
            handle = self._free.pop()
        elif self._highest < self.max_binds:
            self._highest += 1
            handle = self._highest
        else:
            return None
        binding = self._by_key[key] = Binding(key, handle)
        return binding

    def remove(self, binding: Binding) -> None:
        """Forget a handle that the server has not, or has no more."""
        if self._by_key.get(binding.key) is binding:
            del self._by_key[binding.key]
            self._free.append(binding.handle)

    def clear(self) -> list[ModelCall]:
        """Forget all; returns the calls that waited for a signature."""
        waiting = [call for binding in self._by_key.values() for call in binding.waiting]
        self._by_key.clear()
        return waiting

    def _forget_oldest(self) -> None:
        # A BIND replaces what a handle stands for in later frames only: requests in flight keep their model, and
        # calls that are still queued find their binding gone and bind again.
        for binding in self._by_key.values():
            if binding.signature is not None:
                self.remove(binding)
                return
