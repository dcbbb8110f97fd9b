"""Execution: batches run in worker processes, and only descriptors cross over to them.

Names are loaded when they are first used: a worker process imports this package too, and does without Trio.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trioserve.errors import WorkerLost
    from trioserve.execution._descriptors import StageBatch, StageResult
    from trioserve.execution._in_process import InProcessStage
    from trioserve.execution._link import StageLink
    from trioserve.execution._messages import ModelReady, WorkerKind
    from trioserve.execution._ready import ReadyWorker, start_worker
    from trioserve.execution._spec import ReadyInfo, WorkerLoss, WorkerModel, WorkerSpec, WorkerStartError
    from trioserve.execution._supervise import supervise_worker

__all__ = [
    "InProcessStage",
    "ModelReady",
    "ReadyInfo",
    "ReadyWorker",
    "StageBatch",
    "StageLink",
    "StageResult",
    "WorkerKind",
    "WorkerLoss",
    "WorkerLost",
    "WorkerModel",
    "WorkerSpec",
    "WorkerStartError",
    "start_worker",
    "supervise_worker",
]

_MODULES = {
    "InProcessStage": "trioserve.execution._in_process",
    "ModelReady": "trioserve.execution._messages",
    "ReadyInfo": "trioserve.execution._spec",
    "ReadyWorker": "trioserve.execution._ready",
    "StageBatch": "trioserve.execution._descriptors",
    "StageLink": "trioserve.execution._link",
    "StageResult": "trioserve.execution._descriptors",
    "WorkerKind": "trioserve.execution._messages",
    "WorkerLoss": "trioserve.execution._spec",
    "WorkerLost": "trioserve.errors",
    "WorkerModel": "trioserve.execution._spec",
    "WorkerSpec": "trioserve.execution._spec",
    "WorkerStartError": "trioserve.execution._spec",
    "start_worker": "trioserve.execution._ready",
    "supervise_worker": "trioserve.execution._supervise",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  any public name
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
