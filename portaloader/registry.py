"""The frameworks, as data. An adapter is found by name and imported when it is asked for, not before.

Ours are listed here; anybody's are found by entry points of the group ``portaloader.adapters`` (name = "module:Class").
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from portaloader.contract import Adapter
from portaloader.errors import (
    AmbiguousFrameworkError,
    FrameworkBrokenError,
    FrameworkNotInstalledError,
    FrameworkTooOldError,
    UnknownFrameworkError,
)

GROUP = "portaloader.adapters"


@dataclass(frozen=True)
class Framework:
    """What is known about a framework without importing it."""

    name: str
    adapter: str
    """ "module:Class"."""
    module: str
    """The framework's own import name."""
    install: str
    """The line that installs it."""
    distributions: tuple[str, ...] = ()
    """Names under which the registry of packages has it; the first one found tells the version."""
    minimum: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()

    def is_installed(self) -> bool:
        """Whether the framework can be found, without importing it."""
        # The top package only: looking for a submodule would import it.
        return importlib.util.find_spec(self.module.partition(".")[0]) is not None

    def version(self) -> str | None:
        """The installed version, without importing it; None where no distribution is found."""
        for name in self.distributions:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return None

    def is_too_old(self) -> bool:
        """Whether the installed version is below :attr:`minimum`."""
        version = self.version()
        return version is not None and _parse(version) < self.minimum


def _parse(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split("+")[0].split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


_MXNET = (
    "pip install mxnet==1.9.1"
    if sys.version_info < (3, 13)  # MXNet asks for NumPy 1, which has no build for later ones, and works with NumPy 2
    else "pip install graphviz requests setuptools && pip install --no-deps mxnet==1.9.1"
)
_OURS = (
    Framework("jax", "portaloader.adapters.jax:JaxAdapter", "jax", 'pip install "jax>=0.4.34"', ("jax",), (0, 4, 34)),
    Framework(
        "mxnet",
        "portaloader.adapters.mxnet:MxnetAdapter",
        "mxnet",
        _MXNET,
        ("mxnet", "mxnet-cu112", "mxnet-cu117"),
        (1, 9, 1),
        ("mx",),
    ),
    Framework("numpy", "portaloader.adapters.numpy:NumpyAdapter", "numpy", "pip install numpy", ("numpy",), (1, 26), ("np",)),
    Framework(
        "paddle",
        "portaloader.adapters.paddle:PaddleAdapter",
        "paddle",
        'pip install "paddlepaddle>=3.0"',
        ("paddlepaddle", "paddlepaddle-gpu"),
        (3, 0),
        ("paddlepaddle",),
    ),
    Framework(
        "tensorflow",
        "portaloader.adapters.tensorflow:TensorflowAdapter",
        "tensorflow",
        'pip install "tensorflow>=2.16"',
        ("tensorflow", "tensorflow-cpu"),
        (2, 16),
        ("tf",),
    ),
    Framework(
        "torch",
        "portaloader.adapters.torch:TorchAdapter",
        "torch",
        'pip install "torch>=2.4"',
        ("torch",),
        (2, 4),
        ("pytorch",),
    ),
)

BUILT_IN: Mapping[str, Framework] = MappingProxyType({framework.name: framework for framework in _OURS})
"""The frameworks that portaloader brings adapters for."""


@lru_cache(maxsize=1)
def frameworks() -> Mapping[str, Framework]:
    """All frameworks by canonical name: ours, then those of entry points. A name that is taken stays with its owner."""
    found = dict(BUILT_IN)
    for entry in importlib.metadata.entry_points(group=GROUP):
        owner = entry.dist.name if entry.dist is not None else entry.value
        if entry.name in BUILT_IN and entry.value == BUILT_IN[entry.name].adapter:
            continue
        if entry.name in found:
            warnings.warn(f"the adapter {entry.name!r} of {owner} is passed over: the name is taken.", stacklevel=2)
            continue
        module = entry.value.partition(":")[0]
        found[entry.name] = Framework(entry.name, entry.value, module, f"pip install {owner}", (owner,))
    return MappingProxyType(found)


def resolve(name: str | None) -> Framework:
    """The framework of this name or alias; None: the one that this process has imported.

    Raises:
        UnknownFrameworkError: no such name.
        AmbiguousFrameworkError: None was given, and the process has imported none, or several.
    """
    known = frameworks()
    if name is None:
        return _imported()
    for framework in known.values():
        if isinstance(name, str) and name.lower() in (framework.name, *framework.aliases):
            return framework
    choices = ", ".join(repr(n) for n in sorted(known))
    raise UnknownFrameworkError(f"framework={name!r} was asked for; there are adapters for {choices}.")


def _imported() -> Framework:
    # NumPy is there wherever portaloader is, so its presence says nothing.
    present = [f for f in frameworks().values() if f.module in sys.modules and f.name != "numpy"]
    if len(present) == 1:
        return present[0]
    found = "none" if not present else " and ".join(f.name for f in present)
    choices = ", ".join(f'framework="{n}"' for n in sorted(frameworks()))
    raise AmbiguousFrameworkError(
        f"no framework was named, and this process has imported {found}. Say which one the batches are for: {choices}."
    )


def adapter_class(framework: Framework) -> type[Adapter]:
    """Import a framework's adapter, and with it the framework.

    Raises:
        FrameworkNotInstalledError: it is not there.
        FrameworkBrokenError: it is there, and its import fails.
        FrameworkTooOldError: it is older than the adapter supports.
    """
    module, _, attribute = framework.adapter.partition(":")
    if not framework.is_installed():
        raise FrameworkNotInstalledError(
            f"framework={framework.name!r} was asked for, and {framework.module} is not installed here: {framework.install}"
        )
    if framework.is_too_old():
        needed = ".".join(map(str, framework.minimum))
        raise FrameworkTooOldError(
            f"{framework.name} {framework.version()} is installed; {needed} or newer is needed: {framework.install} -U"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise FrameworkBrokenError(
            f"framework={framework.name!r} was asked for; it is installed, and cannot be imported ({type(error).__name__}: "
            f"{error}). `portaloader doctor --framework {framework.name}` says which line mends it."
        ) from error
    if not (isinstance(found, type) and issubclass(found, Adapter)):
        raise TypeError(f"the adapter {framework.adapter} of {framework.name!r} is not a portaloader.contract.Adapter")
    return found
