"""TensorFlow, by DLPack. Works without any compiled plugin."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from portaloader.contract import Adapter, Batches, DaliTensor, Device

from .tensorflow_dataset import Shapes, dataset


class TensorflowAdapter(Adapter):
    """Zero-copy. TensorFlow does not tell which stream it works on, so on a GPU the host waits for DALI."""

    name = "tensorflow"
    tensor_type = tf.Tensor

    @classmethod
    def default_device(cls) -> Device:
        return Device(0) if tf.config.list_logical_devices("GPU") else Device()

    def convert(self, tensor: DaliTensor, dtype: np.dtype[Any]) -> tf.Tensor:
        return tf.experimental.dlpack.from_dlpack(tensor.__dlpack__(stream=None))

    def to_numpy(self, tensor: Any) -> npt.NDArray[Any]:
        return np.asarray(tensor.numpy())

    def data_pointer(self, tensor: Any) -> int | None:
        if self.device.kind == "gpu":
            return None
        # The array interface of an eager tensor on the CPU is a view of its memory.
        return int(np.asarray(memoryview(tensor)).ctypes.data)

    def device_of(self, tensor: Any) -> Device:
        spec = tf.DeviceSpec.from_string(tensor.device)
        return Device(spec.device_index if spec.device_type == "GPU" else None)

    def native(self, batches: Batches, *, compiled: bool | None = None, shapes: Shapes | None = None) -> tf.data.Dataset:
        return dataset(batches, compiled, shapes)
