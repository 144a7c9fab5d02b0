"""NVIDIA DALI, imported when a graph is built and not before."""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from types import ModuleType

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
