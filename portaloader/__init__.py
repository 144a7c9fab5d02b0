"""portaloader: one input pipeline, written once with NVIDIA DALI, for every deep learning framework.

    import portaloader
    for batch in portaloader.get_loader("images/", framework="torch"):
        batch["image"], batch["label"], batch["id"]

Importing it imports no framework and no DALI: the names below are resolved when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from portaloader.compat import mxnet_numpy

if TYPE_CHECKING:
    from portaloader import errors, random, recipes, samples, sources
    from portaloader.api import get_loader
    from portaloader.errors import PortaloaderError
    from portaloader.loader import Loader
    from portaloader.pipelines import Sample, pipeline

__version__ = "0.1.0"

__all__ = [
    "Loader",
    "PortaloaderError",
    "Sample",
    "__version__",
    "errors",
    "get_loader",
    "pipeline",
    "random",
    "recipes",
    "samples",
    "sources",
]

_HOME = {
    "Loader": "portaloader.loader",
    "PortaloaderError": "portaloader.errors",
    "Sample": "portaloader.pipelines",
    "get_loader": "portaloader.api",
    "pipeline": "portaloader.pipelines",
}
_MODULES = ("errors", "random", "recipes", "samples", "sources")

# MXNet fails at its own import on any NumPy that Python 3.10 and later have; whoever imports portaloader may import it.
mxnet_numpy.install()


def __getattr__(name: str) -> Any:
    if name in _HOME:
        found = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _MODULES:
        found = importlib.import_module(f"portaloader.{name}")
    else:
        raise AttributeError(f"module 'portaloader' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
