"""Arena: sealed, shared by descriptor, and closed without pulling memory from under arrays."""

import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from trioserve.memory import Arena, ArenaError


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(10_000, "test")
    yield made
    made.close()


def test_size_is_whole_pages_of_zeros(arena: Arena) -> None:
    assert arena.nbytes == 3 * mmap.PAGESIZE
    assert len(arena.view) == arena.nbytes
    assert not any(arena.view)


@pytest.mark.parametrize("nbytes", [0, 4096, 20_000])
def test_cannot_be_resized(arena: Arena, nbytes: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, nbytes)


def test_seals_are_final(arena: Arena) -> None:
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_is_not_inherited_unasked(arena: Arena) -> None:
    assert not os.get_inheritable(arena.fd)


def test_needs_a_size() -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        Arena.create(0, "test")


def test_attached_shares_memory(arena: Arena) -> None:
    fd = os.dup(arena.fd)
    os.set_inheritable(fd, True)
    other = Arena.attach(fd, arena.nbytes)
    assert not os.get_inheritable(other.fd)
    other.view[5] = 7
    assert arena.view[5] == 7
    other.close()
    assert arena.view[5] == 7


@pytest.mark.slow
def test_another_process_attaches_through_the_descriptor(arena: Arena) -> None:
    code = (
        "import sys; from trioserve.memory import Arena; "
        "a = Arena.attach(int(sys.argv[1]), int(sys.argv[2])); a.view[9] = a.view[8] + 1; a.close()"
    )
    arena.view[8] = 41
    subprocess.run(
        [sys.executable, "-c", code, str(arena.fd), str(arena.nbytes)],
        pass_fds=[arena.fd], check=True, timeout=20, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert arena.view[9] == 42


def test_attach_refuses_another_size(arena: Arena) -> None:
    fd = os.dup(arena.fd)
    with pytest.raises(ArenaError, match="expected 1"):
        Arena.attach(fd, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_attach_refuses_what_could_shrink() -> None:
    fd = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    with pytest.raises(ArenaError, match="not sealed"):
        Arena.attach(fd, 4096)


def test_attach_refuses_a_pipe() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    with pytest.raises(ArenaError, match="not a memfd"):
        Arena.attach(reader, 4096)


def test_close_is_idempotent_and_final(arena: Arena) -> None:
    fd = arena.fd
    arena.close()
    arena.close()
    assert arena.fd == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(ValueError, match="closed"):
        _ = arena.view


def test_arrays_outlive_close(arena: Arena) -> None:
    array = np.frombuffer(arena.view, np.uint8)
    array[3] = 9
    arena.close()
    assert array[3] == 9
    array[4] = 1
