"""PyTorch, by DLPack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

from portaloader.contract import Adapter, Batches, DaliTensor, Device
from portaloader.errors import ArgumentError


class TorchAdapter(Adapter):
    """Zero-copy. On a GPU the host waits for DALI."""

    name = "torch"
    tensor_type = torch.Tensor

    @classmethod
    def default_device(cls) -> Device:
        return Device(torch.cuda.current_device()) if torch.cuda.is_available() else Device()

    def convert(self, tensor: DaliTensor, dtype: np.dtype[Any]) -> torch.Tensor:
        return torch.utils.dlpack.from_dlpack(tensor)

    def to_numpy(self, tensor: Any) -> npt.NDArray[Any]:
        return np.asarray(tensor.cpu().numpy())

    def data_pointer(self, tensor: Any) -> int | None:
        return int(tensor.data_ptr())

    def device_of(self, tensor: Any) -> Device:
        return Device(tensor.device.index if tensor.is_cuda else None)

    def native(self, batches: Batches) -> TorchDataset:
        return TorchDataset(batches)


class TorchDataset(IterableDataset[Any]):
    """For ``DataLoader(dataset, batch_size=None)``: it gives whole batches. Each iteration is an epoch, then the next."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise ArgumentError(
                "the DataLoader was given num_workers, and DALI's threads do not survive in its worker processes: "
                "num_workers=0. DALI works ahead on threads of its own, num_threads= of get_loader()."
            )
        return iter(self._batches)
