"""When to cut a batch and which rows go into it: pure policies, the queue, the service-time model."""

from __future__ import annotations

from ._adaptive import PROMPT_NS, Adaptive
from ._bursts import Bursts
from ._length_queue import LengthQueue
from ._margins import Margins
from ._named import POLICY_NAMES, policy_named
from ._policy import Dispatch, FixedWindow, Learner, Policy, QueueView, WaitUntil, WorkConserving
from ._queue import RowQueue
from ._rate import DeadlineBands
from ._returns import Returns
from ._rivals import AdditiveIncrease, Cork, Greedy, JustInTime, PreferredSizes, WaitForRows
from ._service import ServiceModel
from ._shadow import Shadow

__all__ = [
    "POLICY_NAMES",
    "PROMPT_NS",
    "Adaptive",
    "AdditiveIncrease",
    "Bursts",
    "Cork",
    "DeadlineBands",
    "Dispatch",
    "FixedWindow",
    "Greedy",
    "JustInTime",
    "Learner",
    "LengthQueue",
    "Margins",
    "Policy",
    "PreferredSizes",
    "QueueView",
    "Returns",
    "RowQueue",
    "ServiceModel",
    "Shadow",
    "WaitForRows",
    "WaitUntil",
    "WorkConserving",
    "policy_named",
]
