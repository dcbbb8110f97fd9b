"""When to cut a batch and which rows go into it: pure policies, the queue, the service-time model."""

from __future__ import annotations

from ._adaptive import Adaptive
from ._length_queue import LengthQueue
from ._margins import Margins
from ._named import POLICY_NAMES, policy_named
from ._policy import Dispatch, FixedWindow, Policy, QueueView, WaitUntil, WorkConserving
from ._queue import RowQueue
from ._rate import DeadlineBands, DecayingRate
from ._returns import Returns
from ._service import ServiceModel
from ._shadow import Shadow

__all__ = [
    "POLICY_NAMES",
    "Adaptive",
    "DeadlineBands",
    "DecayingRate",
    "Dispatch",
    "FixedWindow",
    "LengthQueue",
    "Margins",
    "Policy",
    "QueueView",
    "Returns",
    "RowQueue",
    "ServiceModel",
    "Shadow",
    "WaitUntil",
    "WorkConserving",
    "policy_named",
]
