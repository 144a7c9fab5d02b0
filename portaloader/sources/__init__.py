"""Which samples exist: one file for each kind of source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from portaloader import samples
from portaloader.errors import ArgumentError, SourceNotFoundError
from portaloader.sources.base import Field, Source
from portaloader.sources.filelist import READERS, FileList
from portaloader.sources.folder import ImageFolder
from portaloader.sources.objects import Objects

__all__ = ["Field", "FileList", "ImageFolder", "Objects", "Source", "open_source"]


def open_source(source: Any = None) -> Source:
    """The source that is meant: None the bundled samples, a folder, a file list, any object with len and items.

    Raises:
        SourceNotFoundError: a path at which there is nothing.
        ArgumentError: nothing of the above.
    """
    if source is None:
        return ImageFolder(samples.path("train"))
    if isinstance(source, Source):
        return source
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not os.fspath(source):
            raise ArgumentError('the source is an empty path; "." is the working folder.')
        if path.is_dir():
            return ImageFolder(path)
        if path.is_file():
            return FileList(path)
        raise SourceNotFoundError(
            f"the source {str(source)!r} was asked for; there is no such file or folder (looked in {str(Path.cwd())!r})."
        )
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return Objects(source)
    raise ArgumentError(
        f"a source of type {type(source).__name__} was given; a source is a folder, a file list "
        f"({', '.join(sorted(READERS))}), or an object with __len__ and __getitem__."
    )
