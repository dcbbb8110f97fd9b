"""When to cut a batch and which rows go into it: pure policies, the queue, the service-time model."""

from __future__ import annotations

from ._policy import Dispatch, FixedWindow, Policy, QueueView, WaitUntil, WorkConserving
from ._queue import ArrivalQueue, LengthQueue
from ._service import ServiceModel
from ._shadow import Shadow

__all__ = [
    "ArrivalQueue",
    "Dispatch",
    "FixedWindow",
    "LengthQueue",
    "Policy",
    "QueueView",
    "ServiceModel",
    "Shadow",
    "WaitUntil",
    "WorkConserving",
]
