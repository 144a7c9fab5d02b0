"""What a loader hands out, before any framework: an endless row of epochs of DALI's batches.

There are two kinds: the planned stream, a pure function of (source, plan, seed, epoch, position), and one of a DALI pipeline
that brings its own readers (:mod:`portaloader.dali_stream`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from portaloader.contract import DaliTensorList, Output, Shard
from portaloader.engine import Engine
from portaloader.errors import RaggedError, StateError
from portaloader.graph import OpenGraph
from portaloader.plan import EpochPlan, Plan, Rows
from portaloader.sources import Source

EPOCHS = 2**32 - 1
"""The last epoch's number: so many keys there are."""
_STATE_VERSION = 1


class Stream(ABC):
    """Epochs, one after the other. An epoch is begun, its batches are asked for one by one; it ends or is left."""

    names: tuple[str, ...]
    """Of the outputs."""
    shard: Shard
    batch_size: int
    epoch: int
    """The number of the epoch that is running, or that comes next."""
    running: bool = False
    """Whether an epoch was begun, and has neither ended nor been left."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Batches of the epoch that is running, or that comes next, as a whole; equal on all ranks."""

    @property
    @abstractmethod
    def most(self) -> int:
        """Batches of the longest epoch."""

    @property
    @abstractmethod
    def steady(self) -> bool:
        """Whether the epochs to come all have as many batches as this one."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether all batches are full ones."""

    @abstractmethod
    def outputs(self) -> dict[str, Output]:
        """What comes under each of the :attr:`names`, without taking a batch from the epoch that comes.

        Raises:
            RaggedError: the samples of an output differ in shape.
        """

    @abstractmethod
    def begin(self) -> None:
        """Begin the epoch that comes."""

    @abstractmethod
    def next(self) -> tuple[int, tuple[DaliTensorList, ...]]:
        """The next batch: how many samples it has, and the outputs in the order of :attr:`names`.

        Raises:
            StopIteration: the epoch is over; the next one comes.
        """

    @abstractmethod
    def leave(self) -> None:
        """Leave the epoch that is running; the next one comes."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The place behind the last batch."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Works in any state, and twice."""


class PlannedStream(Stream):
    """A source, in the order of a plan, through the engine's graph."""

    def __init__(self, source: Source, plan: Plan, engine: Engine, epoch: int) -> None:
        self.source = source
        self.plan = plan
        self.names = engine.names
        self.shard, self.batch_size = plan.shard, plan.batch_size
        self._engine = engine
        self._step = 0
        self._set(plan.epoch(epoch))

    def _set(self, epoch: EpochPlan, done: int = 0) -> None:
        self._epoch, self.epoch, self._done = epoch, epoch.number, done
        self._step, self.running, self._lent = 0, False, False

    @property
    def steps(self) -> int:
        return self._done + self._epoch.steps

    @property
    def most(self) -> int:
        plan = self.plan
        return -(-plan.size // plan.global_batch) if plan.last_batch == "wrap" else self.steps

    @property
    def steady(self) -> bool:
        plan, whole = self.plan, self._epoch.start == self.plan.epoch(self.epoch).start
        return whole and (plan.last_batch != "wrap" or plan.size % plan.global_batch == 0)

    @property
    def full(self) -> bool:
        plan = self.plan
        return plan.last_batch != "partial" or not (plan.size % plan.global_batch or self._epoch.start % plan.global_batch)

    def outputs(self) -> dict[str, Output]:
        return describe(self.names, self._engine.probe(self._epoch.rows(0)[:1]))

    def begin(self) -> None:
        self.running = True
        self._engine.start(self._epoch.batches())

    def open_graph(self, names: Sequence[str]) -> OpenGraph | None:
        """The graph with these outputs, for somebody else to feed and to run, who builds it anew for every epoch.

        None where DALI's own random operators would then repeat themselves.
        """
        return None if self._engine.random_operators else self._engine.open_graph(names)

    def lend(self) -> Iterator[Rows]:
        """Begin the epoch that comes with a graph that somebody else runs; its batches."""
        self.running = self._lent = True
        return self._epoch.batches()

    def next(self) -> tuple[int, tuple[DaliTensorList, ...]]:
        try:
            rows, outputs = self._engine.next()
        except StopIteration:
            self.leave()
            raise
        self._step += 1
        return len(rows), outputs

    def leave(self) -> None:
        self._set(self.plan.epoch(self._epoch.number + 1, self._epoch.carry))

    def close(self) -> None:
        self._engine.close()

    def state(self) -> dict[str, Any]:
        self._check_resumable()
        if self._lent:
            raise StateError(
                f"TensorFlow runs epoch {self.epoch} by DALI's compiled operator, and does not tell how far it is. Take the "
                f"state between two epochs, or iterate the loader, or its native(compiled=False)."
            )
        epoch, position = self._epoch, self._epoch.position(self._step)
        if self._step and self._step == epoch.steps:
            epoch = self.plan.epoch(epoch.number + 1, epoch.carry)
            position = epoch.start
        return {"version": _STATE_VERSION, "epoch": epoch.number, "position": position, **self._identity()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._check_resumable()
        if not isinstance(state, Mapping):
            raise StateError(f"a state is what state_dict() gave, a mapping; this is {state!r}.")
        if state.get("version") != _STATE_VERSION:
            raise StateError(f"the state has version {state.get('version')!r}; this portaloader reads {_STATE_VERSION}.")
        mine = self._identity()
        differing = [
            f"{key}: {state.get(key)!r} in the state, {mine[key]!r} here" for key in mine if state.get(key) != mine[key]
        ]
        if differing:
            raise StateError(f"the state belongs to another stream ({'; '.join(differing)}).")
        epoch, position = (self._whole(state, name, most) for name, most in (("epoch", EPOCHS), ("position", self.plan.size)))
        before = position - self.plan.epoch(epoch).start
        # Counted in batches of this loader; those of the one that was interrupted may have been of another size.
        self._set(self.plan.epoch(epoch, position), max(0, -(-before // self.plan.global_batch)))

    def _whole(self, state: Mapping[str, Any], name: str, most: int) -> int:
        value = state.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise StateError(f"the state's {name} is {value!r}; it is a whole number from 0 to {most}. The state was altered.")
        return value

    def _identity(self) -> dict[str, Any]:
        """What must be equal for a position to mean the same sample, augmented alike."""
        plan = self.plan
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


def describe(names: Sequence[str], outputs: Sequence[Any]) -> dict[str, Output]:
    """What DALI's tensor lists hold, by the outputs' names.

    Raises:
        RaggedError: the samples of one differ in shape.
    """
    from nvidia.dali.types import to_numpy_type

    found = {}
    for name, tensors in zip(names, outputs, strict=True):
        check_dense(name, tensors)
        found[name] = Output(np.dtype(to_numpy_type(tensors.dtype)), tuple(tensors.as_tensor().shape()[1:]))
    return found


def check_dense(name: str, tensors: DaliTensorList) -> None:
    """Raise RaggedError where the samples of an output differ in shape."""
    if not tensors.is_dense_tensor():
        shapes = sorted({tuple(tensors[i].shape()) for i in range(len(tensors))})
        raise RaggedError(
            f"the samples of output {name!r} differ in shape ({shapes[0]}, {shapes[-1]}), and no batch tensor holds "
            f"them. Bring them to one shape in the pipeline: fn.resize, fn.crop, fn.pad."
        )
