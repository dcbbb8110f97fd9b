"""The worker process: `python -m trioserve.execution.worker CONTROL_FD DATA_FD TITLE`, started by the supervisor only.

There is no event loop here. A CPU has one batch to run at a time, so the main thread blocks in `recv` on the data
pair and then in the model; a second thread watches the control pair. That keeps the start under a third of a
second, and a batch's way through the process short.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from trioserve.execution._descriptors import CorruptDescriptor
from trioserve.execution._load import load_model
from trioserve.execution._loop import DataLoop
from trioserve.execution._messages import (
    MAX_CONTROL_NBYTES,
    Abandon,
    Failed,
    Ready,
    Skipped,
    Start,
    decode_for_worker,
    encode_control,
)
from trioserve.execution._orders import Orders
from trioserve.execution._report import report
from trioserve.memory import Arena

if TYPE_CHECKING:
    from trioserve.execution._load import Loaded

EXIT_ORPHANED = 3
"""Exit status after the server vanished."""

EXIT_CORRUPT = 4
"""Exit status after a descriptor or an order that the server cannot have sent."""


class _ControlThread(threading.Thread):
    """Waits for orders, and for the server's death.

    Orphans end at once: nobody is left to answer. A worker that still loads holds no batch, so it ends at once too when
    told to stop; one that serves finishes what is queued.
    """

    def __init__(self, control: socket.socket, data: socket.socket) -> None:
        super().__init__(name="control", daemon=True)
        self.serving = False
        self.orders = Orders()
        self._control = control
        self._data = data

    def run(self) -> None:
        """Obey messages until the end."""
        while data := self._control.recv(MAX_CONTROL_NBYTES):
            try:
                message = decode_for_worker(data)
            except msgspec.MsgspecError as error:
                report(f"ends after an order it does not understand: {error}")
                os._exit(EXIT_CORRUPT)
            if isinstance(message, Abandon):
                if self.orders.abandon(message.seq):
                    with suppress(OSError):  # the server is gone: the next receive says so
                        self._control.send(encode_control(Skipped(message.seq)))
            elif self.serving:
                self._data.shutdown(socket.SHUT_RD)
            else:
                os._exit(0)
        os._exit(EXIT_ORPHANED)


def main() -> int:
    """Run a worker; returns its exit status."""
    # Both reach the whole process group. The server decides when its workers end, after they have drained.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _name_process(sys.argv[3].partition(":")[0])
    control, data = (_own_socket(int(number)) for number in sys.argv[1:3])
    first = control.recv(MAX_CONTROL_NBYTES + 1)
    if not first:
        return EXIT_ORPHANED
    start = decode_for_worker(first)
    if not isinstance(start, Start):
        return 0
    watcher = _ControlThread(control, data)
    watcher.start()
    sys.path[:] = start.sys_path
    loaded = _load_all(start, control)
    # All that is alive now stays alive: no collection needs to look at it again.
    gc.collect()
    gc.freeze()
    watcher.serving = True
    control.send(encode_control(Ready([model.ready for model in loaded])))
    loop = DataLoop(
        data,
        epoch=start.epoch,
        runners=[model.runner for model in loaded],
        bounds=[model.bounds for model in loaded],
        orders=watcher.orders,
    )
    try:
        loop.serve()
    except CorruptDescriptor as error:
        report(f"ends after a corrupt descriptor: {error}")
        return EXIT_CORRUPT
    for model in loaded:
        model.runner.close()
    return 0


def _name_process(kind: str) -> None:
    """What `top` and `ps -e` call this process; its command line says more."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as file:  # noqa: PTH123  quicker here
        file.write(f"ts-{kind}")


def _own_socket(fd: int) -> socket.socket:
    """A socket inherited from the server, which programs that a model starts do not inherit in turn.

    One that did would hold the stream open after this process has died.
    """
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


def _load_all(start: Start, control: socket.socket) -> list[Loaded]:
    try:
        return [
            load_model(start.kind, model.config, Arena.attach(model.fd, model.nbytes), model.layout)
            for model in start.models
        ]
    except BaseException as error:
        control.send(encode_control(Failed(f"{type(error).__name__}: {error}")))
        raise


if __name__ == "__main__":
    sys.exit(main())
