"""A DALI pipeline with its own readers, as it is: a ``@pipeline_def`` function, or a ``Pipeline``.

DALI's own counters decide where an epoch ends and what the last batch is (``nvidia.dali.plugin.base_iterator``, beneath all of
its framework iterators), so the batches are those of DALI's iterator, in every framework.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from math import ceil
from typing import Any

import numpy as np

from portaloader.contract import DaliTensorList, LastBatch, Output, Shard, check_last_batch
from portaloader.dali import import_dali
from portaloader.errors import ArgumentError, LengthError, LoaderError, PipelineRunError, PlanError, StateError
from portaloader.outputs import given_outputs, of_pipeline, shared_outputs
from portaloader.stream import Stream, describe

_POLICIES = {"partial": "PARTIAL", "drop": "DROP", "pad": "FILL", "wrap": "FILL"}


class DaliStream(Stream):
    """The batches of DALI's own iterator over one pipeline.

    Args:
        pipe: built, and not run yet.
        outputs: their names; None: those that were given to the operators by ``name=``.
        reader: the reader whose epochs count; None: the only one there is. Without readers an epoch ends where an external
            source raises StopIteration.
        last_batch: which of DALI's policies.
        shard: this rank's.
    """

    def __init__(
        self, pipe: Any, outputs: Sequence[str] | None, reader: str | None, last_batch: LastBatch, shard: Shard
    ) -> None:
        check_last_batch(last_batch)
        self.shard, self.batch_size, self.epoch = shard, pipe.max_batch_size, 0
        self._pipe = pipe
        self._step = 0
        self._reader = _reader(pipe, reader)
        self._last_batch = last_batch
        self._check_reader()
        self.names = _names(pipe, outputs, last_batch == "pad")
        self._iterator: Any = self._counted(pipe)
        self._shared, self._numbers = of_pipeline(pipe, shared_outputs), of_pipeline(pipe, given_outputs)
        self._tally: Tally | None = None
        self._peeked: tuple[int, tuple[DaliTensorList, ...]] | None = None
        self._made: dict[str, Output] | None = None

    def _counted(self, pipe: Any) -> Any:
        """The pipeline beneath DALI's own counters."""
        from nvidia.dali.plugin import base_iterator

        policy = getattr(base_iterator.LastBatchPolicy, _POLICIES[self._last_batch])
        return base_iterator._DaliBaseIterator([pipe], reader_name=self._reader, auto_reset=True, last_batch_policy=policy)

    @property
    def steps(self) -> int:
        if self._reader is None:
            raise LengthError("this pipeline has no reader, so its number of batches is not known before its epoch ends.")
        if self._iterator is None:
            raise LengthError("the pipeline has failed or was closed; there is no epoch to come.")
        return len(self._iterator)

    @property
    def most(self) -> int:
        if self._last_batch != "wrap":
            return self.steps
        meta = self._pipe.reader_meta(self._reader)
        shard: int = ceil(meta["epoch_size"] / meta["number_of_shards"])
        return ceil(shard / self.batch_size)

    @property
    def steady(self) -> bool:
        return self._last_batch != "wrap" or self._even()

    @property
    def full(self) -> bool:
        return self._last_batch != "partial" or (self._reader is not None and self._even())

    def _even(self) -> bool:
        meta = self._pipe.reader_meta(self._reader)
        return not meta["epoch_size"] % (meta["number_of_shards"] * self.batch_size)

    def outputs(self) -> dict[str, Output]:
        if self._tally is not None:
            valid = {"valid": Output(np.dtype(np.bool_), ())} if self._last_batch == "pad" else {}
            made = enumerate(self._tally.made.items())
            return {name: _scalar(one) if place in self._numbers else one for place, (name, one) in made} | valid
        if self._made is None:
            self.begin()
            self._peeked, self.running = self.next(), False
        return self._made or {}

    def begin(self) -> None:
        if self._iterator is None:
            raise PipelineRunError("the pipeline has failed, and cannot be run again; make another loader.")
        self.running, self._step = True, 0 if self._peeked is None else 1

    def lend(self, refused: Collection[np.dtype[Any]]) -> Tally | None:
        """The pipeline for somebody else to run; None where it has run here already, calls Python, or makes such dtypes."""
        if self._tally is None and self._reader is not None and not self.epoch and not self.running and self._peeked is None:
            made = _made_by_a_copy(self._pipe, self.names)
            if made is not None and not any(output.dtype in refused for output in made.values()):
                self._tally = Tally(self._pipe, made)
                self._iterator = self._counted(self._tally)
        return self._tally

    def count(self) -> int:
        """Of a pipeline that somebody else runs: how many samples of its next batch count. Raises StopIteration."""
        return self._run()[1]

    def next(self) -> tuple[int, tuple[DaliTensorList, ...]]:
        if self._tally is not None:
            raise LoaderError("TensorFlow runs this loader's DALI pipeline; iterate what native() gave.")
        if self._peeked is not None:
            peeked, self._peeked = self._peeked, None
            return peeked
        outputs, count = self._run()
        if self._last_batch == "drop" and self._reader is None and count < self.batch_size:
            self._dropped(count)
        kept = len(outputs[0]) if self._last_batch == "pad" else count
        batch = tuple(self._handed_over(place, output, kept) for place, output in enumerate(outputs))
        if self._last_batch == "pad":
            batch, count = (*batch, _list(np.arange(self.batch_size) < count)), self.batch_size
        if self._made is None:
            self._made = describe(self.names, batch)
        return count, batch

    def _handed_over(self, place: int, output: Any, count: int) -> Any:
        """The first samples of an output; where the first batch has one number for each, numbers."""
        if count < len(output) or place in self._shared:
            output = _copy(output, count)
        first = None if self._made is None else self._made[self.names[place]].shape
        if place not in self._numbers or first not in (None, ()):
            return output
        if first == () and output.is_dense_tensor() and tuple(output.as_tensor().shape()[1:]) not in ((), (1,)):
            raise PipelineRunError(
                f"output {self.names[place]!r} had one number for each sample, and has shape {tuple(output[0].shape())} now. "
                f"One whose length changes is to have a further axis: fn.expand_dims(..., axes=1)."
            )
        return _scalars(output)

    def _dropped(self, count: int) -> None:
        """Pass over a batch that is not full, behind which the epoch has to end."""
        self._step -= 1
        self._run()
        raise PipelineRunError(
            f'last_batch="drop" was asked for, and the external source gives a batch of {count} samples, where '
            f'{self.batch_size} are a batch, and goes on behind it. Use last_batch="partial".'
        )

    def _run(self) -> tuple[Sequence[Any], int]:
        """The next batch, and how many of its samples belong to this epoch and this shard."""
        iterator = self._iterator
        try:
            (outputs,) = iterator._get_outputs()
            before = iterator._counter
            iterator._schedule_runs()
            iterator._advance_and_check_drop_last()
        except StopIteration:
            self.epoch, self.running = self.epoch + 1, False
            if not self._step:
                raise PipelineRunError(
                    "the epoch has no batch: the external source is exhausted, or has less than a batch to give and "
                    'last_batch is "drop". One that is iterated starts anew with cycle="raise"; a function is called with the '
                    "epoch's own numbers if it takes an argument."
                ) from None
            raise
        except Exception as error:
            self._iterator = None
            raise PipelineRunError(f"the pipeline failed: {error}") from error
        self._step += 1
        if self._reader is None or self._last_batch not in ("partial", "pad"):
            return outputs, len(outputs[0])
        size = int(iterator._shard_sizes_per_gpu_initial[iterator._shards_id][0])
        return outputs, min(self.batch_size, size - before)

    def leave(self) -> None:
        if self._iterator is None:
            self.running = False
            return
        if self._reader is None:
            self._pipe._last_iter = True  # asks for no further batch; a reader's epoch has to be read to its end
        self._step += 1  # an epoch that is left before its first batch is no empty one
        self._peeked = None
        while self.running:
            with suppress(StopIteration):
                self._run()

    def state(self) -> dict[str, Any]:
        raise StateError(
            "a DALI pipeline with its own readers cannot be resumed exactly. Give the files as the loader's source, and the "
            "operators as a @portaloader.pipeline with portaloader.random."
        )

    def load(self, state: Mapping[str, Any]) -> None:
        self.state()

    def close(self) -> None:
        self._iterator = self._pipe = self._tally = None

    def _check_reader(self) -> None:
        """Refuse what the reader cannot keep."""
        asked = f'last_batch="{self._last_batch}" was asked for'
        if self._reader is None:
            if self._last_batch in ("pad", "wrap"):
                raise PlanError(f'{asked}; a pipeline without readers has no rule to follow. Use "partial" or "drop".')
            return
        meta = self._pipe.reader_meta(self._reader)
        size, shards, padded = meta["epoch_size"], meta["number_of_shards"], bool(meta["pad_last_batch"])
        if shards != self.shard.count:
            raise PlanError(
                f"this process is rank {self.shard.index} of {self.shard.count}, and the reader {self._reader!r} has "
                f"{shards} shards. Give the pipeline's function the parameters shard_id and num_shards, and hand them on to "
                f"the reader; or say shard=({meta['shard_id']}, {shards}) where all ranks are to see the same."
            )
        if meta["shard_id"] != self.shard.index:
            raise PlanError(
                f"this process is rank {self.shard.index} of {shards}, and the reader {self._reader!r} reads shard "
                f"{meta['shard_id']}: some samples would be seen twice, others never. Give the pipeline's function the "
                f"parameter shard_id, and hand it on to the reader; or say shard=({meta['shard_id']}, {shards})."
            )
        if (self._last_batch == "pad" and not padded) or (self._last_batch == "wrap" and padded):
            raise PlanError(f"{asked}, and the reader {self._reader!r} has pad_last_batch={padded}; set it to {not padded}.")
        if self._last_batch == "drop" and size // shards < self.batch_size:
            raise PlanError(f"{asked}, and {size} samples in {shards} shards do not fill a batch of {self.batch_size}.")
        if self._last_batch != "partial":
            return
        steps = ceil(ceil(size / shards) / self.batch_size)
        if size // shards <= (steps - 1) * self.batch_size:
            raise PlanError(
                f"{asked}, and {size} samples in {shards} shards leave some rank an empty last batch. Use "
                f'last_batch="drop", or "pad" with pad_last_batch=True.'
            )
        if not padded and size % (shards * self.batch_size):
            warnings.warn(
                f"the reader {self._reader!r} has pad_last_batch=False: what fills its last batch is missing from the next "
                f"epoch. Set pad_last_batch=True, and each epoch has each sample.",
                stacklevel=4,
            )


