"""Every error that portaloader raises on purpose.

One root, :class:`PortaloaderError`. Each message says what was asked, what was found, and what to do.
Where a builtin type fits as well (``ValueError``, ``ImportError`` ...), the class inherits from it too, so that code
which does not know portaloader catches what it expects.
"""

from __future__ import annotations


class PortaloaderError(Exception):
    """The root of the family."""


class ArgumentError(PortaloaderError, ValueError):
    """An argument has a value that cannot be used: ``batch_size=0``, ``shard=(3, 2)``, an unknown option."""


class FrameworkError(PortaloaderError):
    """Something about the choice of a framework."""


class UnknownFrameworkError(FrameworkError, ValueError):
    """No adapter has this name or alias."""


class AmbiguousFrameworkError(FrameworkError, ValueError):
    """No framework was named, and the process has imported none, or several."""


class FrameworkNotInstalledError(FrameworkError, ImportError):
    """The framework is known, but it is not there."""


class FrameworkBrokenError(FrameworkError, ImportError):
    """The framework is installed, but its import fails."""


class FrameworkTooOldError(FrameworkError, ImportError):
    """The framework is installed in a version that the adapter does not support."""


class DaliError(PortaloaderError, ImportError):
    """NVIDIA DALI is absent or too old."""


class SourceError(PortaloaderError):
    """The source cannot be used as it is: a missing path, an empty folder, a field that is not there."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """The path that was given as source does not exist."""


class EmptySourceError(SourceError, ValueError):
    """The source has no samples."""


class PlanError(PortaloaderError, ValueError):
    """The samples cannot be dealt to the ranks under this last-batch rule."""


class PipelineError(PortaloaderError):
    """The pipeline function is not usable: it returned nothing, a duplicate name, something that is not a node."""


class PipelineRunError(PipelineError, RuntimeError):
    """The graph failed while it ran, and no single sample is to blame."""


class SampleError(PortaloaderError, RuntimeError):
    """One sample cannot be read or processed. ``sample_id`` is its id, ``where`` describes it (a file's path)."""

    def __init__(self, message: str, *, sample_id: int, where: str) -> None:
        super().__init__(message)
        self.sample_id = sample_id
        self.where = where


class DtypeError(PortaloaderError, TypeError):
    """A field has a dtype that the framework cannot hold."""


class RaggedError(PipelineError, ValueError):
    """An output's samples differ in shape, and no batch tensor can hold them."""


class DeviceError(PortaloaderError, RuntimeError):
    """The device that was asked for is not there."""


class LaunchError(PortaloaderError, RuntimeError):
    """The launcher's environment names no rank, or contradicts itself."""


class LoaderError(PortaloaderError, RuntimeError):
    """The loader is closed, or an iterator of an epoch that was left is used again."""


class LengthError(PortaloaderError, TypeError):
    """The number of batches is not known. A TypeError, which ``list(loader)`` passes over."""


class StateError(PortaloaderError, ValueError):
    """A state does not belong to this loader, or its pipeline cannot resume from it."""
