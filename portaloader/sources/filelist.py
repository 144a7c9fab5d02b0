"""A list of files with labels, as text, CSV or JSON lines."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from portaloader.errors import ArgumentError, EmptySourceError, SourceError, SourceNotFoundError
from portaloader.sources.base import FILE, LABEL, Column, Source
from portaloader.sources.paths import PathTable, diagnose
from portaloader.sources.progress import counted

Row = tuple[int, Any, Any]
"""Line number (from 1), path, label."""


class FileList(Source):
    """One image per line of a list.

    * ``.txt`` ``.lst``: ``path label``, divided by white space; the label is the last word. Empty lines are passed over.
    * ``.csv`` ``.tsv``: with a header that names the columns.
    * ``.jsonl`` ``.ndjson``: an object per line.

    Relative paths are relative to ``root``. Labels are whole numbers from 0, or names, which are then numbered in
    sorted order. Fields: ``image`` (a file), ``label`` (int64) unless ``label`` is None.

    Args:
        path: the list, UTF-8.
        root: folder of relative paths; None: the list's own.
        image: column or key of the path.
        label: column or key of the label; None: the list has none.

    Raises:
        SourceNotFoundError: the list is not there.
        EmptySourceError: it names no file.
        SourceError: a column is missing, or a line cannot be read; the message names the line.
        ArgumentError: the list's ending is unknown.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        image: str = "path",
        label: str | None = "label",
    ) -> None:
        self.path = Path(path).absolute()
        if not self.path.is_file():
            raise SourceNotFoundError(f"the file list {str(path)!r} was asked for; no such file exists.")
        reader = READERS.get(self.path.suffix.lower())
        if reader is None:
            raise ArgumentError(
                f"the file list {self.path.name!r} ends in {self.path.suffix!r}; known are {', '.join(sorted(READERS))}."
            )
        self._paths = PathTable(Path(root).absolute() if root is not None else self.path.parent)
        codes = array("q")
        seen: dict[str, int] = {}
        try:
            for number, name, value in counted(reader(self.path, image, label), f"reading {self.path}"):
                if not isinstance(name, str) or not name:
                    raise self._bad_line(
                        number, "the path is empty" if name == "" else f"the path is {name!r}, which is no text"
                    )
                self._paths.append(os.fsencode(name))
                if label is not None:
                    codes.append(seen.setdefault(self._label(number, value), len(seen)))
        except UnicodeDecodeError as error:
            raise SourceError(f"the file list {str(self.path)!r} is not UTF-8 ({error}); convert it.") from error
        if not len(self._paths):
            raise EmptySourceError(f"the file list {str(self.path)!r} names no file.")
        self._labels = self._numbered(codes, list(seen))
        self.fields = {"image": FILE} if label is None else {"image": FILE, "label": LABEL}

    def _bad_line(self, number: int, why: str) -> SourceError:
        return SourceError(f"{self.path}, line {number}: {why}.")

    def _label(self, number: int, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, (int, str)) or not str(value).strip():
            raise self._bad_line(number, f"the label is {value!r}; a whole number or a name is needed")
        return str(value).strip()

    def _numbered(self, codes: array[int], names: list[str]) -> npt.NDArray[np.int64]:
        """The label of each line, from the place of its name in ``names``; the classes where the names are no numbers."""
        decimal = next((name for name in names if _DECIMAL.fullmatch(name)), None)
        if decimal is not None:
            raise SourceError(f"{self.path}: there is the label {decimal}; labels are whole numbers from 0, or names.")
        if all(_NUMBER.fullmatch(name) for name in names):
            values = [int(name) for name in names]
        else:
            self.classes = sorted(names)
            index = {name: i for i, name in enumerate(self.classes)}
            values = [index[name] for name in names]
        for value in values:
            if not 0 <= value < 2**63:
                raise SourceError(f"{self.path}: there is the label {value}; labels are 0 or more, and below 2**63.")
        return np.asarray(values, dtype=np.int64)[np.frombuffer(codes, dtype=np.int64)]

    def __len__(self) -> int:
        return len(self._paths)

    def fetch(self, ids: npt.NDArray[np.int64], fields: Sequence[str]) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        if "image" in fields:
            columns["image"] = self._paths.column(ids)
        if "label" in fields:
            columns["label"] = self._labels[ids]
        return columns

    def describe(self, sample_id: int) -> str:
        return self._paths.describe(self.checked(sample_id))

    def diagnose(self, sample_id: int) -> str | None:
        return diagnose(self._paths[sample_id])

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self._paths.digest().encode() + self._labels.tobytes()).hexdigest()


def _text(path: Path, image: str, label: str | None) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            line = line.strip()
            if not line:
                continue
            if label is None:
                yield number, line, None
                continue
            parts = line.rsplit(maxsplit=1)
            if len(parts) < 2:
                raise SourceError(
                    f"{path}, line {number}: {line!r} has no label; write 'path label', or say so: {_OTHERWISE}."
                )
            yield number, parts[0], parts[1]


def _csv(path: Path, image: str, label: str | None) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, dialect="excel-tab" if path.suffix.lower() == ".tsv" else "excel")
        found = reader.fieldnames
        if found is None:
            return  # nothing in it, not even a header
        for column in (image, label):
            if column is not None and column not in found:
                raise SourceError(
                    f"{path} has no column {column!r}; its header names {', '.join(map(repr, found)) or 'none'}. Say which is "
                    f"meant: {_OTHERWISE}."
                )
        for row in reader:
            yield reader.line_num, row[image] or "", row[label] if label is not None else None


def _json_lines(path: Path, image: str, label: str | None) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise SourceError(f"{path}, line {number}: not JSON ({error}).") from error
            for key in (image, label):
                if key is not None and (not isinstance(row, dict) or key not in row):
                    keys = ", ".join(map(repr, row)) if isinstance(row, dict) else "no keys"
                    raise SourceError(
                        f"{path}, line {number}: no key {key!r} (found: {keys}). Say which is meant: {_OTHERWISE}."
                    )
            yield number, row[image], row[label] if label is not None else None


_OTHERWISE = "portaloader.sources.FileList(path, image=..., label=...) as the source; label=None for a list without labels"
_DECIMAL = re.compile(r"[-+]?([0-9]+[.][0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?")
_NUMBER = re.compile(r"-?[0-9]+")

READERS = {".txt": _text, ".lst": _text, ".csv": _csv, ".tsv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines}
"""The endings that are file lists."""