class Tally:
    """Stands in for a pipeline beneath DALI's counters, where somebody else runs the pipeline: counts its runs."""

    _enable_checkpointing = False

    def __init__(self, pipe: Any, made: dict[str, Output]) -> None:
        self.pipe, self.made = pipe, made
        self.max_batch_size, self.reader_meta = pipe.max_batch_size, pipe.reader_meta
        self.kept: dict[str, Any] = {}
        self.runs = 0
        """Batches of the pipeline that the epochs up to here use up."""

    def share_outputs(self) -> tuple[Any, ...]:
        """A batch of which only the size is looked at."""
        self.runs += 1
        return (range(self.max_batch_size),)

    def _check_api_type_scope(self, kind: Any) -> Any:
        return nullcontext()

    def _nothing(self) -> None: ...

    build = release_outputs = schedule_run = reset = empty = _nothing


def _made_by_a_copy(pipe: Any, names: Sequence[str]) -> dict[str, Output] | None:
    """What the pipeline makes, found by running a copy of it; None where there can be none, as it calls Python."""
    schemas = {getattr(op._op, "schema_name", "") for op in pipe._ops}
    if any(word in schema for schema in schemas for word in ("ExternalSource", "Python", "Numba")):
        return None
    try:
        made = import_dali().Pipeline.deserialize(pipe.serialize()).run()
    except Exception as error:
        raise PipelineRunError(f"the pipeline failed: {error}") from error
    return describe(names[: len(made)], made)


