"""What DALI's graph tells of a pipeline's outputs before it runs: whose memory they are in, and which are plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_VIEWS = {"Reshape", "Reinterpret", "Squeeze", "ExpandDims", "PerFrame", "_conditional__Split", "_conditional__Merge"}
"""Operators whose output may be the memory of an input."""
_SAME_SHAPE = {"Copy", "Cast", "CastLike", "LookupTable", "_ArithmeticGenericOp"}


def of_pipeline(pipe: Any, find: Callable[[Iterable[Any]], set[int]]) -> set[int]:
    """What one of the functions below finds in a built pipeline; all, where its graph is not known, as of a serialized one."""
    nodes = getattr(pipe, "_graph_outputs", None)
    return set(range(pipe.num_outputs)) if nodes is None else find(nodes)


def shared_outputs(nodes: Iterable[Any]) -> set[int]:
    """Which outputs, by their positions, have to be copied before somebody may write into a batch.

    A constant is the same memory in every batch, and so is a view of it; two outputs may be one node, or views of it.
    """
    found, seen = set(), set[Any]()
    for position, node in enumerate(nodes):
        origins = _origins(node)
        if origins & seen or any(_schema(operator) == "Constant" for operator, _ in origins):
            found.add(position)
        seen |= origins
    return found


def given_outputs(nodes: Iterable[Any]) -> set[int]:
    """Which outputs, by their positions, are what a reader or an external source gives, up to views and arithmetic."""
    return {position for position, node in enumerate(nodes) if _is_given(node)}


def _origins(node: Any) -> set[tuple[Any, str]]:
    """Where a node's memory may come from: operators, each with the name of its output."""
    if _schema(node.source) not in _VIEWS:
        return {(node.source, node.name)}
    return {origin for made in node.source.inputs for origin in _origins(made)}


def _is_given(node: Any) -> bool:
    schema = _schema(node.source)
    if schema in _SAME_SHAPE | _VIEWS:
        return any(map(_is_given, node.source.inputs))
    return not schema or "reader" in schema.lower()  # an external source is no operator of DALI's


def _schema(operator: Any) -> str:
    return str(getattr(getattr(operator, "_op", None), "schema_name", ""))
