"""Events as the vectors write them: independent of this implementation's classes."""

from collections.abc import Callable
from typing import Any

from trioserve_protocol import (
    RESULT_TAGS,
    Admin,
    Bind,
    Bound,
    Cancel,
    Credit,
    Done,
    Error,
    FatalError,
    FrameError,
    GoAway,
    Hello,
    Infer,
    InferMany,
    InferPart,
    Meta,
    Partial,
    Ping,
    Pong,
    Result,
    ResultMany,
    ShmReg,
    ShmUnreg,
    Signature,
    Unbind,
    Welcome,
    check_request,
    parse_meta,
)


def _request(kind: str) -> Callable[[Any], dict[str, Any]]:
    return lambda e: {
        "event": kind,
        "rid": e.rid,
        "handle": e.handle,
        "flags": e.flags,
        "deadline_us": e.timeout_us,
        "rows": e.rows,
        "meta": e.meta.hex(),
        "payload": e.payload.hex(),
    }


def _result(kind: str) -> Callable[[Any], dict[str, Any]]:
    return lambda e: {
        "event": kind,
        "rid": e.rid,
        "flags": e.flags,
        "server_us": e.server_us,
        "queue_us": e.queue_us,
        "rows": e.rows,
        "meta": e.meta.hex(),
        "payload": e.payload.hex(),
    }


def signature(spec: Signature) -> dict[str, Any]:
    """Return a signature as JSON."""
    sides = [
        [{"name": t.name, "dtype": int(t.dtype), "dims": list(t.dims)} for t in side]
        for side in (spec.inputs, spec.outputs)
    ]
    return {"version": spec.version, "max_rows": spec.max_rows, "inputs": sides[0], "outputs": sides[1]}


def tlvs(meta: Meta) -> dict[str, Any]:
    """Return the TLVs that are there, as JSON."""
    found = {
        "model": meta.model,
        "version": meta.version,
        "tensors": [t._asdict() | {"dtype": int(t.dtype), "dims": list(t.dims)} for t in meta.tensors],
        "outputs": list(meta.outputs),
        "traceparent": meta.traceparent,
        "tenant": meta.tenant,
        "shmrefs": [ref._asdict() for ref in meta.shmrefs],
        "params": meta.params,
        "sequence": meta.sequence and meta.sequence._asdict(),
        "compress": meta.compress and meta.compress._asdict(),
        "timing": meta.timing and meta.timing._asdict(),
    }
    return {name: value for name, value in found.items() if value}


_KINDS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Infer: _request("infer"),
    InferMany: _request("infer_many"),
    InferPart: lambda e: {
        "event": "infer_part", "rid": e.rid, "flags": e.flags, "part": e.part, "payload": e.payload.hex()
    },
    Result: _result("result"),
    ResultMany: _result("result_many"),
    Partial: lambda e: {
        "event": "partial", "rid": e.rid, "flags": e.flags, "part": e.part, "rows": e.rows, "meta": e.meta.hex(),
        "payload": e.payload.hex(),
    },
    Error: lambda e: {
        "event": "error", "rid": e.rid, "rows": e.count, "status": e.code, "retryable": e.retryable,
        "retry_after_us": e.retry_after_us, "message": e.message,
    },
    Hello: lambda e: {
        "event": "hello", "rid": e.rid, "features": e.features._asdict(), "limits": e.limits._asdict(),
        "client": e.client, "tenant": e.tenant, "auth": e.auth and e.auth.hex(),
    },
    Welcome: lambda e: {
        "event": "welcome", "rid": e.rid, "features": e.features._asdict(), "limits": e.limits._asdict(),
        "server": e.server and e.server._asdict(),
    },
    Bind: lambda e: {"event": "bind", **e._asdict()},
    Bound: lambda e: {"event": "bound", "rid": e.rid, "handle": e.handle, "signature": signature(e.signature)},
    Unbind: lambda e: {"event": "unbind", **e._asdict()},
    Done: lambda e: {"event": "done", "type": e.frame_type, "rid": e.rid, "status": e.status},
    Cancel: lambda e: {"event": "cancel", "rid": e.rid, "rows": e.count},
    Credit: lambda e: {"event": "credit", **e._asdict()},
    Ping: lambda e: {"event": "ping", "rid": e.rid, "payload": e.payload.hex()},
    Pong: lambda e: {"event": "pong", "rid": e.rid, "payload": e.payload.hex()},
    GoAway: lambda e: {"event": "goaway", **e._asdict()},
    ShmReg: lambda e: {"event": "shm_reg", "rid": e.rid, "region": e.region._asdict()},
    ShmUnreg: lambda e: {"event": "shm_unreg", **e._asdict()},
    Admin: lambda e: {"event": "admin", "rid": e.rid, "status": e.status, "json": e.payload.decode()},
    FrameError: lambda e: {
        "event": "refused", "rid": e.rid, "status": int(e.code), "rows": e.count, "requests": e.requests,
        **({"unbinds": e.unbinds} if e.unbinds else {}),
    },
    FatalError: lambda e: {"event": "fatal", "status": int(e.code)},
}  # fmt: skip


def described(event: Any, wanted: dict[str, Any], spec: Signature | None) -> dict[str, Any]:
    """Return an event as JSON, with what `wanted` asks for besides: decoded TLVs, the check against a signature."""
    found = _KINDS[type(event)](event)
    if "tlvs" in wanted:
        found["tlvs"] = tlvs(parse_meta(event.meta, RESULT_TAGS if isinstance(event, Result) else None))
    if "check" in wanted:
        assert spec is not None
        fault = check_request(
            spec,
            event.rows,
            len(event.payload),
            event.meta,
            bound=event.handle != 0,
            many=isinstance(event, InferMany),
        )
        found["check"] = int(fault.code) if fault else 0
    return found
