"""DALI's iterators for MXNet, which its releases had until 1.39: the same names and batches on DALI 2."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mxnet
import numpy as np
from nvidia.dali import types
from nvidia.dali.backend import TensorGPU
from nvidia.dali.plugin.base_iterator import LastBatchPolicy

from portaloader.adapters.mxnet import MxnetAdapter
from portaloader.compat.plugin.iterator import EpochIterator, check_dense, check_device, check_distinct, copy_to
from portaloader.contract import Device
from portaloader.errors import ArgumentError

__all__ = [
    "DALIClassificationIterator",
    "DALIGenericIterator",
    "DALIGluonIterator",
    "LastBatchPolicy",
    "feed_ndarray",
    "get_mx_array",
]


def feed_ndarray(dali_tensor: Any, arr: Any, cuda_stream: Any = None) -> None:
    """Copy a tensor of DALI's into an array of the same shape and dtype.

    Args:
        dali_tensor: a ``TensorCPU`` or ``TensorGPU``.
        arr: the ``NDArray`` to be written.
        cuda_stream: the CUDA stream that the copy runs in; None: one of DALI's, and the copy has ended on return.

    Raises:
        ArgumentError: shape or dtype differ.
    """
    if not isinstance(arr, mxnet.nd.NDArray):
        raise ArgumentError(f"arr is a {type(arr).__name__}; feed_ndarray() writes into an NDArray, such as mxnet.nd.empty().")
    found = (tuple(dali_tensor.shape()), np.dtype(types.to_numpy_type(dali_tensor.dtype)))
    if found != (arr.shape, np.dtype(arr.dtype)):
        raise ArgumentError(
            f"DALI's tensor has shape {found[0]} and dtype {found[1]}, the NDArray {arr.shape} and {np.dtype(arr.dtype)}; "
            f"make it with get_mx_array(), of the tensor's shape and dtype."
        )
    mxnet.base.check_call(mxnet.base._LIB.MXNDArrayWaitToWrite(arr.handle))
    address = MxnetAdapter(Device()).data_pointer(arr)
    if address is not None:  # an array of no elements is nowhere
        copy_to(address, dali_tensor, cuda_stream)


def get_mx_array(shape: int | Iterable[int], ctx: Any = None, dtype: Any = None) -> Any:
    """An array with whatever values its memory has, to be fed. NumPy's ``longlong`` is taken for int64."""
    shape = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    return mxnet.nd.empty(shape, ctx, np.int64 if dtype == np.longlong else dtype)


class _MxnetIterator(EpochIterator, mxnet.io.DataIter):  # type: ignore[misc]
    """A ``DataIter``. On a GPU the host waits for DALI."""

    def _array(self, pipe: Any, index: int, name: str, tensor: Any) -> Any:
        """Without a copy, but for booleans and for memory that is not the batch's own."""
        check_device(name, tensor, mxnet.context.num_gpus())
        adapter = MxnetAdapter(Device(pipe.device_id if isinstance(tensor, TensorGPU) else None))
        dtype = np.dtype(types.to_numpy_type(tensor.dtype))
        adapter.check_dtype(name, dtype)
        array = adapter.convert(tensor, dtype)
        if not self._owned(pipe, index):
            array = array.copy()
            array.wait_to_read()
        return array