def _reader(pipe: Any, asked: str | None) -> str | None:
    names = sorted(pipe.reader_meta())
    if asked is not None and asked not in names:
        raise ArgumentError(f"reader={asked!r} was asked for; the pipeline's readers are: {', '.join(names) or 'none'}.")
    if asked is None and len(names) > 1:
        raise ArgumentError(f"the pipeline has {len(names)} readers; say whose epochs count: reader= one of {names}.")
    return asked or next(iter(names), None)


def _names(pipe: Any, asked: Sequence[str] | None, with_valid: bool) -> tuple[str, ...]:
    nodes = pipe._graph_outputs or ()
    if asked is None:
        found = [node.name for node in nodes]
        if not found or any(name.startswith("__") or "[" in name for name in found):
            raise ArgumentError(
                f"the pipeline has {len(found) or 'some'} outputs, not all with names; give outputs=, such as "
                f'outputs=("image", "label"), or name the operators that make them by name="image".'
            )
        asked = found
    if isinstance(asked, str) or not all(isinstance(name, str) for name in asked) or len(set(asked)) != len(asked):
        raise ArgumentError(f"outputs={asked!r} was given; it is a sequence of names, each once.")
    if pipe.num_outputs != len(asked):
        raise ArgumentError(f"outputs={asked!r} was given; the pipeline has {pipe.num_outputs} outputs.")
    if with_valid and "valid" in asked:
        raise ArgumentError('the pipeline has an output "valid", which last_batch="pad" adds itself; give it another name.')
    return (*asked, "valid") if with_valid else tuple(asked)


def _copy(output: Any, count: int) -> Any:
    """The first samples of a batch, in memory of their own."""
    return type(output)([output[i] for i in range(count)], output.layout() or "")


def _scalars(output: Any) -> Any:
    """A number per sample, which readers give as shape (batch, 1), as (batch,); DALI's labels, int32, as int64."""
    from nvidia.dali import types

    shape = tuple(output.as_tensor().shape()[1:]) if output.is_dense_tensor() else None
    if shape != (1,) and not (shape == () and output.dtype == types.INT32):
        return output
    on_gpu = output.as_tensor().__dlpack_device__()[0] != 1
    values = np.asarray((output.as_cpu() if on_gpu else output).as_tensor()).reshape(-1)
    flat = _list(values.astype(np.int64) if output.dtype == types.INT32 else values.copy())
    return flat._as_gpu() if on_gpu else flat


def _scalar(made: Output) -> Output:
    """What :func:`_scalars` makes of it."""
    if made.shape not in ((), (1,)):
        return made
    return Output(np.dtype(np.int64) if made.dtype == np.int32 else made.dtype, ())


def _list(values: Any) -> Any:
    from nvidia.dali.backend import TensorListCPU

    return TensorListCPU(values)
