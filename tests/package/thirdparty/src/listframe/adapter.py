"""portaloader's adapters for listframe: the real one, and one that gets a single number wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from listframe import Tensor
from portaloader.contract import Adapter, DaliTensor, Device


class ListframeAdapter(Adapter):
    name = "listframe"
    tensor_type = Tensor

    @classmethod
    def default_device(cls) -> Device:
        return Device()

    def convert(self, tensor: DaliTensor, dtype: np.dtype[Any]) -> Tensor:
        return Tensor(memoryview(np.asarray(tensor)))

    def to_numpy(self, tensor: Any) -> npt.NDArray[Any]:
        return np.asarray(tensor.memory)

    def data_pointer(self, tensor: Any) -> int | None:
        return int(np.asarray(tensor.memory).ctypes.data)

    def device_of(self, tensor: Any) -> Device:
        return Device()


class FaultyAdapter(ListframeAdapter):
    """In the third batch, one value of one image is off by its last bit."""

    name = "listframe_faulty"
    images = 0

    def convert(self, tensor: DaliTensor, dtype: np.dtype[Any]) -> Tensor:
        if dtype == np.float32:
            self.images += 1
            if self.images == 3:
                values = np.array(tensor)
                values[1, 2, 5, 7] = np.nextafter(values[1, 2, 5, 7], np.float32(9))
                return Tensor(memoryview(values))
        return super().convert(tensor, dtype)
