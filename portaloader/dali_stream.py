"""A DALI pipeline with its own readers, as it is: a ``@pipeline_def`` function, or a ``Pipeline``.

DALI's own counters decide where an epoch ends and what the last batch is (``nvidia.dali.plugin.base_iterator``, beneath all of
its framework iterators), so the batches are those of DALI's iterator, in every framework.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import numpy as np

from portaloader.contract import DaliTensorList, LastBatch, Shard, check_last_batch
from portaloader.dali import check_gpu, import_dali
from portaloader.errors import ArgumentError, LengthError, PipelineError, PipelineRunError, PlanError, StateError
from portaloader.stream import Stream

_POLICIES = {"partial": "PARTIAL", "drop": "DROP", "pad": "FILL", "wrap": "FILL"}


def is_dali(pipeline: Any) -> bool:
    """Whether this is a ``@pipeline_def`` function or a ``Pipeline`` of DALI's. Does not import DALI."""
    return getattr(pipeline, "_is_pipeline_def", False) or (
        "nvidia.dali" in sys.modules and isinstance(pipeline, sys.modules["nvidia.dali"].Pipeline)
    )


@dataclass(frozen=True)
class Asked:
    """Arguments of ``nvidia.dali.Pipeline``; None: nobody said."""

    batch_size: int | None
    num_threads: int | None
    seed: int | None
    prefetch_queue_depth: int | None
    device_id: int | Literal["auto"] | None = "auto"
    """None is the CPU here, and "auto" that nobody said."""

    def given(self) -> dict[str, Any]:
        """Those that somebody said."""
        said = {name: value for name, value in vars(self).items() if value is not None and name != "device_id"}
        return said if self.device_id == "auto" else {**said, "device_id": self.device_id}


