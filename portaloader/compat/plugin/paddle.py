"""DALI's iterators for Paddle where its own cannot work, without a GPU: they name a CUDA device whatever the pipeline's is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from nvidia.dali import types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy

from portaloader.adapters.paddle import PaddleAdapter  # before Paddle: it tells where that would end the process
from portaloader.compat.plugin.iterator import EpochIterator, check_dense, check_device, check_distinct, copy_to
from portaloader.contract import Device
from portaloader.errors import ArgumentError, RaggedError

# isort: split
import paddle

__all__ = ["DALIClassificationIterator", "DALIGenericIterator", "LastBatchPolicy", "feed_ndarray"]


def feed_ndarray(dali_tensor: Any, ptr: int, cuda_stream: Any = None) -> int:
    """Copy a tensor of DALI's to an address, such as a Paddle tensor's ``data_ptr()``, which has to have room for it.

    Args:
        dali_tensor: a ``TensorCPU`` or ``TensorGPU``.
        ptr: the address; returned.
        cuda_stream: the CUDA stream that the copy runs in; None: one of DALI's, and the copy has ended on return.
    """
    copy_to(ptr, dali_tensor, cuda_stream)
    return ptr


class DALIGenericIterator(EpochIterator):
    """Each batch is a list with a dict for each pipeline, from the outputs' names to Paddle's dense tensors.

    They are ``paddle.framework.core.DenseTensor`` as DALI's are: ``paddle.to_tensor()`` takes them, and so do
    ``numpy.array()`` and the feed of an ``Executor``. Under PARTIAL the last batch is shorter.

    Args:
        output_map: for each output its name, or its name and LoD level. With a level from 1 on the samples may differ in their
            first axes, as many as the level: they lie behind each other, and the tensor's ``lod()`` tells where each begins.
        dynamic_shape: not looked at; shapes may change from batch to batch.

    The other arguments are :class:`~portaloader.compat.plugin.iterator.EpochIterator`'s.
    """

    def __init__(
        self,
        pipelines: Any,
        output_map: Sequence[str | tuple[str, int]],
        size: int = -1,
        reader_name: str | None = None,
        auto_reset: bool | str | None = False,
        fill_last_batch: bool | None = None,
        dynamic_shape: Any = False,
        last_batch_padded: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:
        levels: list[Any] = [(item, 0) if isinstance(item, str) else tuple(item) for item in output_map]
        if any(len(item) != 2 or not isinstance(item[1], (int, np.integer)) or item[1] < 0 for item in levels):
            raise ArgumentError(f"output_map={output_map!r} was given; an item is a name, or a name and a LoD level from 0.")
        self.output_map = [name for name, _ in levels]
        self.normalized_map: dict[str, int] = dict(levels)
        check_distinct(self.output_map)
        super().__init__(
            pipelines,
            len(levels),
            size=size,
            reader_name=reader_name,
            auto_reset=auto_reset,
            fill_last_batch=fill_last_batch,
            last_batch_padded=last_batch_padded,
            last_batch_policy=last_batch_policy,
            prepare_first_batch=prepare_first_batch,
        )

    def _made(self, outputs: Sequence[Sequence[Any]], kept: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {
                name: self._tensor(pipe, index, output, min(number, len(output)))
                for index, (name, output) in enumerate(zip(self.output_map, made, strict=True))
            }
            for pipe, made, number in self._counting(outputs, kept)
        ]

    def _tensor(self, pipe: Any, index: int, output: Any, kept: int) -> Any:
        """Without a copy where the batch is whole, lies in one piece, and its memory is its own."""
        name = self.output_map[index]
        check_device(name, output, paddle.device.cuda.device_count())
        PaddleAdapter(Device()).check_dtype(name, np.dtype(types.to_numpy_type(output.dtype)))
        level = self.normalized_map[name]
        if not level:
            check_dense(name, output, f"Give it a LoD level, as ({name!r}, 1), or make them equal with fn.pad.")
        lengths, rest = _sequences(name, output.shape(), level, kept)
        shape = [sum(lengths[-1]) if level else kept, *rest]
        if kept == len(output) and output.is_dense_tensor() and self._owned(pipe, index):
            capsule = output.as_reshaped_tensor(shape).__dlpack__(stream=None)
        else:
            capsule = _first(output.as_cpu(), kept).reshape(shape).__dlpack__()
        made = paddle.framework.core.from_dlpack(capsule)
        if level:
            made.set_recursive_sequence_lengths(lengths)
        return made


class DALIClassificationIterator(DALIGenericIterator):
    """:class:`DALIGenericIterator` for two outputs, ``data`` and ``label``; its other arguments are the same."""

    def __init__(
        self,
        pipelines: Any,
        size: int = -1,
        reader_name: str | None = None,
        auto_reset: bool | str | None = False,
        fill_last_batch: bool | None = None,
        dynamic_shape: Any = False,
        last_batch_padded: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:
        super().__init__(
            pipelines,
            ["data", "label"],
            size,
            reader_name,
            auto_reset,
            fill_last_batch,
            dynamic_shape,
            last_batch_padded,
            last_batch_policy,
            prepare_first_batch,
        )


def _sequences(name: str, shapes: Sequence[tuple[int, ...]], level: int, kept: int) -> tuple[list[list[int]], tuple[int, ...]]:
    """For each LoD level how long its sequences are, and the shape of one element of the last level's."""
    if len(shapes[0]) < level:
        raise ArgumentError(
            f"output {name!r} was given LoD level {level}; its samples have {len(shapes[0])} axes, and no more."
        )
    if len({shape[level:] for shape in shapes}) > 1:
        raise RaggedError(f"output {name!r} has samples of different shapes behind LoD level {level}; give a higher one.")
    lengths, inner = [], list(shapes[:kept])
    for _ in range(level):
        lengths.append([shape[0] for shape in inner])
        inner = [shape[1:] for shape in inner for _ in range(shape[0])]
    return lengths, shapes[0][level:]


def _first(output: Any, count: int) -> npt.NDArray[Any]:
    """The values of the first samples, one behind the other."""
    none = np.empty(0, types.to_numpy_type(output.dtype))
    return np.concatenate([none, *(np.asarray(output[i]).ravel() for i in range(count))])
