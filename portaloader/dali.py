"""NVIDIA DALI, imported when a graph is built and not before."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType
from typing import Any
from weakref import WeakSet, ref

from portaloader.errors import DaliError, DeviceError

MINIMUM = (2, 0)
"""The first release whose default executor hands over tensors that stay valid while they are held."""
INSTALL = "pip install nvidia-dali-cuda120"
_SAME_SHAPE = {"Copy", "Cast", "CastLike", "LookupTable", "MakeContiguous", "_ArithmeticGenericOp"}
_VIEWS = {"Reshape", "Reinterpret", "Squeeze", "ExpandDims", "PerFrame", "_conditional__Split", "_conditional__Merge"}
"""Operators whose output may be the memory of an input."""


@lru_cache(maxsize=1)
def import_dali() -> ModuleType:
    """The package ``nvidia.dali``.

    Raises:
        DaliError: it is not installed, or too old.
    """
    try:
        dali = importlib.import_module("nvidia.dali")
    except ImportError as error:
        raise DaliError(f"portaloader runs its pipelines with NVIDIA DALI, which cannot be imported: {INSTALL}") from error
    version = tuple(int(part) for part in dali.__version__.split(".")[:2])
    if version < MINIMUM:
        raise DaliError(
            f"NVIDIA DALI {dali.__version__} is installed; {'.'.join(map(str, MINIMUM))} or newer is needed: {INSTALL} -U"
        )
    return dali


_threaded: WeakSet[Any] = WeakSet()


def keep_in_forks(pipe: Any) -> None:
    """Never destroy this pipeline in a fork of the process: DALI would wait there for threads that have stayed behind."""
    _threaded.add(pipe)


def _keep() -> None:
    for pipe in list(_threaded):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipe))
        getattr(type(pipe), "_pipes", set()).discard(ref(pipe))  # which DALI shuts down when the process ends


os.register_at_fork(after_in_child=_keep)


def gpu_count() -> int:
    """How many CUDA devices DALI sees; 0 where there is no driver."""
    import_dali()
    backend = importlib.import_module("nvidia.dali.backend")
    try:
        return int(backend.GetCUDADeviceCount())
    except (RuntimeError, OSError):
        return 0


def check_gpu(ordinal: int) -> None:
    """Raise DeviceError where this CUDA device is not there."""
    count = gpu_count()
    if ordinal >= count:
        raise DeviceError(
            f"device=gpu:{ordinal} was asked for; DALI sees {count or 'no'} CUDA device{'s' if count != 1 else ''} here. "
            f'Use device="cpu", or look at what `portaloader doctor` says.'
        )


def cpu_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def shared_outputs(nodes: Iterable[Any]) -> set[int]:
    """Which outputs of a graph, by their positions, have to be copied before somebody may write into a batch.

    A constant is the same memory in every batch, and so is a view of it; two outputs may be one node, or views of it.
    """
    found, seen = set(), set[Any]()
    for position, node in enumerate(nodes):
        origins = _origins(node)
        if origins & seen or any(_schema(operator) == "Constant" for operator, _ in origins):
            found.add(position)
        seen |= origins
    return found


def shared_outputs_of(pipe: Any) -> set[int]:
    """The :func:`shared_outputs` of a pipeline that was built; all, where its graph is not known, as of a serialized one."""
    nodes = getattr(pipe, "_graph_outputs", None)
    return set(range(pipe.num_outputs)) if nodes is None else shared_outputs(nodes)


def _origins(node: Any) -> set[tuple[Any, str]]:
    """Where a node's memory may come from: operators, each with the name of its output."""
    if _schema(node.source) not in _VIEWS:
        return {(node.source, node.name)}
    return {origin for made in node.source.inputs for origin in _origins(made)}


def given_numbers(pipe: Any) -> set[int]:
    """Which outputs of a built pipeline are what a reader or an external source gives, up to arithmetic, by their positions.

    All, where its graph is not known.
    """
    nodes = getattr(pipe, "_graph_outputs", None)
    if nodes is None:
        return set(range(pipe.num_outputs))
    return {position for position, node in enumerate(nodes) if _is_given(node)}


def _is_given(node: Any) -> bool:
    schema = _schema(node.source)
    if schema in _SAME_SHAPE | _VIEWS:
        return any(map(_is_given, node.source.inputs))
    return not schema or "reader" in schema.lower()  # an external source is no operator of DALI's


def _schema(operator: Any) -> str:
    return str(getattr(getattr(operator, "_op", None), "schema_name", ""))