def make_pipeline(pipeline: Any, arguments: Mapping[str, Any], shard: Shard, asked: Asked, otherwise: Asked) -> Any:
    """The built ``Pipeline``.

    Args:
        pipeline: the function, or a pipeline, built or not, that nothing has run yet.
        arguments: of the function. Its ``shard_id`` and ``num_shards`` are filled in where it has such parameters.
        shard: this rank's.
        asked: by the user.
        otherwise: for what neither was asked for nor stands at the decorator.

    Raises:
        ArgumentError: the arguments do not fit, or the pipeline cannot be used.
    """
    dali = import_dali()
    if isinstance(pipeline, dali.Pipeline):
        made = pipeline
        if arguments:
            raise ArgumentError(
                f"the arguments {', '.join(arguments)} were given; a Pipeline is made, and takes none any more."
            )
        found = {"batch_size": made.max_batch_size, "num_threads": made.num_threads, "device_id": made.device_id}
        for name, value in asked.given().items():
            if name in found and found[name] != value:
                raise ArgumentError(f"{name}={value} was asked for; the pipeline was made with {found[name]}.")
    else:
        known = inspect.signature(pipeline).parameters
        filled = {"shard_id": shard.index, "num_shards": shard.count}
        arguments = {**{name: value for name, value in filled.items() if name in known}, **arguments}
        constructor = set(inspect.signature(dali.Pipeline).parameters) - set(known)
        decorated = inspect.getclosurevars(pipeline).nonlocals.get("pipeline_kwargs", {})
        settings = {**{name: value for name, value in otherwise.given().items() if name not in decorated}, **asked.given()}
        try:
            inspect.signature(pipeline).bind(**{k: v for k, v in arguments.items() if k not in constructor})
        except TypeError as error:
            takes = ", ".join(known) or "none"
            raise ArgumentError(f"the pipeline {pipeline.__name__}(): {error}. It takes: {takes}.") from error
        made = pipeline(**arguments, **settings)
    if made._api_type is not None:
        raise ArgumentError(
            "the pipeline runs elsewhere already (its run(), or an iterator); make another one for the loader."
        )
    if made.device_id is not None:
        check_gpu(made.device_id)
    if not made.exec_dynamic:
        raise ArgumentError("the pipeline was made with exec_dynamic=False, and overwrites its batches; leave that out.")
    try:
        made.build()
    except Exception as error:
        raise PipelineError(f"DALI cannot build the pipeline: {error}") from error
    return made


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
        from nvidia.dali.plugin import base_iterator

        check_last_batch(last_batch)
        self.shard, self.batch_size, self.epoch = shard, pipe.max_batch_size, 0
        self._pipe = pipe
        self._step = 0
        self._reader = _reader(pipe, reader)
        self._last_batch = last_batch
        self._check_reader()
        self.names = (*_names(pipe, outputs), *(["valid"] if last_batch == "pad" else []))
        self._iterator: Any = base_iterator._DaliBaseIterator(
            [pipe],
            reader_name=self._reader,
            auto_reset=True,
            last_batch_policy=getattr(base_iterator.LastBatchPolicy, _POLICIES[last_batch]),
        )

    @property
    def steps(self) -> int:
        if self._reader is None:
            raise LengthError("this pipeline has no reader, so its number of batches is not known before its epoch ends.")
        if self._iterator is None:
            raise LengthError("the pipeline has failed or was closed; there is no epoch to come.")
        return len(self._iterator)

    def begin(self) -> None:
        if self._iterator is None:
            raise PipelineRunError("the pipeline has failed, and cannot be run again; make another loader.")
        self.running, self._step = True, 0

    def next(self) -> tuple[int, tuple[DaliTensorList, ...]]:
        outputs, count = self._run()
        if self._last_batch == "drop" and self._reader is None and count < self.batch_size:
            return self.next()
        valid = np.arange(self.batch_size) < count
        if self._last_batch == "pad":
            return self.batch_size, (*map(_scalars, outputs), _list(valid))
        return count, tuple(_scalars(_first(output, count)) for output in outputs)

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
                    "the epoch has no batch: the external source is exhausted. One that is iterated starts anew with "
                    'cycle="raise"; a function is called with the epoch\'s own numbers if it takes an argument.'
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
        self._iterator = self._pipe = None

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
                f"the reader; or say shard=(0, {shards}) where all ranks are to see the same."
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


def _reader(pipe: Any, asked: str | None) -> str | None:
    names = sorted(pipe.reader_meta())
    if asked is not None and asked not in names:
        raise ArgumentError(f"reader={asked!r} was asked for; the pipeline's readers are: {', '.join(names) or 'none'}.")
    if asked is None and len(names) > 1:
        raise ArgumentError(f"the pipeline has {len(names)} readers; say whose epochs count: reader= one of {names}.")
    return asked or next(iter(names), None)


def _names(pipe: Any, asked: Sequence[str] | None) -> Sequence[str]:
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
    if nodes and len(nodes) != len(asked):
        raise ArgumentError(f"outputs={asked!r} was given; the pipeline has {len(nodes)} outputs.")
    return asked


def _first(output: Any, count: int) -> Any:
    """The first samples of a batch."""
    if count == len(output):
        return output
    return type(output)([output[i] for i in range(count)], output.layout() or "")


def _scalars(output: Any) -> Any:
    """A number per sample, which readers give as shape (batch, 1), as (batch,); DALI's labels, int32, as int64."""
    from nvidia.dali import types

    if not output.is_dense_tensor() or tuple(output.as_tensor().shape()[1:]) != (1,):
        return output
    on_gpu = output.as_tensor().__dlpack_device__()[0] != 1
    values = np.asarray((output.as_cpu() if on_gpu else output).as_tensor()).reshape(-1)
    flat = _list(values.astype(np.int64) if output.dtype == types.INT32 else values.copy())
    return flat._as_gpu() if on_gpu else flat


def _list(values: Any) -> Any:
    from nvidia.dali.backend import TensorListCPU

    return TensorListCPU(values)
