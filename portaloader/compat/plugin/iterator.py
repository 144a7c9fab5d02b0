"""What DALI's iterators for MXNet and for Paddle have in common, on top of DALI's own counters."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, types
from nvidia.dali.backend import TensorGPU, TensorListGPU
from nvidia.dali.plugin.base_iterator import LastBatchPolicy, _DaliBaseIterator

from portaloader.errors import ArgumentError, DeviceError, PipelineRunError, RaggedError
from portaloader.outputs import of_pipeline, shared_outputs

_ITERATORS = types.PipelineAPIType.ITERATOR


class EpochIterator(_DaliBaseIterator):  # type: ignore[misc]
    """Epochs over pipelines, as DALI counts them. A subclass says what a batch is, in :meth:`_made`.

    Args:
        pipelines: one, or several with the same settings, each for a shard of its own. Nothing but iterators has run them.
        outputs: how many each of them has; None: any number.
        size: samples of an epoch, of all pipelines together; -1: the reader knows, or an external source ends the epoch.
        reader_name: the reader whose epochs count.
        auto_reset: whether the next epoch begins by itself; DALI's spellings are ``"yes"``, ``"no"`` and ``None``.
        fill_last_batch: DALI's old name for FILL and PARTIAL.
        last_batch_padded: with a size: whether the reader pads its last batch.
        last_batch_policy: what the last batch is.
        prepare_first_batch: whether the first batch is made at once.
    """

    _first_batch: list[Any] | None = None
    """Made, and not handed out yet."""

    def __init__(
        self,
        pipelines: Any,
        outputs: int | None,
        *,
        size: int,
        reader_name: str | None,
        auto_reset: bool | str | None,
        fill_last_batch: bool | None,
        last_batch_padded: bool,
        last_batch_policy: LastBatchPolicy,
        prepare_first_batch: bool,
    ) -> None:
        pipes = _checked_pipelines(pipelines, outputs)
        if fill_last_batch is None and not isinstance(last_batch_policy, LastBatchPolicy):
            raise ArgumentError(f"last_batch_policy={last_batch_policy!r} was given; there are FILL, DROP and PARTIAL.")
        _check_counting(len(pipes), _whole(size), reader_name, last_batch_padded)
        if reader_name:
            _check_reader(pipes, reader_name)
        super().__init__(
            pipes,
            size,
            reader_name,
            _resets(auto_reset),
            fill_last_batch,
            last_batch_padded,
            last_batch_policy,
            prepare_first_batch,
        )
        self._shared = {pipe: of_pipeline(pipe, shared_outputs) for pipe in pipes}
        if prepare_first_batch:
            self._look_ahead()

    def _owned(self, pipe: Any, index: int) -> bool:
        """Whether an output is in memory that nobody else reads or writes: the pipeline neither keeps nor reuses it."""
        return pipe.exec_dynamic and index not in self._shared[pipe]

    @abstractmethod
    def _made(self, outputs: Sequence[Sequence[Any]], kept: Sequence[int]) -> list[Any]:
        """The batch in the framework's terms.

        Args:
            outputs: of each pipeline, as DALI gives them.
            kept: how many samples of each pipeline belong to the epoch: under PARTIAL, and else all.
        """

    def __next__(self) -> list[Any]:
        self._ever_consumed = True
        batch, self._first_batch = self._first_batch, None
        return self._take() if batch is None else batch

    def reset(self) -> None:
        """Begin the next epoch. One that is not at its end goes on, with a warning; one that has not begun is the next."""
        if self._first_batch is None:
            super().reset()

    def _take(self) -> list[Any]:
        outputs = self._get_outputs()
        try:
            return self._made(outputs, self._kept())
        finally:  # a batch that is refused counts as well, and the next one follows
            self._schedule_runs()
            self._advance_and_check_drop_last()

    def _counting(self, outputs: Sequence[Any], kept: Sequence[int]) -> Iterator[tuple[Any, Any, int]]:
        """The pipelines that have a place in a batch that is cut: pipeline, outputs, samples. Beyond a size there are some."""
        for pipe, made, number in zip(self._pipes, outputs, kept, strict=True):
            if number or self._reader_name:
                yield pipe, made, number

    def _look_ahead(self) -> None:
        """Make the first batch. There is none where the pipelines were restored at an epoch's end."""
        try:
            self._first_batch = self._take()
            self._ever_consumed = False
        except StopIteration:
            self._ever_consumed = True  # so that iter() goes on to the next epoch
            try:
                self._report_no_data_in_pipeline()
            except RuntimeError as error:
                raise PipelineRunError(
                    "the pipelines give no batch: last_batch_policy=DROP and fewer samples than a batch has "
                    f"({self.batch_size}), or an external source without samples. Lower the batch size, or look at the source."
                ) from error

    def _kept(self) -> list[int]:
        pipes = self._num_gpus
        if self._last_batch_policy != LastBatchPolicy.PARTIAL or self._size < 0:
            return [self.batch_size] * pipes
        if self._reader_name:
            left = self._shard_sizes_per_gpu_initial[self._shards_id] - self._counter
        else:
            left = self._size - self._counter - self.batch_size * np.arange(pipes)
        return [int(number) for number in left.clip(0, self.batch_size)]

    def _check_batch_size(self, outputs: Sequence[Sequence[Any]]) -> None:
        lengths = {len(output) for made in outputs for output in made}
        if (self._reader_name or self._size > 0) and lengths != {self.batch_size}:
            raise ArgumentError(
                f"a batch has {sorted(lengths)} samples, and the pipelines' batch size is {self.batch_size}. Where it "
                f"varies, leave out size= and reader_name=."
            )


