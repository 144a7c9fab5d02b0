"""Digests of batches on the host. Equal digests mean equal names, dtypes, shapes and bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def field_digest(values: npt.NDArray[Any]) -> dict[str, Any]:
    """One field of a batch: dtype, shape, and SHA-256 (hex, 16 digits) of all of it and of each sample."""
    samples = [_sha(np.ascontiguousarray(sample).tobytes()) for sample in values]
    head = f"{values.dtype.str} {values.shape} ".encode()
    return {
        "dtype": str(values.dtype),
        "shape": list(values.shape),
        "digest": _sha(head + np.ascontiguousarray(values).tobytes()),
        "samples": samples,
    }


def batch_digest(fields: Mapping[str, Mapping[str, Any]]) -> str:
    """Of the digests of a batch's fields, with their names."""
    return _sha("".join(f"{name} {fields[name]['digest']} " for name in fields).encode())


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
