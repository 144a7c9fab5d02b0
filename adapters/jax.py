"""JAX, by DLPack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Sharding, SingleDeviceSharding

from portaloader.contract import Adapter, Batches, DaliTensor, Device
from portaloader.errors import ArgumentError, DtypeError

_REMEDY = "JAX rounds it to 32 bits unless JAX_ENABLE_X64=1 is set; set it, or cast in the pipeline with fn.cast."
_WIDE = {np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.uint64): np.dtype(np.uint32)}


class JaxAdapter(Adapter):
    """Zero-copy, but for 64-bit integers without ``jax_enable_x64``: JAX then has 32-bit ones only.

    Those become 32-bit, and values that do not fit are refused; 64-bit floats, which would be rounded, are refused.
    """

    name = "jax"
    tensor_type = jax.Array

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._sharding = SingleDeviceSharding(self._device())
        self._compiled = jax.jit(lambda values: values, out_shardings=self._sharding)
        if not jax.config.jax_enable_x64:
            self.narrowed = _WIDE
            self.unsupported = {np.dtype(np.float64): _REMEDY}

    @classmethod
    def default_device(cls) -> Device:
        first = jax.local_devices()[0]
        return Device(first.local_hardware_id) if first.platform == "gpu" else Device()

    def convert(self, tensor: DaliTensor, dtype: np.dtype[Any]) -> jax.Array:
        if dtype in self.narrowed:
            return self._narrow(tensor, self.narrowed[dtype])
        return jax.dlpack.from_dlpack(tensor)

    def _narrow(self, tensor: DaliTensor, dtype: np.dtype[Any]) -> jax.Array:
        values = np.asarray(tensor.as_cpu() if self.device.kind == "gpu" else tensor)
        narrow = values.astype(dtype)
        if (narrow != values).any():
            raise DtypeError(
                f"there is a {values.dtype} value outside of {dtype} ({values.min()} to {values.max()}). {_REMEDY}"
            )
        return self._place(narrow)

    def _place(self, values: npt.NDArray[Any]) -> jax.Array:
        # For small arrays JAX's cheapest way in is a compiled function: it takes a fifth of the time of device_put or DLPack.
        # Within jax.set_mesh() it would have to be of the mesh's devices.
        mesh = getattr(jax.sharding, "get_abstract_mesh", None)
        if mesh is None or mesh().empty:
            return self._compiled(values)
        return jax.device_put(values, self._sharding)

    def _device(self) -> jax.Device:
        if self.device.kind == "cpu":
            return jax.local_devices(backend="cpu")[0]
        return next(d for d in jax.local_devices(backend="gpu") if d.local_hardware_id == self.device.ordinal)

    def to_numpy(self, tensor: Any) -> npt.NDArray[Any]:
        return np.asarray(tensor)

    def data_pointer(self, tensor: Any) -> int | None:
        return int(tensor.unsafe_buffer_pointer())

    def device_of(self, tensor: Any) -> Device:
        (device,) = tensor.devices()
        return Device(device.local_hardware_id if device.platform == "gpu" else None)

    def native(self, batches: Batches, *, sharding: Sharding | Mapping[str, Sharding] | None = None) -> Any:
        return batches if sharding is None else ShardedBatches(batches, sharding)


class ShardedBatches:
    """Epoch after epoch, with the arrays laid out over devices.

    Args:
        batches: the loader's, of this process. With several processes, each brings its part of the global array.
        sharding: of all outputs, or by their names; an output that is not named stays where it is.
    """

    def __init__(self, batches: Batches, sharding: Sharding | Mapping[str, Sharding]) -> None:
        self._batches = batches
        by_name = isinstance(sharding, Mapping)
        self._shardings: dict[str, Any] = dict(sharding) if by_name else dict.fromkeys(batches.names, sharding)
        for name, one in self._shardings.items():
            if name not in batches.names or not isinstance(one, Sharding):
                raise ArgumentError(
                    f"sharding= has {name!r}: {one!r}; it is a jax.sharding.Sharding, or for some of the outputs "
                    f"{', '.join(map(repr, batches.names))} one each."
                )

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return map(self._picked, self._batches.whole())

    def _picked(self, batch: Mapping[str, jax.Array]) -> Any:
        return self._batches.pick({name: self._laid_out(name, array) for name, array in batch.items()})

    def _laid_out(self, name: str, array: jax.Array) -> jax.Array:
        sharding = self._shardings.get(name)
        if sharding is None:
            return array
        try:
            if jax.process_count() == 1:
                return jax.device_put(array, sharding)
            return jax.make_array_from_process_local_data(sharding, np.asarray(array))
        except (ValueError, AssertionError) as error:  # the latter for a spec of more axes than the array has
            raise ArgumentError(
                f"output {name!r} of shape {array.shape} cannot be laid out as {sharding}: {error}. Where it is the last "
                f'batch, last_batch="drop" or "pad" makes all full ones; sharding={{name: ...}} is for some outputs only.'
            ) from error
