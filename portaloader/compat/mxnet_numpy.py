"""Lets ``import mxnet`` succeed beside any NumPy, and leaves NumPy as it is.

MXNet 1.9.1, the last release, looks up names that NumPy 1.24 and 2.0 took away. While one of its modules is executed,
the missing names are there; afterwards they are gone from NumPy again, and the module's own reference to NumPy is replaced
by a view of it that still has them, for what MXNet looks up later.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any


def install() -> None:
    """Watch for the import of MXNet. Costs nothing until then; calling it again changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != "mxnet":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """The usual loader, with the missing names present while it executes the module."""

    def __init__(self, usual: Loader) -> None:
        self._usual = usual

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)  # get_source, get_data ... for tracebacks and resources

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        import numpy

        with _names_present(numpy), warnings.catch_warnings():
            # Escape sequences and NumPy names that are deprecated: nothing that MXNet's users could mend.
            warnings.simplefilter("ignore")
            self._usual.exec_module(module)
        for name, value in list(vars(module).items()):
            if value is numpy:
                setattr(module, name, _view(numpy))


@contextmanager
def _names_present(numpy: ModuleType) -> Iterator[None]:
    # Modules import each other, so this nests: the outermost one adds, and removes what it added.
    added = {name: value for name, value in _removed(numpy).items() if name not in vars(numpy)}
    vars(numpy).update(added)
    try:
        yield
    finally:
        for name in added:
            delattr(numpy, name)


@lru_cache(maxsize=1)
def _view(numpy: ModuleType) -> ModuleType:
    view = ModuleType("numpy", "NumPy, with the names that MXNet expects of it.")
    vars(view).update({**_removed(numpy), **vars(numpy)})
    return view


def _removed(numpy: Any) -> dict[str, Any]:
    """Every name that MXNet 1.9.1 looks up in NumPy and that some NumPy from 1.24 on has not."""
    infinity, nan = float("inf"), float("nan")
    values: dict[str, Any] = {
        "bool": bool,
        "int": int,
        "Inf": infinity,
        "PINF": infinity,
        "NINF": -infinity,
        "NAN": nan,
        "NaN": nan,
        "PZERO": 0.0,
        "NZERO": -0.0,
        "compat": SimpleNamespace(basestring=(str, bytes)),
        "msort": lambda a: numpy.sort(a, axis=0),
        "in1d": lambda a, b, **options: numpy.isin(numpy.ravel(a), b, **options),
    }
    renamed = {"alltrue": "all", "sometrue": "any", "product": "prod", "round_": "round", "trapz": "trapezoid"}
    values |= {old: _forward(numpy, new) for old, new in renamed.items()}
    return values | {name: _financial(name) for name in ("mirr", "npv", "pmt", "ppmt", "pv", "rate")}


def _forward(numpy: Any, name: str) -> Any:
    """A function of its own: MXNet keys a table by these, in which the function called by it has its own place."""

    def forward(*arguments: Any, **options: Any) -> Any:
        return getattr(numpy, name)(*arguments, **options)

    return forward


def _financial(name: str) -> Any:
    def absent(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"NumPy has no {name}() since version 1.20; the package numpy-financial has it.")

    return absent
