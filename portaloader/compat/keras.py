"""Loaders for Keras 3's ``fit``, ``evaluate`` and ``predict``, under its TensorFlow, JAX and PyTorch backends.

    train = portaloader.get_loader("images/", framework=keras.backend.backend())
    model.fit(dataset(train, "image", "label"), epochs=3)

The batches are the backend's own tensors, and stay so: Keras is given no NumPy arrays.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import keras
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from portaloader.errors import ArgumentError
from portaloader.loader import Loader

_MINIMUM = (3, 7)
"""The first release whose ``fit`` takes a DataAdapter of somebody else's."""


def dataset(loader: Loader[Any], *fields: Any) -> LoaderAdapter:
    """Of every batch these outputs, as Keras wants them: inputs, targets, sample weights.

    Each epoch that Keras asks for is an epoch of the loader, and ends by itself. Keras is told one number of batches for all
    epochs. One that has fewer (the first behind a state, some of ``last_batch="wrap"``) ends with its warning that the input
    ran out of data, and nothing is lost.

    Args:
        loader: of the framework that Keras runs on: ``get_loader(framework=keras.backend.backend())``.
        *fields: the outputs' names; for a model with several inputs a tuple of names in place of the first. With
            ``last_batch="pad"``, "valid" as the third gives the padding no weight.

    Raises:
        ArgumentError: the loader's tensors are another framework's, no outputs were named, or Keras is too old.
        LoaderError: the loader is closed.
    """
    backend = keras.backend.backend()
    if tuple(int(part) for part in keras.__version__.split(".")[:2]) < _MINIMUM:
        raise ArgumentError(f'Keras {keras.__version__} is installed; 3.7 or newer is needed: pip install "keras>=3.7"')
    if loader.framework != backend:
        raise ArgumentError(
            f"Keras runs on {backend} here, and the loader gives tensors of {loader.framework}: make it with "
            f"framework={backend!r}, or start Keras with KERAS_BACKEND={loader.framework}."
        )
    if not fields:
        raise ArgumentError('the outputs were not named: inputs, then targets, such as dataset(loader, "image", "label").')
    return LoaderAdapter(loader.native(*fields), loader._stream.most)


class LoaderAdapter(DataAdapter):  # type: ignore[misc]
    """A loader's epochs, one after the other. Made by :func:`dataset`."""

    batch_size = has_partial_batch = partial_batch_size = None

    def __init__(self, native: Any, steps: int) -> None:
        self._native = native
        self._steps = steps
        self._kept: Iterator[Any] | None = None

    @property
    def num_batches(self) -> int:
        """Batches of the longest epoch."""
        return self._steps

    def get_jax_iterator(self) -> Iterator[Any]:
        """One epoch."""
        batches, self._kept = self._kept or iter(self._native), None
        for batch in batches:
            if _is_a_look():
                self._kept = chain([batch], batches)
            yield batch

    def get_torch_dataloader(self) -> Iterable[Any]:
        """One epoch."""
        return self.get_jax_iterator()

    def get_tf_dataset(self) -> Any:
        """Epoch after epoch, one in each iteration."""
        return self._native


def _is_a_look() -> bool:
    """Whether Keras asks for a batch only to build the model, the metrics and the losses that it is about to train.

    It tells nobody, and then begins with another epoch: the first would be lost, or its rest after a resumption.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "_symbolic_build":
            return True
        frame = frame.f_back
    return False
