"""NumPy: batches on the host, without any framework. The reference that the others are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portaloader.contract import Adapter, DaliTensor, Device


class NumpyAdapter(Adapter):
    """A batch made on the CPU is handed over in place and is writable; one made on a GPU is copied to the host."""

    name = "numpy"
    tensor_type = np.ndarray

    @classmethod
    def default_device(cls) -> Device:
        return Device()

    def convert(self, tensor: DaliTensor, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        # Not np.from_dlpack: it gives a read-only array. This one owns a reference to the tensor as well.
        return np.asarray(tensor.as_cpu() if self.device.kind == "gpu" else tensor)

    def to_numpy(self, tensor: Any) -> npt.NDArray[Any]:
        return np.asarray(tensor)

    def data_pointer(self, tensor: Any) -> int | None:
        return int(tensor.ctypes.data)

    def device_of(self, tensor: Any) -> Device:
        return Device()
