"""What was learnt of models, kept from one start to the next: one small JSON file a model and device.

A cache and nothing more: whatever is wrong with a file or its folder, the server goes on without, and says so in the
log. Files are replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

if TYPE_CHECKING:
    from trioserve.config import ModelConfig

log = structlog.get_logger(__name__)

AUTO: Final = "auto"
MAX_FILE_NBYTES: Final = 65_536
"""Largest file that is written or read; a dozen sizes take less than one of them."""

MAX_FILES: Final = 256
"""Files that are kept in the folder; of more the oldest are removed."""

SUFFIX: Final = ".learnt.json"


class LearntFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a file."""

    model: str
    """What it was called; for people."""

    device: str
    """What it ran on; for people."""

    key: str
    """See `model_key`."""

    state: dict[str, Any]
    """Of the service-time model."""


class LearntStore:
    """The folder with what was learnt.

    Args:
        directory: is made where it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory

    def load(self, key: str, model: str) -> dict[str, Any] | None:
        """What was learnt of a model; None if nothing was, or if the file is none.

        Args:
            key: of the model on this device.
            model: its name, for the log.
        """
        path = self._path(key)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_NBYTES + 1)
            if len(data) > MAX_FILE_NBYTES:
                raise ValueError(f"more than {MAX_FILE_NBYTES} bytes")
            found = msgspec.json.decode(data, type=LearntFile)
            if found.key != key:
                raise ValueError("it belongs to another model")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # what msgspec raises is a ValueError
            log.warning("learnt_model_refused", model=model, path=str(path), reason=str(error))
            return None
        return found.state

    def save(self, content: LearntFile) -> None:
        """Keeps what was learnt of a model. Blocks for as long as the file system takes."""
        path = self._path(content.key)
        try:
            data = msgspec.json.encode(content)
            if len(data) > MAX_FILE_NBYTES:
                raise OSError(f"more than {MAX_FILE_NBYTES} bytes")
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(path, data)
            self._drop_oldest()
        except OSError as error:
            log.warning("learnt_model_not_saved", model=content.model, path=str(path), reason=str(error))

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{SUFFIX}"

    def _drop_oldest(self) -> None:
        """Removes what is more than the folder may hold, and what a killed server left half-written."""
        files = [(entry.stat().st_mtime_ns, entry) for entry in self.directory.glob(f"*{SUFFIX}*")]
        for _, entry in sorted(files)[: max(0, len(files) - MAX_FILES)]:
            entry.unlink(missing_ok=True)


def _replace(path: Path, data: bytes) -> None:
    """Puts a file in the place of another, as a whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError:
        with suppress(OSError):
            Path(name).unlink()
        raise


def open_store(state_dir: str, environ: Mapping[str, str] = os.environ) -> LearntStore | None:
    """The store that a configuration names; None if it names none, or one that cannot be written.

    Args:
        state_dir: a folder, `auto` for the user's cache, or empty for none.
        environ: says where the user's cache is.
    """
    if not state_dir:
        return None
    if state_dir == AUTO:
        cache = environ.get("XDG_CACHE_HOME") or ""
        if not Path(cache).is_absolute():
            home = environ.get("HOME") or ""
            if not Path(home).is_absolute():
                return None
            cache = str(Path(home, ".cache"))
        directory = Path(cache, "trioserve")
    else:
        directory = Path(state_dir).absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError("it cannot be written")
    except OSError as error:
        level = log.info if state_dir == AUTO else log.warning
        level("learnt_models_not_kept", state_dir=str(directory), reason=str(error))
        return None
    return LearntStore(directory)


def model_key(config: ModelConfig, device: str) -> str:
    """What a model's service times depend on, as 40 hexadecimal digits.

    The file, how it is run and what it is run on: not its name, its version, its deadlines or its tokenizer. Reads the
    whole file, unless its hash is configured.

    Args:
        config: of the model.
        device: see `device_name`.

    Raises:
        OSError: the file cannot be read.
    """
    digest = config.sha256
    if not digest:
        with config.file_path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    batching = config.batching
    facts = [
        digest,
        config.backend,
        config.class_name,
        config.args,
        config.inputs,
        config.outputs,
        config.tokenizer.max_tokens if config.tokenizer else 0,
        [batching.max_rows, batching.max_tokens, batching.layout, batching.buckets],
        device,
    ]
    return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()[:40]


def device_name(threads: int) -> str:
    """The processor of this machine and how many threads of it a batch uses."""
    name = platform.processor() or platform.machine()
    with suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {threads} threads"
