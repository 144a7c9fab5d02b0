"""NVIDIA DALI, imported when a graph is built and not before; its devices, and its threads in a fork."""

from __future__ import annotations

import ctypes
import importlib
import os
from functools import lru_cache
from types import ModuleType
from typing import Any
from weakref import WeakSet, ref

from portaloader.errors import DaliError, DeviceError

MINIMUM = (2, 0)
"""The first release whose default executor hands over tensors that stay valid while they are held."""
INSTALL = "pip install nvidia-dali-cuda120"


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
