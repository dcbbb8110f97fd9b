"""The engine: requests in as runs of columns, replies out, everything between them wired here."""

from __future__ import annotations

from trioserve.request import NEVER_NS

from ._arrival import Arrival
from ._engine import Engine
from ._executor import Executor
from ._intake import Intake
from ._lane import Lane
from ._occupancy import Occupancy
from ._scheduler import Scheduler
from ._session import ReplySink, Session
from ._stage import Link
from ._text import TextLane, text_region_nbytes
from ._tokenizer import Tokenizer
from ._turnover import dismiss, give_up, hand_over, is_over, retire

__all__ = [
    "NEVER_NS",
    "Arrival",
    "Engine",
    "Executor",
    "Intake",
    "Lane",
    "Link",
    "Occupancy",
    "ReplySink",
    "Scheduler",
    "Session",
    "TextLane",
    "Tokenizer",
    "dismiss",
    "give_up",
    "hand_over",
    "is_over",
    "retire",
    "text_region_nbytes",
]
