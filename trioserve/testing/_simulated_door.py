"""Classes and tenants for the simulator, as the engine asks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trioserve.admission import SEEN_NS, Account, Classes, Tenants

if TYPE_CHECKING:
    from trioserve.engine import Scheduler

    from ._arrivals import Trace


class SimulatedDoor:
    """Admits the requests of a trace that tells classes or tenants apart.

    Args:
        scheduler: of the model.
        trace: the requests.
        executors: how many run it.
    """

    def __init__(self, scheduler: Scheduler, trace: Trace, executors: int) -> None:
        self._scheduler: Final = scheduler
        self._classes: Final = Classes(scheduler.sla_ns, executors)
        self._tenants: Final = Tenants(executors=executors)
        count = len(trace)
        self._class_of: Final = [0] * count if trace.classes is None else trace.classes.tolist()
        self._tenant_of: Final = [0] * count if trace.tenants is None else trace.tenants.tolist()
        self._accounts: Final[dict[int, Account]] = {}

    def admit(self, origin: int, deadline_ns: int, now_ns: int, eta_ns: int) -> tuple[int, int]:
        """Asks the scheduler about one request.

        Args:
            origin: its place in the trace.
            deadline_ns: its deadline.
            now_ns: the time of the event.
            eta_ns: time until its payload is complete.

        Returns:
            1 if it is admitted, else 0; and its key.
        """
        classes, tenants, scheduler = self._classes, self._tenants, self._scheduler
        klass = self._class_of[origin]
        account = self._accounts.setdefault(self._tenant_of[origin], Account())
        if classes.due_ns <= now_ns:
            classes.settle(now_ns)
        if tenants.due_ns <= now_ns:
            tenants.settle(now_ns)
        key_ns = deadline_ns + classes.offsets_ns[klass]
        admitted, _ = scheduler.admit(
            1,
            1,
            deadline_ns,
            now_ns,
            key_ns=key_ns,
            eta_ns=eta_ns,
            standing=classes.standing(klass, account.leaves),
        )
        classes.offered_ns[klass] += scheduler.unit_ns + SEEN_NS
        busy_ns = admitted * scheduler.unit_ns + SEEN_NS
        classes.pending_ns[klass] += busy_ns
        tenants.count(account, busy_ns)
        return admitted, key_ns
