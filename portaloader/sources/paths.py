"""File paths in bulk: one run of bytes and offsets, no ``str`` for each file."""

from __future__ import annotations

import hashlib
import os
from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

from portaloader.sources.base import Column

Bytes = npt.NDArray[np.uint8]


class PathTable:
    """Paths below one folder: their bytes one after the other, and where each ends (8 bytes a path)."""

    def __init__(self, root: Path) -> None:
        self._prefix = os.path.join(os.fsencode(root), b"")
        self._text = bytearray()
        self._ends = array("q")

    def append(self, path: bytes) -> None:
        """Add a path, relative to the folder or absolute."""
        self._text += path
        self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:
        """The whole path, as the operating system takes it."""
        path = self._text[self._ends[index - 1] if index else 0 : self._ends[index]]
        return bytes(path) if path.startswith(b"/") else self._prefix + path

    def column(self, ids: npt.NDArray[np.int64]) -> Column:
        """The whole paths of these samples, one uint8 array each."""
        return [np.frombuffer(self[i], dtype=np.uint8) for i in ids.tolist()]

    def describe(self, index: int) -> str:
        return os.fsdecode(self[index])

    @property
    def nbytes(self) -> int:
        """Memory that the table holds, in bytes."""
        return len(self._text) + self._ends.itemsize * len(self._ends)

    def digest(self) -> str:
        """Over the paths as they were added: a moved folder keeps it."""
        return hashlib.sha256(bytes(self._text) + self._ends.tobytes()).hexdigest()


def diagnose(path: str | bytes | os.PathLike[str]) -> str | None:
    """What the file system says of a file that could not be processed; None: nothing."""
    try:
        with open(path, "rb") as file:
            return None if file.read(1) else "the file is empty"
    except OSError as error:
        return error.strerror
