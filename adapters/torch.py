"""PyTorch, by DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from portaloader.contract import Adapter, DaliTensor, Device


class TorchAdapter(Adapter):
    """Zero-copy. On a GPU, PyTorch's current stream is made to wait for DALI's, and the host is not."""

    name = "torch"
    tensor_type = torch.Tensor

    @classmethod
    def default_device(cls) -> Device:
        return Device(torch.cuda.current_device()) if torch.cuda.is_available() else Device()

    def convert(self, tensor: DaliTensor, dtype: np.dtype[Any]) -> torch.Tensor:
        return torch.from_dlpack(tensor)

    def to_numpy(self, tensor: Any) -> npt.NDArray[Any]:
        return np.asarray(tensor.cpu().numpy())

    def data_pointer(self, tensor: Any) -> int | None:
        return int(tensor.data_ptr())

    def device_of(self, tensor: Any) -> Device:
        return Device(tensor.device.index if tensor.is_cuda else None)
