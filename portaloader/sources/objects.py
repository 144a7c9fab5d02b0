"""Any object with ``__len__`` and ``__getitem__``: a list, an array, a PyTorch map-style dataset, your own class."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from portaloader.errors import EmptySourceError, SourceError
from portaloader.sources.base import FILE, Column, Field, Source
from portaloader.sources.paths import diagnose


class Indexable(Protocol):
    """What a list is, and a map-style dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Objects(Source):
    """The items of an object are the samples; what item 0 holds tells the fields.

    An item is a mapping of names to values, a pair (image, label), or an image alone. A value is a path (``str`` or
    ``os.PathLike``: a file, which the graph reads), ``bytes`` (the content of a file), or anything that NumPy makes a
    numeric array of. Whole numbers become int64; the field ``image`` as one of Pillow's images becomes RGB.

    Raises:
        EmptySourceError: there are no items.
        SourceError: item 0 cannot be understood. Later items raise it when they are read.
    """

    def __init__(self, items: Indexable) -> None:
        self.items = items
        if len(items) < 1:
            raise EmptySourceError(f"the source {type(items).__name__} has no items.")
        try:
            first = self._item(0)
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(f"{self.describe(0)} cannot be read: {type(error).__name__}: {error}") from error
        self.fields = {name: _field(name, value) for name, value in first.items()}
        for name, value in first.items():
            if isinstance(value, str) and not any(c in value for c in "./") and not Path(value).exists():
                raise SourceError(
                    f"field {name!r} of {self.describe(0)} is {value!r}: text is the path of a file, and there is none. "
                    f"If it is the name of a class, give its number."
                )
        if not self.fields:
            raise SourceError(f"item 0 of the source {type(items).__name__} is an empty mapping.")

    def __len__(self) -> int:
        return len(self.items)

    def _item(self, index: int) -> dict[str, Any]:
        item = self.items[index]
        if isinstance(item, Mapping):
            item = dict(item)
        elif isinstance(item, tuple):
            if len(item) != 2:
                raise SourceError(
                    f"{self.describe(index)} is a tuple of {len(item)}; a pair is (image, label), for anything else "
                    f"return a dict with names."
                )
            item = {"image": item[0], "label": item[1]}
        else:
            item = {"image": item}
        pillow = sys.modules.get("PIL.Image")  # no item is one of Pillow's before it is imported
        if pillow is not None and isinstance(item.get("image"), pillow.Image):
            item["image"] = item["image"].convert("RGB")  # as the decoder does with a file
        return item

    def fetch(self, ids: npt.NDArray[np.int64], fields: Sequence[str]) -> dict[str, Column]:
        columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in fields}
        for index in ids.tolist():
            item = self._item(index)
            for name in fields:
                if name not in item:
                    raise SourceError(f"{self.describe(index)} has no field {name!r}, which item 0 has.")
                columns[name].append(self._value(index, name, item[name]))
        return {name: np.stack(c) if self.fields[name].ndim == 0 else c for name, c in columns.items()}

    def _value(self, index: int, name: str, value: Any) -> npt.NDArray[Any]:
        wanted = self.fields[name]
        found = _field(name, value)
        if found != wanted:
            raise SourceError(
                f"field {name!r} of {self.describe(index)} is {_spell(found)}; item 0 has {_spell(wanted)}, "
                f"and every item must be alike."
            )
        if wanted.kind == "file":
            return np.frombuffer(os.fsencode(value), dtype=np.uint8)
        if wanted.kind == "encoded":
            return np.frombuffer(value, dtype=np.uint8)
        try:
            return np.ascontiguousarray(value, dtype=wanted.dtype).reshape(np.shape(value))
        except OverflowError as error:
            raise SourceError(
                f"field {name!r} of {self.describe(index)} is {value}, which {wanted.dtype} cannot hold."
            ) from error

    def describe(self, sample_id: int) -> str:
        return f"item {self.checked(sample_id)} of {type(self.items).__name__}"

    def diagnose(self, sample_id: int) -> str | None:
        item = self._item(sample_id)
        found = (diagnose(item[name]) for name, field in self.fields.items() if field.kind == "file")
        return next((text for text in found if text is not None), None)

    @property
    def fingerprint(self) -> str:
        """Over the type, the number of items, and the fields: the items themselves are not read."""
        text = f"{type(self.items).__qualname__} {len(self)} {sorted(map(repr, self.fields.items()))}"
        return hashlib.sha256(text.encode()).hexdigest()


def _field(name: str, value: Any) -> Field:
    if isinstance(value, (str, os.PathLike)):
        return FILE
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Field("encoded", np.dtype(np.uint8), 1)
    try:
        array = np.asarray(value)
    except Exception as error:
        raise SourceError(
            f"field {name!r} is {type(value).__name__}, and NumPy cannot make an array of it ({error})."
        ) from error
    if array.dtype.kind not in "biuf":
        raise SourceError(
            f"field {name!r} is {type(value).__name__} (dtype {array.dtype}); a path, bytes, or a numeric array is needed."
        )
    scalar_integer = array.ndim == 0 and array.dtype.kind in "iu"
    return Field("array", np.dtype(np.int64) if scalar_integer else array.dtype, array.ndim, array.shape)


def _spell(field: Field) -> str:
    return f"an array ({field.dtype}, {field.ndim} axes)" if field.kind == "array" else f"{field.kind} bytes"
