"""What makes older code and older frameworks run here as they are."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_OURS = {f"nvidia.dali.plugin.{name}": f"portaloader.compat.plugin.{name}" for name in ("mxnet", "paddle")}


def install() -> None:
    """Let ``import nvidia.dali.plugin.mxnet`` and ``.paddle`` succeed where DALI's own are absent or cannot work.

    That is MXNet's everywhere, for DALI took it away, and Paddle's without a GPU. Where DALI's own works it is left alone.
    Imports nothing until one of the two is imported; calling it again changes nothing.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _OURS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None:
            return ModuleSpec(name, _Loader(None))
        if name.endswith("paddle"):
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Puts our module in the place of DALI's, unless DALI's own works."""

    def __init__(self, own: Loader | None) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self._own is not None and _paddle_has_gpu():
            self._own.exec_module(module)
        else:
            sys.modules[module.__name__] = importlib.import_module(_OURS[module.__name__])


def _paddle_has_gpu() -> bool:
    # By way of the adapter, which refuses Paddle where its import would end the process.
    paddle = importlib.import_module("portaloader.adapters.paddle").paddle
    return bool(paddle.device.cuda.device_count())