class DALIGenericIterator(_MxnetIterator):
    """For ``Module``: each batch is a list of ``DataBatch``, one for each pipeline, and all of them are full.

    Under PARTIAL the batch's ``pad`` says how many samples at its end do not belong to the epoch.

    Args:
        output_map: for each output its name and its tag, ``DATA_TAG`` or ``LABEL_TAG``.
        data_layout: of the data, for ``provide_data``.
        squeeze_labels: whether a last axis of 1 is taken from the labels.
        dynamic_shape: not looked at; shapes may change from batch to batch.

    The other arguments are :class:`~portaloader.compat.plugin.iterator.EpochIterator`'s.
    """

    DATA_TAG = "data"
    LABEL_TAG = "label"

    def __init__(
        self,
        pipelines: Any,
        output_map: Sequence[tuple[str, str]],
        size: int = -1,
        reader_name: str | None = None,
        data_layout: str = "NCHW",
        fill_last_batch: bool | None = None,
        auto_reset: bool | str | None = False,
        squeeze_labels: bool = True,
        dynamic_shape: Any = False,
        last_batch_padded: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:
        if any(len(item) != 2 or item[1] not in (self.DATA_TAG, self.LABEL_TAG) for item in output_map):
            raise ArgumentError(f"output_map={output_map!r} was given; an item is a name with DATA_TAG or LABEL_TAG.")
        check_distinct([name for name, _ in output_map])
        self.output_map = output_map
        self._data_layout = data_layout
        self._squeeze_labels = squeeze_labels
        self._provided: dict[str, list[mxnet.io.DataDesc]] = {}
        super().__init__(
            pipelines,
            len(output_map),
            size=size,
            reader_name=reader_name,
            auto_reset=auto_reset,
            fill_last_batch=fill_last_batch,
            last_batch_padded=last_batch_padded,
            last_batch_policy=last_batch_policy,
            prepare_first_batch=prepare_first_batch,
        )

    @property
    def provide_data(self) -> list[mxnet.io.DataDesc]:
        """Name, shape (of the batches of all pipelines together), dtype and layout of the data, as in the first batch."""
        return self._provide(self.DATA_TAG)

    @provide_data.setter
    def provide_data(self, described: Any) -> None:
        self._provide(self.DATA_TAG)
        self._provided[self.DATA_TAG] = described

    @property
    def provide_label(self) -> list[mxnet.io.DataDesc]:
        """Name, shape (of the batches of all pipelines together) and dtype of the labels, as in the first batch."""
        return self._provide(self.LABEL_TAG)

    @provide_label.setter
    def provide_label(self, described: Any) -> None:
        self._provide(self.LABEL_TAG)
        self._provided[self.LABEL_TAG] = described

    def _provide(self, tag: str) -> list[mxnet.io.DataDesc]:
        if not self._provided:
            self._look_ahead()
        if not self._provided:  # restored at an epoch's end: the first batch is the next epoch's
            self.reset()
            self._look_ahead()
        return self._provided[tag]

    def _made(self, outputs: Sequence[Sequence[Any]], kept: Sequence[int]) -> list[mxnet.io.DataBatch]:
        pipes = len(kept)
        pads = [self.batch_size - number for number in kept]
        if not self._reader_name:  # the size is that of all pipelines together, and so is what exceeds it
            pads = [(sum(pads) + index) // pipes for index in range(pipes)]
        batches = [self._data_batch(pipe, made, pad) for pipe, made, pad in zip(self._pipes, outputs, pads, strict=True)]
        self._provided = self._provided or self._described(batches[0])
        return batches

    def _data_batch(self, pipe: Any, outputs: Sequence[Any], pad: int) -> mxnet.io.DataBatch:
        arrays: dict[str, list[Any]] = {self.DATA_TAG: [], self.LABEL_TAG: []}
        for index, ((name, tag), output) in enumerate(zip(self.output_map, outputs, strict=True)):
            check_dense(name, output, "Make them equal, with fn.crop or fn.pad, or use DALIGluonIterator with SPARSE_TAG.")
            tensor = output.as_tensor()
            if tag == self.LABEL_TAG and self._squeeze_labels and len(tensor.shape()) > 1:
                tensor.squeeze(-1)
            arrays[tag].append(self._array(pipe, index, name, tensor))
        return mxnet.io.DataBatch(data=arrays[self.DATA_TAG], label=arrays[self.LABEL_TAG], pad=pad)

    def _described(self, batch: mxnet.io.DataBatch) -> dict[str, list[mxnet.io.DataDesc]]:
        described: dict[str, list[mxnet.io.DataDesc]] = {}
        for tag, arrays, layout in ((self.DATA_TAG, batch.data, self._data_layout), (self.LABEL_TAG, batch.label, "NCHW")):
            names = [name for name, its_tag in self.output_map if its_tag == tag]
            described[tag] = [
                mxnet.io.DataDesc(name, (len(self._pipes) * array.shape[0], *array.shape[1:]), array.dtype, layout)
                for name, array in zip(names, arrays, strict=True)
            ]
        return described


class DALIClassificationIterator(DALIGenericIterator):
    """:class:`DALIGenericIterator` for two outputs, the data and the label; its other arguments are the same.

    Args:
        data_name: the data's name.
        label_name: the label's name.
    """

    def __init__(
        self,
        pipelines: Any,
        size: int = -1,
        reader_name: str | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        data_layout: str = "NCHW",
        fill_last_batch: bool | None = None,
        auto_reset: bool | str | None = False,
        squeeze_labels: bool = True,
        dynamic_shape: Any = False,
        last_batch_padded: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:
        super().__init__(
            pipelines,
            [(data_name, self.DATA_TAG), (label_name, self.LABEL_TAG)],
            size,
            reader_name,
            data_layout,
            fill_last_batch,
            auto_reset,
            squeeze_labels,
            dynamic_shape,
            last_batch_padded,
            last_batch_policy,
            prepare_first_batch,
        )


class DALIGluonIterator(_MxnetIterator):
    """For Gluon loops: each batch is a list with a list of the outputs for each pipeline. Under PARTIAL the last is shorter.

    Args:
        output_types: for each output ``DENSE_TAG`` (one array) or ``SPARSE_TAG`` (an array for each sample, which may differ
            in shape); None: all are dense.

    The other arguments are :class:`~portaloader.compat.plugin.iterator.EpochIterator`'s.
    """

    DENSE_TAG = "dense"
    SPARSE_TAG = "sparse"

    def __init__(
        self,
        pipelines: Any,
        size: int = -1,
        reader_name: str | None = None,
        output_types: Sequence[str] | None = None,
        auto_reset: bool | str | None = False,
        fill_last_batch: bool | None = None,
        last_batch_padded: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:
        if output_types is not None and not set(output_types) <= {self.DENSE_TAG, self.SPARSE_TAG}:
            raise ArgumentError(f"output_types={output_types!r} was given; the tags are DENSE_TAG and SPARSE_TAG.")
        self._output_types = output_types
        super().__init__(
            pipelines,
            None if output_types is None else len(output_types),
            size=size,
            reader_name=reader_name,
            auto_reset=auto_reset,
            fill_last_batch=fill_last_batch,
            last_batch_padded=last_batch_padded,
            last_batch_policy=last_batch_policy,
            prepare_first_batch=prepare_first_batch,
        )

    def _made(self, outputs: Sequence[Sequence[Any]], kept: Sequence[int]) -> list[list[Any]]:
        return [
            [self._element(pipe, index, output, number) for index, output in enumerate(made)]
            for pipe, made, number in self._counting(outputs, kept)
        ]

    def _element(self, pipe: Any, index: int, output: Any, kept: int) -> Any:
        name = str(index)
        if self._output_types is not None and self._output_types[index] == self.SPARSE_TAG:
            return [self._array(pipe, index, name, output[i]) for i in range(min(kept, len(output)))]
        check_dense(name, output, "Say output_types=, with SPARSE_TAG for this one.")
        array = self._array(pipe, index, name, output.as_tensor())
        return array if kept >= len(output) else array[:kept]
