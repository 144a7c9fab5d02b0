"""Ready pipelines, one file for each task."""

from __future__ import annotations

from portaloader.errors import ArgumentError
from portaloader.pipelines import Pipeline
from portaloader.recipes.classification import classification
from portaloader.sources import Source

__all__ = ["classification", "for_source"]


def for_source(source: Source) -> Pipeline:
    """The recipe that fits what a source's samples hold.

    Raises:
        ArgumentError: none does.
    """
    if "image" in source.fields:
        return classification
    raise ArgumentError(
        f"no pipeline was given, and no recipe fits a source with the fields {', '.join(map(repr, source.fields))}; give one: "
        f"get_loader(source, pipeline), with a function decorated with @portaloader.pipeline."
    )
