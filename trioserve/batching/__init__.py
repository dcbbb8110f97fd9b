"""When to cut a batch and which rows go into it: pure policies, the queue, the service-time model."""

from __future__ import annotations

from ._length_queue import LengthQueue
from ._policy import Dispatch, FixedWindow, Policy, QueueView, WaitUntil, WorkConserving
from ._queue import RowQueue
from ._service import ServiceModel

__all__ = [
    "Dispatch",
    "FixedWindow",
    "LengthQueue",
    "Policy",
    "QueueView",
    "RowQueue",
    "ServiceModel",
    "WaitUntil",
    "WorkConserving",
]
