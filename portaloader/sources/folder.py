"""A folder of images, with the labels from the names of its sub-folders."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from portaloader.errors import EmptySourceError, SourceError, SourceNotFoundError
from portaloader.sources.base import FILE, LABEL, Column, Source
from portaloader.sources.paths import PathTable, diagnose
from portaloader.sources.progress import counted

EXTENSIONS = frozenset(
    b".bmp .jp2 .jpeg .jpg .pbm .pgm .png .pnm .ppm .tif .tiff .webp".split(),
)
"""Image files that DALI decodes; others in the folder are passed over. Compared in lower case."""


class ImageFolder(Source):
    """``root/CLASS/.../image.jpg``: each folder directly below ``root`` is a class, its images lie in it at any depth.

    Classes are numbered by the bytes of their names; images come folder by folder, a folder's own before those of its
    sub-folders, by the bytes of their names: on every machine alike. Where images lie directly in ``root`` and none
    below, there are no labels. Hidden files and folders are passed over; links are followed.

    Fields: ``image`` (a file), and ``label`` (int64) where there are classes.

    Raises:
        SourceNotFoundError: ``root`` is not there, or not a folder.
        EmptySourceError: it is empty, or holds no images.
        SourceError: images lie directly in ``root`` beside folders with images.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        if not self.root.is_dir():
            raise SourceNotFoundError(f"the image folder {str(root)!r} was asked for; no such folder exists.")
        self._paths = PathTable(self.root)
        self._labels = array("i")
        names: list[bytes] = []
        for path in counted(_images(os.fsencode(self.root)), f"listing {self.root}"):
            head, slash, _ = path.partition(b"/")
            if slash and (not names or names[-1] != head):
                names.append(head)
            self._paths.append(path)
            self._labels.append(len(names) - 1 if slash else -1)
        self._check(flat=self._labels.count(-1))
        if names:
            self.classes = [os.fsdecode(name) for name in names]
        self.fields = {"image": FILE, "label": LABEL} if names else {"image": FILE}

    def _check(self, flat: int) -> None:
        if not self._paths:
            with os.scandir(self.root) as entries:
                empty = next(entries, None) is None
            if empty:
                raise EmptySourceError(f"the image folder {str(self.root)!r} is empty.")
            known = " ".join(sorted(e.decode() for e in EXTENSIONS))
            raise EmptySourceError(
                f"the folder {str(self.root)!r} has files or folders in it, but no image: looked at any depth for {known}."
            )
        if 0 < flat < len(self._paths):
            raise SourceError(
                f"the folder {str(self.root)!r} has {flat} images directly in it and {len(self._paths) - flat} in folders: "
                f"which classes are meant? Put every image into the folder of its class, or give a file list."
            )

    def __len__(self) -> int:
        return len(self._paths)

    def fetch(self, ids: npt.NDArray[np.int64], fields: Sequence[str]) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        if "image" in fields:
            columns["image"] = self._paths.column(ids)
        if "label" in fields:
            columns["label"] = np.frombuffer(self._labels, dtype=np.int32)[ids].astype(np.int64)
        return columns

    def describe(self, sample_id: int) -> str:
        return self._paths.describe(self.checked(sample_id))

    def diagnose(self, sample_id: int) -> str | None:
        return diagnose(self._paths[sample_id])

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self._paths.digest().encode() + self._labels.tobytes()).hexdigest()


def _images(root: bytes) -> Iterator[bytes]:
    """Paths of the images below ``root``, relative to it, in the order of their bytes, folder by folder."""
    stack: list[tuple[bytes, tuple[tuple[int, int], ...]]] = [(b"", ())]
    while stack:
        relative, above = stack.pop()
        here = os.path.join(root, relative)
        stat = os.stat(here)
        if (stat.st_dev, stat.st_ino) in above:
            continue  # a link to a folder that this one lies in
        chain = (*above, (stat.st_dev, stat.st_ino))
        folders: list[bytes] = []
        files: list[bytes] = []
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.name.startswith(b"."):
                    continue
                kind = _kind(entry)
                if kind == "folder":
                    folders.append(entry.name)
                elif kind == "file" and os.path.splitext(entry.name)[1].lower() in EXTENSIONS:
                    files.append(entry.name)
        for name in sorted(files):
            yield os.path.join(relative, name)
        stack.extend((os.path.join(relative, name), chain) for name in sorted(folders, reverse=True))


def _kind(entry: os.DirEntry[bytes]) -> str:
    """ "file", "folder", or "" for a link that leads nowhere or to itself."""
    try:
        if entry.is_dir():
            return "folder"
        return "file" if entry.is_file() else ""
    except OSError:
        return ""
