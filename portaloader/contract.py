"""What the layers have in common: shards, fields, and what an adapter must be able to do.

This module imports NumPy only. An adapter imports this module, the errors, and its framework, nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from portaloader.errors import ArgumentError, DtypeError

MOST = 2**31 - 1
"""The greatest batch size, and number of threads: DALI counts with 32 bits."""
LastBatch = Literal["partial", "drop", "pad", "wrap"]
Batch = dict[str, Any]
"""One batch: the pipeline's output names, and always ``id``, to tensors of the framework."""


def check_last_batch(rule: Any) -> None:
    """Raise ArgumentError for what is no last-batch rule."""
    if rule not in get_args(LastBatch):
        raise ArgumentError(f"last_batch={rule!r} is not a rule; there are {', '.join(map(repr, get_args(LastBatch)))}.")


@dataclass(frozen=True)
class Shard:
    """The share of one rank: ``Shard(0, 2)`` is the first of two."""

    index: int
    """The rank, 0 to count - 1."""
    count: int
    """The number of ranks."""

    def __post_init__(self) -> None:
        whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in (self.index, self.count))
        if not whole or not 0 <= self.index < self.count:
            raise ArgumentError(
                f"shard=({self.index!r}, {self.count!r}) was asked for; it is (index, count), two whole numbers with "
                f"0 <= index < count. The first of two ranks is shard=(0, 2)."
            )
        # NumPy's integers would overflow, and JSON does not know them.
        object.__setattr__(self, "index", int(self.index))
        object.__setattr__(self, "count", int(self.count))


@dataclass(frozen=True)
class Device:
    """Where the batches are made and handed over: ``Device()`` is the CPU, ``Device(0)`` the first CUDA device."""

    ordinal: int | None = None

    @property
    def kind(self) -> Literal["cpu", "gpu"]:
        """What the device is, without its number."""
        return "cpu" if self.ordinal is None else "gpu"

    def __str__(self) -> str:
        return "cpu" if self.ordinal is None else f"gpu:{self.ordinal}"


@dataclass(frozen=True)
class Output:
    """What a pipeline gives for every sample under one name."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of one sample: the batch's without its first axis."""


