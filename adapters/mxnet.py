"""Apache MXNet 1.9.1, its last release, by DLPack. Works beside NumPy 1.26 and 2."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Literal

import mxnet
import numpy as np
import numpy.typing as npt

from portaloader.contract import Adapter, Batches, DaliTensor, Device
from portaloader.errors import ArgumentError

from .mxnet_iter import GluonBatches, PortaloaderIter

_REMEDY = "MXNet has no such dtype; cast in the pipeline with fn.cast."


class MxnetAdapter(Adapter):
    """Zero-copy, but for ``bool``, which is copied: MXNet does not take it by DLPack. On a GPU the host waits."""

    name = "mxnet"
    tensor_type = mxnet.nd.NDArray
    unsupported: Mapping[np.dtype[Any], str] = {np.dtype(name): _REMEDY for name in ("int16", "uint16", "uint32", "uint64")}

    @classmethod
    def default_device(cls) -> Device:
        return Device(0) if mxnet.context.num_gpus() else Device()

    def convert(self, tensor: DaliTensor, dtype: np.dtype[Any]) -> mxnet.nd.NDArray:
        if dtype == np.bool_:
            context = mxnet.cpu() if self.device.ordinal is None else mxnet.gpu(self.device.ordinal)
            values = np.asarray(tensor.as_cpu() if self.device.kind == "gpu" else tensor)
            return mxnet.nd.array(values, ctx=context, dtype=np.bool_)
        return mxnet.nd.from_dlpack(tensor.__dlpack__(stream=None))

    def to_numpy(self, tensor: Any) -> npt.NDArray[Any]:
        return np.asarray(tensor.asnumpy())

    def data_pointer(self, tensor: Any) -> int | None:
        address = ctypes.c_void_p()
        mxnet.base.check_call(mxnet.base._LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(address)))
        return address.value

    def device_of(self, tensor: Any) -> Device:
        return Device(tensor.context.device_id if tensor.context.device_type == "gpu" else None)

    def native(
        self, batches: Batches, *, style: Literal["module", "gluon"] = "module", label_dtype: Any = None
    ) -> PortaloaderIter | GluonBatches:
        if style not in ("module", "gluon"):
            raise ArgumentError(f'style={style!r} was asked for; there are "module" (a DataIter) and "gluon" (a DataLoader).')
        if style == "gluon":
            if label_dtype is not None:
                raise ArgumentError('label_dtype is for style="module"; Gluon\'s losses take the labels as they are.')
            return GluonBatches(batches)
        return PortaloaderIter(batches, label_dtype)
