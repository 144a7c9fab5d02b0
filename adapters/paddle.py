"""PaddlePaddle, by DLPack. Works without a GPU, which DALI's own plugin does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

if "tensorflow" in sys.modules and "paddle" not in sys.modules:
    raise ImportError("TensorFlow was imported before, and Paddle after it ends the process; import paddle first")
import paddle

from portaloader.contract import Adapter, Batches, DaliTensor, Device

_BFLOAT = "Paddle reads unsigned 16-bit integers as bfloat16; cast in the pipeline with fn.cast."
_OLD = f"Paddle takes it from 3.3 on, and this is {paddle.__version__}; update it, or cast in the pipeline with fn.cast."


class PaddleAdapter(Adapter):
    """Zero-copy. On a GPU the host waits for DALI."""

    name = "paddle"
    tensor_type = paddle.Tensor
    unsupported: Mapping[np.dtype[Any], str] = {np.dtype(np.uint16): _BFLOAT}
    if not hasattr(paddle, "uint32"):
        unsupported = {**unsupported, np.dtype(np.uint32): _OLD, np.dtype(np.uint64): _OLD}

    @classmethod
    def default_device(cls) -> Device:
        place = paddle.device.get_device()
        return Device(int(place.partition(":")[2])) if place.startswith("gpu") else Device()

    def convert(self, tensor: DaliTensor, dtype: np.dtype[Any]) -> paddle.Tensor:
        return paddle.utils.dlpack.from_dlpack(tensor.__dlpack__(stream=None))

    def to_numpy(self, tensor: Any) -> npt.NDArray[Any]:
        return np.asarray(tensor.numpy())

    def data_pointer(self, tensor: Any) -> int | None:
        return int(tensor.data_ptr())

    def device_of(self, tensor: Any) -> Device:
        return Device(tensor.place.gpu_device_id() if tensor.place.is_gpu_place() else None)

    def native(self, batches: Batches) -> PaddleBatches:
        return PaddleBatches(batches)


class PaddleBatches(paddle.io.DataLoader):  # type: ignore[misc]
    """For ``paddle.Model.fit`` and loops over a ``DataLoader``: each iteration is an epoch, then the next.

    Not an ``IterableDataset``: ``Model.fit`` takes none, and the thread in which Paddle's ``DataLoader`` would read it leaves
    the training waiting for ever when a sample fails.
    """

    def __init__(self, batches: Batches) -> None:  # a DataLoader's own would make a sampler, queues and threads
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)
