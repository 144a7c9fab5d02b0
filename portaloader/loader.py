"""What the user holds: iterate, ``len``, state, statistics, close."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import RLock
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from portaloader.contract import Adapter, DaliTensorList
from portaloader.errors import ArgumentError, LoaderError
from portaloader.plan import Plan
from portaloader.sources import Source
from portaloader.stream import PlannedStream, Stream, check_dense

T = TypeVar("T")


@dataclass
class Stats:
    """What a loader has handed out so far."""

    batches: int = 0
    samples: int = 0
    wait_seconds: float = 0.0
    """Time that the calls for a batch took: while it grows, the training waits for data."""


@dataclass(frozen=True, eq=False)
class Turn:
    """Somebody's right to the batches of an epoch, until somebody else iterates the loader."""

    epoch: int


class Loader(Generic[T]):
    """A stream of batches. Made by :func:`portaloader.get_loader`.

    Each ``for`` is one epoch, then the next epoch begins. Leaving early is fine: the next ``for`` starts the next epoch.
    A batch is a dict of the framework's tensors, with the names that the pipeline returned, and always ``id`` (the sample
    ids, int64, shape (batch,)); with ``last_batch="pad"`` there is ``valid`` (bool, shape (batch,)).
    """

    def __init__(self, stream: Stream, adapter: Adapter) -> None:
        self.stats = Stats()
        self.dtypes: dict[str, np.dtype[Any]] = {}
        """Of each output, as the pipeline makes it; known once a batch was handed out."""
        self._stream = stream
        self._adapter = adapter
        self._closed = False
        self._turn: Turn | None = None
        self._process = os.getpid()
        self._lock = RLock()

    @property
    def framework(self) -> str:
        """The canonical name of the framework that the tensors belong to."""
        return self._adapter.name

    @property
    def adapter(self) -> Adapter:
        """What turns DALI's tensors into the framework's."""
        return self._adapter

    @property
    def source(self) -> Source:
        """The samples.

        Raises:
            LoaderError: a DALI pipeline with readers of its own shows none.
        """
        return self._planned().source

    @property
    def plan(self) -> Plan:
        """Which samples come when. Raises LoaderError as :attr:`source` does."""
        return self._planned().plan

    def _planned(self) -> PlannedStream:
        if not isinstance(self._stream, PlannedStream):
            raise LoaderError("this loader's pipeline has readers of its own: there is no source and no plan to look at.")
        return self._stream

    @property
    def epoch(self) -> int:
        """The epoch that is running, or that comes next."""
        return self._stream.epoch

    def __len__(self) -> int:
        """Batches of the epoch that is running, or that comes next; equal on all ranks.

        Of an epoch that goes on from a state, the batches before it count as well.

        Raises:
            LengthError: it is not known: a DALI pipeline without readers.
        """
        return self._stream.steps

    def __iter__(self) -> Iterator[dict[str, T]]:
        return _EpochIterator(self, self._enter())

    def native(self, *fields: Any, **options: Any) -> Any:
        """The framework's own kind of data set, over the same stream: iterating it iterates this loader.

        torch: an ``IterableDataset`` for ``DataLoader(..., batch_size=None)`` · tensorflow: a ``tf.data.Dataset`` · mxnet: a
        ``DataIter``, with ``style="gluon"`` a ``gluon.data.DataLoader`` · paddle: a
        ``DataLoader`` · jax: an iterable, with ``sharding=`` of arrays that lie over several devices ·
        numpy: an iterable. See "Native containers" in docs/guarantees.md.

        Args:
            *fields: the outputs that make up a batch, as a tuple in this order: ``native("image", "label")``. In place of a
                name there may be a tuple of names. None: a batch is a dict of all outputs, as the loader's.
            **options: of the framework: ``compiled`` and ``shapes`` (tensorflow), ``style`` (mxnet), ``sharding`` (jax).

        Raises:
            LoaderError: the loader is closed.
            ArgumentError: an output or an option that there is not.
        """
        from portaloader.native import LoaderBatches

        self._check_usable()
        known = list(inspect.signature(self._adapter.native).parameters)[1:]
        if unknown := sorted(set(options) - set(known)):
            raise ArgumentError(
                f"native() was given {', '.join(unknown)}; for {self.framework} it has no such option, but: "
                f"{', '.join(known) or 'none'}."
            )
        return self._adapter.native(LoaderBatches(self, fields), **options)

    def to_numpy(self, batch: Mapping[str, T]) -> dict[str, npt.NDArray[Any]]:
        """A batch on the host, in the dtypes that the pipeline made: what the framework narrowed is widened again."""
        host = {name: self._adapter.to_numpy(tensor) for name, tensor in batch.items()}
        for name, values in host.items():
            made = self.dtypes.get(name, values.dtype)
            if values.dtype == self._adapter.narrowed.get(made):
                host[name] = values.astype(made)
        return host

    def __enter__(self) -> Loader[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and give memory and threads back. Works in any state, and twice. Batches that are held stay valid."""
        self._closed = True
        self._turn = None
        self._stream.close()

    def __repr__(self) -> str:
        stream, shard = self._stream, self._stream.shard
        return (
            f"<portaloader.Loader {self.framework} on {self._adapter.device}: epoch {self.epoch}, batches of "
            f"{stream.batch_size}, shard {shard.index} of {shard.count}>"
        )

    def __reduce__(self) -> NoReturn:
        raise LoaderError(
            "a loader cannot be copied or sent to another process: make one there, and hand over its state_dict()."
        )

    def _check_usable(self) -> None:
        if self._closed:
            raise LoaderError("the loader is closed; make another with get_loader().")
        self._check_process()

    def _check_process(self) -> None:
        # DALI's threads do not survive a fork: the child would wait for them for ever.
        if os.getpid() != self._process:
            raise LoaderError(
                f"this loader was made in process {self._process}, and this is its fork {os.getpid()}; "
                f"make one in each process."
            )

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The place in the stream behind the last batch that was handed out: JSON-able, the same on every rank.

        Raises:
            StateError: the pipeline cannot be resumed.
        """
        return self._stream.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: also one of another framework, another number of ranks or another batch size.

        Raises:
            StateError: it belongs to another stream, or the pipeline cannot be resumed.
        """
        self._stream.load(state)
        self._turn = None

    # -- called by the epochs' iterators ---------------------------------------------------------------------------

    def _enter(self) -> Turn:
        """For the epoch that comes; one that is running is left, and whoever iterates it is out."""
        self._check_usable()
        with self._lock:
            if self._stream.running:
                self._stream.leave()
            self._turn = Turn(self.epoch)
            return self._turn

    def _check_turn(self, turn: Turn) -> None:
        if self._turn is not turn:
            raise LoaderError(
                f"this iterator of epoch {turn.epoch} was left: the loader was closed, given a state, or iterated again."
            )

    def _next(self) -> dict[str, T]:
        began = time.perf_counter()
        samples, outputs = self._stream.next()
        batch = self._hand_over(outputs)
        self.stats.batches += 1
        self.stats.samples += samples
        self.stats.wait_seconds += time.perf_counter() - began
        return batch

    def _hand_over(self, outputs: tuple[DaliTensorList, ...]) -> dict[str, T]:
        from nvidia.dali.types import to_numpy_type

        batch: dict[str, T] = {}
        for name, tensors in zip(self._stream.names, outputs, strict=True):
            check_dense(name, tensors)
            dtype = np.dtype(to_numpy_type(tensors.dtype))
            self._adapter.check_dtype(name, dtype)
            self.dtypes[name] = dtype
            batch[name] = self._adapter.convert(tensors.as_tensor(), dtype)
        return batch


class _EpochIterator(Iterator[dict[str, T]]):
    """One epoch. The graph begins to work when the first batch is asked for."""

    def __init__(self, loader: Loader[T], turn: Turn) -> None:
        self._loader, self._turn = loader, turn
        self._begun = self._over = False

    def __next__(self) -> dict[str, T]:
        loader = self._loader
        loader._check_process()
        with loader._lock:
            if self._over:
                raise StopIteration
            loader._check_turn(self._turn)
            try:
                if not self._begun:
                    self._begun = True
                    loader._stream.begin()
                return loader._next()
            except BaseException:
                self._over = True
                raise
