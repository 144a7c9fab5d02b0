"""What a source is: which samples exist, and what each of them holds. No order, no framework, no DALI."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from portaloader.errors import ArgumentError

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
    shape: tuple[int, ...] | None = field(default=None, compare=False)
    """Of the first sample's values, where they are known; later ones may differ."""


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

    def diagnose(self, sample_id: int) -> str | None:
        """What is wrong with a sample that could not be processed, where the source can tell."""
        return None

    def checked(self, sample_id: Any) -> int:
        """A sample id as ``int``, from whatever tensor of a framework holds it.

        Raises:
            ArgumentError: there is no such sample.
        """
        index = int(sample_id.asscalar() if hasattr(sample_id, "asscalar") else sample_id)
        if not 0 <= index < len(self):
            raise ArgumentError(f"sample {index} was asked for; there are samples 0 to {len(self) - 1}.")
        return index

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Equal for two sources that hold the same samples in the same order; a state carries it."""
