"""What a source is: which samples exist, and what each of them holds. No order, no framework, no DALI."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any] | list[npt.NDArray[Any]]
"""One field of a batch: an array whose first axis is the batch, or a list of arrays, one for each sample."""


@dataclass(frozen=True)
class Field:
    """What one field of a sample is."""

    kind: Literal["file", "encoded", "array"]
    """ "file": a path, whose bytes the graph reads · "encoded": the bytes of a file · "array": values."""
    dtype: np.dtype[Any]
    """Of the values; uint8 for "file" and "encoded"."""
    ndim: int
    """Axes of one sample: 0 for a number, 3 for an image; 1 for "file" and "encoded"."""


FILE = Field("file", np.dtype(np.uint8), 1)
LABEL = Field("array", np.dtype(np.int64), 0)


class Source(ABC):
    """Samples 0 to ``len(source) - 1``. Reading one never changes another, and may happen in any order."""

    fields: Mapping[str, Field]
    """The fields of a sample, by name."""

    classes: Sequence[str] | None = None
    """The names of the labels 0, 1, ..., where they have names."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(self, ids: npt.NDArray[np.int64], fields: Sequence[str]) -> dict[str, Column]:
        """These fields of these samples; a path as the uint8 array of its bytes."""

    @abstractmethod
    def describe(self, sample_id: int) -> str:
        """What a person calls this sample: its path, say."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Equal for two sources that hold the same samples in the same order; a state carries it."""