def copy_to(address: int, tensor: Any, cuda_stream: Any) -> None:
    """Copy a tensor of DALI's to a place in memory that has room for it."""
    if isinstance(tensor, (TensorGPU, TensorListGPU)):
        stream = types._raw_cuda_stream_ptr(cuda_stream)
        tensor.copy_to_external(ctypes.c_void_p(address), stream, non_blocking=cuda_stream is not None)
    else:
        tensor.copy_to_external(ctypes.c_void_p(address))


def check_dense(name: str, output: Any, remedy: str) -> None:
    """Raise RaggedError where the samples of an output differ in shape."""
    if not output.is_dense_tensor():
        shapes = sorted({tuple(shape) for shape in output.shape()})
        raise RaggedError(f"output {name!r} has samples of different shapes ({shapes[0]} and {shapes[-1]}). {remedy}")


def check_device(name: str, output: Any, devices: int) -> None:
    """Raise DeviceError where an output is on a GPU, and the framework has none."""
    if not devices and isinstance(output, (TensorGPU, TensorListGPU)):
        raise DeviceError(
            f"output {name!r} is on a GPU, and the framework sees none; its build may have no CUDA. End the pipeline with "
            f".cpu(), or install a build with CUDA."
        )


def check_distinct(names: Sequence[str]) -> None:
    """Raise ArgumentError where a name of the output_map is there twice."""
    if len(set(names)) != len(names):
        raise ArgumentError(f"output_map names {', '.join(map(repr, names))}; give each output a name of its own.")


def _checked_pipelines(pipelines: Any, outputs: int | None) -> list[Any]:
    pipes = list(pipelines) if isinstance(pipelines, (list, tuple)) else [pipelines]
    if not pipes or not all(isinstance(pipe, Pipeline) for pipe in pipes):
        raise ArgumentError(f"pipelines={pipelines!r} was given; it is a DALI pipeline, or a list of them.")
    if any(pipe._api_type not in (None, _ITERATORS) for pipe in pipes) or len(set(map(id, pipes))) < len(pipes):
        raise ArgumentError("a pipeline runs already, by run() or outputs(), or is here twice; make one for here alone.")
    _check_same("batch size", [pipe.max_batch_size for pipe in pipes])
    _check_same("enable_checkpointing", [pipe._enable_checkpointing for pipe in pipes])
    for pipe in pipes:
        pipe.build()
        if outputs not in (None, pipe.num_outputs):
            raise ArgumentError(f"{outputs} outputs were named, and the pipeline has {pipe.num_outputs}; name all of them.")
    return pipes


def _check_counting(pipes: int, size: int, reader: str | None, padded: bool) -> None:
    if reader and (size >= 0 or padded):
        raise ArgumentError(
            f"reader_name={reader!r} was given, and size={size}, last_batch_padded={padded} as well; the reader knows both. "
            f"Leave them out."
        )
    if size == 0 or (size < 0 and pipes > 1 and not reader):
        raise ArgumentError(
            f"size={size} was given for {pipes} pipeline{'s' if pipes > 1 else ''}; give reader_name=, or how many samples an "
            f"epoch has."
        )


def _whole(size: Any) -> int:
    try:
        return int(size)
    except (TypeError, ValueError):
        raise ArgumentError(f"size={size!r} was given; it is a number of samples, or -1.") from None


def _check_reader(pipes: Sequence[Any], reader: str) -> None:
    """Refuse pipelines whose readers do not read the same data set in the same way."""
    for pipe in pipes:
        if reader not in pipe.reader_meta():
            names = ", ".join(map(repr, sorted(pipe.reader_meta()))) or "none"
            raise ArgumentError(f"reader_name={reader!r} was given; a pipeline's readers are: {names}.")
    metas = [pipe.reader_meta(reader) for pipe in pipes]
    for key in ("epoch_size", "number_of_shards", "pad_last_batch", "stick_to_shard"):
        _check_same(f"{key} of the reader {reader!r}", [meta[key] for meta in metas])


def _check_same(what: str, values: Sequence[Hashable]) -> None:
    if len(set(values)) > 1:
        raise ArgumentError(f"the pipelines differ in {what}: {', '.join(map(str, values))}. Make them with the same one.")


def _resets(auto_reset: Any) -> bool:
    if auto_reset in (True, "yes", "True"):  # a word of DALI's documents, which DALI 2 does not take
        return True
    if not auto_reset or auto_reset == "no":
        return False
    raise ArgumentError(f'auto_reset={auto_reset!r} was given; it is True or "yes", or False, None or "no".')
