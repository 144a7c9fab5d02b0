"""What the user holds: iterate, ``len``, state, statistics, close."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from portaloader.contract import Adapter
from portaloader.engine import Engine
from portaloader.errors import LoaderError, RaggedError, StateError
from portaloader.plan import EpochPlan, Plan
from portaloader.sources import Source

T = TypeVar("T")

_STATE_VERSION = 1


@dataclass
class Stats:
    """What a loader has handed out so far."""

    batches: int = 0
    samples: int = 0
    wait_seconds: float = 0.0
    """Time that the calls for a batch took: while it grows, the training waits for data."""


class Loader(Generic[T]):
    """A stream of batches. Made by :func:`portaloader.get_loader`.

    Each ``for`` is one epoch, then the next epoch begins. Leaving early is fine: the next ``for`` starts the next epoch.
    A batch is a dict of the framework's tensors, with the names that the pipeline returned, and always ``id`` (the sample
    ids, int64, shape (batch,)); with ``last_batch="pad"`` there is ``valid`` (bool, shape (batch,)).
    """

    def __init__(self, source: Source, plan: Plan, engine: Engine, adapter: Adapter, epoch: int) -> None:
        self.source = source
        """The samples."""
        self.stats = Stats()
        self.dtypes: dict[str, np.dtype[Any]] = {}
        """Of each output, as the pipeline makes it; known once a batch was handed out."""
        self._plan = plan
        self._engine = engine
        self._adapter = adapter
        self._epoch = plan.epoch(epoch)
        self._step = 0
        self._begun = False
        self._closed = False
        self._iterator: _EpochIterator[T] | None = None

    @property
    def framework(self) -> str:
        """The canonical name of the framework that the tensors belong to."""
        return self._adapter.name

    @property
    def adapter(self) -> Adapter:
        """What turns DALI's tensors into the framework's."""
        return self._adapter

    @property
    def plan(self) -> Plan:
        """Which samples come when."""
        return self._plan

    @property
    def epoch(self) -> int:
        """The epoch that is running, or that comes next."""
        return self._epoch.number

    def __len__(self) -> int:
        """Batches of the epoch that is running, or that comes next; equal on all ranks."""
        return self._epoch.steps

    def __iter__(self) -> Iterator[dict[str, T]]:
        if self._closed:
            raise LoaderError("the loader is closed; make another with get_loader().")
        if self._begun:
            self._advance()
        self._iterator = _EpochIterator(self)
        return self._iterator

    def to_numpy(self, batch: Mapping[str, T]) -> dict[str, npt.NDArray[Any]]:
        """A batch on the host, in the dtypes that the pipeline made: what the framework narrowed is widened again."""
        host = {name: self._adapter.to_numpy(tensor) for name, tensor in batch.items()}
        narrowed = self._adapter.narrowed
        return {
            name: values.astype(self.dtypes[name]) if values.dtype == narrowed.get(self.dtypes[name]) else values
            for name, values in host.items()
        }

    def __enter__(self) -> Loader[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and give memory and threads back. Works in any state, and twice. Batches that are held stay valid."""
        self._closed = True
        self._iterator = None
        self._engine.close()

    def __repr__(self) -> str:
        shard = self._plan.shard
        return (
            f"<portaloader.Loader {self.framework} on {self._adapter.device}: {len(self.source)} samples, epoch {self.epoch}, "
            f"{len(self)} batches of {self._plan.batch_size}, shard {shard.index} of {shard.count}>"
        )

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The place in the stream behind the last batch that was handed out: JSON-able, the same on every rank.

        Raises:
            StateError: the pipeline cannot be resumed.
        """
        self._check_resumable()
        epoch, position = self._epoch, self._epoch.position(self._step)
        if self._step and self._step == epoch.steps:
            epoch = self._plan.epoch(epoch.number + 1, epoch.carry)
            position = epoch.start
        return {"version": _STATE_VERSION, "epoch": epoch.number, "position": position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: also one of another framework, another number of ranks or another batch size.

        Raises:
            StateError: it belongs to another stream, or the pipeline cannot be resumed.
        """
        self._check_resumable()
        if state.get("version") != _STATE_VERSION:
            raise StateError(f"the state has version {state.get('version')!r}; this portaloader reads {_STATE_VERSION}.")
        mine = self._identity()
        differing = [
            f"{key}: {state.get(key)!r} in the state, {mine[key]!r} here" for key in mine if state.get(key) != mine[key]
        ]
        if differing:
            raise StateError(f"the state belongs to another stream ({'; '.join(differing)}).")
        self._epoch = self._plan.epoch(int(state["epoch"]), int(state["position"]))
        self._step, self._begun, self._iterator = 0, False, None

    def _identity(self) -> dict[str, Any]:
        """What must be equal for a position to mean the same sample, augmented alike."""
        plan = self._plan
        return {
            "size": plan.size,
            "seed": int(plan.seed),
            "shuffle": plan.shuffle,
            "last_batch": plan.last_batch,
            "source": self.source.fingerprint,
        }

    def _check_resumable(self) -> None:
        if self._engine.random_operators:
            raise StateError(
                f"this pipeline cannot be resumed exactly: DALI's own random operators "
                f"({', '.join(self._engine.random_operators)}) remember what they did before. Use portaloader.random, whose "
                f"numbers depend on seed, epoch and sample alone."
            )

    # -- called by the epoch's iterator ----------------------------------------------------------------------------

    def _advance(self) -> None:
        self._epoch = self._plan.epoch(self._epoch.number + 1, self._epoch.carry)
        self._step, self._begun = 0, False

    def _start(self) -> None:
        self._begun = True
        self._engine.start(self._epoch.batches())

    def _next(self) -> dict[str, T]:
        began = time.perf_counter()
        try:
            rows, outputs = self._engine.next()
        except StopIteration:
            self._advance()
            raise
        self._step += 1
        batch = self._hand_over(outputs)
        self.stats.batches += 1
        self.stats.samples += len(rows)
        self.stats.wait_seconds += time.perf_counter() - began
        return batch

    def _hand_over(self, outputs: tuple[Any, ...]) -> dict[str, T]:
        from nvidia.dali.types import to_numpy_type

        batch: dict[str, T] = {}
        for name, tensors in zip(self._engine.names, outputs, strict=True):
            if not tensors.is_dense_tensor():
                shapes = sorted({tuple(tensors[i].shape()) for i in range(len(tensors))})
                raise RaggedError(
                    f"the samples of output {name!r} differ in shape ({shapes[0]}, {shapes[-1]}), and no batch tensor holds "
                    f"them. Bring them to one shape in the pipeline: fn.resize, fn.crop, fn.pad."
                )
            dtype = np.dtype(to_numpy_type(tensors.dtype))
            self._adapter.check_dtype(name, dtype)
            self.dtypes[name] = dtype
            batch[name] = self._adapter.convert(tensors.as_tensor(), dtype)
        return batch


class _EpochIterator(Iterator[dict[str, T]]):
    """One epoch. The graph begins to work when the first batch is asked for."""

    def __init__(self, loader: Loader[T]) -> None:
        self._loader = loader
        self._epoch: EpochPlan = loader._epoch
        self._begun = self._over = False

    def __next__(self) -> dict[str, T]:
        loader = self._loader
        if self._over:
            raise StopIteration
        if loader._iterator is not self:
            raise LoaderError(
                f"this iterator of epoch {self._epoch.number} was left: the loader was closed, given a state, "
                f"or iterated again."
            )
        try:
            if not self._begun:
                self._begun = True
                loader._start()
            return loader._next()
        except BaseException:
            self._over = True
            raise
