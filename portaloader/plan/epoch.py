"""Steps, shards and the last batch, as a pure function of the position.

An epoch is the sequence of positions 0, 1, ... n - 1. Step s of the epoch takes a run of consecutive positions, at most
``batch_size * shard.count`` of them, and rank k takes every ``count``-th of the run, from the k-th on. So the set of
samples that all ranks together have seen after a step does not depend on how many ranks there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from portaloader.contract import MOST, LastBatch, Shard, check_last_batch
from portaloader.errors import ArgumentError, PlanError
from portaloader.plan.permutation import Permutation

Int64s = npt.NDArray[np.int64]

_PLANNED_TOGETHER = 1024
"""Samples."""


@dataclass(frozen=True)
class Rows:
    """One batch of one rank, as integers."""

    ids: Int64s
    """Sample ids, shape (batch,)."""
    epochs: Int64s
    """The epoch that each sample belongs to, shape (batch,): with "wrap" the tail is of the next one."""
    valid: npt.NDArray[np.bool_]
    """False where "pad" filled the batch up, shape (batch,)."""

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: slice) -> Rows:
        return Rows(self.ids[index], self.epochs[index], self.valid[index])


@dataclass(frozen=True)
class Plan:
    """Which samples come, for one rank, in every epoch."""

    size: int
    """Number of samples in the source, at least 1."""
    batch_size: int
    """Samples in a full batch of one rank."""
    shuffle: bool = True
    seed: int = 0
    last_batch: LastBatch = "partial"
    shard: Shard = Shard(0, 1)

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, (int, np.integer)):
            raise ArgumentError(f"batch_size={self.batch_size!r} is not a whole number; give one of at least 1.")
        if not 1 <= self.batch_size <= MOST:
            raise ArgumentError(
                f"batch_size={self.batch_size} was asked for; a batch holds at least 1 sample, at most {MOST}."
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer)):
            raise ArgumentError(f"seed={self.seed!r} is not a whole number.")
        check_last_batch(self.last_batch)
        # NumPy's integers would overflow, and JSON does not know them.
        object.__setattr__(self, "batch_size", int(self.batch_size))
        object.__setattr__(self, "seed", int(self.seed))
        self.epoch(0)

    @property
    def global_batch(self) -> int:
        """Samples in a full step of all ranks together."""
        return self.batch_size * self.shard.count

    def epoch(self, number: int, start: int | None = None) -> EpochPlan:
        """The plan of one epoch, from position ``start`` on (None: from where this epoch begins)."""
        if start is None:
            # With "wrap" the stream is one line of epochs, cut into full batches: the first batch of this epoch is the
            # first that begins within it or behind the end of the epoch before.
            start = -(number * self.size) % self.global_batch if self.last_batch == "wrap" else 0
        return EpochPlan(self, number, start)

    def order(self, epoch: int, positions: Int64s) -> Int64s:
        """The sample ids at these positions of an epoch."""
        return _permutation(self.size, self.seed, epoch)[positions] if self.shuffle else positions


@dataclass(frozen=True)
class EpochPlan:
    """The steps of one epoch from one position on. Equal on every rank, but for the rows."""

    plan: Plan
    number: int
    start: int
    """The first position; the ones before it are done."""

    def __post_init__(self) -> None:
        plan, ranks = self.plan, self.plan.shard.count
        if self.remaining <= 0:
            return
        found = f"{self.remaining} samples for {ranks} ranks with batch_size={plan.batch_size}"
        if plan.last_batch == "partial":
            # A full cycle of ranks in every step, or some rank would stand still: one sample per rank is the least.
            if self.remaining < ranks or (plan.batch_size == 1 and self.remaining % ranks):
                raise PlanError(
                    f'last_batch="partial" was asked for, and {found} cannot be dealt so that every rank makes the same '
                    f'number of steps, none of them empty. Use last_batch="pad", or fewer ranks.'
                )
        elif plan.last_batch in ("drop", "wrap") and plan.size < plan.global_batch:
            raise PlanError(
                f'last_batch="{plan.last_batch}" was asked for, and {found} do not fill a single step of '
                f'{plan.global_batch}. Use last_batch="pad" or "partial", or a smaller batch_size.'
            )

    @property
    def remaining(self) -> int:
        """Samples of this epoch that are still to come, over all ranks."""
        return self.plan.size - self.start

    @property
    def steps(self) -> int:
        """Number of batches, equal on every rank."""
        if self.remaining <= 0:
            return 0
        if self.plan.last_batch == "drop":
            return self.remaining // self.plan.global_batch
        return -(-self.remaining // self.plan.global_batch)

    @property
    def carry(self) -> int:
        """Where the next epoch begins: how much of it this epoch's last batch took ("wrap"), else 0."""
        if self.plan.last_batch != "wrap":
            return 0
        return self.start + self.steps * self.plan.global_batch - self.plan.size

    def position(self, step: int) -> int:
        """The position at which a step begins (``steps`` itself: where the last one ends), over all ranks."""
        plan, ranks = self.plan, self.plan.shard.count
        position = self.start + step * plan.global_batch
        if plan.last_batch != "partial":
            return position
        if step == self.steps:
            return plan.size
        if step == self.steps - 1 and step > 0 and plan.size - position < ranks:
            # Too few samples are left for the last step; the one before it leaves it one for each rank.
            return plan.size - ranks
        return position

    def rows(self, step: int) -> Rows:
        """The batch of this rank at a step: ``batch_size`` samples, but for the tail of "partial"."""
        return self._rows(self._positions(step))

    def batches(self) -> Iterator[Rows]:
        """The batches of this rank in turn: :meth:`rows` of every step."""
        # NumPy's cost is by the call on such small arrays, so several steps are planned in one.
        together = max(1, _PLANNED_TOGETHER // self.plan.batch_size)
        for first in range(0, self.steps, together):
            parts = [self._positions(step) for step in range(first, min(first + together, self.steps))]
            rows, end = self._rows(np.concatenate(parts)), 0
            for part in parts:
                begin, end = end, end + len(part)
                yield rows[begin:end]

    def _positions(self, step: int) -> Int64s:
        shard = self.plan.shard
        return np.arange(self.position(step) + shard.index, self.position(step + 1), shard.count, dtype=np.int64)

    def _rows(self, positions: Int64s) -> Rows:
        plan = self.plan
        later, within = np.divmod(positions, plan.size)
        valid = np.ones(len(positions), dtype=np.bool_)
        if plan.last_batch == "pad":
            valid, later = later == 0, np.zeros_like(later)
        epochs = later + self.number
        ids = np.empty_like(positions)
        for epoch in np.unique(epochs):
            of_it = epochs == epoch
            ids[of_it] = plan.order(int(epoch), within[of_it])
        return Rows(ids, epochs, valid)


@lru_cache(maxsize=8)
def _permutation(size: int, seed: int, epoch: int) -> Permutation:
    return Permutation(size, seed, epoch)
