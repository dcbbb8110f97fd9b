"""An arena: anonymous shared memory that lives as long as somebody holds it, and leaves nothing behind.

`memfd_create` gives memory without a name: after `kill -9` of every holder the kernel has it back. It is sealed
against shrinking before anybody else can see it, because a peer that truncates a mapped file turns the next read
here into SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import Final, Self

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Seals of every arena. F_SEAL_SEAL makes the set final, so a holder of the fd cannot forbid the writes of the
others."""


class ArenaError(Exception):
    """The file descriptor given is not an arena of the size given."""


class Arena:
    """One sealed, shared mapping of a fixed size.

    Made by `create` in the process that owns it and by `attach` in every other. Pages are committed as they are
    touched, so an arena costs what is used of it.

    Ownership:
        An arena owns its file descriptor and its mapping until `close`. Arrays over `view` keep the mapping
        alive, never the descriptor.
    """

    __slots__ = ("_fd", "_map", "_view", "nbytes")

    nbytes: Final[int]

    def __init__(self, fd: int, nbytes: int) -> None:
        """Map `fd`, which is owned from here on. Use `create` or `attach`."""
        self._fd = fd
        self.nbytes = nbytes
        self._map: mmap.mmap | None = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._view: memoryview | None = memoryview(self._map)

    @classmethod
    def create(cls, nbytes: int, name: str) -> Self:
        """Make a new arena of zeros.

        Args:
            nbytes: Size in bytes, at least 1; rounded up to whole pages.
            name: Shown by `/proc/PID/maps`; not unique, not a path.

        Raises:
            OSError: The kernel refuses (memory, descriptors).
        """
        if nbytes < 1:
            raise ValueError(f"an arena has at least 1 byte, not {nbytes}")
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            return cls(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, nbytes: int) -> Self:
        """Map an arena that another process made.

        Args:
            fd: Its descriptor, inherited or received. Owned by the arena from here on, also if this raises.
            nbytes: Its size in bytes, as the maker's `nbytes` says.

        Raises:
            ArenaError: Not a memfd, not sealed against shrinking, or of another size: mapping it could fault later.
            OSError: The kernel refuses the mapping.
        """
        try:
            _check(fd, nbytes)
            os.set_inheritable(fd, False)
            return cls(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    @property
    def fd(self) -> int:
        """The descriptor, to be inherited or sent; -1 once closed."""
        return self._fd

    @property
    def view(self) -> memoryview:
        """All bytes, writable.

        Raises:
            ValueError: The arena is closed.
        """
        if self._view is None:
            raise ValueError("the arena is closed")
        return self._view

    def empty(self) -> None:
        """Give all pages back to the system now; whoever still has it mapped, in any process, finds zeros.

        Closing alone gives them back only when the last array over the arena is gone.
        """
        if self._map is not None:
            with suppress(OSError):  # a kernel that cannot: they go with the last array
                self._map.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Close the descriptor and unmap. Idempotent.

        Arrays and views over the arena stay valid: while some exist the mapping outlives this call and goes with
        the last of them.
        """
        if self._map is None:
            return
        os.close(self._fd)
        self._fd = -1
        view, mapping = self._view, self._map
        self._view = self._map = None
        try:
            if view is not None:
                view.release()
            mapping.close()
        except BufferError:
            # Exported: the exporters hold references to the mmap object, whose deallocation unmaps.
            pass


def _check(fd: int, nbytes: int) -> None:
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ArenaError(f"descriptor {fd} is not a memfd: {error.strerror}") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise ArenaError(f"descriptor {fd} is not sealed against shrinking")
    if (size := os.fstat(fd).st_size) != nbytes:
        raise ArenaError(f"descriptor {fd} has {size} bytes, expected {nbytes}")