class DaliTensor(Protocol):
    """A dense batch as DALI gives it (``TensorCPU`` or ``TensorGPU``): it owns its memory while it is held."""

    def __dlpack__(self, *, stream: int | None = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...
    def as_cpu(self) -> DaliTensor:
        """A copy on the host; of a tensor that is there, itself."""

    def data_ptr(self) -> int:
        """The address of the first element."""


class DaliTensorList(Protocol):
    """One output of a pipeline for a batch, as DALI gives it (``TensorListCPU`` or ``TensorListGPU``)."""

    dtype: Any

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...
    def is_dense_tensor(self) -> bool:
        """Whether all samples have one shape and lie one after the other."""

    def as_tensor(self) -> DaliTensor:
        """The batch as one tensor, without a copy; for a dense one."""


Fields = tuple["str | Fields", ...]
"""The outputs that make up a batch, in order: names, or tuples of names."""


class Batches(ABC):
    """A loader's epochs, with the outputs in the shape that was asked for: what a native container is built on."""

    fields: Fields
    """Empty: a batch is a dict of all outputs."""
    names: tuple[str, ...]
    """Of the loader's outputs."""
    device: Device
    batch_size: int
    """Of a full batch."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether all batches are full ones. May change when a state is loaded."""

    @property
    @abstractmethod
    def steps(self) -> int | None:
        """Batches of every epoch; None where it differs from epoch to epoch, or is not known. Changes as :attr:`full`."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches of the epoch that is running, or that comes next. Raises LengthError where it is not known."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """One epoch, then the next: each batch as :meth:`pick` shapes it."""

    @abstractmethod
    def whole(self) -> Iterator[Batch]:
        """One epoch, then the next: each batch as the loader gives it."""

    @abstractmethod
    def pick(self, batch: Mapping[str, Any]) -> Any:
        """Of a batch, or of anything by the outputs' names: the :attr:`fields` as tuples, or where there are none a dict."""

    @abstractmethod
    def outputs(self) -> Mapping[str, Output]:
        """What the pipeline makes, looked up at one sample."""

    @abstractmethod
    def lend(self, names: tuple[str, ...], refused: Collection[np.dtype[Any]]) -> LentGraph | LentPipeline | None:
        """The graph with these outputs in this order, to be run by something else; None where it cannot give the stream.

        Args:
            names: not looked at where the pipeline is endless: it has all its outputs then.
            refused: dtypes that it cannot give.
        """


class Lent(ABC):
    """A DALI pipeline that something else runs, by a compiled operator say, and the loader's epochs for it."""

    pipe: Any
    """DALI's ``Pipeline``; not to be run itself."""
    made: Mapping[str, Output]
    """Its outputs, in order."""
    num_threads: int
    prefetch: int


class LentGraph(Lent):
    """It has to be fed, and ends when the feed ends."""

    inputs: Mapping[str, tuple[np.dtype[Any], int]]
    """Its external sources: dtype, and number of axes with the batch's."""

    @abstractmethod
    def begin(self) -> None:
        """Begin the epoch that comes."""

    @abstractmethod
    def columns(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """The batches of the epoch that was begun, for one of the :attr:`inputs`. All inputs are asked in step."""

    @abstractmethod
    def end(self) -> None:
        """All batches of the epoch were handed out: the next one comes. Raises what cut this one short."""


class LentPipeline(Lent):
    """It has readers of its own, and is endless."""

    kept: dict[str, Any]
    """For whoever runs it to keep things in; the same dict whenever the pipeline is lent."""

    @abstractmethod
    def begin(self, taken: int) -> tuple[int, Iterator[int]]:
        """Begin the epoch that comes.

        Args:
            taken: how many batches were taken from the pipeline so far, ever since it runs.

        Returns:
            How many of the pipeline's batches have to be passed over first; then for each batch of the epoch how many of its
            samples belong to it. Counting one and taking it is not to be interrupted by another epoch's beginning.
        """


class Adapter(ABC):
    """Hands batches to one framework. The only place where that framework is imported.

    An adapter never counts, trims, names or resets: that is the engine's, once. The methods stand in the same order in
    every adapter, so that two of them can be read side by side.
    """

    name: ClassVar[str]
    """The canonical name, as in ``get_loader(framework=...)``."""

    tensor_type: type[Any]
    """What the batches hold."""

    narrowed: Mapping[np.dtype[Any], np.dtype[Any]] = {}
    """Integer dtypes that this framework holds in a narrower one, to that one. Values that do not fit are refused."""

    unsupported: Mapping[np.dtype[Any], str] = {}
    """Dtypes that this framework cannot be given, each with the reason and the remedy."""

    def __init__(self, device: Device) -> None:
        self.device = device

    @classmethod
    @abstractmethod
    def default_device(cls) -> Device:
        """The CUDA device that the framework would use here, else the CPU."""

    @abstractmethod
    def convert(self, tensor: DaliTensor, dtype: np.dtype[Any]) -> Any:
        """This batch as a tensor of the framework, on :attr:`device`, in order with the framework's own work.

        Args:
            tensor: dense, with the batch as its first axis.
            dtype: its dtype, already found to be a supported one.
        """

    @abstractmethod
    def to_numpy(self, tensor: Any) -> npt.NDArray[Any]:
        """The values of a tensor of the framework on the host."""

    @abstractmethod
    def data_pointer(self, tensor: Any) -> int | None:
        """The address of a tensor's first element, or None where the framework does not show it."""

    @abstractmethod
    def device_of(self, tensor: Any) -> Device:
        """Where a tensor of the framework lives."""

    def native(self, batches: Batches) -> Any:
        """The framework's own kind of data set, over these batches; here, where a framework has none: the batches.

        An adapter's may take options, as keywords with defaults.
        """
        return batches

    def check_dtype(self, field: str, dtype: np.dtype[Any]) -> None:
        """Refuse a dtype that the framework cannot hold.

        Raises:
            DtypeError: with the remedy.
        """
        if dtype in self.unsupported:
            raise DtypeError(f"output {field!r} is {dtype}, and {self.name} cannot take it: {self.unsupported[dtype]}")
