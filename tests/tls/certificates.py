"""Certificates for tests, made by the `openssl` command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Pki(NamedTuple):
    """An authority and what it has signed, as paths of PEM files; `stranger` is signed by itself."""

    ca: str
    server: str
    client: str
    wrong_name: str
    stranger: str


def make_pki(folder: Path) -> Pki:
    """Makes them; certificates and their keys are in one file each."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    for name, subject in (("ca", "/CN=trioserve test authority"), ("stranger", "/CN=localhost")):
        _run(folder, "req", "-x509", *_NEW_KEY, f"{name}.key", "-out", f"{name}.crt", "-subj", subject)
    for name, alt in (
        ("server", "DNS:localhost,IP:127.0.0.1"),
        ("wrong_name", "DNS:example.org"),
        ("client", "DNS:c"),
    ):
        (folder / "ext").write_text(f"subjectAltName={alt}\n")
        _run(folder, "req", *_NEW_KEY, f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext", "-days", "3650"]
        _run(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signed)
    found = {}
    for name in Pki._fields:
        path = folder / f"{name}.pem"
        text = (folder / f"{name}.crt").read_text()
        path.write_text(text if name == "ca" else text + (folder / f"{name}.key").read_text())
        found[name] = str(path)
    return Pki(**found)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout")


def _run(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=30)
